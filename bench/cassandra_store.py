"""The Cassandra store against the bare statements it is made of, in one run.

What it is: `python bench/cassandra_store.py [URL]`; without a URL it starts a node of its own.
What it must not know: anything above the store port.

Invariants:
    The two sides of a ratio alternate, so that a busy machine slows both.
    The bare side uses the same session, settings and window.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial

from dedup.catalog.cassandra import CassandraStore
from dedup.catalog.cassandra.cql import CHUNKS, Statement
from dedup.catalog.cassandra.errors import Access
from dedup.catalog.cassandra.window import Window
from dedup.catalog.store import Blob, RawAck, RawLane
from dedup.model import Attempt, HeadRef, Incarnation, Slot
from delivery.services.ephemeral import ephemeral

WARM_UP = 100
APPENDS = 500
#: About what a head and a seal have.
ROW_BYTES = 400
#: Chunks a bundle, bytes a chunk, bundles.
BUNDLES = ((1, 64, 300), (1, 256, 150), (2, 512, 80), (8, 512, 40), (32, 512, 12))
BARE = Statement(
    "insert", "INSERT INTO KS.bench_bare (lane, seq, entry) VALUES (?, ?, ?) IF NOT EXISTS"
)
PUT = CHUNKS[Blob.OUTPUTS].put


def milliseconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1e3


def line(what: str, bare: list[float], ours: list[float]) -> None:
    """Print medians, the 99th percentiles, and the ratio of the medians and of the sums."""
    medians = statistics.median(bare), statistics.median(ours)
    p99 = [sorted(one)[int(len(one) * 0.99)] for one in (bare, ours)]
    print(
        f"{what:<26} bare {medians[0]:7.2f} / {p99[0]:7.2f} ms   ours {medians[1]:7.2f} /"
        f" {p99[1]:7.2f} ms   ours/bare {medians[1] / medians[0]:.2f} (sums"
        f" {sum(ours) / sum(bare):.2f})"
    )


def identity() -> bytes:
    return uuid.uuid4().bytes


def appends(store: CassandraStore) -> None:
    connection = store._connection  # noqa: SLF001 - the bare side uses the same session
    connection.define(
        f"CREATE TABLE IF NOT EXISTS {connection.address.keyspace}.bench_bare"
        " (lane text, seq bigint, entry blob, PRIMARY KEY ((lane, seq)))"
    )
    ref = HeadRef(Incarnation(identity()), 0, Attempt(identity()))
    lane, row = identity().hex(), os.urandom(ROW_BYTES)
    store.create(lane, RawLane(ref, row, RawAck(ref.incarnation, 0, b""), 0), row)
    bare: list[float] = []
    ours: list[float] = []
    for seq in range(1, WARM_UP + APPENDS):
        following = replace(ref, seq=seq, attempt=Attempt(identity()))
        one = milliseconds(partial(connection.compare, BARE, (lane, seq, row), lane))
        other = milliseconds(partial(store.append, lane, ref, following, row, row))
        ref = following
        if seq >= WARM_UP:
            bare.append(one)
            ours.append(other)
    line("append", bare, ours)


def bundles(store: CassandraStore, number: int, size: int, repeats: int) -> None:
    connection = store._connection  # noqa: SLF001 - the bare side uses the same session
    lane, owner = identity().hex(), Incarnation(identity())
    bare: list[float] = []
    ours: list[float] = []

    def loop(chunks: list[bytes], slot: Slot) -> None:
        with Window(connection, "insert", lane, Access.WRITE) as window:
            for at, chunk in enumerate(chunks):
                key = (f"{lane}/bare", owner, slot.seq, slot.attempt, at)
                window.send(PUT, (*key, chunk), len(chunk))

    warm_up = max(3, repeats // 5)
    for seq in range(warm_up + repeats):
        chunks = [os.urandom(size * 1024) for _ in range(number)]
        slot = Slot(lane, owner, seq, Attempt(identity()))
        one = milliseconds(partial(loop, chunks, slot))
        other = milliseconds(partial(store.put, Blob.OUTPUTS, slot, chunks))
        if seq >= warm_up:
            bare.append(one)
            ours.append(other)
    megabytes = number * size * 1024 / 1e6
    line(f"put {number} x {size} KiB", bare, ours)
    rates = [megabytes / statistics.median(side) * 1e3 for side in (bare, ours)]
    print(f"{'':<26} bare {rates[0]:.0f} MB/s, ours {rates[1]:.0f} MB/s")


def measure(url: str) -> None:
    CassandraStore.open(url).close()  # makes the keyspace
    opening = [milliseconds(lambda: CassandraStore.open(url).close()) for _ in range(10)]
    print(f"open and close             {statistics.median(opening):.0f} ms")
    with closing(CassandraStore.open(url)) as store:
        appends(store)
        for number, size, repeats in BUNDLES:
            bundles(store, number, size, repeats)


def main() -> None:
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    with ephemeral(kafka=0, cassandra=1) as services:
        measure(f"cassandra://{services.cassandra.address(1)}/bench")


if __name__ == "__main__":
    main()
