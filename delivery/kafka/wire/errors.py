"""What an error of Kafka's protocol means for the data.

What it is: the one place where its numbers become kinds of `DeliveryError`.
What it must not know: what was being done beyond its name.

Invariants:
    What is not listed may have happened, where something was written, and did not, where nothing
    was.
"""

from __future__ import annotations

from dedup.errors import DeliveryError, Indeterminate, InvalidUsage, Unavailable

__all__ = [
    "ANOTHER_LEADER",
    "DUPLICATE",
    "NONE",
    "NOT_THERE",
    "OUT_OF_ORDER",
    "again",
    "of_read",
    "of_write",
    "replaced",
    "unanswered",
]

NONE = 0
OUT_OF_RANGE = 1
#: The broker has such a batch of this producer already.
DUPLICATE = 46
#: One of this producer's batches is missing before it.
OUT_OF_ORDER = 45
#: The topic or partition is not known, or not under that identity.
NOT_THERE = frozenset({3, 100, 103})
#: Somebody else leads the partition, or nobody just now.
ANOTHER_LEADER = frozenset({5, 6, 9, 56, 74, 75})
#: Nothing was written, or nobody can tell, and the same request may succeed: corrupt on its way (2),
#: not in time (7), the broker is going away (8, 13), too few replicas (19, 20), not known yet (78),
#: the coordinator of transactions is moving or not there (14, 15, 16, 51), throttled (89).
_AGAIN = frozenset({2, 7, 8, 13, 14, 15, 16, 19, 20, 51, 78, 89})

_FORBIDDEN = "the cluster refuses this user; grant access to it, or mend the credentials"
_MISSING = "there is no such topic or partition; create it, or mend the name"
_TOO_LARGE = "the topic refuses a record of that size; raise its max.message.bytes"
_REFUSED = "the topic refuses such a record; see its settings"
_OUTSIDE = (
    "the log does not hold that offset (any more, or yet); nothing was skipped: load the lane "
    "again, which names the range that is gone"
)
_UNREACHABLE = (
    "no broker answers; nothing was changed: start it, or mend the address or the security options, "
    "and retry"
)

#: Wrong in the code, the configuration or the cluster; the same again fails again.
_USAGE = {
    3: _MISSING,
    10: _TOO_LARGE,
    17: "Kafka takes no such name for a topic; mend it",
    18: _TOO_LARGE,
    29: _FORBIDDEN,
    31: _FORBIDDEN,
    43: "the topic keeps an old message format; upgrade it",
    44: "a policy of the cluster refuses it; ask who runs it",
    58: _FORBIDDEN,
    76: "a broker cannot read this compression; choose another compression.type",
    87: _REFUSED,
    100: _MISSING,
    103: _MISSING,
}


def again(code: int) -> bool:
    """Tell whether the same request may succeed."""
    return code in _AGAIN or code in ANOTHER_LEADER or code in NOT_THERE


def of_read(op: str, subject: str, code: int) -> DeliveryError:
    """Return what an error means where nothing was written."""
    if code in _USAGE:
        return InvalidUsage(op, subject, f"{_USAGE[code]} (error {code} of Kafka's)")
    hint = _OUTSIDE if code == OUT_OF_RANGE else _UNREACHABLE
    return Unavailable(op, subject, f"{hint} (error {code} of Kafka's)")


def of_write(subject: str, code: int, text: str) -> DeliveryError:
    """Return what an error means where something may have been written."""
    told = f"error {code} of Kafka's{': ' if text else ''}{text}"
    if code in _USAGE:
        return InvalidUsage("emit records", subject, f"{_USAGE[code]} ({told})")
    return Indeterminate(
        "emit records",
        subject,
        f"some records may have been written ({told}); receivers drop repeats: emit the same again",
    )


def unanswered(op: str, subject: str, text: str) -> Unavailable:
    """Return the error about brokers that do not answer, where nothing was written."""
    return Unavailable(op, subject, f"{_UNREACHABLE} ({text})")


def replaced(op: str, subject: str) -> InvalidUsage:
    """Return the error about a topic that is not the one that is meant."""
    return InvalidUsage(
        op,
        subject,
        "it was deleted and created again under its name, and its offsets mean other records now; "
        "nothing was read: if that is meant, say `delivery stage accept-topic`",
    )
