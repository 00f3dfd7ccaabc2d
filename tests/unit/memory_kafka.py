"""The Kafka client port over a log made of lists, as far as an operator's verbs read it.

What it is: `MemoryClient`; the suite of the port itself runs on real brokers.
What it must not know: who reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from dedup.model import Frontier, Source
from delivery.batch import Batch, batches_of
from delivery.broker import MemoryBroker
from delivery.kafka.port import Bounds, Fetched, Topic
from delivery.records import Record


class MemoryClient:
    """A cluster; `lows` says from where on its logs are still there."""

    library = "memory"

    def __init__(self, broker: MemoryBroker, lows: Mapping[Source, int] | None = None) -> None:
        self.broker = broker
        self.lows = lows or {}
        #: Called before the first poll: what happens between the rows and the logs.
        self.meanwhile: Callable[[], None] = lambda: None
        #: Called when all is read: what happens between the logs and the answer.
        self.after: Callable[[], None] = lambda: None

    def names(self) -> list[str]:
        return sorted(self.broker.names)

    def describe(self, names: Sequence[str]) -> dict[str, Topic]:
        return {
            name: Topic(
                name=name,
                id=self.broker.names[name],
                partitions=len(self.broker.sources(name)),
            )
            for name in names
            if name in self.broker.names
        }

    def bounds(self, _topic: str, sources: Sequence[Source]) -> Bounds:
        self.meanwhile()
        low = Frontier.of((source, self.lows.get(source, 0)) for source in sources)
        return Bounds(low, self.broker.high(list(sources)))

    def at_time(self, _topic: str, sources: Sequence[Source], time_ms: int) -> Frontier:
        found = {}
        for source in sources:
            records = self.broker.read(source, 0, len(self.broker.partitions[source]))
            first = next((one for one in records if one.timestamp_ms >= time_ms), None)
            if first is not None:
                found[source] = first.offset
        return Frontier.of(found.items())

    def consumer(self, **_: Any) -> MemoryConsumer:
        return MemoryConsumer(self)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class MemoryConsumer:
    """Gives a few records at a time, so that ranges end in the middle of a poll."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client
        self._at: dict[Source, int] = {}

    def add(self, _topic: str, positions: Mapping[Source, int]) -> None:
        self._at.update(positions)

    def remove(self, sources: Iterable[Source]) -> None:
        for source in sources:
            self._at.pop(source, None)

    def poll(self, **_: Any) -> list[Fetched]:
        found = []
        for source, at in self._at.items():
            end = min(at + 7, len(self._client.broker.partitions[source]))
            records: list[Record] = self._client.broker.read(source, at, end)
            batch = batches_of(records)[0] if records else _empty(source)
            self._at[source] = end
            found.append(Fetched(batch, end))
        return found

    def close(self) -> None:
        self._client.after()


def _empty(source: Source) -> Batch:
    nothing = np.empty(0, dtype=np.int64)
    return Batch(source, nothing, nothing, (), (), ())
