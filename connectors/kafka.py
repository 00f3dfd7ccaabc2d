"""The Kafka source: some partitions of one topic, as a lane reads them.

What it is: the reader port over a Kafka client, and the two ways to the rows: into a consumer that
lanes share, or a planned range on its own.
What it must not know: sinks, catalogs, which client library serves.

Invariants:
    Topics and bounds are read when they are asked for; a topic created again shows its new
    identity at once, and is never read under the old one.
    A planned range ends at a position, not at a row: holes in it are no loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from delivery import InvalidUsage, Unavailable
from delivery.kafka.port import Client, Consumer, Fetched, Topic
from delivery.kafka.ranges import STALL_SECONDS_MAX, read_ranges
from delivery.ports import Batch, Frontier, Log, Source

__all__ = ["KafkaReader"]


class KafkaReader:
    """Reads some partitions of one topic.

    Args:
        client: the cluster.
        topic: its name.
        partitions: which of its partitions; None: all there are whenever it is asked.
    """

    def __init__(self, client: Client, topic: str, partitions: Sequence[int] | None = None) -> None:
        self._client = client
        self._topic = topic
        self._partitions = None if partitions is None else tuple(partitions)

    def topic(self) -> Topic:
        """Return the topic as it is now.

        Raises:
            InvalidUsage: there is none.
        """
        found = self._client.describe([self._topic]).get(self._topic)
        if found is None:
            raise InvalidUsage(
                "read a topic",
                self._topic,
                "there is no such topic; nothing was read: create it, or mend the name. If it was "
                "deleted, what the stage had not read yet is gone",
            )
        return found

    def log(self) -> Log:
        """Return the topic's identity and the bounds of the partitions, read now."""
        topic = self.topic()
        bounds = self._client.bounds(self._topic, self._sources(topic))
        return Log(topics=((topic.name, topic.id),), low=bounds.low, high=bounds.high)

    def join(self, consumer: Consumer, start: Frontier) -> None:
        """Let a consumer that lanes share read these partitions too, from a frontier on.

        Raises:
            InvalidUsage: the frontier is one of another topic under the same name.
        """
        consumer.add(self._topic, self._checked(start))

    def read(self, start: Frontier, end: Frontier) -> Iterator[Fetched]:
        """Yield a planned range with a consumer of its own, until every position is at its end.

        Raises:
            InvalidUsage: the range is one of another topic under the same name.
            Unavailable: nothing came for `STALL_SECONDS_MAX`; what was yielded is right.
        """
        ends = dict(end)
        yield from read_ranges(
            self._client,
            self._topic,
            self._checked(start),
            ends,
            stalled=partial(self._stalled, ends),
        )

    def reread(self, start: Frontier, end: Frontier) -> Iterator[Batch]:
        """Yield what is still there of a range, as `read` does."""
        return (fetched.batch for fetched in self.read(start, end))

    # Inside -----------------------------------------------------------------------------------

    def _sources(self, topic: Topic) -> tuple[Source, ...]:
        if self._partitions is None:
            return topic.sources
        return tuple(Source(topic.id, number) for number in self._partitions)

    def _checked(self, start: Frontier) -> dict[Source, int]:
        """Return the positions of a frontier, if they are of the topic that is there now."""
        topic = self.topic()
        positions = dict(start)
        if any(source.topic != topic.id for source in positions):
            raise InvalidUsage(
                "read a topic",
                self._topic,
                "it was deleted and created again under its name, and its offsets mean other "
                "records now; nothing was read: if that is meant, say `delivery stage accept-topic`",
            )
        return positions

    def _stalled(self, ends: Mapping[Source, int], waiting: Mapping[Source, int]) -> Unavailable:
        wanted = ", ".join(f"{s.partition} up to {ends[s]}" for s in sorted(waiting))
        return Unavailable(
            "read a planned range",
            f"{self._topic}, partitions {wanted}",
            f"nothing came for {STALL_SECONDS_MAX:.0f} s; nothing was skipped: see whether the "
            "brokers that lead them are up, and run it again",
        )
