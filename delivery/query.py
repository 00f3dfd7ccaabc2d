"""What `Delivery.start` returns, whatever the engine: it looks like a StreamingQuery.

What it is: the protocol, and `stop_on_signal`.
What it must not know: any engine.

Invariants:
    `stop` returns when nothing runs any more; what was sealed and not delivered is the next
    start's.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Protocol

__all__ = ["Query", "stop_on_signal"]


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


def stop_on_signal(query: Query, *signals: signal.Signals) -> None:
    """Let SIGTERM and SIGINT end a query as `stop` does; a second one ends the process at once.

    To be called in the main thread, after the query was started.

    Args:
        query: what is stopped.
        signals: which; by default SIGTERM and SIGINT.
    """
    chosen = signals or (signal.SIGTERM, signal.SIGINT)

    def end(number: int, _frame: FrameType | None) -> None:
        for one in chosen:
            signal.signal(one, _at_once)
        threading.Thread(target=query.stop, name=f"delivery-stop-{number}", daemon=True).start()

    for one in chosen:
        signal.signal(one, end)


def _at_once(number: int, _frame: FrameType | None) -> None:
    """Die of the signal itself, so that whoever waits for the process sees why."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
