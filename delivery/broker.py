"""A Kafka made of lists: topics with identity, partitions, offsets with holes.

What it is: the shared log behind `connectors.memory` and `sinks.memory`, for tests.
What it must not know: lanes and seals.

Invariants:
    A partition only grows; an offset is never used again.
    A topic created again under an old name has a new identity.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import xxhash

from dedup.model import Frontier, Source, TopicId
from delivery.records import Record


@dataclass(slots=True)
class MemoryBroker:
    """Topics by identity; each partition is a tuple of records (or None for a hole)."""

    partitions: dict[Source, tuple[Record | None, ...]] = field(default_factory=dict)
    names: dict[str, TopicId] = field(default_factory=dict)
    created: int = 0

    def create(self, name: str, partitions: int = 1) -> TopicId:
        """Create a topic, or create it again with a new identity."""
        self.created += 1
        topic = TopicId(xxhash.xxh3_128_digest(f"{name}#{self.created}".encode()))
        self.names[name] = topic
        for partition in range(partitions):
            self.partitions[Source(topic, partition)] = ()
        return topic

    def sources(self, name: str) -> list[Source]:
        """Return the partitions of a topic."""
        return sorted(source for source in self.partitions if source.topic == self.names[name])

    def append(self, source: Source, record: Record) -> int:
        """Append a record and return its offset."""
        log = self.partitions[source]
        self.partitions[source] = (*log, record._replace(source=source, offset=len(log)))
        return len(log)

    def skip(self, source: Source, offsets: int = 1) -> None:
        """Leave offsets out, as compaction and transaction markers do."""
        self.partitions[source] += (None,) * offsets

    def read(self, source: Source, start: int, end: int) -> list[Record]:
        """Return the records in [start, end)."""
        return [record for record in self.partitions[source][start:end] if record is not None]

    def high(self, sources: list[Source]) -> Frontier:
        """Return the end offsets."""
        return Frontier.of((source, len(self.partitions[source])) for source in sources)

    def copy(self) -> MemoryBroker:
        """Return a snapshot."""
        return MemoryBroker(dict(self.partitions), dict(self.names), self.created)
