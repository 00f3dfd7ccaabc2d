"""What `Delivery.start` returns, whatever the engine: it looks like a StreamingQuery.

What it is: the protocol, and the error of a query that failed.
What it must not know: any engine.

Invariants:
    `stop` returns when nothing runs any more; what was sealed and not delivered is the next
    start's.
"""

from __future__ import annotations

from typing import Any, Protocol


class Query(Protocol):
    """A running pipeline."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - as PySpark spells it
        """Whether it runs."""

    @property
    def status(self) -> dict[str, Any]:
        """What it is doing just now, in words and numbers."""

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 - as PySpark spells it
        """The latest progress, or None before the first."""

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802 - as PySpark spells it
        """The latest progresses, oldest first."""

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - as PySpark's
        """Wait until it has ended; True if it has. Raises what it failed with."""

    def exception(self) -> BaseException | None:
        """Return what it failed with, or None."""

    def stop(self) -> None:
        """End it: finish what is under way, deliver what is sealed, and return."""

    def processAllAvailable(self) -> None:  # noqa: N802 - as PySpark spells it
        """Wait until everything that was in the input topics when this was called is delivered."""
