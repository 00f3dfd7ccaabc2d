"""What is written of a query: a live line in a terminal, elsewhere how it began and how it ended.

What it is: `Line`, which writes over itself, `Beat`, which draws one each second, and the words.
What it must not know: where the numbers come from.

Invariants:
    Nothing is written if it was turned off. The live line is written where it was asked for or
    standard error is a terminal; one line at the start and one at the end everywhere else.
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

__all__ = ["Beat", "Line", "begun", "ended", "text_of"]

#: How often a line is drawn that nobody else has a beat for.
BEAT_SECONDS = 1.0

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
        text = text_of(self._name, progress)[: shutil.get_terminal_size().columns - 1]
        try:
            self._stream.write(f"{_AGAIN}{text}" + ("\n" if last else ""))
            self._stream.flush()
        except (OSError, ValueError):
            self._shown = False

    def say(self, text: str) -> None:
        """Write a line that stays, where no live one is and nobody turned it off."""
        if self._says:
            with suppress(OSError, ValueError):
                print(f"{self._name}: {text}", file=self._stream, flush=True)


class Beat:
    """Draws a line each second until `end`; does nothing where nobody sees it.

    Args:
        line: what is drawn.
        look: returns counters, lag and message as they are; the rate is made of two looks.
    """

    def __init__(self, line: Line, look: Callable[[], dict[str, Any]]) -> None:
        self._line = line
        self._look = look
        self._over = threading.Event()
        self._had = (time.monotonic(), 0)
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
            seen, now = self._look(), time.monotonic()
            before, had = self._had
            read = seen["counters"]["read"]
            self._had = (now, read)
            rate = (read - had) / max(now - before, 1e-3)
            self._line.show(seen | {"processedRowsPerSecond": rate}, last=over)


def text_of(name: str, progress: dict[str, Any]) -> str:
    """Return a progress in one line."""
    counters, lag = progress["counters"], progress["lag"]
    words = [
        f"{name}:",
        f"{progress['processedRowsPerSecond']:,.0f} rows/s",
        f"lag {'?' if lag is None else format(lag, ',')}",
        f"duplicates {counters.get('duplicate', 0) + counters.get('remnant', 0):,}",
        f"seals {counters.get('seals', 0):,}",
        f"| {progress['message']}",
    ]
    return "  ".join(words)


def begun(plan: Plan, lanes: int) -> str:
    """Say what begins, and in which catalog: one that is not the one it was begins anew."""
    stages = ", ".join(spec.name for spec in plan.stages)
    return f"started stages {stages} ({lanes:,} lanes), catalog {without_user(plan.catalog)}"


def ended(counters: Mapping[str, int]) -> str:
    """Say what was done."""
    fresh, again = counters["fresh"], counters["duplicate"] + counters["remnant"]
    return (
        f"ended: {counters['read']:,} records read, {fresh:,} took effect, {again:,} were repeats; "
        f"{counters['seals']:,} seals"
    )
