"""Kafka's logs as evidence: which topics the identities in a catalog are, and what they hold.

What it is: `Cluster`, which finds topics by identity and reads partitions, whole or in part.
What it must not know: what is looked for in them.

Invariants:
    A topic is told by its identity; one that was deleted and created again is another one.
    A range is read to a position: holes in it are no loss.
    A topic that is gone, and what never was one, is an empty log that ends where it was read, for
    whoever says that it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from dedup.errors import InvalidUsage, Unavailable
from dedup.model import Frontier, Source, TopicId
from delivery.batch import Batch
from delivery.kafka.port import Bounds, Client, Topic
from delivery.kafka.ranges import STALL_SECONDS_MAX, read_ranges
from delivery.operate.reporting import Report, silent
from delivery.records import Record

__all__ = ["Cluster"]


class Cluster:
    """The topics of one Kafka cluster, by identity.

    Args:
        client: the cluster.
        report: is told how far reading is.
    """

    def __init__(self, client: Client, report: Report = silent) -> None:
        self._client = client
        self._report = report
        self._topics: dict[TopicId, Topic] | None = None
        self._gone: dict[Source, int] = {}

    def with_gone(self, ends: Mapping[Source, int]) -> Cluster:
        """Return the same cluster with topics that it does not have: nothing up to these offsets."""
        found = Cluster(self._client, self._report)
        found._topics = dict(self.topics())
        found._gone = dict(ends)
        for identity in {source.topic for source in ends}:
            count = 1 + max(source.partition for source in ends if source.topic == identity)
            found._topics[identity] = Topic(name=identity.hex(), id=identity, partitions=count)
        return found

    def topic(self, name: str) -> Topic:
        """Return a topic as it is now.

        Raises:
            InvalidUsage: there is none.
        """
        found = self._client.describe([name]).get(name)
        if found is None:
            raise InvalidUsage(
                "read a topic", name, "there is no such topic; nothing was read: mend the name"
            )
        return found

    def topics(self) -> dict[TopicId, Topic]:
        """Return all topics; they are asked for once."""
        if self._topics is None:
            found = self._client.describe(self._client.names())
            self._topics = {topic.id: topic for topic in found.values()}
        return self._topics

    def forget(self) -> None:
        """Ask for the topics anew when they are needed again."""
        self._topics = None

    def names(self) -> dict[bytes, str]:
        """Return the names of topics by their identities."""
        return {identity: topic.name for identity, topic in self.topics().items()}

    def bounds(self, topic: Topic) -> Bounds:
        """Return what a topic's log holds just now."""
        if any(source in self._gone for source in topic.sources):
            ends = Frontier.of((source, self._gone.get(source, 0)) for source in topic.sources)
            return Bounds(low=ends, high=ends)
        return self._client.bounds(topic.name, topic.sources)

    def at_time(self, topic: Topic, source: Source, time_ms: int) -> int:
        """Return the first offset of a partition whose record is not older; its end if none is."""
        found = self._client.at_time(topic.name, [source], time_ms).at(source)
        return found if found is not None else self.bounds(topic).high.at(source) or 0

    def read(self, topic: Topic, low: Frontier, high: Frontier) -> Iterator[Batch]:
        """Yield the records of partitions from one position to another.

        Raises:
            Unavailable: nothing came for `STALL_SECONDS_MAX`.
        """
        if any(source in self._gone for source in topic.sources):
            return
        starts, ends, count = dict(low), dict(high), 0
        done, total = 0, sum(max(0, ends.get(source, at) - at) for source, at in starts.items())
        ranges = read_ranges(
            self._client, topic.name, starts, ends, stalled=partial(_stalled, topic, ends)
        )
        for fetched in ranges:
            count += len(fetched.batch)
            if len(fetched.batch):
                yield fetched.batch
            done += fetched.position - starts[fetched.source]
            starts[fetched.source] = fetched.position
            self._report(f"{topic.name}: {count} records read", done, total)

    def record(self, topic: Topic, source: Source, offset: int) -> Record | None:
        """Return one record; None if the offset holds none (any more, or yet)."""
        bounds = self._client.bounds(topic.name, [source])
        if not (bounds.low.at(source) or 0) <= offset < (bounds.high.at(source) or 0):
            return None
        start, end = (Frontier.of([(source, at)]) for at in (offset, offset + 1))
        return next((one for batch in self.read(topic, start, end) for one in batch), None)


def _stalled(
    topic: Topic, ends: Mapping[Source, int], waiting: Mapping[Source, int]
) -> Unavailable:
    wanted: Iterable[str] = (f"{s.partition} up to {ends[s]}" for s in sorted(waiting))
    return Unavailable(
        "read a topic",
        f"{topic.name}, partitions {', '.join(wanted)}",
        f"nothing came for {STALL_SECONDS_MAX:.0f} s; nothing was changed: see whether the brokers "
        "that lead them are up, and run it again",
    )
