"""What an error of kafka-python means for the data.

What it is: the one place where its exceptions become kinds of `DeliveryError`.
What it must not know: what was being done beyond its name.

Invariants:
    What is not listed may have happened, where something was written, and did not, where nothing
    was.
"""

from __future__ import annotations

from kafka import errors as k

from dedup.errors import DeliveryError, Indeterminate, InvalidUsage, Unavailable
from delivery.kafka.port import unreadable

__all__ = ["DRIVER", "of_read", "of_write"]

#: Everything the library raises about the world or its configuration, whatever its class.
DRIVER = (k.KafkaError, OSError, ValueError, RuntimeError)

_UNREACHABLE = (
    "no broker answers; nothing was changed: start it, or mend the address or the security options, "
    "and retry"
)
_FORBIDDEN = "the cluster refuses this user; grant access to it, or mend the credentials"
_MISSING = "there is no such topic or partition; create it, or mend the name"
_OUTSIDE = (
    "the log does not hold that offset (any more, or yet); nothing was skipped: load the lane "
    "again, which names the range that is gone"
)
_CODEC = (
    "kafka-python needs a package more for this compression (lz4, zstandard or python-snappy); "
    "nothing was skipped: install it, or confluent-kafka"
)
_TOO_LARGE = "the topic refuses a record of that size; raise its max.message.bytes"

#: Wrong in the code, the configuration or the cluster; the same again fails again.
_USAGE: tuple[tuple[type[Exception], str], ...] = (
    (k.AuthorizationError, _FORBIDDEN),
    (k.SaslAuthenticationFailedError, _FORBIDDEN),
    (k.UnsupportedSaslMechanismError, _FORBIDDEN),
    (k.UnknownTopicOrPartitionError, _MISSING),
    (k.InvalidTopicError, "Kafka takes no such name for a topic; mend it"),
    (k.InvalidPartitionsError, "a topic cannot have that many partitions; mend it"),
    (k.InvalidReplicationFactorError, "there are not that many brokers; ask for fewer copies"),
    (k.InvalidConfigurationError, "a setting of the topic is not understood; mend it"),
    (k.PolicyViolationError, "a policy of the cluster refuses it; ask who runs it"),
    (k.MessageSizeTooLargeError, _TOO_LARGE),
    (k.RecordListTooLargeError, _TOO_LARGE),
    (k.InvalidRecordError, "the topic refuses such a record; see its settings"),
    (k.UnsupportedForMessageFormatError, "the topic keeps an old message format; upgrade it"),
    (k.UnsupportedCodecError, _CODEC),
    (k.KafkaConfigurationError, "an option is not understood; mend it"),
    (ValueError, "an option is not understood; mend it"),
    (FileNotFoundError, "a file that an ssl.* option names is not there; mend it"),
)
_AWAY = (k.OffsetOutOfRangeError, k.NoOffsetForPartitionError, k.LogTruncationError)


def of_read(op: str, subject: str, error: Exception, text: str) -> DeliveryError:
    """Return what an error means where nothing was written.

    Args:
        op: what was attempted.
        subject: on what.
        error: kafka-python's.
        text: its text, without secrets.
    """
    if isinstance(error, k.CorruptRecordError) and "UnicodeDecodeError" in text:
        return unreadable(subject)
    usage = _usage(op, subject, error, text)
    hint = _OUTSIDE if isinstance(error, _AWAY) else _UNREACHABLE
    return usage or Unavailable(op, subject, f"{hint} ({type(error).__name__}: {text})")


def of_write(op: str, subject: str, error: Exception, text: str) -> DeliveryError:
    """Return what an error means where something may have been written."""
    return _usage(op, subject, error, text) or Indeterminate(
        op,
        subject,
        f"some records may have been written ({type(error).__name__}: {text}); receivers drop "
        "repeats: emit the same again",
    )


def _usage(op: str, subject: str, error: Exception, text: str) -> InvalidUsage | None:
    for kind, hint in _USAGE:
        if isinstance(error, kind):
            return InvalidUsage(op, subject, f"{hint} ({type(error).__name__}: {text})")
    return None
