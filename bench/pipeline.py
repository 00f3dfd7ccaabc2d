"""Benchmarks of a whole pipeline on Spark: ours beside the same job in plain PySpark.

What it is: the same input topic read from its beginning by each way of doing the job, the same job at
a steady thousand records a second, and the same with somebody killed.
What it must not know: how any way works; each is a driver process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from bench.cluster import MICRO_BATCHES, RECORDS, Cluster, Way, clusters, drain
from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from bench.pipeline_driver import DEDUPLICATED, MICRO_BATCH, PLAIN, RESIDENT
from bench.publisher import PER_SECOND
from bench.recovery import Victim, recovered
from bench.steady import steady

SQLITE, CASSANDRA = "ours, resident, SQLite", "ours, resident, Cassandra"
BATCHED, BATCHED_CASSANDRA = "ours, micro-batch, SQLite", "ours, micro-batch, Cassandra"
DETERMINISTIC = "ours, resident, Cassandra, deterministic"
CHAINED = "ours, three stages, SQLite"
SPARK, SPARK_DEDUP = "plain PySpark", "plain PySpark + dropDuplicates"
WORKER, DRIVER = "worker of ours, SQLite", "driver of ours, SQLite"
WORKER_CASSANDRA, WORKER_BATCHED = (
    "worker of ours, Cassandra",
    "worker of ours, micro-batch, SQLite",
)
DRIVER_CASSANDRA, DRIVER_SPARK = "driver of ours, Cassandra", "driver of plain PySpark"
DRIVER_BATCHED = "driver of ours, micro-batch, SQLite"
DRIVER_BATCHED_CASSANDRA = "driver of ours, micro-batch, Cassandra"

_FILE = "sqlite:{scratch}/catalog.db"

#: The contestants that need no server but the broker; benchmarks of peers race some of them as well.
WAYS = {
    SPARK: Way(way=PLAIN, deduplicates=False, micro_batches=True),
    SPARK_DEDUP: Way(way=DEDUPLICATED, micro_batches=True),
    SQLITE: Way(way=RESIDENT, catalog=_FILE, parents=True),
    BATCHED: Way(way=MICRO_BATCH, catalog=_FILE, parents=True, micro_batches=True),
}
#: One more where latency is measured.
THREE = {CHAINED: Way(way=RESIDENT, catalog=_FILE, stages=3)}

_Turn = Callable[[Cluster, Way], Turn]


def _on_cassandra(lab: Lab) -> dict[str, Way]:
    node = lab.cassandra().cassandra
    catalog = f"cassandra://{node.contact_points[0]}:{node.port}/bench_{{name}}"
    return {
        CASSANDRA: Way(way=RESIDENT, catalog=catalog, parents=True),
        BATCHED_CASSANDRA: Way(way=MICRO_BATCH, catalog=catalog, parents=True, micro_batches=True),
        DETERMINISTIC: Way(way=RESIDENT, catalog=catalog, parents=True, deterministic=True),
    }


@contextmanager
def raced(
    lab: Lab, ways: dict[str, Way], turn: _Turn, *, warm: Sequence[Way] = ()
) -> Iterator[Sequence[Contestant]]:
    """Give everybody the same turn on one broker.

    Args:
        lab: where.
        ways: the contestants.
        turn: what each is given.
        warm: who has a turn before anybody is measured. A server that has just started compiles what
            it runs for half a minute, on a core that whoever goes first would miss.
    """
    with clusters(quick=lab.quick, report=lab.report) as cluster:
        for way in warm:
            lab.report("a turn that does not count: the servers get warm")
            turn(cluster, way)
        yield [
            Contestant(name=name, turn=partial(turn, cluster, way)) for name, way in ways.items()
        ]


def at_rate(lab: Lab) -> _Turn:
    """Return the turn of latency, as long as it is in this run."""
    return partial(steady, quick=lab.quick)


def _drains(lab: Lab) -> AbstractContextManager[Sequence[Contestant]]:
    return raced(lab, WAYS | _on_cassandra(lab), drain)


def _steadies(lab: Lab) -> AbstractContextManager[Sequence[Contestant]]:
    on_cassandra = _on_cassandra(lab)
    warm = (WAYS[SQLITE], on_cassandra[CASSANDRA])
    return raced(lab, WAYS | THREE | on_cassandra, at_rate(lab), warm=warm)


@contextmanager
def _kills(lab: Lab) -> Iterator[Sequence[Contestant]]:
    on_cassandra = _on_cassandra(lab)
    cassandra, batched = on_cassandra[CASSANDRA], on_cassandra[BATCHED_CASSANDRA]
    with clusters(quick=True, report=lab.report) as cluster:
        yield [
            Contestant(name=name, turn=partial(recovered, cluster, way, victim))
            for name, way, victim in (
                (DRIVER_SPARK, WAYS[SPARK], Victim.DRIVER),
                (DRIVER, WAYS[SQLITE], Victim.DRIVER),
                (DRIVER_CASSANDRA, cassandra, Victim.DRIVER),
                (DRIVER_BATCHED, WAYS[BATCHED], Victim.DRIVER),
                (DRIVER_BATCHED_CASSANDRA, batched, Victim.DRIVER),
                (WORKER, WAYS[SQLITE], Victim.WORKER),
                (WORKER_CASSANDRA, cassandra, Victim.WORKER),
                (WORKER_BATCHED, WAYS[BATCHED], Victim.WORKER),
            )
        ]


def _as_fast(says: str, contestant: str, times: float) -> Goal:
    return Goal(
        says=f"throughput, {says} / plain PySpark",
        contestant=contestant,
        measure="speed",
        at_least=times,
    )


def late(says: str, contestant: str, median_ms: float, tail_ms: float | None = None) -> list[Goal]:
    """Return the goals of a contestant's latency."""
    goals = [
        Goal(
            says=f"p50, {says}",
            contestant=contestant,
            measure="median_ms",
            unit="ms",
            at_most=median_ms,
        )
    ]
    if tail_ms is not None:
        goals.append(
            Goal(
                says=f"p99, {says}",
                contestant=contestant,
                measure="tail_ms",
                unit="ms",
                at_most=tail_ms,
            )
        )
    return goals


THRIFT = Goal(
    says="CPU seconds per million records out, ours on SQLite, all our processes, steady",
    contestant=SQLITE,
    measure="CPU s/M",
    unit="s",
    at_most=10.0,
)
DRAIN = Benchmark(
    name="pipeline-drain",
    says=f"{RECORDS:,} records of 150 bytes, 5% of them repeats, four partitions, per-record Python "
    "user code: output records a second in steady state, broker and store on the same cores. Who "
    f"works in micro-batches gets a {MICRO_BATCHES}th of the input in each. CPU and memory among the "
    "facts are the contestant's own processes', CPU over the steady span alone; those of the table "
    "are the whole turn's, starting and checking included",
    unit="record",
    staged=_drains,
    baseline=SPARK,
    rounds=(3, 1),
    warmups=0,
    goals=(
        _as_fast("ours on SQLite", SQLITE, 1.25),
        _as_fast("ours on Cassandra", CASSANDRA, 1.0),
        _as_fast("deterministic on Cassandra", DETERMINISTIC, 1.2),
        _as_fast("micro-batch on SQLite", BATCHED, 0.85),
        THRIFT,
    ),
)
STEADY_LATENCY = Benchmark(
    name="pipeline-latency",
    says=f"publication to output at {PER_SECOND:,} records a second over four partitions, in the "
    "twelve seconds after the first half minute; among the facts, in those after the first four seconds",
    unit="record",
    staged=_steadies,
    baseline=SPARK,
    rounds=(3, 1),
    warmups=0,
    goals=(
        *late("SQLite", SQLITE, 8.0, 25.0),
        *late("Cassandra", CASSANDRA, 12.0, 40.0),
        *late("micro-batch on SQLite", BATCHED, 120.0, 250.0),
        *late("three chained stages on SQLite", CHAINED, 25.0),
    ),
)
RECOVERY = Benchmark(
    name="pipeline-recovery",
    says=f"kill -9 at {PER_SECOND:,} records a second, and how long until new output comes from every "
    "input partition again: of the driver (its Python and its JVM), started again at once; and of one "
    "of two workers",
    unit="kill",
    staged=_kills,
    baseline=DRIVER_SPARK,
    rounds=(3, 1),
    warmups=0,
    goals=(
        Goal(
            says="a worker of ours, resident",
            contestant=WORKER,
            measure="median_ms",
            unit="ms",
            at_most=1_000.0,
        ),
        Goal(
            says="the driver of ours beyond plain PySpark's",
            contestant=DRIVER,
            measure="over_ms",
            unit="ms",
            at_most=1_000.0,
        ),
        Goal(
            says="the driver of ours on Cassandra beyond plain PySpark's",
            contestant=DRIVER_CASSANDRA,
            measure="over_ms",
            unit="ms",
            at_most=1_000.0,
        ),
    ),
)
BENCHMARKS = (DRAIN, STEADY_LATENCY, RECOVERY)
