"""How long work says how far it is.

What it is: `Report`, and `silent`, which is told and says nothing.
What it must not know: terminals.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Report", "silent"]


class Report(Protocol):
    """Is told what is done."""

    def __call__(self, line: str, /, done: int = 0, total: int | None = None) -> None:
        """Take down one of very many things that go on.

        Args:
            line: what.
            done: how much of it is done.
            total: how much there is; None: nobody knows.
        """


def silent(line: str, /, done: int = 0, total: int | None = None) -> None:
    """Say nothing."""
