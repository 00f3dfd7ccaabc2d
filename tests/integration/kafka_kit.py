"""What the suites over the Kafka client port share: rows in, rows out."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition

from dedup.model import Source
from delivery.batch import Emissions
from delivery.kafka.opening import open_client
from delivery.kafka.port import Consumer, Fetched
from delivery.records import Headers

#: How long anything may take to arrive.
ARRIVAL_SECONDS_MAX = 30.0


#: kafka-python leaves the socket of every refused connection to the garbage collector.
LEAVES_SOCKETS = "ignore:unclosed <socket:ResourceWarning"
#: A level for loggers whose records would hold exceptions, frames, and so these sockets.
NEVER = logging.CRITICAL + 1


class Sent(NamedTuple):
    """One record for a partition."""

    partition: int
    key: bytes | None = None
    value: bytes | None = b""
    headers: Headers = ()


def emissions(rows: Sequence[Sent]) -> Emissions:
    """Return rows as the producer takes them, all for the first edge."""
    return Emissions(
        edges=[0] * len(rows),
        partitions=[row.partition for row in rows],
        keys=[row.key for row in rows],
        values=[row.value for row in rows],
        headers=[row.headers for row in rows],
        ids=np.zeros((len(rows), 2), dtype=np.uint64),
    )


class Drained(NamedTuple):
    """What came of some partitions, and where they stand."""

    rows: dict[Source, list[tuple[int, bytes | None, bytes | None, Headers]]]
    positions: dict[Source, int]


def drain(
    consumer: Consumer,
    ends: Mapping[Source, int],
    *,
    max_records: int = 1000,
    max_bytes: int = 1 << 20,
) -> Drained:
    """Poll until every position is at its end or behind it; fail if that takes too long."""
    drained = Drained({source: [] for source in ends}, {})
    deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
    while any(drained.positions.get(source, -1) < end for source, end in ends.items()):
        assert time.monotonic() < deadline, f"stands at {drained.positions}, wants {ends}"
        take(drained, consumer.poll(max_records=max_records, max_bytes=max_bytes, timeout=0.5))
    return drained


def take(drained: Drained, fetched: Iterable[Fetched]) -> None:
    """Add what a poll got, and hold it to the port's promises."""
    for one in fetched:
        batch = one.batch
        offsets = batch.offsets.tolist()
        before = drained.positions.get(one.source, 0)
        assert one.position >= before, "positions do not fall"
        assert offsets == sorted(set(offsets)), "offset order"
        assert all(before <= offset < one.position for offset in offsets), "behind the last poll"
        headers = [tuple(found or ()) for found in batch.headers]
        rows = zip(offsets, batch.keys, batch.values, headers, strict=True)
        drained.rows.setdefault(one.source, []).extend(rows)
        drained.positions[one.source] = one.position


def lag_seen(kafka: str, group: str, topic: str) -> dict[int, int]:
    """Return what a monitor takes for a group's lag, by partition."""
    with open_client(kafka) as client:
        found = client.describe([topic])[topic]
        ends = client.bounds(topic, found.sources).high
    monitor = ConfluentConsumer({"bootstrap.servers": kafka, "group.id": group})
    parts = [TopicPartition(topic, source.partition) for source in found.sources]
    seen = monitor.committed(parts, ARRIVAL_SECONDS_MAX)
    monitor.close()
    return {
        part.partition: (ends.at(Source(found.id, part.partition)) or 0) - part.offset
        for part in seen
    }
