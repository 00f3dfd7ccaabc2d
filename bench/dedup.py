"""Benchmarks of deduplication as a lane does it: from names to a segment, at sizes that differ.

What it is: `dedup-path`, the whole path beside pybloom-live, a Python set and Spark's own way; `dedup-growth`, the
same path at a hundred times the ids; `dedup-start`, the first verdict of a new process.
What it must not know: Kafka, how records are stored.

Invariants:
    Everybody starts from the same names, 5% of which repeat any earlier one, and is asked for the
    same number of verdicts; a contestant that lets a repeat pass ends the run.
    The index's time is that of everything it does meanwhile in its own thread: runs written, files
    published. What it does in another thread is in the CPU seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
from pybloom_live import BloomFilter

from bench.dedup_spark import OfSpark
from bench.generated import NAME, NAME_BYTES, GeneratedLane, names
from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from dedup.arrays import firsts, order, to_raw
from dedup.expiry import WINDOW_MS_DEFAULT
from dedup.filters import RATE_DEFAULT
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part, segment_chunks
from dedup.local import Home, LaneIndex
from dedup.xxh3 import hash_rows

BATCH_IDS = 10_000
BATCHES = 50
REPEAT_SHARE = 0.05
#: Seals of 10,000 ids in ten minutes: a lane of 10,000 records a second.
BUCKET_SEALS = 600
MILLION = 1_000_000
PYBLOOM = "pybloom-live, 1 M"
SPARK = "Spark dropDuplicatesWithinWatermark on RocksDB"
ROUNDS = (5, 1)
#: How long a new process may take before the run is given up.
START_SECONDS_MAX = 300

Numbers = npt.NDArray[np.uint64]


class Names:
    """Names to ask for: fresh ones, and some that came before."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._random = np.random.default_rng(1)

    def batch(self) -> tuple[Numbers, int]:
        """Return the numbers of the next names, and how many of them are repeats."""
        repeated = self._random.random(BATCH_IDS) < REPEAT_SHARE
        numbers = self.count + np.cumsum(~repeated, dtype=np.uint64) - 1
        repeats = int(repeated.sum())
        numbers[repeated] = self._random.integers(0, self.count, repeats, dtype=np.uint64)
        self.count += BATCH_IDS - repeats
        return numbers, repeats


class OfIndex:
    """A lane whose index has decided so many ids."""

    def __init__(self, directory: Path, count: int) -> None:
        self.lane = GeneratedLane(f"sqlite:{directory / 'catalog.db'}", BATCH_IDS, BUCKET_SEALS)
        self.index = LaneIndex(
            self.lane.catalog, NAME, window_ms=WINDOW_MS_DEFAULT, home=Home(directory / "home")
        )
        self.index.catch_up(self.lane.head)
        while self.lane.count < count:
            assert self.index.took(*self.lane.append()), "nobody else writes this lane"
        self.names = Names(self.lane.count)
        self._fresh = 0

    def turn(self) -> Turn:
        """Give verdicts, and build and take the segments of what is fresh."""
        counters = self.index.stats.counters
        before = counters.false_positives
        seconds, fresh = [], 0
        for _ in range(BATCHES):
            numbers, repeats = self.names.batch()
            rows = names(numbers)
            begin = time.perf_counter()
            ids = hash_rows(rows)
            known = self.index.decided(ids)
            new = np.flatnonzero(firsts(ids) & ~known)
            ids = ids.take(new, axis=0)
            ids = ids.take(order(ids), axis=0)
            number = self.lane.store.lane_time_ms(self.lane.head.ref.seq + 1) // BUCKET_MS
            parts = (Part(Bucket(Origin.EXTERNAL, number), to_raw(ids)),)
            segment_chunks(parts)
            elapsed = time.perf_counter() - begin
            assert BATCH_IDS - len(new) >= repeats, "no repeat ever passes"
            seal, _ = self.lane.append(parts)
            begin = time.perf_counter()
            assert self.index.took(seal, parts), "nobody else writes this lane"
            seconds.append(elapsed + time.perf_counter() - begin)
            fresh += len(new)
        stats = self.index.stats
        looked_up = (stats.counters.false_positives - before) / fresh
        facts = {
            "best M ids/s": BATCH_IDS / min(seconds) / MILLION,
            "look-ups of fresh ids / rate": looked_up / RATE_DEFAULT,
            "memory bytes/id": (stats.anonymous_bytes + stats.filter_bytes) / stats.ids,
            "disk bytes/id": (stats.run_bytes + stats.filter_bytes) / stats.ids,
            "runs": float(sum(bucket.runs for bucket in stats.buckets)),
        }
        return Turn(seconds=tuple(seconds), amount=BATCHES * BATCH_IDS, facts=facts)


class OfPackage:
    """A package as its documentation shows it, told one name after another."""

    def __init__(self, add: Callable[[bytes], bool], count: int) -> None:
        self._add = add
        for row in names(np.arange(count, dtype=np.uint64)):
            add(row.tobytes())
        self.names = Names(count)

    def turn(self) -> Turn:
        """Give verdicts, and build the segments of what is fresh."""
        seconds, fresh = [], 0
        for _ in range(BATCHES // 10):
            numbers, repeats = self.names.batch()
            raw = names(numbers).tobytes()
            begin = time.perf_counter()
            rows = [raw[at : at + NAME_BYTES] for at in range(0, len(raw), NAME_BYTES)]
            new = [xxhash.xxh3_128_digest(row) for row in rows if self._add(row)]
            segment_chunks((Part(Bucket(Origin.EXTERNAL, 0), b"".join(sorted(set(new)))),))
            seconds.append(time.perf_counter() - begin)
            assert BATCH_IDS - len(new) >= repeats, "no repeat ever passes"
            fresh += len(new)
        return Turn(seconds=tuple(seconds), amount=BATCHES // 10 * BATCH_IDS)


def _pybloom(count: int) -> OfPackage:
    bloom = BloomFilter(capacity=2 * count, error_rate=RATE_DEFAULT)
    return OfPackage(lambda row: not bloom.add(xxhash.xxh3_128_hexdigest(row)), count)


def _set(count: int) -> OfPackage:
    known: set[bytes] = set()

    def add(row: bytes) -> bool:
        before = len(known)
        known.add(xxhash.xxh3_128_digest(row))
        return len(known) > before

    return OfPackage(add, count)


@contextmanager
def _indexes(lab: Lab, stack: ExitStack, *millions: float) -> Iterator[list[Contestant]]:
    contestants = []
    for size in millions:
        lab.report(f"filling an index with {size:g} million ids")
        one = OfIndex(stack.enter_context(lab.directory()), int(size * MILLION))
        stack.enter_context(closing(one.lane))
        stack.enter_context(closing(one.index))
        contestants.append(Contestant(name=f"index, {size:g} M", turn=one.turn))
    yield contestants


@contextmanager
def _path(lab: Lab) -> Iterator[Sequence[Contestant]]:
    count = MILLION // 10 if lab.quick else MILLION
    with ExitStack() as stack, _indexes(lab, stack, 0.5 if lab.quick else 10) as contestants:
        lab.report(f"filling pybloom-live, a set and Spark's state with {count:,} ids")
        largest = contestants[0]
        spark = OfSpark(stack.enter_context(lab.directory()), count, Names(count).batch)
        stack.enter_context(closing(spark))
        yield [
            Contestant(name=PYBLOOM, turn=_pybloom(count).turn),
            Contestant(name="Python set, 1 M", turn=_set(count).turn),
            Contestant(name=f"{SPARK}, 1 M", turn=spark.turn),
            Contestant(name="index, 10 M", turn=largest.turn),
        ]


@contextmanager
def _growth(lab: Lab) -> Iterator[Sequence[Contestant]]:
    sizes = (0.2, 1.0) if lab.quick else (1, 100)
    with ExitStack() as stack, _indexes(lab, stack, *sizes) as contestants:
        yield [
            Contestant(name="index, 1 M", turn=contestants[0].turn),
            Contestant(name="index, 100 M", turn=contestants[1].turn),
        ]


# A new process -----------------------------------------------------------------------------------


def first_verdict(directory: Path) -> dict[str, float]:
    """Run a process that gives one verdict; return what it says of itself."""
    command = [sys.executable, "-m", "bench.dedup_start", str(directory)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=START_SECONDS_MAX)
    return {name: float(value) for name, value in json.loads(done.stdout).items()}


def _start_turn(directory: Path) -> Turn:
    facts = first_verdict(directory)
    return Turn(seconds=(facts["index ms"] / 1000,), facts=facts)


@contextmanager
def _start(lab: Lab) -> Iterator[Sequence[Contestant]]:
    sizes = (0.2, 1.0) if lab.quick else (1, 100)
    with ExitStack() as stack:
        contestants = []
        for name, size in zip(("1 M", "100 M"), sizes, strict=True):
            directory = stack.enter_context(lab.directory())
            lab.report(f"filling an index with {size:g} million ids")
            one = OfIndex(directory, int(size * MILLION))
            one.index.close()
            begin = time.perf_counter()
            with LaneIndex(one.lane.catalog, NAME, window_ms=WINDOW_MS_DEFAULT) as index:
                index.catch_up(one.lane.head)
            seconds = time.perf_counter() - begin
            one.lane.close()
            lab.report(f"a rebuild of {size:g} million ids took {seconds:.2f} s")
            contestants.append(Contestant(name=name, turn=partial(_start_turn, directory)))
        yield contestants


BENCHMARKS = (
    Benchmark(
        name="dedup-path",
        says=f"Verdicts for batches of {BATCH_IDS:,} names, {REPEAT_SHARE:.0%} of which repeat any "
        "earlier one: hash, repeats in the batch, filter, look-up of what it lets through, segment. "
        "Spark drops repeats alone, from files of 100,000 names, on one core.",
        unit="id",
        staged=_path,
        baseline=PYBLOOM,
        rounds=ROUNDS,
        goals=(
            Goal(
                says="ids a second on one core, 10 M live ids",
                contestant="index, 10 M",
                measure="rate",
                unit="ids/s",
                at_least=8 * MILLION,
            ),
            Goal(
                says="speed / pybloom-live's",
                contestant="index, 10 M",
                measure="speed",
                at_least=30,
            ),
            Goal(
                says="look-ups of fresh ids / the filter's rate",
                contestant="index, 10 M",
                measure="look-ups of fresh ids / rate",
                at_most=1.5,
            ),
            Goal(
                says="anonymous memory and filters",
                contestant="index, 10 M",
                measure="memory bytes/id",
                unit="bytes/id",
                at_most=3,
            ),
        ),
    ),
    Benchmark(
        name="dedup-growth",
        says="The same with a hundred times the live ids.",
        unit="id",
        staged=_growth,
        baseline="index, 1 M",
        rounds=ROUNDS,
        goals=(
            Goal(
                says="ids/s with 100 M / with 1 M",
                contestant="index, 100 M",
                measure="speed",
                at_least=0.6,
            ),
            Goal(
                says="anonymous memory and filters, 100 M",
                contestant="index, 100 M",
                measure="memory bytes/id",
                unit="bytes/id",
                at_most=3,
            ),
        ),
    ),
    Benchmark(
        name="dedup-start",
        says="A new process maps what another left and gives its first verdict; the time in the "
        "table is from opening the index, the start of Python and numpy not counted.",
        unit="start",
        staged=_start,
        baseline="1 M",
        rounds=ROUNDS,
        goals=(
            Goal(
                says="first verdict of a new process, 100 M",
                contestant="100 M",
                measure="process ms",
                unit="ms",
                at_most=1000,
            ),
            Goal(
                says="first verdict of a new process, 1 M, imports not counted",
                contestant="1 M",
                measure="index ms",
                unit="ms",
                at_most=50,
            ),
        ),
    ),
)
