"""Benchmarks of a whole pipeline on Spark: ours beside the same job in plain PySpark.

What it is: the same input topic read from its beginning by each way of doing the job; throughput
from the broker's own stamps on the output, and latency at a steady thousand records a second.
What it must not know: how any way works; each is a driver process of its own.

Invariants:
    Every turn has an output topic, a catalog and a checkpoint of its own.
    What is timed begins with the first output, so that nobody's start counts, and is measured by
    LogAppendTime alone: one clock for all.
    A turn of ours in which an input has no effect, or two, is an error and no figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from bench.harness import SCRATCH, Benchmark, Contestant, Goal, Lab, Turn
from bench.job import Job, fresh_count
from bench.pipeline_driver import DEDUPLICATED, MICRO_BATCH, PLAIN, RESIDENT
from delivery.batch import Emissions
from delivery.header import NAME, decode_header
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, Topic, TopicSettings
from delivery.services.ephemeral import ephemeral

PARTITIONS = 4
#: Records that are drained, and when it must be quick.
RECORDS, RECORDS_QUICK = 400_000, 20_000
#: Shares of the output between which the rate is taken: neither the first bundle nor the last.
STEADY = (0.15, 0.95)
#: Latency: records a second, for how long, and for how long before that.
PER_SECOND = 1_000
SECONDS, SECONDS_QUICK, SETTLING_SECONDS = 20, 5, 3
#: No turn takes longer.
STALL_SECONDS_MAX = 300.0
#: The generator wakes up as often.
TICK_SECONDS = 0.002

SQLITE, CASSANDRA = "ours, resident, SQLite", "ours, resident, Cassandra"
BATCHED = "ours, micro-batch, SQLite"
SPARK, SPARK_DEDUP = "plain PySpark", "plain PySpark + dropDuplicates"


@contextmanager
def _driver(order: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a driver, started, for the time of a block."""
    command = [sys.executable, "-m", "bench.pipeline_driver", json.dumps(order)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None, "a pipe was asked for"
    assert process.stderr is not None, "a pipe was asked for"
    tail: list[str] = []
    reading = threading.Thread(target=lambda: tail.extend(process.stderr or ()), daemon=True)
    reading.start()
    try:
        if process.stdout.readline().strip() != "started":
            process.wait()
            reading.join()
            raise RuntimeError(f"the driver of {order['way']} ended: {''.join(tail[-20:])}")
        yield process
    finally:
        assert process.stdin is not None, "a pipe was asked for"
        process.stdin.close()
        process.wait(timeout=STALL_SECONDS_MAX)


class _Output:
    """The output topic of one turn, read as it grows."""

    def __init__(self, client: Client, topic: Topic) -> None:
        self._consumer = client.consumer()
        self._consumer.add(topic.name, dict.fromkeys(topic.sources, 0))
        self.stamps: list[np.ndarray] = []
        self.values: list[bytes] = []
        self.parents: set[tuple[int, int]] = set()
        self.count = 0

    def read(self, *, keep: bool) -> int:
        """Take what is there; return how much."""
        got = 0
        for fetched in self._consumer.poll(max_records=50_000, max_bytes=1 << 25, timeout=0.2):
            batch = fetched.batch
            got += len(batch)
            self.stamps.append(batch.timestamps_ms)
            if keep:
                self.values += [value or b"" for value in batch.values]
            for headers in batch.headers:
                own = next((value for name, value in headers or () if name == NAME), None)
                header = decode_header(own) if own else None
                if header is not None:
                    self.parents.add(header.parent)
        self.count += got
        return got

    def until(self, enough: int, *, keep: bool = False) -> None:
        """Read until so many records are there."""
        deadline = time.monotonic() + STALL_SECONDS_MAX
        while self.count < enough:
            self.read(keep=keep)
            assert time.monotonic() < deadline, f"{self.count} of {enough} records came out"

    def close(self) -> None:
        """Let go."""
        self._consumer.close()


def _drain(cluster: _Cluster, way: str, catalog: str) -> Turn:
    """Do the job for everything that is in the input topic."""
    fresh = fresh_count(cluster.records)
    expected = cluster.records if way == PLAIN else fresh
    with cluster.turn(way, cluster.source.name, catalog) as (_, output):
        output.until(expected)
        stamps = np.sort(np.concatenate(output.stamps))
        if way in (RESIDENT, MICRO_BATCH):
            assert len(output.parents) == fresh, "every input has one effect"
            assert output.count == fresh, "nothing crashed, so nothing was sent twice"
    first, last = (int(share * (len(stamps) - 1)) for share in STEADY)
    seconds = max(int(stamps[last] - stamps[first]), 1) / 1000
    return Turn(seconds=(seconds,), amount=last - first)


def _steady(cluster: _Cluster, way: str, catalog: str, seconds: int) -> Turn:
    """Do the job at a steady rate; time every record from its publication to its output."""
    name = f"steady-{uuid.uuid4().hex[:8]}"
    source = cluster.client.create(name, TopicSettings(partitions=PARTITIONS))
    with cluster.turn(way, source.name, catalog) as (_, output):
        # What a driver needs to start is not latency: it has done a second's work before the rest
        # is published.
        first, last = PER_SECOND, (1 + SETTLING_SECONDS + seconds) * PER_SECOND
        _publish(cluster.bootstrap, source, 0, first)
        output.until(first, keep=True)
        publishing = threading.Thread(
            target=_publish, args=(cluster.bootstrap, source, first, last)
        )
        publishing.start()
        output.until(last, keep=True)
        publishing.join()
        stamps = np.concatenate(output.stamps)
    fields = [json.loads(value) for value in output.values]
    made = np.array([one["made_ms"] for one in fields])
    order = np.array([one["order"] for one in fields])
    late = np.maximum(stamps - made, 0)[order >= first + SETTLING_SECONDS * PER_SECOND]
    return Turn(seconds=tuple((late / 1000).tolist()))


def _publish(bootstrap: str, topic: Topic, first: int, last: int) -> None:
    """Publish these records, a thousand a second, each with the time it was made at."""
    import confluent_kafka  # noqa: PLC0415 - only here

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    pad, began, number = "x" * 90, time.time(), first
    pause = threading.Event()
    while number < last:
        due = min(first + int((time.time() - began) * PER_SECOND), last)
        for at in range(number, due):
            value = json.dumps({"order": at, "made_ms": time.time() * 1000, "pad": pad})
            producer.produce(
                topic.name,
                value.encode(),
                partition=at % PARTITIONS,
                headers=[("id", b"order-%012d" % at)],
            )
        number = due
        producer.poll(0)
        pause.wait(TICK_SECONDS)
    producer.flush()


class _Cluster:
    """A broker with the input of the job."""

    def __init__(self, bootstrap: str, client: Client, records: int) -> None:
        self.bootstrap = bootstrap
        self.client = client
        self.records = records
        self.source = client.create("bench-input", TopicSettings(partitions=PARTITIONS))
        self._fill()

    def _fill(self) -> None:
        job, producer = Job(), self.client.producer()
        for start in range(0, self.records, 20_000):
            offsets = range(start, min(start + 20_000, self.records))
            rows = [job.record(offset) for offset in offsets]
            # A repeat goes where the record went that it repeats.
            partitions = [int(row.headers[0][1][-4:]) % PARTITIONS for row in rows]
            emissions = Emissions(
                edges=[0] * len(rows),
                partitions=partitions,
                keys=[None] * len(rows),
                values=[row.value for row in rows],
                headers=[row.headers for row in rows],
                ids=np.zeros((len(rows), 2), dtype=np.uint64),
            )
            producer.emit([self.source], emissions)
        producer.close()

    @contextmanager
    def turn(
        self, way: str, source: str, catalog: str
    ) -> Iterator[tuple[subprocess.Popen[str], _Output]]:
        """Start a driver with an output topic, a catalog and a directory of its own."""
        name = uuid.uuid4().hex[:8]
        target = self.client.create(
            f"out-{name}", TopicSettings(partitions=PARTITIONS, append_time=True)
        )
        SCRATCH.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
            order = {
                "way": way,
                "kafka": self.bootstrap,
                "source": source,
                "target": target.name,
                "catalog": catalog.format(scratch=scratch, name=name),
                "scratch": scratch,
            }
            output = _Output(self.client, target)
            try:
                with _driver(order) as process:
                    yield process, output
            finally:
                output.close()


@contextmanager
def _clusters(lab: Lab) -> Iterator[tuple[_Cluster, dict[str, tuple[str, str]]]]:
    node = lab.cassandra().cassandra
    cassandra = f"{node.contact_points[0]}:{node.port}"
    ways = {
        SPARK: (PLAIN, ""),
        SPARK_DEDUP: (DEDUPLICATED, ""),
        SQLITE: (RESIDENT, "sqlite:{scratch}/catalog.db"),
        CASSANDRA: (RESIDENT, f"cassandra://{cassandra}/bench_{{name}}"),
        BATCHED: (MICRO_BATCH, "sqlite:{scratch}/catalog.db"),
    }
    with ephemeral(kafka=1, report=lab.report) as services:
        bootstrap = services.kafka.bootstrap
        with open_client(bootstrap, {}, "confluent") as client:
            records = RECORDS_QUICK if lab.quick else RECORDS
            yield _Cluster(bootstrap, client, records), ways


@contextmanager
def _drains(lab: Lab) -> Iterator[Sequence[Contestant]]:
    with _clusters(lab) as (cluster, ways):
        yield [
            Contestant(name=name, turn=partial(_drain, cluster, way, catalog))
            for name, (way, catalog) in ways.items()
        ]


@contextmanager
def _steadies(lab: Lab) -> Iterator[Sequence[Contestant]]:
    seconds = SECONDS_QUICK if lab.quick else SECONDS
    with _clusters(lab) as (cluster, ways):
        yield [
            Contestant(name=name, turn=partial(_steady, cluster, way, catalog, seconds))
            for name, (way, catalog) in ways.items()
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
