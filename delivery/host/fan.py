"""A stage whose edges go to different sinks.

What it is: `Fan`, an emitter made of emitters.
What it must not know: any sink.

Invariants:
    The rows of an edge keep their order, and go to its sink alone.
    It returns when every sink has its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from delivery.ports import Emissions, Emitter, Frontier, Rows, TopicId
from delivery.sinks import close_sink, kind_of

__all__ = ["Fan"]


class Fan:
    """Sends each edge to the sink it belongs to.

    Args:
        parts: sinks in the order of the edges; each takes as many edges as it writes to.

    Raises:
        InvalidUsage: one of them says not why a bundle written twice counts once.
    """

    def __init__(self, parts: Sequence[Emitter]) -> None:
        for part in parts:
            kind_of(part)
        self._parts = tuple(parts)
        counts = [len(part.writes) for part in parts]
        self._first = [0, *accumulate(counts)]
        self._of = [number for number, count in enumerate(counts) for _ in range(count)]
        self.writes: tuple[TopicId, ...] = tuple(one for part in parts for one in part.writes)

    def place(self, rows: Rows) -> list[int]:
        """Return the partitions, as each sink places its rows."""
        partitions = [0] * len(rows)
        for number, part in enumerate(self._parts):
            chosen = [at for at, edge in enumerate(rows.edges) if self._of[edge] == number]
            mine = Rows(
                edges=[rows.edges[at] - self._first[number] for at in chosen],
                keys=[rows.keys[at] for at in chosen],
                values=[rows.values[at] for at in chosen],
                headers=[rows.headers[at] for at in chosen],
                parent_partitions=[rows.parent_partitions[at] for at in chosen],
                parent_offsets=[rows.parent_offsets[at] for at in chosen],
                kept_ids=[rows.kept_ids[at] for at in chosen],
            )
            if chosen:
                for at, partition in zip(chosen, part.place(mine), strict=True):
                    partitions[at] = partition
        return partitions

    def emit(self, emissions: Emissions) -> Frontier:
        """Send each sink its rows, one sink after the other."""
        behind = Frontier()
        for number, part in enumerate(self._parts):
            chosen = [at for at, edge in enumerate(emissions.edges) if self._of[edge] == number]
            if chosen:
                mine = Emissions(
                    [emissions.edges[at] - self._first[number] for at in chosen],
                    [emissions.partitions[at] for at in chosen],
                    [emissions.keys[at] for at in chosen],
                    [emissions.values[at] for at in chosen],
                    [emissions.headers[at] for at in chosen],
                    emissions.ids[chosen],
                )
                behind = behind.merged(part.emit(mine))
        return behind

    def close(self) -> None:
        """Let go of every sink. May be called twice."""
        for part in self._parts:
            close_sink(part)
