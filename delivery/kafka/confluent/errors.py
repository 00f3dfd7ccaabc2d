"""What an error of librdkafka means for the data.

What it is: the one place where codes become kinds of `DeliveryError`.
What it must not know: what was being done beyond its name.

Invariants:
    What is not listed may have happened, where something was written, and did not, where nothing
    was.
"""

from __future__ import annotations

from confluent_kafka import KafkaError

from dedup.errors import DeliveryError, Indeterminate, InvalidUsage, Unavailable

__all__ = ["missing", "of_read", "of_write"]

_UNREACHABLE = (
    "no broker answers; nothing was changed: start it, or mend the address or the security options, "
    "and retry"
)
_MISSING = "there is no such topic or partition; create it, or mend the name"
_FORBIDDEN = "the cluster refuses this user; grant access to it, or mend the credentials"
_OUTSIDE = (
    "the log does not hold that offset (any more, or yet); nothing was skipped: load the lane "
    "again, which names the range that is gone"
)

#: Wrong in the code, the configuration or the cluster; the same again fails again.
_USAGE = {
    KafkaError._AUTHENTICATION: _FORBIDDEN,  # noqa: SLF001  librdkafka's own codes begin so
    KafkaError._INVALID_ARG: "an option is not understood; mend it",  # noqa: SLF001  see above
    KafkaError._SSL: "TLS cannot be set up; mend the ssl.* options",  # noqa: SLF001  see above
    KafkaError._UNKNOWN_PARTITION: _MISSING,  # noqa: SLF001  see above
    KafkaError._UNKNOWN_TOPIC: _MISSING,  # noqa: SLF001  see above
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _FORBIDDEN,
    KafkaError.GROUP_AUTHORIZATION_FAILED: _FORBIDDEN,
    KafkaError.INVALID_CONFIG: "a setting of the topic is not understood; mend it",
    KafkaError.INVALID_PARTITIONS: "a topic cannot have that many partitions; mend it",
    KafkaError.INVALID_RECORD: "the topic refuses such a record; see its settings",
    KafkaError.INVALID_REPLICATION_FACTOR: "there are not that many brokers; ask for fewer copies",
    KafkaError.MSG_SIZE_TOO_LARGE: "the topic refuses a record of that size; raise its "
    "max.message.bytes",
    KafkaError.POLICY_VIOLATION: "a policy of the cluster refuses it; ask who runs it",
    KafkaError.SASL_AUTHENTICATION_FAILED: _FORBIDDEN,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _FORBIDDEN,
    KafkaError.TOPIC_EXCEPTION: "Kafka takes no such name for a topic; mend it",
    KafkaError.UNKNOWN_TOPIC_OR_PART: _MISSING,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic keeps an old message format; upgrade it",
}
#: Nothing happened, and the state of the log says why.
_AWAY = {
    KafkaError._AUTO_OFFSET_RESET: _OUTSIDE,  # noqa: SLF001  see above
    KafkaError.OFFSET_OUT_OF_RANGE: _OUTSIDE,
}


def missing(op: str, subject: str) -> InvalidUsage:
    """Return the error about a topic or partition that is not there."""
    return InvalidUsage(op, subject, f"{_MISSING}; nothing was read")


def of_read(op: str, subject: str, error: KafkaError, text: str) -> DeliveryError:
    """Return what an error means where nothing was written.

    Args:
        op: what was attempted.
        subject: on what.
        error: librdkafka's.
        text: its text, without secrets.
    """
    code = error.code()
    if code in _USAGE:
        return InvalidUsage(op, subject, f"{_USAGE[code]} ({text})")
    return Unavailable(op, subject, f"{_AWAY.get(code, _UNREACHABLE)} ({text})")


def of_write(op: str, subject: str, error: KafkaError, text: str) -> DeliveryError:
    """Return what an error means where something may have been written."""
    code = error.code()
    if code in _USAGE:
        return InvalidUsage(op, subject, f"{_USAGE[code]} ({text})")
    return Indeterminate(
        op,
        subject,
        f"some records may have been written ({text}); receivers drop repeats: emit the same again",
    )
