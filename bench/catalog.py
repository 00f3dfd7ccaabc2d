"""Benchmarks of the catalog on SQLite against the barest thing that would do the same.

What it is: a seal against one fsync, stored outputs against a bare loop of inserts of the same
size; and `Lane`, `timed` and `carried`, which the benchmarks of other stores use as well.
What it must not know: user code, what runs a lane.

Invariants:
    Bare means the same durability (WAL, synchronous=FULL), the same pages, and nothing else of
    ours.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from bench.meter import MB
from dedup.catalog.catalog import Catalog, blob_ref
from dedup.catalog.open import open_catalog
from dedup.catalog.sqlite_file import PAGE_BYTES
from dedup.catalog.store import Blob
from dedup.formats.lane import encode_head, encode_seal
from dedup.model import (
    IDENTITY_BYTES,
    Attempt,
    Counts,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    Seal,
    Slot,
    Source,
    TopicId,
    advance,
)

INPUT = Source(TopicId(b"input".ljust(IDENTITY_BYTES)), 0)
#: Appends of one turn: few, so that contestants alternate within milliseconds.
APPENDS = 10
#: What a plain fsync writes before it.
BLOCK_BYTES = 4096
#: A bundle's chunks, about as large as 20,000 records of 150 bytes are when compressed.
CHUNK_BYTES = 256 * 1024
CHUNKS = 10
#: Bundles of a turn: enough that each turn has its share of checkpoints, which come after every
#: 16 MiB in both contestants.
BUNDLES = 13
#: A seal is an fsync of 0.2 ms, and everything else within a millisecond.
OVER_FSYNC_MS_MAX = 0.8


class Lane:
    """A lane that seals bundle after bundle, with as much in each seal as a real one has."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self._name = name
        ref = HeadRef(Incarnation(os.urandom(16)), 0, Attempt(os.urandom(16)))
        frontier = Frontier.of([(INPUT, 0)])
        topics = (("orders", INPUT.topic),)
        self._head = Head(ref=ref, frontier=frontier, topics=topics, writes=(INPUT.topic,))
        first = Seal(ref=ref, start=frontier, end=frontier, minted_at_ms=0, lane_time_ms=0)
        assert catalog.create(name, self._head, first), "nobody else has this lane"

    def seal(self, chunks: Sequence[bytes] = ()) -> None:
        """Store chunks and append the seal that names them."""
        last = self._head
        ref = HeadRef(last.ref.incarnation, last.ref.seq + 1, Attempt(os.urandom(16)))
        slot = Slot(self._name, *_position(ref))
        if chunks:
            outputs = self._catalog.put(Blob.OUTPUTS, slot, chunks, len(chunks))
        else:
            outputs = blob_ref([b"chunk"], 1)
        end = Frontier.of((source, offset + 1) for source, offset in last.frontier)
        seal = Seal(
            ref=ref,
            start=last.frontier,
            end=end,
            minted_at_ms=last.minted_at_ms + 1,
            lane_time_ms=last.lane_time_ms + 1,
            code="bench",
            counts=Counts(read=1, fresh=1),
            outputs=outputs,
            segment=outputs,
        )
        head = advance(last, seal)
        assert self._catalog.append(self._name, last.ref, head, seal), "nobody races"
        self._head = head

    def row_bytes(self) -> int:
        """Return the bytes of a head and an entry."""
        head = self._head
        seal = Seal(
            ref=head.ref, start=head.frontier, end=head.frontier, minted_at_ms=1, lane_time_ms=1
        )
        return len(encode_head(head)) + len(encode_seal(seal))


def _position(ref: HeadRef) -> tuple[Incarnation, int, Attempt]:
    return ref.incarnation, ref.seq, ref.attempt


def timed(act: Callable[[], object], times: int) -> Turn:
    """Do something some times; each time counts by itself."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - begin)
    return Turn(seconds=tuple(seconds))


def carried(act: Callable[[Sequence[Sequence[bytes]]], object], count: int) -> Turn:
    """Have bundles of fresh, incompressible chunks stored; the bytes of all count together."""
    bundles = [[os.urandom(CHUNK_BYTES) for _ in range(CHUNKS)] for _ in range(count)]
    begin = time.perf_counter()
    act(bundles)
    seconds = time.perf_counter() - begin
    return Turn(seconds=(seconds,), amount=count * CHUNKS * CHUNK_BYTES / MB)


# SQLite -----------------------------------------------------------------------------------------


def _bare_file(path: Path) -> sqlite3.Connection:
    """Open a database with the settings that decide about speed and durability, and no more."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, bytes BLOB)")
    return connection


@contextmanager
def _sqlite_append_staged(lab: Lab) -> Iterator[list[Contestant]]:
    with ExitStack() as stack:
        directory = stack.enter_context(lab.directory())
        catalog = open_catalog(f"sqlite:{directory / 'catalog.db'}")
        stack.callback(catalog.store.close)
        bare = stack.enter_context(closing(_bare_file(directory / "bare.db")))
        file = os.open(directory / "plain", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        stack.callback(os.close, file)
        lane = Lane(catalog, "bench/append/0")
        row = os.urandom(lane.row_bytes())

        def synced() -> None:
            os.write(file, bytes(BLOCK_BYTES))
            os.fsync(file)

        def inserted() -> None:
            bare.execute("INSERT INTO bare (bytes) VALUES (?)", (row,))

        yield [
            Contestant(name="fsync", turn=lambda: timed(synced, APPENDS)),
            Contestant(name="bare INSERT", turn=lambda: timed(inserted, APPENDS)),
            Contestant(name="append", turn=lambda: timed(lane.seal, APPENDS)),
        ]


@contextmanager
def _sqlite_blobs_staged(lab: Lab) -> Iterator[list[Contestant]]:
    with ExitStack() as stack:
        directory = stack.enter_context(lab.directory())
        catalog = open_catalog(f"sqlite:{directory / 'catalog.db'}")
        stack.callback(catalog.store.close)
        bare = stack.enter_context(closing(_bare_file(directory / "bare.db")))
        lane = Lane(catalog, "bench/blobs/0")

        def inserted(bundles: Sequence[Sequence[bytes]]) -> None:
            for chunks in bundles:
                bare.execute("BEGIN IMMEDIATE")
                rows = [(chunk,) for chunk in chunks]
                bare.executemany("INSERT INTO bare (bytes) VALUES (?)", rows)
                bare.execute("COMMIT")

        yield [
            Contestant(name="bare loop", turn=partial(carried, inserted, BUNDLES)),
            Contestant(
                name="put and append", turn=partial(carried, partial(_sealed, lane), BUNDLES)
            ),
        ]


def _sealed(lane: Lane, bundles: Sequence[Sequence[bytes]]) -> None:
    for chunks in bundles:
        lane.seal(chunks)


BENCHMARKS = (
    Benchmark(
        name="sqlite-append",
        says="A seal in a SQLite catalog, beside the write and fsync of one block, which nothing "
        "durable goes below, and an autocommitted INSERT of a row as large.",
        unit="append",
        staged=_sqlite_append_staged,
        baseline="fsync",
        rounds=(100, 5),
        warmups=5,
        goals=(
            Goal(
                says="an append beyond one fsync (1 ms in all where an fsync takes 0.2)",
                contestant="append",
                measure="over_ms",
                unit="ms",
                at_most=OVER_FSYNC_MS_MAX,
            ),
        ),
    ),
    Benchmark(
        name="sqlite-blobs",
        says=f"Outputs stored and sealed in SQLite, {CHUNKS} chunks of {CHUNK_BYTES // 1024} KiB "
        "a bundle, beside a bare loop of such inserts, a transaction a bundle.",
        unit="MB",
        staged=_sqlite_blobs_staged,
        baseline="bare loop",
        rounds=(20, 2),
        warmups=2,
        goals=(
            Goal(
                says="outputs on SQLite, MB/s / a bare loop's",
                contestant="put and append",
                measure="speed",
                at_least=0.9,
            ),
        ),
    ),
)
