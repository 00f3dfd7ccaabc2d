"""Killed by SIGKILL at one line after the other: a program that tests start, alone in its process.

What it is: `everywhere`, which forks a child for each point and lets it die there, and the two jobs
that are killed: a merge of runs, and compaction and forgetting in a SQLite catalog.
What it must not know: which points matter; it takes as many as it is told, evenly spread.

Invariants:
    A child does everything from the start by itself, connections included; nothing is inherited.
    What was held before is checked after every death, and again once the job was repeated.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree
from types import FrameType
from typing import Any

import numpy as np

from dedup.arrays import Ids, sorted_unique
from dedup.catalog.open import open_store
from dedup.compact import compact
from dedup.formats.segment import BUCKET_MS, Bucket, Origin
from dedup.index import ExactIndex
from dedup.model import Incarnation
from dedup.runs import merge, merge_runs, open_run, write_run
from dedup.runs.write import UNFINISHED
from tests.unit.segments_kit import LANE, Shelf, part, record_id

ROOT = Path(__file__).resolve().parents[2] / "dedup"
OWNER = Incarnation(b"i" * 16)


def everywhere(work: Callable[[], None], check: Callable[[], None], points: int) -> int:
    """Kill `work` at that many of its lines, and check after each; return how many lines it has."""
    reader, writer = os.pipe()
    if not os.fork():
        lines = traced(work, None)
        os.write(writer, str(lines).encode())
        os._exit(0)
    os.close(writer)
    lines = int(os.read(reader, 100))
    os.close(reader)
    os.wait()
    check()
    for at in sorted({1 + number * (lines - 1) // points for number in range(points)}):
        child = os.fork()
        if not child:
            traced(work, at)
            os._exit(3)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"line {at} of {lines} was never reached: {status}"
        assert os.WTERMSIG(status) == signal.SIGKILL
        check()
    return lines


def traced(work: Callable[[], None], kill_at: int | None) -> int:
    """Run something and count its lines in this library, dying at one of them."""
    count = 0

    def line(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return line

    def call(frame: FrameType, _event: str, _arg: object) -> Any:
        return line if frame.f_code.co_filename.startswith(str(ROOT)) else None

    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def runs(directory: Path, points: int) -> int:
    """Merge runs under the name of one of them, as a host does that tidies its runs."""
    merge.MERGE_IDS_MAX = 4 * merge.BLOCK_IDS_MIN
    sizes = (3_000, 2_000, 500)
    held = [ids(size, seed) for seed, size in enumerate(sizes)]
    names = [directory / f"run {seed}" for seed in range(len(sizes))]

    def begin() -> None:
        for leftover in directory.glob(f"*{UNFINISHED}"):
            leftover.unlink()
        for seed, name in enumerate(names):
            seals = [(OWNER, seed)]
            of = np.zeros(len(held[seed]), dtype=np.int64)
            bucket = Bucket(Origin.EXTERNAL, seed)
            write_run(name, "lane", bucket, held[seed], origins=seals, origin_of=of)

    def work() -> None:
        found = [open_run(name, "lane") for name in names]
        merge_runs(names[0], [run for run in found if run], lambda *_: True)
        for name in names[1:]:
            name.unlink(missing_ok=True)

    def check() -> None:
        """Every id is in a whole run; the others are what they were, or gone after the merge."""
        found = [run for name in names if (run := open_run(name, "lane"))]
        assert found
        for run in found:
            assert run.verify()
        for one in held:
            assert np.any([run.find(one) >= 0 for run in found], axis=0).all()
        whole = sum(len(one) for one in held)
        assert found[0].count in (len(held[0]), whole)
        assert len(found) == len(names) or found[0].count == whole
        work()
        (merged,) = [run for name in names if (run := open_run(name, "lane"))]
        assert merged.count == whole
        begin()

    begin()
    return everywhere(work, check, points)


def ids(count: int, seed: int) -> Ids:
    rng = np.random.default_rng(seed)
    return sorted_unique(rng.integers(0, 1 << 64, size=(count, 2), dtype=np.uint64))


def catalog(directory: Path, points: int) -> int:
    """Merge segments of a lane and drop buckets past their window."""
    window_ms = 16 * BUCKET_MS
    fresh, used = directory / "fresh", directory / "used"
    fresh.mkdir()
    live: list[str] = []
    old: list[str] = []
    store = open_store(f"sqlite:{fresh / 'catalog.db'}")
    shelf = Shelf(store)
    for number in (*range(8), *range(30, 38)):
        for seal in range(2):
            names = [f"{number} {seal} {one}" for one in "abc"]
            shelf.seal(part(number, names), lane_time_ms=number * BUCKET_MS)
            (live if number >= 30 else old).extend(names)
        if number == 30:
            shelf.collect(1 << 50)
            compact(shelf.catalog, LANE, window_ms, plain_min=2)
    shelf.collect(1 << 50)
    store.close()

    def begin() -> None:
        rmtree(used, ignore_errors=True)
        copytree(fresh, used)

    def on(act: Callable[[Shelf], None]) -> None:
        opened = open_store(f"sqlite:{used / 'catalog.db'}")
        try:
            act(Shelf(opened))
        finally:
            opened.close()

    def work_on(shelf: Shelf) -> None:
        compact(shelf.catalog, LANE, window_ms, plain_min=2)
        shelf.collect(window_ms)
        compact(shelf.catalog, LANE, window_ms, plain_min=2)

    def holds(shelf: Shelf) -> None:
        held = shelf.held()
        assert len(held) == len(set(held)), "no id is held twice"
        assert set(map(record_id, live)) <= set(held) <= set(map(record_id, [*live, *old]))
        index = ExactIndex(shelf.catalog, LANE, window_ms)
        index.catch_up(shelf.row.head)
        assert all(index.holds(record_id(name)) for name in live)

    def ended(shelf: Shelf) -> None:
        assert shelf.held() == sorted(map(record_id, live)), "the buckets past the window are gone"
        assert shelf.stored() == set(shelf.slots()), "nothing is left over"

    def check() -> None:
        on(holds)
        on(work_on)
        on(ended)
        begin()

    begin()
    return everywhere(lambda: on(work_on), check, points)


if __name__ == "__main__":
    job = {"runs": runs, "catalog": catalog}[sys.argv[1]]
    sys.stdout.write(str(job(Path(sys.argv[2]), int(sys.argv[3]))))
