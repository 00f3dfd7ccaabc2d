"""Benchmarks of deduplication as a lane does it: from names to a segment, at sizes that differ.

What it is: `dedup-path`, the whole path beside pybloom-live, a Python set and Spark's own way, and
`dedup-growth`, the same path at a hundred times the ids.
What it must not know: Kafka, how records are stored.

Invariants:
    Everybody starts from the same names, 5% of which repeat any earlier one, and is asked for the
    same number of verdicts; a contestant that lets a repeat pass ends the run.
    Time is CPU time, so that a figure is one of one core: that of the path; what the index does in
    threads behind it (merges, larger filters, files published) stands beside it, and the speed with
    both. Only Spark's is by the clock: it has the other core for its compiler and its collector, and
    nobody counts that.
    An index that was filled has ended its merges before anybody is timed.
    Making names, and the catalog's own append, are nobody's path and are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
from pybloom_live import BloomFilter

from bench.dedup_spark import OfSpark
from bench.generated import BATCH_IDS, BUCKET_SEALS, NAME, NAME_BYTES, GeneratedLane, names
from bench.harness import Benchmark, Contestant, Goal, Lab, Standing, Turn
from bench.job import ID, Job
from bench.sizing import BILLIONS, beyond
from dedup.arrays import firsts_in_order, to_raw
from dedup.expiry import WINDOW_MS_DEFAULT
from dedup.filters import RATE_DEFAULT
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part, segment_chunks
from dedup.local import Home, LaneIndex
from dedup.model import Frontier, Source, TopicId
from dedup.xxh3 import hash_rows
from delivery.batch import Batch
from delivery.judge import Judge
from delivery.naming import id_from

#: Batches of a turn. Few enough that a lane of a million ids is still one when the last turn ends.
BATCHES = 20
#: Batches of a turn of a package, which takes a hundred times as long for each.
BATCHES_PACKAGE = 5
REPEAT_SHARE = 0.05
MILLION = 1_000_000
PYBLOOM = "pybloom-live, 1 M"
SPARK = "Spark dropDuplicatesWithinWatermark on RocksDB"
ARRAYS, JUDGE, UNIQUE = "index, 10 M", "judge, 10 M", "index, 10 M, no repeats"
#: Million ids at first of the contestant that stands for one million: half of what the turns add is
#: missing, so that it has a million on average.
ABOUT_ONE = 0.33
ROUNDS = (5, 1)
#: What an index does now and then, and what Spark's process does behind its turn, hits some rounds: of
#: nine the median says more.
ROUNDS_PATH = (9, 1)
SOURCE = Source(TopicId(b"names".ljust(16)), 0)

Numbers = npt.NDArray[np.uint64]


class Names:
    """Names to ask for: fresh ones, and some that came before."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._random = np.random.default_rng(1)

    def batch(self, share: float = REPEAT_SHARE) -> tuple[Numbers, int]:
        """Return the numbers of the next names, and how many of them are repeats."""
        repeated = self._random.random(BATCH_IDS) < share
        numbers = self.count + np.cumsum(~repeated, dtype=np.uint64) - 1
        repeats = int(repeated.sum())
        numbers[repeated] = self._random.integers(0, self.count, repeats, dtype=np.uint64)
        self.count += BATCH_IDS - repeats
        return numbers, repeats


class Stopwatch:
    """CPU seconds of what the main thread does inside of `on`, and of all other threads."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._path = 0.0
        self._process, self._thread = time.process_time(), time.thread_time()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count what is done in a block."""
        began = time.thread_time()
        yield
        self._path += time.thread_time() - began

    def lap(self) -> None:
        """End an operation: it took what was counted since the one before."""
        self.seconds.append(max(self._path, 1e-9))
        self._path = 0.0

    @property
    def behind(self) -> float:
        """What other threads have used since the beginning."""
        process, thread = time.process_time() - self._process, time.thread_time() - self._thread
        return max(process - thread, 0.0)


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
        self.index.settle()
        self.names = Names(self.lane.count)
        self._job = Job()

    def turn(self, share: float = REPEAT_SHARE) -> Turn:
        """Give verdicts over arrays of names, and build and take the segments of what is fresh."""
        rows: npt.NDArray[np.uint8] = np.empty((0, NAME_BYTES), np.uint8)

        def prepared(numbers: Numbers) -> None:
            nonlocal rows
            rows = names(numbers)

        def path() -> tuple[Part, ...]:
            ids = hash_rows(rows)
            known = self.index.decided(ids)
            places = firsts_in_order(ids)
            ids = ids.take(places.compress(~known.take(places)), axis=0)
            number = self._lane_time_ms // BUCKET_MS
            return (Part(Bucket(Origin.EXTERNAL, number), to_raw(ids)),)

        return self._turn(share, prepared, path)

    def judged(self, share: float = REPEAT_SHARE) -> Turn:
        """Give verdicts as a lane does: names hashed record by record, payloads compared."""
        judge = Judge(self.lane.catalog, self.index, id_from(f"header:{ID}"), tuple, payloads=True)
        values = [self._job.record(at).value for at in range(BATCH_IDS)]
        batch = Batch(SOURCE, np.empty(0, np.int64), np.empty(0, np.int64), (), (), ())
        counted = np.arange(BATCH_IDS, dtype=np.int64)

        def prepared(numbers: Numbers) -> None:
            nonlocal batch
            raw = names(numbers).tobytes()
            headers = [((ID, raw[at : at + NAME_BYTES]),) for at in range(0, len(raw), NAME_BYTES)]
            nothing = [None] * BATCH_IDS
            batch = Batch(SOURCE, counted, counted, nothing, values, headers)

        def path() -> tuple[Part, ...]:
            end = Frontier.of([(SOURCE, BATCH_IDS)])
            return judge.judge([batch], end, self.lane.head, ()).parts(self._lane_time_ms)

        return self._turn(share, prepared, path)

    @property
    def _lane_time_ms(self) -> int:
        return self.lane.store.lane_time_ms(self.lane.head.ref.seq + 1)

    def _turn(
        self,
        share: float,
        prepared: Callable[[Numbers], None],
        path: Callable[[], tuple[Part, ...]],
    ) -> Turn:
        counters = self.index.stats.counters
        before, read = counters.false_positives, counters.catalog_reads
        fresh, watch = 0, Stopwatch()
        for _ in range(BATCHES):
            numbers, repeats = self.names.batch(share)
            prepared(numbers)
            with watch.on():
                parts = path()
                segment_chunks(parts)
            count = sum(part.count for part in parts)
            assert BATCH_IDS - count >= repeats, "no repeat ever passes"
            fresh += count
            seal, _ = self.lane.append(parts)
            with watch.on():
                assert self.index.took(seal, parts), "nobody else writes this lane"
            watch.lap()
        return Turn(
            seconds=tuple(watch.seconds),
            amount=BATCHES * BATCH_IDS,
            facts=self._facts(watch, before, read, fresh),
        )

    def _facts(self, watch: Stopwatch, before: int, read: int, fresh: int) -> Mapping[str, float]:
        stats, whole = self.index.stats, sum(watch.seconds) + watch.behind
        looked_up = stats.counters.false_positives - before + stats.counters.catalog_reads - read
        return {
            "M ids": stats.ids / MILLION,
            "best M ids/s": BATCH_IDS / min(watch.seconds) / MILLION,
            "M ids/s, merges and all": BATCHES * BATCH_IDS / whole / MILLION,
            "look-ups of fresh ids / rate": looked_up / fresh / RATE_DEFAULT,
            "reads of the catalog": float(stats.counters.catalog_reads - read),
            "memory bytes/id": (stats.anonymous_bytes + stats.filter_bytes) / stats.ids,
            "disk bytes/id": (stats.run_bytes + stats.filter_bytes) / stats.ids,
            "runs": float(sum(bucket.runs for bucket in stats.buckets)),
        }


class OfPackage:
    """A package as its documentation shows it, told one name after another.

    Args:
        add: takes a digest, and tells whether it was new.
        count: how many it is told before the first turn.
    """

    def __init__(self, add: Callable[[bytes], bool], count: int) -> None:
        self._add = add
        for row in names(np.arange(count, dtype=np.uint64)):
            add(xxhash.xxh3_128_digest(row.tobytes()))
        self.names = Names(count)

    def turn(self) -> Turn:
        """Give verdicts, and build the segments of what is fresh."""
        watch = Stopwatch()
        for _ in range(BATCHES_PACKAGE):
            numbers, repeats = self.names.batch()
            raw = names(numbers).tobytes()
            with watch.on():
                rows = [raw[at : at + NAME_BYTES] for at in range(0, len(raw), NAME_BYTES)]
                new = [one for one in map(xxhash.xxh3_128_digest, rows) if self._add(one)]
                segment_chunks((Part(Bucket(Origin.EXTERNAL, 0), b"".join(sorted(new))),))
            watch.lap()
            assert BATCH_IDS - len(new) >= repeats, "no repeat ever passes"
        return Turn(seconds=tuple(watch.seconds), amount=BATCHES_PACKAGE * BATCH_IDS)


def _pybloom(count: int) -> OfPackage:
    bloom = BloomFilter(capacity=2 * count, error_rate=RATE_DEFAULT)
    return OfPackage(lambda digest: not bloom.add(digest.hex()), count)


def _set(count: int) -> OfPackage:
    known: set[bytes] = set()

    def add(digest: bytes) -> bool:
        before = len(known)
        known.add(digest)
        return len(known) > before

    return OfPackage(add, count)


def _index(lab: Lab, stack: ExitStack, millions: float) -> OfIndex:
    lab.report(f"filling an index with {millions:g} million ids")
    one = OfIndex(stack.enter_context(lab.directory()), int(millions * MILLION))
    stack.enter_context(closing(one.lane))
    stack.enter_context(closing(one.index))
    return one


@contextmanager
def _path(lab: Lab) -> Iterator[Sequence[Contestant]]:
    count = MILLION // 10 if lab.quick else MILLION
    with ExitStack() as stack:
        largest = _index(lab, stack, 0.5 if lab.quick else 10)
        lab.report(f"filling pybloom-live, a set and Spark's state with {count:,} ids")
        spark = OfSpark(stack.enter_context(lab.directory()), count, Names(count).batch)
        stack.enter_context(closing(spark))
        yield [
            Contestant(name=PYBLOOM, turn=_pybloom(count).turn),
            Contestant(name="Python set, 1 M", turn=_set(count).turn),
            Contestant(name=f"{SPARK}, 1 M", turn=spark.turn),
            Contestant(name=ARRAYS, turn=largest.turn),
            Contestant(name=UNIQUE, turn=partial(largest.turn, 0.0)),
            Contestant(name=JUDGE, turn=largest.judged),
        ]


@contextmanager
def _growth(lab: Lab) -> Iterator[Sequence[Contestant]]:
    sizes = (0.2, 0.5, 1.0) if lab.quick else (ABOUT_ONE, 10, 100)
    with ExitStack() as stack:
        yield [
            Contestant(name=name, turn=_index(lab, stack, size).turn)
            for name, size in zip(GROWN, sizes, strict=True)
        ]


GROWN = ("index, 1 M", ARRAYS, "index, 100 M")


def _extrapolated(standings: Mapping[str, Standing]) -> Mapping[str, float]:
    """Say what a lane of ten billion ids would take, by the slope over its last decade."""
    grown = [standings[name] for name in GROWN[1:]]
    ids = [one.facts["M ids"] * MILLION for one in grown]

    def grown_to(figures: list[float]) -> float:
        return beyond(ids, figures, BILLIONS, logarithmic=True)

    slow = grown_to([1e6 / one.rate for one in grown])
    memory = grown_to([one.facts["memory bytes/id"] for one in grown])
    disk = grown_to([one.facts["disk bytes/id"] for one in grown])
    return {
        "M ids/s of one core": 1 / slow,
        "GB of memory and filters": memory * BILLIONS / 1e9,
        "GB of files of a host": disk * BILLIONS / 1e9,
    }


BENCHMARKS = (
    Benchmark(
        name="dedup-path",
        says=f"Verdicts for batches of {BATCH_IDS:,} names, {REPEAT_SHARE:.0%} of which repeat any "
        "earlier one: hash, repeats in the batch, filter, look-up of what it lets through, segment; "
        "CPU time of the path alone, and among the facts with what is merged behind it. The index is "
        "given arrays of names; the judge is what a lane does, from headers, record by record, payloads "
        "compared. Spark drops repeats alone, from files of 100,000 names, by the clock.",
        unit="id",
        staged=_path,
        baseline=PYBLOOM,
        rounds=ROUNDS_PATH,
        goals=(
            Goal(
                says="ids a second of one core, 10 M live ids, arrays of names",
                contestant=ARRAYS,
                measure="rate",
                unit="ids/s",
                at_least=8 * MILLION,
            ),
            Goal(says="speed / pybloom-live's", contestant=ARRAYS, measure="speed", at_least=30),
            Goal(
                says="look-ups of fresh ids / the filter's rate, no repeats",
                contestant=UNIQUE,
                measure="look-ups of fresh ids / rate",
                at_most=1.5,
            ),
            Goal(
                says="anonymous memory and filters, as the index counts them",
                contestant=ARRAYS,
                measure="memory bytes/id",
                unit="bytes/id",
                at_most=3,
            ),
        ),
    ),
    Benchmark(
        name="dedup-growth",
        says="The same, arrays of names, with ten and a hundred times the live ids; the smallest has "
        "half a million in the first turn that counts and one and a half in the last.",
        unit="id",
        staged=_growth,
        baseline=GROWN[0],
        rounds=ROUNDS,
        derived=("one lane of 10 billion ids, by the slope from 10 to 100 million", _extrapolated),
        goals=(
            Goal(
                says="ids/s with 100 M / with 1 M",
                contestant=GROWN[2],
                measure="speed",
                at_least=0.6,
            ),
            Goal(
                says="anonymous memory and filters, 100 M, as the index counts them",
                contestant=GROWN[2],
                measure="memory bytes/id",
                unit="bytes/id",
                at_most=3,
            ),
        ),
    ),
)
