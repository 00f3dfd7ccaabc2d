"""What came out of a turn: the output topic, read and judged once the contestant has stopped.

What it is: `read`, which takes all that is committed out of a topic, and `Came`, its columns.
What it must not know: who wrote it, how long that took.

Invariants:
    Nobody is read while what is timed goes on: a reader would take the cores of who writes.
    Only committed records are read, and all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from delivery.batch import Batch
from delivery.header import NAME, decode_headers
from delivery.kafka.port import Client, Topic

#: Every value begins with its order: so many bytes before its digits, and so many digits.
ORDER_AT, ORDER_DIGITS = len('{"order":'), 8
#: The number of the first order.
FIRST_ORDER = 10_000_000
#: Asked for at once.
POLL_RECORDS, POLL_BYTES, POLL_SECONDS = 50_000, 1 << 25, 0.2
#: How long a topic may say nothing although there is more in it.
SILENCE_SECONDS_MAX = 60.0
#: A parent in one number: its partition above its offset.
PARTITION_BITS = 48

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class Came:
    """What came out, record by record.

    Attributes:
        stamps_ms: when the broker had it.
        orders: which order it is, counted from 0.
        seen_ms: when this reader had it.
        values: if they were to be kept.
        parents: partition and offset of the input it was made of, in one number; none where the
            contestant does not say.
    """

    stamps_ms: Numbers
    orders: Numbers
    seen_ms: Numbers
    parents: Numbers
    values: list[bytes] = field(default_factory=list)

    def counts(self, orders: int) -> Numbers:
        """Return how often each order came out."""
        return np.bincount(self.orders, minlength=orders)


def ends(client: Client, topic: Topic) -> int:
    """Return how far the log of a topic reaches, markers of transactions included."""
    return sum(end for _, end in client.bounds(topic.name, topic.sources).high)


def read(client: Client, topic: Topic, *, keep: bool = False, until: int | None = None) -> Came:
    """Read a topic from its beginning: so many records as they come, or all that are there."""
    stamps, orders, seen, parents = ([np.empty(0, np.int64)] for _ in range(4))
    kept: list[bytes] = []
    for batch in _polled(client, topic, until):
        values = [value or b"" for value in batch.values]
        stamps.append(batch.timestamps_ms)
        orders.append(orders_of(values))
        seen.append(np.full(len(batch), int(time.time() * 1000)))
        parents.append(_parents(batch))
        if keep:
            kept += values
    return Came(
        stamps_ms=np.concatenate(stamps),
        orders=np.concatenate(orders),
        seen_ms=np.concatenate(seen),
        parents=np.concatenate(parents),
        values=kept,
    )


def orders_of(values: list[bytes]) -> Numbers:
    """Return the orders of values, counted from 0."""
    digits = b"".join(value[ORDER_AT : ORDER_AT + ORDER_DIGITS] for value in values)
    return np.frombuffer(digits, f"S{ORDER_DIGITS}").astype(np.int64) - FIRST_ORDER


def _parents(batch: Batch) -> Numbers:
    """Return the inputs of a batch whose records say what they were made of."""
    own = [
        next((value for name, value in headers or () if name == NAME), None)
        for headers in batch.headers
    ]
    columns = decode_headers(own)
    ours = columns.ours
    return (columns.partitions[ours].astype(np.int64) << PARTITION_BITS) + columns.offsets[ours]


def _polled(client: Client, topic: Topic, until: int | None) -> Iterator[Batch]:
    consumer = client.consumer()
    try:
        consumer.add(topic.name, dict.fromkeys(topic.sources, 0))
        high = tuple(client.bounds(topic.name, topic.sources).high)
        count, heard = 0, time.monotonic()
        while count < until if until else any(consumer.position(one) < end for one, end in high):
            for fetched in consumer.poll(
                max_records=POLL_RECORDS, max_bytes=POLL_BYTES, timeout=POLL_SECONDS
            ):
                heard = time.monotonic()
                count += len(fetched.batch)
                yield fetched.batch
            assert time.monotonic() - heard < SILENCE_SECONDS_MAX, f"{count} records came out"
    finally:
        consumer.close()
