"""Benchmarks of the catalog on Cassandra against the bare statements a driver would send.

What it is: a seal against an INSERT IF NOT EXISTS, stored outputs against a loop of inserts of the
same size, on one real node.
What it must not know: user code, what runs a lane.

Invariants:
    Bare means the same consistency (QUORUM, and SERIAL for what is conditional), the same protocol
    and TCP_NODELAY, and nothing else of ours.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import FallthroughRetryPolicy, RoundRobinPolicy

from bench.catalog import APPENDS, CHUNK_BYTES, CHUNKS, Lane, carried, timed
from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from dedup.catalog.cassandra import CassandraStore
from dedup.catalog.cassandra.cql import CHUNKS as CHUNK_STATEMENTS
from dedup.catalog.cassandra.errors import Access
from dedup.catalog.cassandra.window import Window
from dedup.catalog.open import open_catalog
from dedup.catalog.store import Blob
from dedup.model import Attempt, Incarnation, Slot
from delivery.services.ephemeral import Services

#: Bundles of a turn.
BUNDLES = 4
#: Inserts a bare loop has under way at once, and times it tries one that the driver refused because
#: the socket was full. More at once are no faster.
IN_FLIGHT = 16
TRIES_MAX = 100


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
            Contestant(name=name, turn=partial(carried, act, BUNDLES), servers=_pids(services))
            for name, act in (("bare loop", inserted), ("bare, streamed", streamed), ("put", put))
        ]


# Bundles from small to large -----------------------------------------------------------------------


@contextmanager
def _bundles_staged(number: int, kib: int, lab: Lab) -> Iterator[list[Contestant]]:
    with ExitStack() as stack:
        services = lab.cassandra()
        store = CassandraStore.open(_url(services, "bench_bundles"))
        stack.callback(store.close)
        lane, owner, seqs = uuid4().hex, Incarnation(os.urandom(16)), iter(range(1 << 62))

        def bare(chunks: Sequence[bytes]) -> None:
            # The same session, settings and window, without the note of the slot.
            connection = store._connection  # noqa: SLF001 - bare means the same session
            seq, attempt = next(seqs), os.urandom(16)
            with Window(connection, "insert", lane, Access.WRITE) as window:
                for at, chunk in enumerate(chunks):
                    key = (f"{lane}/bare", owner, seq, attempt, at)
                    window.send(CHUNK_STATEMENTS[Blob.OUTPUTS].put, (*key, chunk), len(chunk))

        def put(chunks: Sequence[bytes]) -> None:
            slot = Slot(lane, owner, next(seqs), Attempt(os.urandom(16)))
            store.put(Blob.OUTPUTS, slot, chunks)

        def turn(act: Callable[[Sequence[bytes]], None]) -> Turn:
            seconds = []
            for _ in range(BUNDLES):
                chunks = [os.urandom(kib * 1024) for _ in range(number)]
                begin = time.perf_counter()
                act(chunks)
                seconds.append(time.perf_counter() - begin)
            return Turn(seconds=tuple(seconds))

        yield [
            Contestant(name=name, turn=partial(turn, act), servers=_pids(services))
            for name, act in (("bare loop", bare), ("put", put))
        ]


def _bundles(number: int, kib: int, rounds: int, goal: Goal) -> Benchmark:
    return Benchmark(
        name=f"cassandra-bundle-{number}x{kib}",
        says=f"A bundle of {number} chunks of {kib} KiB stored in Cassandra, beside the same inserts "
        "through the same session and window: what is left is the note of the slot.",
        unit="bundle",
        staged=partial(_bundles_staged, number, kib),
        baseline="bare loop",
        rounds=(rounds, 1),
        warmups=5,
        goals=(goal,),
    )


#: A small bundle pays a round trip for the note of its slot; in a large one it disappears.
_NOTE = Goal(
    says="a small bundle beyond its inserts",
    contestant="put",
    measure="over_ms",
    unit="ms",
    at_most=4,
)
_RATE = Goal(
    says="bundles a second / a bare loop's", contestant="put", measure="speed", at_least=0.8
)

BENCHMARKS = (
    _bundles(1, 64, 75, _NOTE),
    _bundles(1, 256, 40, _NOTE),
    _bundles(2, 512, 20, _RATE),
    _bundles(8, 512, 10, _RATE),
    _bundles(32, 512, 3, _RATE),
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
        name="cassandra-blobs",
        says=f"Outputs stored in Cassandra on one node, {CHUNKS} chunks of {CHUNK_BYTES // 1024} "
        f"KiB a bundle, beside a bare loop of such inserts, {IN_FLIGHT} under way at once, that "
        "waits for a bundle's last as a seal must; and beside one that streams on without waiting.",
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
