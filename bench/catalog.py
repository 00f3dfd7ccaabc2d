"""Benchmarks of the catalog's stores against the barest thing that would do the same.

What it is: a seal against one fsync (SQLite) and one conditional INSERT (Cassandra); stored output
chunks against a bare loop of inserts of the same size on both.
What it must not know: lanes beyond their rows, user code.

Invariants:
    Bare means the same durability (WAL and synchronous=FULL; QUORUM, and SERIAL for what is
    conditional) and the same settings of connection and file, and nothing else of ours.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import FallthroughRetryPolicy, RoundRobinPolicy

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
from delivery.services.ephemeral import Services

INPUT = Source(TopicId(b"input".ljust(IDENTITY_BYTES)), 0)
#: Appends of one turn: few, so that contestants alternate within milliseconds.
APPENDS = 10
#: What a plain fsync writes before it.
BLOCK_BYTES = 4096
#: A bundle's chunks, about as large as 20,000 records of 150 bytes are when compressed, and
#: bundles of a turn.
CHUNK_BYTES = 256 * 1024
CHUNKS = 10
BUNDLES = 4
#: Inserts a bare loop has under way at once, and times it tries one that the driver refused because
#: the socket was full. More at once are no faster.
IN_FLIGHT = 16
TRIES_MAX = 100

#: The issue of a seal: an fsync of 0.2 ms and everything else within a millisecond.
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


def carried(act: Callable[[Sequence[Sequence[bytes]]], object]) -> Turn:
    """Have a turn's bundles of fresh, incompressible chunks stored; the bytes count together."""
    bundles = [[os.urandom(CHUNK_BYTES) for _ in range(CHUNKS)] for _ in range(BUNDLES)]
    begin = time.perf_counter()
    act(bundles)
    seconds = time.perf_counter() - begin
    return Turn(seconds=(seconds,), amount=BUNDLES * CHUNKS * CHUNK_BYTES / MB)


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
            Contestant(name="bare loop", turn=lambda: carried(inserted)),
            Contestant(name="put and append", turn=lambda: carried(partial(_sealed, lane))),
        ]


def _sealed(lane: Lane, bundles: Sequence[Sequence[bytes]]) -> None:
    for chunks in bundles:
        lane.seal(chunks)


# Cassandra --------------------------------------------------------------------------------------


@contextmanager
def _bare_session(services: Services) -> Iterator[Any]:
    """Connect with nothing set but what makes the comparison fair."""
    profile = ExecutionProfile(
        load_balancing_policy=RoundRobinPolicy(),
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=ConsistencyLevel.QUORUM,
        serial_consistency_level=ConsistencyLevel.SERIAL,
    )
    cluster = Cluster(
        services.cassandra.contact_points,
        port=services.cassandra.port,
        # Without it every insert above 4 KiB waits 40 ms, and nothing would be compared.
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        protocol_version=5,
    )
    try:
        session = cluster.connect()
        session.execute(
            "CREATE KEYSPACE IF NOT EXISTS bare WITH replication ="
            " {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        yield session
    finally:
        cluster.shutdown()


def _url(services: Services, keyspace: str) -> str:
    known = services.cassandra
    return f"cassandra://{known.contact_points[0]}:{known.port}/{keyspace}"


def _pids(services: Services) -> tuple[int, ...]:
    running = [server.node.process() for server in services.servers.values()]
    return tuple(process.pid for process in running if process is not None)


@contextmanager
def _cassandra_append_staged(lab: Lab) -> Iterator[list[Contestant]]:
    with ExitStack() as stack:
        services = lab.cassandra()
        catalog = open_catalog(_url(services, "bench_append"))
        stack.callback(catalog.store.close)
        session = stack.enter_context(_bare_session(services))
        session.execute(
            "CREATE TABLE bare.seals (lane text, seq bigint, entry blob,"
            " PRIMARY KEY (lane, seq)) WITH CLUSTERING ORDER BY (seq DESC)"
        )
        insert = session.prepare(
            "INSERT INTO bare.seals (lane, seq, entry) VALUES (?, ?, ?) IF NOT EXISTS"
        )
        lane = Lane(catalog, "bench/append/0")
        row = os.urandom(lane.row_bytes())
        seqs = iter(range(1 << 62))

        def together() -> None:
            assert session.execute(insert, ("one", next(seqs), row)).was_applied, "it is new"

        def apart() -> None:
            seq = next(seqs)
            assert session.execute(insert, (f"lane {seq}", seq, row)).was_applied, "it is new"

        yield [
            Contestant(name=name, turn=partial(timed, act, APPENDS), servers=_pids(services))
            for name, act in (
                ("INSERT IF NOT EXISTS", together),
                ("the same, each in a partition of its own", apart),
                ("append", lane.seal),
            )
        ]


def _done(session: Any, insert: Any, row: Any, future: Any) -> None:
    """Wait for an insert; try it again if the driver did not even send it."""
    for _ in range(TRIES_MAX):
        try:
            future.result()
        except NoHostAvailable:
            future = session.execute_async(insert, row)
        else:
            return
    future.result()


@contextmanager
def _cassandra_blobs_staged(lab: Lab) -> Iterator[list[Contestant]]:
    with ExitStack() as stack:
        services = lab.cassandra()
        catalog = open_catalog(_url(services, "bench_blobs"))
        stack.callback(catalog.store.close)
        session = stack.enter_context(_bare_session(services))
        session.execute(
            "CREATE TABLE bare.chunks (bundle bigint, chunk int, data blob,"
            " PRIMARY KEY (bundle, chunk)) WITH compression = {'enabled': false}"
        )
        insert = session.prepare("INSERT INTO bare.chunks (bundle, chunk, data) VALUES (?, ?, ?)")
        numbers = iter(range(1 << 62))

        def streamed(bundles: Sequence[Sequence[bytes]]) -> None:
            waiting: deque[tuple[Any, Any]] = deque()
            for number, chunks in zip(numbers, bundles, strict=False):
                for row in ((number, at, chunk) for at, chunk in enumerate(chunks)):
                    if len(waiting) == IN_FLIGHT:
                        _done(session, insert, *waiting.popleft())
                    waiting.append((row, session.execute_async(insert, row)))
            while waiting:
                _done(session, insert, *waiting.popleft())

        def inserted(bundles: Sequence[Sequence[bytes]]) -> None:
            for chunks in bundles:
                streamed([chunks])

        incarnation = Incarnation(os.urandom(16))

        def put(bundles: Sequence[Sequence[bytes]]) -> None:
            for number, chunks in zip(numbers, bundles, strict=False):
                slot = Slot("bench/blobs/0", incarnation, number, Attempt(os.urandom(16)))
                catalog.put(Blob.OUTPUTS, slot, chunks, len(chunks))

        yield [
            Contestant(name=name, turn=partial(carried, act), servers=_pids(services))
            for name, act in (("bare loop", inserted), ("bare, streamed", streamed), ("put", put))
        ]


# What there is ----------------------------------------------------------------------------------

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
        name="cassandra-append",
        says="A seal in a Cassandra catalog on one node, beside a bare INSERT IF NOT EXISTS of a "
        "row as large, into one partition as a lane's entries are.",
        unit="append",
        staged=_cassandra_append_staged,
        baseline="INSERT IF NOT EXISTS",
        rounds=(100, 5),
        warmups=20,
        goals=(
            Goal(
                says="an append / a bare INSERT IF NOT EXISTS",
                contestant="append",
                measure="ratio",
                at_most=1.3,
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
        rounds=(40, 2),
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
    Benchmark(
        name="cassandra-blobs",
        says=f"Outputs stored in Cassandra on one node, {CHUNKS} chunks of {CHUNK_BYTES // 1024} "
        f"KiB a bundle, beside a bare loop of such inserts, {IN_FLIGHT} under way at once.",
        unit="MB",
        staged=_cassandra_blobs_staged,
        baseline="bare loop",
        rounds=(40, 2),
        warmups=3,
        goals=(
            Goal(
                says="outputs on Cassandra, MB/s / a bare loop's",
                contestant="put",
                measure="speed",
                at_least=0.9,
            ),
        ),
    ),
)
