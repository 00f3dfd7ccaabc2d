"""The benchmark of what ids take on disk: `dedup-disk`.

What it is: a lane that has sealed a million ids in a real catalog, outputs collected, and the same
with its segments merged.
What it must not know: Kafka, Spark, how a segment is laid out.

Invariants:
    A byte counts that the catalog's file has in use, whatever it is for, and every byte of a filter.
    Ids have payload digests, as a stage's have unless it says otherwise.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from bench.job import Job, fresh_count
from bench.lane import LANE, run_lane
from dedup.catalog.open import open_catalog
from dedup.collect import Keep, collect
from dedup.compact import compact
from dedup.expiry import WINDOW_MS_DEFAULT
from dedup.local import Home, LaneIndex

#: Records; one in twenty is a repeat and has no id of its own.
RECORDS, RECORDS_QUICK = 1_060_000, 60_000
SEALED, COMPACTED = "as sealed", "compacted"


@contextmanager
def _staged(lab: Lab) -> Iterator[Sequence[Contestant]]:
    records = RECORDS_QUICK if lab.quick else RECORDS
    with lab.directory() as directory:
        yield [
            Contestant(name=name, turn=partial(_kept, directory, records, merging=merging))
            for name, merging in ((SEALED, False), (COMPACTED, True))
        ]


def _kept(directory: Path, records: int, *, merging: bool) -> Turn:
    """Seal ids, let go of everything else, and see what is left."""
    place = directory / uuid.uuid4().hex
    place.mkdir()
    catalog = open_catalog(f"sqlite:{place / 'catalog.db'}")
    began = time.perf_counter()
    for _ in run_lane(catalog, Job(), records, home=place / "home", payloads=True):
        pass
    collect(catalog, LANE, Keep())
    if merging:
        # The last few seals are left to the next merge; here nothing comes after them.
        assert compact(catalog, LANE, WINDOW_MS_DEFAULT, plain_min=2), (
            "there was something to merge"
        )
    seconds = time.perf_counter() - began
    row = catalog.load(LANE)
    assert row is not None, "the lane is there"
    with LaneIndex(catalog, LANE, window_ms=WINDOW_MS_DEFAULT, home=Home(place / "home")) as index:
        index.catch_up(row.head)
        stats = index.stats
    catalog.store.close()
    ids = fresh_count(records)
    assert stats.ids == ids, "every id is held once"
    used = _used(place / "catalog.db")
    facts = {
        "catalog bytes/id": used / ids,
        "filter bytes/id": stats.filter_bytes / ids,
        "bytes/id": (used + stats.filter_bytes) / ids,
        "files of the host bytes/id": (stats.run_bytes + stats.filter_bytes) / ids,
    }
    return Turn(seconds=(seconds,), amount=ids, facts=facts)


def _used(path: Path) -> int:
    """Return the bytes of a SQLite file that are in use."""
    with closing(sqlite3.connect(path)) as database:
        figures = [
            int(database.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        ]
    pages, free, size = figures
    return (pages - free) * size


BENCHMARKS = (
    Benchmark(
        name="dedup-disk",
        says="What a million ids take, once outputs are collected: pages of the SQLite catalog that are "
        "in use, heads and entries included, and the filters of one host.",
        unit="id",
        staged=_staged,
        baseline=SEALED,
        rounds=(1, 1),
        warmups=0,
        goals=(
            Goal(
                says="bytes of an id after compaction, filters included",
                contestant=COMPACTED,
                measure="bytes/id",
                unit="bytes",
                at_most=24,
            ),
        ),
    ),
)
