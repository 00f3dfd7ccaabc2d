"""The Kafka client port: columns out of a log, columns into a log, and what topics are.

What it is: the protocols `Client`, `Consumer` and `Producer`, their values, and every bound.
What it must not know: lanes, seals, which client library is behind it.

Invariants:
    Offsets are never committed by themselves, and a consumer never starts anywhere but where it
    was told: an offset that the log does not have is an error, never a reset.
    Only committed records are read. A position is the next offset to read; it also moves over
    what is not handed out: markers and records of transactions, records taken by compaction.
    A producer is idempotent and asks for all in-sync replicas.
    Neither a secret nor the value of an option stands in an error, a log line or a `repr`.
    A client belongs to the process that made it: make it after a fork.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np

from dedup.errors import Corrupt, DeliveryError, Unavailable
from dedup.model import IDENTITY_BYTES, Frontier, Source, TopicId
from delivery.batch import Batch, Emissions
from delivery.records import RECORD_BYTES_MAX

__all__ = [
    "ANSWER_SECONDS_MAX",
    "BATCH_BYTES_MAX",
    "BROKERS_MS_MAX",
    "DELIVERY_SECONDS_MAX",
    "FETCH_BUFFER_BYTES_MAX",
    "FETCH_RECORDS_MIN",
    "IN_FLIGHT_BYTES_MAX",
    "IN_FLIGHT_RECORDS_MAX",
    "MESSAGE_BYTES_MIN",
    "OWN_PREFIX",
    "RECONNECT_MS_MAX",
    "RESPONSE_BYTES_MAX",
    "Bounds",
    "Client",
    "Consumer",
    "Fetched",
    "Producer",
    "Topic",
    "TopicSettings",
    "awaited",
    "empty",
    "offset_told",
    "unreadable",
]

#: How long a broker may take to answer a question about topics and offsets.
ANSWER_SECONDS_MAX = 20.0
#: Longest pause before a client tries a broker again that refused it; by default it grows to ten
#: seconds and more, which is how long a lane would stand still after the broker is back.
RECONNECT_MS_MAX = 1_000
#: How often a client that only asks questions learns anew which brokers there are. librdkafka puts
#: most of them to one broker, and notices by itself after five minutes that it is gone.
BROKERS_MS_MAX = 10_000
#: How long a record may take to be acknowledged, retries included; then the emission has failed.
DELIVERY_SECONDS_MAX = 30.0
#: Records that a consumer holds before anybody asks for them. Beyond it, one response for each
#: broker may be under way.
FETCH_BUFFER_BYTES_MAX = 64 * 1024 * 1024
#: One response to a fetch.
RESPONSE_BYTES_MAX = 16 * 1024 * 1024
#: Below this many records of a partition a consumer fetches ahead, within its bytes.
FETCH_RECORDS_MIN = 200_000
#: What a producer has sent, or is about to, and nobody has acknowledged.
IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024
IN_FLIGHT_RECORDS_MAX = 500_000
#: Kafka's own limit for a batch; the largest record we make fits with its overhead.
BATCH_BYTES_MAX = 1_000_000
#: A topic we write to has to take the largest record we may have sealed, with its overhead.
MESSAGE_BYTES_MIN = RECORD_BYTES_MAX + 64 * 1024

#: What the names of topics begin with that Kafka keeps for itself.
OWN_PREFIX = "__"

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the cluster knows it now.

    Attributes:
        name: which may be used again for another topic.
        id: Kafka's own identity of it, which is never used again.
        partitions: how many.
    """

    name: str
    id: TopicId
    partitions: int

    def __post_init__(self) -> None:
        """Refuse what is no topic."""
        assert len(self.id) == IDENTITY_BYTES, "a topic id is 16 bytes"
        assert self.partitions > 0, "a topic has partitions"

    @property
    def sources(self) -> tuple[Source, ...]:
        """The partitions, by the topic's identity."""
        return tuple(Source(self.id, number) for number in range(self.partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """How a topic is created.

    Attributes:
        partitions: how many; frozen for ever on a topic that is partitioned by id.
        replicas: copies of each; None: the cluster's default.
        in_sync_min: copies that must have a record before it counts; None: the cluster's default.
        retention_ms: how long records are kept; None: the cluster's default.
        append_time: whether the broker stamps records when it appends them. Our stages measure
            lane time on timestamps, and a publisher's clock may be wrong.
        more: any other setting of a topic, by Kafka's name.
    """

    partitions: int = 1
    replicas: int | None = None
    in_sync_min: int | None = None
    retention_ms: int | None = None
    append_time: bool = False
    more: Mapping[str, str] = field(default_factory=dict)

    def config(self) -> dict[str, str]:
        """Return the settings by Kafka's names."""
        chosen = {
            "cleanup.policy": "delete",
            "max.message.bytes": str(max(MESSAGE_BYTES_MIN, 1_048_588)),
            "message.timestamp.type": "LogAppendTime" if self.append_time else "CreateTime",
        }
        if self.retention_ms is not None:
            chosen["retention.ms"] = str(self.retention_ms)
            # A segment is kept until its newest record is old enough: with Kafka's week for a
            # segment, an hour of retention would be a week.
            chosen["segment.ms"] = str(max(_MINUTE_MS, self.retention_ms // 4))
        if self.in_sync_min is not None:
            chosen["min.insync.replicas"] = str(self.in_sync_min)
        return chosen | dict(self.more)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the log of some partitions holds just now: offsets in [low, high), committed."""

    low: Frontier
    high: Frontier


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """What one poll got of one partition: records, maybe none, and the position behind them."""

    batch: Batch
    position: int

    @property
    def source(self) -> Source:
        """The partition."""
        return self.batch.source


def offset_told(topic: str, source: Source, offset: int) -> int:
    """Return an offset that a broker gave as a bound of a log.

    Raises:
        Unavailable: it is none: a broker that has just come back leads a partition before it knows
            where it ends, says -1, and calls it no error.
    """
    if offset < 0:
        raise Unavailable(
            "read the bounds of a log",
            f"{topic}[{source.partition}]",
            "its broker does not know them yet; nothing was read or skipped: ask again",
        )
    return offset


def empty(source: Source) -> Batch:
    """Return no records of a partition."""
    nothing = np.empty(0, dtype=np.int64)
    return Batch(source, nothing, nothing, (), (), ())


def unreadable(record: str) -> Corrupt:
    """Return the error about a record that no Python client can read."""
    return Corrupt(
        "read a record",
        record,
        "the name of one of its headers is not UTF-8, which Kafka demands; nothing at or behind it "
        "was read: delete the records up to it (kafka-delete-records), or let the publisher mend it",
    )


class Consumer(Protocol):
    """Reads partitions from where it is told."""

    def add(self, topic: str, positions: Mapping[Source, int]) -> None:
        """Begin to read partitions of a topic; the others go on undisturbed.

        Raises:
            InvalidUsage: one of them is being read already.
        """

    def remove(self, sources: Iterable[Source]) -> None:
        """Stop reading partitions; what is not being read already is passed over."""

    def seek(self, source: Source, offset: int) -> None:
        """Go on reading a partition somewhere else."""

    def pause(self, sources: Iterable[Source]) -> None:
        """Hand out nothing of these until `resume`.

        What was fetched of them may be thrown away and fetched again: for pressure that comes and
        goes within a bundle it is cheaper to poll less.
        """

    def resume(self, sources: Iterable[Source]) -> None:
        """Hand out records of these again."""

    def poll(self, *, max_records: int, max_bytes: int, timeout: float) -> list[Fetched]:
        """Return what is there, waiting up to `timeout` seconds for the first of it.

        One entry a partition. It stops at about `max_bytes` of keys and values; what one poll may
        return beyond was in the client's buffer already.

        Raises:
            Unavailable: an offset is not in the log, or a partition cannot be read just now:
                load the lane again, which says why. Nothing was skipped.
            InvalidUsage: it may not be read, or not with these options.
            Corrupt: a record cannot be read at all; it is named.
        """

    def position(self, source: Source) -> int:
        """Return the offset behind everything handed out."""

    def commit_hint(self, positions: Mapping[Source, int]) -> None:
        """Tell lag monitors, under the group's name. Nothing depends on it, and it never fails."""

    def close(self) -> None:
        """Let go of everything. May be called twice."""


class Producer(Protocol):
    """Sends records, and knows where they landed."""

    def emit(self, topics: Sequence[Topic], emissions: Emissions) -> Frontier:
        """Send in order, flush, and return the offset behind the last record of each partition.

        Args:
            topics: the topic behind each edge.
            emissions: what is sent.

        Raises:
            Indeterminate: some may have been written; emit the same again.
            Unavailable: none was written; emit the same again.
            InvalidUsage: the cluster refuses them, and will again.
        """

    def close(self) -> None:
        """Let go of everything. May be called twice."""


def awaited(client: Client, name: str) -> Topic:
    """Return a topic that was created just now, as soon as brokers know it and lead it.

    Raises:
        Unavailable: they did not within `ANSWER_SECONDS_MAX`.
    """
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while time.monotonic() < deadline:
        topic = client.describe([name]).get(name)
        if topic is not None:
            try:
                client.bounds(name, topic.sources)
            except DeliveryError:  # not led yet; the deadline decides
                continue
            return topic
    raise Unavailable(
        "create a topic", name, "it was created, but no broker leads it yet; ask for it again"
    )


class Client(Protocol):
    """One Kafka cluster through one client library."""

    #: "confluent" or "kafka-python".
    library: str

    def names(self) -> list[str]:
        """Return the names of all topics that may be seen, but for Kafka's own."""

    def describe(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return the topics of these names, read now; those that do not exist are missing."""

    def settings_of(self, name: str) -> dict[str, str]:
        """Return the settings of a topic, defaults included, as far as they may be read."""

    def create(self, name: str, settings: TopicSettings) -> Topic:
        """Create a topic, or return the one that is there, whatever its settings."""

    def bounds(self, topic: str, sources: Sequence[Source]) -> Bounds:
        """Return what the log holds of these partitions, read now.

        Raises:
            InvalidUsage: there is no such topic or partition.
            Unavailable: no answer.
        """

    def at_time(self, topic: str, sources: Sequence[Source], time_ms: int) -> Frontier:
        """Return the first offset of each partition whose record is not older than a time.

        A partition without such a record is missing.
        """

    def consumer(
        self, *, group: str | None = None, buffer_bytes: int = FETCH_BUFFER_BYTES_MAX
    ) -> Consumer:
        """Return a consumer that reads nothing yet.

        Args:
            group: under which name `commit_hint` tells monitors; no group is ever joined.
            buffer_bytes: what it may hold before anybody asks.
        """

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
        """Set the offsets of a consumer group that has no members; False if it was refused."""

    def producer(self) -> Producer:
        """Return a producer."""

    def close(self) -> None:
        """Let go of everything but its consumers and producers. May be called twice."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(self, *_: object) -> None:
        """Close."""
