"""Benchmarks of what grows: larger records, more lanes in a process, more stages in a row.

What it is: the same work cut in other ways, so that a curve that bends is seen; ids have a benchmark
of their own, `dedup-growth`.
What it must not know: Spark.

Invariants:
    What is measured is checked: whoever loses or doubles a record ends the run.
    Contestants of one benchmark differ in one number.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from bench.cluster import Cluster, clusters
from bench.harness import SCRATCH, Benchmark, Contestant, Goal, Lab, Standing, Turn
from bench.job import ID, Job, fresh_count, with_nonce
from bench.lane import INPUT, Discard, run_lane
from bench.meter import MB
from bench.sizing import bends
from dedup.catalog.open import open_catalog
from dedup.local import Home
from dedup.model import Frontier, Source
from delivery.host.clock import SystemClock
from delivery.host.lane import LaneTask
from delivery.host.senders import Senders, Writers
from delivery.host.spec import Plan, StageSpec
from delivery.host.worker import Worker
from delivery.kafka.port import TopicSettings
from delivery.ports import Log, Record, batches_of

#: Bytes of a record; the largest that Kafka takes by default is 1 MiB, and 768 KiB go through a lane.
RECORD_BYTES = (150, 1_500, 15_000, 150_000, 512_000)
#: What goes through a lane: so many bytes, in so many records at most and at least.
VOLUME_BYTES, VOLUME_QUICK = 64 * MB, 4 * MB
RECORDS_MAX, RECORDS_MIN = 40_000, 20
LANES = (1, 10, 100, 1_000)
#: Bundles that all lanes together seal, and the records of each.
BUNDLES, BUNDLES_QUICK, BUNDLE_RECORDS = 4_000, 1_000, 25
STAGES = (1, 2, 3, 4, 5)
#: How long records may take through all stages.
CHAIN_SECONDS_MAX = 300.0


# Larger records ---------------------------------------------------------------------------------


@contextmanager
def _records(lab: Lab) -> Iterator[Sequence[Contestant]]:
    volume = VOLUME_QUICK if lab.quick else VOLUME_BYTES
    with ExitStack() as stack:
        yield [
            Contestant(
                name=f"{size:,} bytes",
                turn=partial(_of_size, stack.enter_context(lab.directory()), size, volume),
                isolated=True,
            )
            for size in RECORD_BYTES
        ]


def _of_size(directory: Path, size: int, volume: int) -> Turn:
    """Send records of one size through a lane."""
    job = Job(size)
    offsets = max(RECORDS_MIN, min(RECORDS_MAX, volume // size))
    url = f"sqlite:{directory / uuid.uuid4().hex}.db"
    catalog = open_catalog(url)
    began = time.perf_counter()
    *_, sent = run_lane(catalog, job, offsets)
    seconds = time.perf_counter() - began
    catalog.store.close()
    facts = {
        "MB/s": sent.raw_bytes / MB / seconds,
        "catalog bytes / output bytes": Path(url.removeprefix("sqlite:")).stat().st_size
        / sent.raw_bytes,
    }
    return Turn(seconds=(seconds,), amount=sent.raw_bytes / MB, facts=facts)


# More lanes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Open:
    """One partition of a log that never ends."""

    source: Source

    def log(self) -> Log:
        """Return its bounds."""
        return Log(
            topics=(("input", INPUT.topic),),
            low=Frontier.of([(self.source, 0)]),
            high=Frontier.of([(self.source, 1 << 40)]),
        )


@contextmanager
def _lanes(lab: Lab) -> Iterator[Sequence[Contestant]]:
    bundles = BUNDLES_QUICK if lab.quick else BUNDLES
    yield [
        Contestant(
            name=_many(lanes, "lane"), turn=partial(_of_lanes, lanes, bundles), isolated=True
        )
        for lanes in LANES
    ]


def _of_lanes(lanes: int, bundles: int) -> Turn:
    """Seal bundles in turn on so many lanes of one process."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        return _sealed(Path(scratch), lanes, bundles)


def _sealed(scratch: Path, lanes: int, bundles: int) -> Turn:
    catalog = open_catalog(f"sqlite:{scratch / 'catalog.db'}")
    spec = StageSpec(
        pipeline="bench",
        name="many",
        reads="input",
        writes=("output",),
        call=with_nonce,
        named=f"header:{ID}",
    )
    before, began = psutil.Process().memory_info().rss, time.perf_counter()
    emitter, home, writers = Discard(), Home(scratch / "home"), Writers(catalog)
    clock = SystemClock(threading.Event())
    tasks = [
        LaneTask(
            spec,
            source,
            catalog=catalog,
            home=home,
            clock=clock,
            reader=_Open(source),
            emitter=emitter,
            senders=Senders(writers, source.topic),
        )
        for source in (Source(INPUT.topic, number) for number in range(lanes))
    ]
    for task in tasks:
        task.open(0)
    opened = time.perf_counter() - began
    job, seconds = Job(), []
    for number in range(bundles):
        task, first = tasks[number % lanes], number // lanes * BUNDLE_RECORDS
        rows = [
            _placed(job.record(number * BUNDLE_RECORDS + row), task.source, first + row)
            for row in range(BUNDLE_RECORDS)
        ]
        began = time.perf_counter()
        task.take(batches_of(rows)[0], first + BUNDLE_RECORDS)
        while not task.idle:
            task.turn()
            task.finish()
        seconds.append(time.perf_counter() - began)
    grown = psutil.Process().memory_info().rss - before
    # A repeat goes to another lane than what it repeats, wherever there is more than one.
    assert emitter.records >= fresh_count(bundles * BUNDLE_RECORDS), "no record is lost"
    for task in tasks:
        task.close()
    catalog.store.close()
    facts = {
        "ms to open a lane": opened * 1000 / lanes,
        "KB of memory a lane": grown / 1024 / lanes,
        "KB of index files a lane": sum(
            path.stat().st_size for path in (scratch / "home").rglob("*") if path.is_file()
        )
        / 1024
        / lanes,
    }
    return Turn(seconds=tuple(seconds), facts=facts)


def _placed(record: Record, source: Source, offset: int) -> Record:
    return Record(
        value=record.value,
        headers=record.headers,
        timestamp_ms=record.timestamp_ms,
        source=source,
        offset=offset,
    )


# More stages ------------------------------------------------------------------------------------


@contextmanager
def _stages(lab: Lab) -> Iterator[Sequence[Contestant]]:
    with clusters(quick=True, report=lab.report) as cluster:
        yield [
            Contestant(name=_many(count, "stage"), turn=partial(_through, cluster, count))
            for count in STAGES
        ]


def _through(cluster: Cluster, count: int) -> Turn:
    """Send the input through so many stages of one process."""
    name = uuid.uuid4().hex[:8]
    topics = [cluster.source.name, *(f"{name}-{number}" for number in range(count))]
    targets = [
        cluster.client.create(topic, TopicSettings(partitions=len(cluster.source.sources)))
        for topic in topics[1:]
    ]
    stages = tuple(
        StageSpec(
            pipeline=name,
            name=f"stage-{number}",
            reads=topics[number],
            writes=(topics[number + 1],),
            call=with_nonce,
            named=None if number else f"header:{ID}",
        )
        for number in range(count)
    )
    due = fresh_count(cluster.records)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        worker = Worker(
            Plan(
                kafka=cluster.bootstrap,
                catalog=f"sqlite:{scratch}/catalog.db",
                home=f"{scratch}/home",
                stages=stages,
            )
        )
        try:
            for spec in stages:
                worker.open(spec, range(len(cluster.source.sources)), {})
            began, cpu = time.perf_counter(), time.process_time()
            while _outputs(worker, stages[-1]) < due:
                worker.turn()
                assert time.perf_counter() - began < CHAIN_SECONDS_MAX, "records got stuck"
            worker.finish()
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        finally:
            worker.close()
    bounds = cluster.client.bounds(topics[-1], targets[-1].sources)
    assert sum(end for _, end in bounds.high) == due, "every record came out once"
    facts = {"CPU us a record and stage": cpu / due / count * 1e6}
    return Turn(seconds=(seconds,), amount=due * count, facts=facts)


def _outputs(worker: Worker, spec: StageSpec) -> int:
    return sum(lane.counters.fresh for lane in worker.lanes if lane.spec.name == spec.name)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count > 1 else ''}"


#: What the exponents between neighbours are called in the table.
STEEPNESS = "how steep the time of a {} is, 0 where it stays"


def _steepness(sizes: Sequence[float], standings: Mapping[str, Standing]) -> Mapping[str, float]:
    """Return where the curve of the contestants, in this order, bends."""
    return bends(list(standings), sizes, [1 / one.rate for one in standings.values()])


BENCHMARKS = (
    Benchmark(
        name="growth-records",
        says="One lane on SQLite, records of 150 bytes to 500 KB: MB of outputs, stored and sealed",
        unit="MB",
        staged=_records,
        baseline="150 bytes",
        rounds=(3, 1),
        derived=(STEEPNESS.format("MB"), partial(_steepness, RECORD_BYTES)),
        goals=(
            Goal(
                says="time of a MB, records of 500 KB / of 150 bytes",
                contestant="512,000 bytes",
                measure="ratio",
                at_most=1.0,
            ),
        ),
    ),
    Benchmark(
        name="growth-lanes",
        says=f"Bundles of {BUNDLE_RECORDS} records, sealed in turn on 1 to 1,000 lanes of a process",
        unit="bundle",
        staged=_lanes,
        baseline="1 lane",
        rounds=(3, 1),
        warmups=0,
        derived=(STEEPNESS.format("bundle"), partial(_steepness, LANES)),
        goals=(
            Goal(
                says="time of a bundle, 1,000 lanes / 1 lane",
                contestant="1,000 lanes",
                measure="ratio",
                at_most=1.5,
            ),
        ),
    ),
    Benchmark(
        name="growth-stages",
        says="The input of the job through 1 to 5 stages of one process, Kafka between them, SQLite "
        "behind all: for each record and stage",
        unit="record",
        staged=_stages,
        baseline="1 stage",
        rounds=(3, 1),
        derived=(STEEPNESS.format("record and stage"), partial(_steepness, STAGES)),
        goals=(
            Goal(
                says="time of a record and stage, 5 stages / 1 stage",
                contestant="5 stages",
                measure="ratio",
                at_most=1.5,
            ),
        ),
    ),
)
