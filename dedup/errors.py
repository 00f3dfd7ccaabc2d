"""The errors of the whole library, one class per thing a caller would do differently.

What it is: `DeliveryError` and its five kinds. Users import them from `delivery`.
What it must not know: any store, driver, Spark or Kafka; adapters translate their driver's
exceptions into these in one place each, and whatever they do not recognise is `Indeterminate`.

Invariants:
    Expected refusals (a lost race, a duplicate) are return values, never errors.
    Every error says what was attempted, on what, and what to do next.
"""

from __future__ import annotations

__all__ = [
    "Corrupt",
    "DeliveryError",
    "Fenced",
    "Indeterminate",
    "InvalidUsage",
    "Unavailable",
]


class DeliveryError(Exception):
    """What went wrong, where, and what to do next.

    Args:
        op: what was attempted, in words ("append a seal", "start kafka-1").
        subject: what it was attempted on (a lane, a path, an address).
        hint: what it means for the data and what to do next, in a sentence or two.
    """

    #: What the `delivery` command exits with; each kind has its own.
    exit_code = 1

    def __init__(self, op: str, subject: str, hint: str) -> None:
        if type(self) is DeliveryError:
            msg = "raise one of the kinds of DeliveryError, not DeliveryError itself"
            raise TypeError(msg)
        super().__init__(op, subject, hint)
        self.op = op
        self.subject = subject
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.op}: {self.subject}: {self.hint}"


class InvalidUsage(DeliveryError):
    """The code or the configuration is wrong. Nothing happened; fix it and run again."""

    exit_code = 2


class Unavailable(DeliveryError):
    """It did NOT happen, and may succeed when tried again."""

    exit_code = 3


class Indeterminate(DeliveryError):
    """It MAY have happened. Read the lane, then repeat the same attempt."""

    exit_code = 4


class Fenced(DeliveryError):
    """Somebody newer owns this. Stop quietly; nothing of ours may take effect any more."""

    exit_code = 5


class Corrupt(DeliveryError):
    """Stored bytes contradict themselves or each other. Stop loudly; do not write."""

    exit_code = 6
