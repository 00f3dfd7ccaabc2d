"""Benchmarks of a whole lane: what its outputs take in the catalog, and what memory they pass in.

What it is: the real lane runner, fed from `bench.job` and emitting into nothing, on two stores.
What it must not know: Kafka, Spark.

Invariants:
    What is measured is checked: a lane that did not end well, or lost a record, ends the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from bench.job import ID, VALUE_BYTES, Job, fresh_count, with_nonce
from bench.meter import MB
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore, Tables
from dedup.catalog.open import open_catalog
from dedup.collect import Keep, collect
from dedup.expiry import WINDOW_MS_DEFAULT
from dedup.local import Home, LaneIndex
from dedup.model import IDENTITY_BYTES, Frontier, Source, TopicId
from delivery.host.clock import SystemClock
from delivery.judge import Judge
from delivery.naming import id_from
from delivery.ports import Emissions, Log, Record, Rows, batches_of
from delivery.protocol import messages as m
from delivery.runner import LaneRunner
from delivery.stage import Function

LANE = "bench/nonce/0"
INPUT = Source(TopicId(b"input".ljust(IDENTITY_BYTES)), 0)
OUTPUT = Source(TopicId(b"output".ljust(IDENTITY_BYTES)), 0)
#: A bundle under load: rows, or bytes of values, whichever is reached first.
BUNDLE_ROWS = 20_000
BUNDLE_BYTES = 4 * 1024 * 1024
#: Bytes a record may take in the catalog beside its output: its id, and its share of the rest.
RECORD_BYTES = 24
NOISE = "SQLite, noise"


@dataclass(slots=True)
class Discard:
    """An emitter that counts what it is given."""

    writes: tuple[TopicId, ...] = (OUTPUT.topic,)
    records: int = 0
    raw_bytes: int = 0
    emitted: threading.Event = field(default_factory=threading.Event)

    def place(self, rows: Rows) -> list[int]:
        """There is one partition."""
        return [OUTPUT.partition] * len(rows)

    def emit(self, emissions: Emissions) -> Frontier:
        """Count, and say that it is durable."""
        self.records += len(emissions)
        self.raw_bytes += sum(map(len, filter(None, emissions.keys)))
        self.raw_bytes += sum(map(len, filter(None, emissions.values)))
        self.emitted.set()
        return Frontier.of([(OUTPUT, self.records)])


@dataclass(frozen=True, slots=True)
class Bounded:
    """A log that ends."""

    end: int

    def log(self) -> Log:
        """Return its bounds."""
        return Log(
            topics=(("input", INPUT.topic),),
            low=Frontier.of([(INPUT, 0)]),
            high=Frontier.of([(INPUT, self.end)]),
        )


def run_lane(
    catalog: Catalog,
    job: Job,
    offsets: int,
    fan_out: int = 1,
    home: Path | None = None,
    *,
    payloads: bool = False,
) -> Iterator[Discard]:
    """Run a lane to its end, bundle by bundle; yield what was emitted so far after each."""
    home_of = None if home is None else Home(home)
    with LaneIndex(catalog, LANE, window_ms=WINDOW_MS_DEFAULT, home=home_of) as index:
        judge = Judge(catalog, index, id_from(f"header:{ID}"), tuple, payloads=payloads)
        yield from _run(catalog, judge, job, offsets, fan_out)


def _run(catalog: Catalog, judge: Judge, job: Job, offsets: int, fan_out: int) -> Iterator[Discard]:
    emitter = Discard()
    runner = LaneRunner(
        LANE,
        catalog=catalog,
        judge=judge,
        reader=Bounded(offsets),
        stage=Function(partial(with_nonce, times=fan_out), code="bench"),
        emitter=emitter,
        clock=SystemClock(threading.Event()),
    )
    runner.tell(m.Opened(Frontier.of([(INPUT, 0)])))
    runner.tell(m.Ending(Frontier.of([(INPUT, offsets)])))
    runner.drain()
    rows = min(BUNDLE_ROWS, BUNDLE_BYTES // job.value_bytes) // fan_out
    for start in range(0, offsets, rows):
        assert runner.state.lane.hungry, "everything offered before was sealed and acknowledged"
        end = min(start + rows, offsets)
        polled = m.Polled(Frontier.of([(INPUT, start)]), Frontier.of([(INPUT, end)]))
        # Held by nobody once they are columns: a client that reads a log hands over no records.
        runner.offer(polled, batches_of([_sourced(job.record(at)) for at in range(start, end)]))
        runner.drain()
        yield emitter
    stopped = runner.state.stopped
    assert stopped is not None, "a bounded lane ends"
    assert stopped.end is m.End.DONE, f"the lane ended {stopped}"
    assert emitter.records == fan_out * fresh_count(offsets), "every record once"


def _sourced(record: Record) -> Record:
    return Record(
        value=record.value,
        headers=record.headers,
        timestamp_ms=record.timestamp_ms,
        source=INPUT,
        offset=record.offset,
    )


# What outputs take in the catalog ---------------------------------------------------------------


@contextmanager
def _bytes_staged(lab: Lab) -> Iterator[list[Contestant]]:
    offsets = 20_000 if lab.quick else 200_000
    job, noise = Job(), Job(noise=True)
    with lab.directory() as directory:
        yield [
            Contestant(name="memory", turn=partial(_memory_bytes, job, offsets)),
            Contestant(name="SQLite", turn=partial(_sqlite_bytes, job, offsets, directory)),
            Contestant(name=NOISE, turn=partial(_sqlite_bytes, noise, offsets, directory)),
        ]


def _memory_bytes(job: Job, offsets: int) -> Turn:
    tables = Tables()
    turn, sent = _timed(Catalog(MemoryStore(tables)), job, offsets)
    heads = [len(row.head) + len(row.ack.blob) for row in tables.lanes.values()]
    chunks = [len(chunk) for chunks in tables.chunks.values() for chunk in chunks]
    entries = [len(entry) for entry in tables.entries.values()]
    return _with_bytes(turn, sent, sum(heads) + sum(chunks) + sum(entries))


def _sqlite_bytes(job: Job, offsets: int, directory: Path) -> Turn:
    path = directory / "catalog.db"
    catalog = open_catalog(f"sqlite:{path}")
    turn, sent = _timed(catalog, job, offsets)
    catalog.store.close()  # moves the log into the file
    turn = _with_bytes(turn, sent, path.stat().st_size)
    for file in directory.glob(f"{path.name}*"):
        file.unlink()
    return turn


def _timed(catalog: Catalog, job: Job, offsets: int) -> tuple[Turn, Discard]:
    begin = time.perf_counter()
    *_, sent = run_lane(catalog, job, offsets)
    return Turn(seconds=(time.perf_counter() - begin,), amount=offsets), sent


def _with_bytes(turn: Turn, sent: Discard, stored: int) -> Turn:
    """Add what was stored, and the part of the raw bytes that is left without ids and the rest."""
    facts = {
        "raw bytes/output": sent.raw_bytes / sent.records,
        "catalog bytes/output": stored / sent.records,
        "share": (stored - RECORD_BYTES * sent.records) / sent.raw_bytes,
    }
    return Turn(seconds=turn.seconds, amount=turn.amount, facts=facts)


LANE_BYTES = Benchmark(
    name="lane-bytes",
    says="What the outputs of a lane take in the catalog before anything is collected: "
    f"{VALUE_BYTES}-byte JSON with a random nonce appended by user code, 5% repeats. With noise, "
    "a third of a value is random letters.",
    unit="record",
    staged=_bytes_staged,
    baseline="memory",
    rounds=(5, 1),
    goals=tuple(
        Goal(
            says=f"(catalog file - {RECORD_BYTES} bytes an output) / raw output bytes, {name}",
            contestant=name,
            measure="share",
            at_most=0.75,
        )
        for name in ("SQLite", NOISE)
    ),
)


# A gigabyte through one lane --------------------------------------------------------------------

LARGE = Job(8 * 1024, noise=True)
#: Outputs of a record whose user code makes many small ones of it.
FAN_OUT = 50
GROWTH_MB_MAX = 200.0


@contextmanager
def _gigabyte_staged(lab: Lab) -> Iterator[list[Contestant]]:
    target = 50 * MB if lab.quick else 1000 * MB
    with ExitStack() as stack:
        yield [
            Contestant(
                name=name,
                turn=partial(_flow, stack.enter_context(lab.directory()), job, fan_out, volume),
                isolated=True,
            )
            for name, job, fan_out, volume in (
                ("large records", LARGE, 1, target),
                ("small outputs", Job(), FAN_OUT, target),
                ("small records", Job(), 1, target),
            )
        ]


def _flow(directory: Path, job: Job, fan_out: int, target: int) -> Turn:
    """Send outputs of `target` bytes through a lane, while a collector follows it."""
    url = f"sqlite:{directory / 'catalog.db'}"
    nonce = len(',"nonce":""') + 32
    # Of 20 records one is a repeat and makes no output.
    offsets = target * 20 // (19 * fan_out * (job.value_bytes + nonce))
    catalog = open_catalog(url)
    follow, ended = threading.Event(), threading.Event()
    begin = time.perf_counter()
    try:
        with ThreadPoolExecutor(max_workers=1) as pool:
            collecting = pool.submit(_follow, url, follow, ended)
            try:
                for so_far in run_lane(catalog, job, offsets, fan_out, directory / "home"):
                    follow.set()
                    sent = so_far.raw_bytes / MB
            finally:
                ended.set()
                follow.set()
            collections, anonymous = collecting.result()
    finally:
        catalog.store.close()
    seconds = time.perf_counter() - begin
    facts = {
        "ids held": float(fresh_count(offsets)),
        "catalog MB at the end": _megabytes(directory.glob("catalog.db*")),
        "index MB on disk": _megabytes((directory / "home").rglob("*")),
        "collections": collections,
        "anonymous growth MB": anonymous,
    }
    return Turn(seconds=(seconds,), amount=sent, facts=facts)


def _megabytes(files: Iterable[Path]) -> float:
    return sum(file.stat().st_size for file in files if file.is_file()) / MB


def _follow(url: str, follow: threading.Event, ended: threading.Event) -> tuple[float, float]:
    """Collect whenever the lane has moved.

    Returns how often anything was taken away, and the most by which anonymous memory grew.
    """
    catalog = open_catalog(url)
    took, first, most = 0, _anonymous(), 0
    try:
        while not ended.is_set():
            follow.wait()
            follow.clear()
            most = max(most, _anonymous())
            took += bool(collect(catalog, LANE, Keep()))
    finally:
        catalog.store.close()
    return took, (most - first) / MB


def _anonymous() -> int:
    """Return the memory of this process that no file stands behind."""
    told = psutil.Process().memory_info()
    # Only Linux tells what is mapped from files.
    return int(told.rss - getattr(told, "shared", 0))


GIGABYTE = Benchmark(
    name="lane-gigabyte",
    says="1 GB of outputs through one lane on SQLite, a collector behind it, each contestant in a "
    "process of its own: records of 8 KiB; 50 outputs of 193 bytes from each record; and records of "
    "150 bytes, whose ids are many. Growth is the most by which resident memory exceeded what the "
    "process began with; files that it maps, as the ids' are, count as far as they are resident.",
    unit="MB",
    staged=_gigabyte_staged,
    baseline="large records",
    rounds=(1, 1),
    warmups=0,
    goals=tuple(
        Goal(
            says=f"growth of the process, {name}",
            contestant=name,
            measure="growth_mb",
            unit="MB",
            at_most=GROWTH_MB_MAX,
        )
        for name in ("large records", "small outputs", "small records")
    ),
)

BENCHMARKS = (LANE_BYTES, GIGABYTE)
