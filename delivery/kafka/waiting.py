"""Several ends of Kafka waited for together: whoever has news first.

What it is: `await_news`.
What it must not know: who reads or writes, over what.

Invariants:
    Whoever has news that no socket tells of is waited for no longer than it says.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

__all__ = ["Link", "Watched", "await_news"]


class Link(Protocol):
    """A connection, as far as it is waited for."""

    @property
    def wants_out(self) -> bool:
        """Whether something waits for the socket to take it."""

    def fileno(self) -> int:
        """Return what the system calls the socket; negative once it is closed."""


@runtime_checkable
class Watched(Protocol):
    """An end whose news comes over connections."""

    def watched(self, seconds: float) -> tuple[Sequence[Link], float]:
        """Return these, and for how much of so many seconds they may be waited for."""


def await_news(ends: Iterable[Watched], seconds: float) -> None:
    """Wait until one of them has something to receive, or can take what is kept for it.

    Args:
        ends: any.
        seconds: how long at most.
    """
    poll = select.poll()
    for end in ends:
        links, seconds = end.watched(seconds)
        for link in links:
            if link.fileno() >= 0:
                poll.register(
                    link.fileno(), select.POLLIN | (select.POLLOUT if link.wants_out else 0)
                )
    with suppress(InterruptedError):
        poll.poll(max(0.0, seconds) * 1000)
