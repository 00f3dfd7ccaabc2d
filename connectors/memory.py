"""The memory source: partitions of a `MemoryBroker`.

What it is: the reader port over lists, for tests and for users' own unit tests.
What it must not know: sinks, catalogs.

Invariants:
    A planned range is read whole; holes in it are no loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from delivery.broker import MemoryBroker
from delivery.ports import Batch, Frontier, Log, Source, batches_of


class MemoryReader:
    """Reads some partitions of one topic."""

    def __init__(self, broker: MemoryBroker, topic: str, sources: Sequence[Source]) -> None:
        self._broker = broker
        self._topic = topic
        self._sources = list(sources)

    def log(self) -> Log:
        """Return the topic's identity and the bounds of the partitions."""
        return Log(
            topics=((self._topic, self._broker.names[self._topic]),),
            low=Frontier.of((source, 0) for source in self._sources),
            high=self._broker.high(self._sources),
        )

    def read(self, start: Frontier, end: Frontier) -> list[Batch]:
        """Return the records of a planned range, a batch for each source."""
        records = []
        for source, offset in start:
            records += self._broker.read(source, offset, end.at(source) or offset)
        return batches_of(records)

    #: Lists hold what they held.
    reread = read


def memory_logs(broker: MemoryBroker, topics: Iterable[str]) -> Log:
    """Return what is in all partitions of some topics."""
    names = list(topics)
    sources = [source for name in names for source in broker.sources(name)]
    return Log(
        topics=tuple((name, broker.names[name]) for name in names),
        low=Frontier.of((source, 0) for source in sources),
        high=broker.high(sources),
    )
