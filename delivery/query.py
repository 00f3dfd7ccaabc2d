"""What `Delivery.start` returns, whatever the engine: it looks like a StreamingQuery.

What it is: the protocol, `stop_on_signal`, and what all engines do about Ctrl-C and about company.
What it must not know: any engine.

Invariants:
    `stop` returns when nothing runs any more; what was sealed and not delivered is the next
    start's.
    Who waits for a query and presses Ctrl-C has it stopped and is told so, at once and when it is
    done, unless the process has a handler of its own.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

__all__ = ["Others", "Query", "interruptible", "stop_on_signal"]

LOG = logging.getLogger(__name__)


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
        # No handler of Python's: one that comes while the main thread is about to block again
        # would wait as long as it does.
        for one in chosen:
            signal.signal(one, signal.SIG_DFL)
        name = f"delivery-stop-{number}"
        threading.Thread(target=stop, name=name, daemon=True).start()

    def stop() -> None:
        # Not in the handler: what it interrupts may be in the middle of a line of its own.
        _say(
            f"stopping {getattr(query, 'name', None) or 'the query'} ...; another signal ends it at once"
        )
        query.stop()

    for one in chosen:
        signal.signal(one, end)


@contextmanager
def interruptible(name: str, stop: Callable[[], object]) -> Iterator[None]:
    """Let Ctrl-C in the body stop a query before it goes on as a KeyboardInterrupt that is told.

    PySpark's own handler would cancel the jobs of the session under the query. A handler of the
    user's is left alone, and so is every thread but the main one.

    Args:
        name: of the query.
        stop: ends it; a second Ctrl-C does not wait for that.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not _is_default(before):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as error:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _without_traceback(error)
        _say(f"stopping {name} ...; Ctrl-C again ends it at once")
        stop()
        _say(f"interrupted; {name} is stopped, nothing is lost: start it again, it goes on")
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _say(text: str) -> None:
    """Write a line for whoever sent the signal; a live line may stand there, or a "^C"."""
    with suppress(OSError, ValueError):
        print(f"\ndelivery: {text}", file=sys.stderr, flush=True)  # noqa: T201 - it is read in the terminal, not in a log


def _is_default(handler: object) -> bool:
    module = str(getattr(handler, "__module__", ""))
    return handler is signal.default_int_handler or module.startswith("pyspark.")


def _without_traceback(error: BaseException) -> None:
    """Let the process die of this one without a traceback: all that it says was said."""
    before = sys.excepthook

    def hook(kind: Any, found: BaseException, trace: Any) -> None:
        if found is not error:
            before(kind, found, trace)

    sys.excepthook = hook


class Others:
    """Says, once, that somebody else works on the lanes of a query.

    Args:
        name: of the query.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._said = False

    def look(self, lost: int) -> None:
        """Take how many bundles were lost to others so far."""
        if lost and not self._said:
            self._said = True
            LOG.warning(
                "%s: somebody else works on its lanes too: another driver, or what is left of one; "
                "the work is shared, and nothing counts twice: if you meant one driver, stop the "
                "other",
                self._name,
            )
