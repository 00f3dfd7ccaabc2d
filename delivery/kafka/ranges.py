"""Ranges of a topic, read to their ends.

What it is: `read_ranges`, the one loop of whoever reads what a log held at some moment.
What it must not know: what the records are wanted for, whether the topic is the one that was meant.

Invariants:
    A range ends at a position, not at a row: holes in it are no loss.
    It ends: whoever gets nothing for `STALL_SECONDS_MAX` is cut off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

from dedup.errors import DeliveryError
from dedup.model import Source
from delivery.kafka.port import FETCH_BUFFER_BYTES_MAX, Client, Fetched

__all__ = [
    "POLL_RECORDS_MAX",
    "SHORT_BUFFER_BYTES_MAX",
    "SHORT_RECORDS_MAX",
    "STALL_SECONDS_MAX",
    "read_ranges",
]

#: What one poll returns at most, and how long it waits. Records are gone through column by column:
#: so many small ones stay in a processor's own cache meanwhile, and take a fifth less time than ten
#: times as many.
POLL_RECORDS_MAX = 2_000
POLL_BYTES_MAX = 16 * 1024 * 1024
POLL_SECONDS = 0.5
#: What lies in ranges as short as this is not worth what a consumer fetches ahead behind them.
SHORT_RECORDS_MAX = 1000
SHORT_BUFFER_BYTES_MAX = 1024 * 1024
#: A range was there when it was chosen; whoever gets nothing of it for so long is cut off.
STALL_SECONDS_MAX = 60.0


def read_ranges(
    client: Client,
    topic: str,
    starts: Mapping[Source, int],
    ends: Mapping[Source, int],
    *,
    stalled: Callable[[Mapping[Source, int]], DeliveryError],
    records_max: int = POLL_RECORDS_MAX,
) -> Iterator[Fetched]:
    """Yield what lies in the ranges, with a consumer of its own.

    Args:
        client: the cluster.
        topic: its name.
        starts: where each partition is read from.
        ends: up to where; a partition without an end is not read.
        stalled: what to raise if nothing comes; it is told what is waited for, and from where.
        records_max: what one poll returns at most.
    """
    waiting = {source: at for source, at in starts.items() if at < ends.get(source, at)}
    short = sum(ends[source] - at for source, at in waiting.items()) <= SHORT_RECORDS_MAX
    buffer_bytes = SHORT_BUFFER_BYTES_MAX if short else FETCH_BUFFER_BYTES_MAX
    with closing(client.consumer(buffer_bytes=buffer_bytes)) as consumer:
        consumer.add(topic, waiting)
        deadline = time.monotonic() + STALL_SECONDS_MAX
        while waiting:
            found = consumer.poll(
                max_records=records_max, max_bytes=POLL_BYTES_MAX, timeout=POLL_SECONDS
            )
            if found:
                deadline = time.monotonic() + STALL_SECONDS_MAX
            elif time.monotonic() > deadline:
                raise stalled(waiting)
            for one in found:
                end = ends[one.source]
                batch = one.batch.cut(waiting[one.source], end)
                waiting[one.source] = one.position
                yield Fetched(batch, min(one.position, end))
                if one.position >= end:
                    consumer.remove([one.source])
                    del waiting[one.source]
