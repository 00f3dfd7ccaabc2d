"""The memory sink: appends to a `MemoryBroker`, one record at a time.

What it is: the emitter port over lists. Keyed: every record carries its id, and receivers drop
repeats.
What it must not know: sources, catalogs.

Invariants:
    The target partition is a function of the output and its parent alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xxhash

from delivery.broker import MemoryBroker
from delivery.ports import Emissions, Frontier, Record, Rows, Source, TopicId
from delivery.sinks import Kind

#: Puts one record into the log and returns its offset; wrapped by tests to let it fail.
Append = Callable[[Source, Record], int]


class MemoryEmitter:
    """Sends each edge to one topic.

    Args:
        broker: the log.
        topics: name of the topic behind each edge.
        append: how one record is appended; the broker's own way by default.
    """

    kind = Kind.KEYED

    def __init__(
        self, broker: MemoryBroker, topics: Sequence[str], append: Append | None = None
    ) -> None:
        self.writes: tuple[TopicId, ...] = tuple(broker.names[name] for name in topics)
        self.counts: tuple[int, ...] = tuple(len(broker.sources(name)) for name in topics)
        self._append = append or broker.append

    def place(self, rows: Rows) -> list[int]:
        """Return the partitions: by key, or as the parent where there is none."""
        return self.place_among(rows, self.counts)

    def place_among(self, rows: Rows, counts: Sequence[int]) -> list[int]:
        """Return the partitions where each edge has so many."""
        return [
            (parent if key is None else xxhash.xxh3_64_intdigest(key)) % counts[edge]
            for edge, key, parent in zip(rows.edges, rows.keys, rows.parent_partitions, strict=True)
        ]

    def emit(self, emissions: Emissions) -> Frontier:
        """Append in order; the log is durable at once."""
        behind: dict[Source, int] = {}
        for emission in emissions:
            source = Source(self.writes[emission.edge], emission.partition)
            record = Record(key=emission.key, value=emission.value, headers=emission.headers)
            behind[source] = self._append(source, record) + 1
        return Frontier.of(behind.items())
