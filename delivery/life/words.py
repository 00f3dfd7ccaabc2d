"""Positions and figures as they are said of a change.

What it is: `positions`, `amount`.
What it must not know: what is changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from dedup.model import Frontier, Head, Source

__all__ = ["amount", "named", "positions"]


def positions(head: Head) -> dict[str, int]:
    """Return where a lane stands, by topic and partition."""
    return named(head, head.frontier)


def named(head: Head, frontier: Iterable[tuple[Source, int]] | Frontier) -> dict[str, int]:
    """Return positions of topics that a lane reads now, by their names."""
    names = {topic: name for name, topic in head.topics}
    return {
        f"{names[source.topic]}/{source.partition}": offset
        for source, offset in frontier
        if source.topic in names
    }


def amount(count: int, what: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
