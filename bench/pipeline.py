"""Benchmarks of a whole pipeline on Spark: ours beside the same job in plain PySpark.

What it is: the same input topic read from its beginning by each way of doing the job, and the same
job at a steady thousand records a second; `bench.cluster` measures both.
What it must not know: how any way works; each is a driver process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bench.cluster import (
    PER_SECOND,
    RECORDS,
    SECONDS,
    SECONDS_QUICK,
    Cluster,
    Way,
    clusters,
    drain,
    steady,
)
from bench.harness import Benchmark, Contestant, Goal, Lab
from bench.pipeline_driver import DEDUPLICATED, MICRO_BATCH, PLAIN, RESIDENT

SQLITE, CASSANDRA = "ours, resident, SQLite", "ours, resident, Cassandra"
BATCHED = "ours, micro-batch, SQLite"
SPARK, SPARK_DEDUP = "plain PySpark", "plain PySpark + dropDuplicates"


#: The contestants that need no server but the broker; benchmarks of peers race some of them as well.
WAYS = {
    SPARK: Way(way=PLAIN, deduplicates=False),
    SPARK_DEDUP: Way(way=DEDUPLICATED),
    SQLITE: Way(way=RESIDENT, catalog="sqlite:{scratch}/catalog.db", parents=True),
    BATCHED: Way(way=MICRO_BATCH, catalog="sqlite:{scratch}/catalog.db", parents=True),
}


@contextmanager
def _staged(lab: Lab) -> Iterator[tuple[Cluster, dict[str, Way]]]:
    node = lab.cassandra().cassandra
    catalog = f"cassandra://{node.contact_points[0]}:{node.port}/bench_{{name}}"
    ways = {**WAYS, CASSANDRA: Way(way=RESIDENT, catalog=catalog, parents=True)}
    with clusters(quick=lab.quick, report=lab.report) as cluster:
        yield cluster, ways


@contextmanager
def _drains(lab: Lab) -> Iterator[Sequence[Contestant]]:
    with _staged(lab) as (cluster, ways):
        yield [
            Contestant(name=name, turn=partial(drain, cluster, way)) for name, way in ways.items()
        ]


@contextmanager
def _steadies(lab: Lab) -> Iterator[Sequence[Contestant]]:
    seconds = SECONDS_QUICK if lab.quick else SECONDS
    with _staged(lab) as (cluster, ways):
        yield [
            Contestant(name=name, turn=partial(steady, cluster, way, seconds))
            for name, way in ways.items()
        ]


DRAIN = Benchmark(
    name="pipeline-drain",
    says=f"{RECORDS} records of 150 bytes, 5% of them repeats, four partitions, per-record Python "
    "user code: output records a second in steady state, broker and store on the same cores",
    unit="record",
    staged=_drains,
    baseline=SPARK,
    rounds=(3, 1),
    warmups=0,
    goals=(
        Goal(
            says="throughput, ours on SQLite / plain PySpark",
            contestant=SQLITE,
            measure="speed",
            at_least=1.25,
        ),
        Goal(
            says="throughput, ours on Cassandra / plain PySpark",
            contestant=CASSANDRA,
            measure="speed",
            at_least=1.0,
        ),
        Goal(
            says="throughput, micro-batch on SQLite / plain PySpark",
            contestant=BATCHED,
            measure="speed",
            at_least=0.85,
        ),
    ),
)
STEADY_LATENCY = Benchmark(
    name="pipeline-latency",
    says=f"publication to output at {PER_SECOND} records a second over four partitions",
    unit="record",
    staged=_steadies,
    baseline=SPARK,
    rounds=(1, 1),
    warmups=0,
    goals=(
        Goal(says="p50 on SQLite", contestant=SQLITE, measure="median_ms", unit="ms", at_most=8.0),
        Goal(says="p99 on SQLite", contestant=SQLITE, measure="tail_ms", unit="ms", at_most=25.0),
        Goal(
            says="p50 on Cassandra",
            contestant=CASSANDRA,
            measure="median_ms",
            unit="ms",
            at_most=12.0,
        ),
        Goal(
            says="p99 on Cassandra",
            contestant=CASSANDRA,
            measure="tail_ms",
            unit="ms",
            at_most=40.0,
        ),
        Goal(
            says="p50, micro-batch on SQLite",
            contestant=BATCHED,
            measure="median_ms",
            unit="ms",
            at_most=120.0,
        ),
        Goal(
            says="p99, micro-batch on SQLite",
            contestant=BATCHED,
            measure="tail_ms",
            unit="ms",
            at_most=250.0,
        ),
    ),
)
BENCHMARKS = (DRAIN, STEADY_LATENCY)
