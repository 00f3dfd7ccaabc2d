"""The live line in a terminal: how fast, how far behind, how many repeats.

What it is: `Line`, which writes over itself.
What it must not know: where the numbers come from.

Invariants:
    Nothing is written unless it was asked for or standard error is a terminal.
    A terminal that is gone is no error.
"""

from __future__ import annotations

import shutil
import sys
from typing import Any, TextIO

__all__ = ["Line", "text_of"]

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
        self._drawn = False

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
