"""What is written of a query: a live line in a terminal, elsewhere how it began and how it ended.

What it is: `Line`, which writes over itself, `Beat`, which draws one each second, and the words.
What it must not know: where the numbers come from.

Invariants:
    Nothing is written if it was turned off. The live line is written where it was asked for or
    standard error is a terminal; elsewhere one line says what began. What ended is said in both.
    Where the live line is too long, what it says of the state goes last.
    What is unknown is not shown, and a rate is never that of a moment.
    A terminal that is gone is no error.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO

from dedup.catalog.open import without_user
from delivery.host.spec import Plan

__all__ = ["Beat", "Line", "Pace", "begun", "ended", "text_of"]

#: How often a line is drawn that nobody else has a beat for.
BEAT_SECONDS = 1.0

#: A rate is that of so long at least: a few records in a moment are no thousands a second.
PACE_SECONDS_MIN = 0.5

#: Back to the left edge, and clear what was there.
_AGAIN = "\r\x1b[2K"


class Line:
    """One line of one query.

    Args:
        name: what it begins with.
        wanted: whether to show it; None: if there is a terminal.
        stream: where to; by default standard error.
    """

    def __init__(self, name: str, *, wanted: bool | None, stream: TextIO | None = None) -> None:
        self._name = name
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty() if wanted is None else wanted
        self._says = wanted is None and not self._shown

    @property
    def shown(self) -> bool:
        """Whether anybody sees it."""
        return self._shown

    def show(self, progress: dict[str, Any], *, last: bool = False) -> None:
        """Draw the line anew; let it stand if it is the last."""
        if not self._shown:
            return
        # The last one stays, so it may take a second line; others are drawn over.
        columns = None if last else shutil.get_terminal_size().columns - 1
        text = text_of(self._name, progress, columns)
        try:
            self._stream.write(f"{_AGAIN}{text}" + ("\n" if last else ""))
            self._stream.flush()
        except (OSError, ValueError):
            self._shown = False

    def say(self, text: str, *, live: bool = False) -> None:
        """Write a line that stays, where nobody turned it off.

        Args:
            text: what it says.
            live: below a live line as well, which is done.
        """
        if self._says or (live and self._shown):
            with suppress(OSError, ValueError):
                print(f"{self._name}: {text}", file=self._stream, flush=True)


class Pace:
    """How many a second a number grows by, of something that is looked at now and then."""

    def __init__(self) -> None:
        self._began = self._at = time.monotonic()
        self._had = 0
        self._rate = 0.0

    def of(self, count: int, *, whole: bool = False) -> float:
        """Return the rate since the look before, or that of the `whole` time."""
        now = time.monotonic()
        if whole:
            return count / max(now - self._began, PACE_SECONDS_MIN)
        if now - self._at >= PACE_SECONDS_MIN:
            self._rate = (count - self._had) / (now - self._at)
            self._at, self._had = now, count
        return self._rate


class Beat:
    """Draws a line each second until `end`; does nothing where nobody sees it.

    Args:
        line: what is drawn.
        look: returns counters, lag and message as they are; the rate is made of two looks, at the
            end of all of them.
    """

    def __init__(self, line: Line, look: Callable[[], dict[str, Any]]) -> None:
        self._line = line
        self._look = look
        self._over = threading.Event()
        self._pace = Pace()
        self._thread = threading.Thread(target=self._run, name="delivery-line", daemon=True)
        if line.shown:
            self._thread.start()

    def end(self) -> None:
        """Draw it for the last time, and let it stand. May be called twice."""
        self._over.set()
        if self._thread.is_alive():
            # A terminal that takes nothing (Ctrl-S) must not hold up who ends.
            self._thread.join(BEAT_SECONDS)

    def _run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(BEAT_SECONDS)
            seen = self._look()
            rate = self._pace.of(seen["counters"]["read"], whole=over)
            self._line.show(seen | {"processedRowsPerSecond": rate}, last=over)


def text_of(name: str, progress: dict[str, Any], columns: int | None = None) -> str:
    """Return a progress in one line.

    Args:
        name: of the query.
        progress: as a query tells it.
        columns: how long the line may be; None: as long as it is.
    """
    counters, lag = progress["counters"], progress["lag"]
    letters = counters.get("dead_letter", 0)
    again = counters.get("duplicate", 0) + counters.get("remnant", 0)
    #: In the order in which they stand, with the rank at which they go where there is no room.
    words = [
        (3, f"{progress['processedRowsPerSecond']:,.0f} rows/s"),
        *([(4, f"lag {lag:,}")] if lag is not None else []),
        (2, f"duplicates {again:,}"),
        *([(5, f"dead letters {letters:,}")] if letters else []),
        (1, f"seals {counters.get('seals', 0):,}"),
    ]
    # An error may have more lines, which whoever waits for the query is told.
    message = "| " + (str(progress["message"]).splitlines() or [""])[0]
    while True:
        text = "  ".join([f"{name}:", *(word for _, word in words), message])
        if columns is None or len(text) <= columns:
            return text
        if not words:
            return f"{text[: columns - 1]}…"
        words.remove(min(words))


def begun(plan: Plan, lanes: int) -> str:
    """Say what begins, and in which catalog: one that is not the one it was begins anew."""
    stages = ", ".join(spec.name for spec in plan.stages)
    return f"started stages {stages} ({lanes:,} lanes), catalog {without_user(plan.catalog)}"


def ended(counters: Mapping[str, int]) -> str:
    """Say what was done."""
    fresh, again = counters["fresh"], counters["duplicate"] + counters["remnant"]
    aside = counters["dead_letter"]
    letters = f" ({aside:,} as dead letters)" if aside else ""
    return (
        f"ended: {counters['read']:,} records read, {fresh:,} took effect{letters}, {again:,} were "
        f"repeats; {counters['seals']:,} seals"
    )
