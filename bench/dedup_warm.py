"""The benchmark of a new process over ids that others left: `dedup-start`.

What it is: the first verdict after a clean end and after a kill -9, what memory a process takes over a
hundred million ids, and how long everything takes when the host has lost its files.
What it must not know: Kafka, Spark, packages that are raced elsewhere.

Invariants:
    What is measured is a process of its own, that imports nothing but what a lane's index needs.
    After a kill -9 it starts where the killed one stood, with whatever that one left half done.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from bench.dedup import MILLION, OfIndex
from bench.dedup_start import ENDLESS, FORKED
from bench.generated import BATCH_IDS, BUCKET_SEALS, NAME, GeneratedLane
from bench.harness import Benchmark, Contestant, Goal, Lab, Standing, Turn
from bench.sizing import BILLIONS, beyond
from dedup.expiry import WINDOW_MS_DEFAULT
from dedup.local import Home, LaneIndex

#: How long a new process may take before the run is given up.
START_SECONDS_MAX = 300
ONE, HUNDRED = "1 M", "100 M"
KILLED, WORKER, WORKER_KILLED = ", after kill -9", ", a worker", ", a worker after kill -9"
HUNDRED_WORKING = "100 M, at work"
#: Batches for which a process goes on while its memory is looked at: a million ids, so that runs and
#: filters are written, and merged.
BATCHES = 100


def _command(directory: Path, *more: object) -> list[str]:
    return [sys.executable, "-m", "bench.dedup_start", str(directory), *map(str, more)]


def _started(directory: Path, rebuild_seconds: float, *how: str, batches: int = 0) -> Turn:
    """Run a process that gives one verdict; return what it says of itself."""
    done = subprocess.run(
        _command(directory, batches, *how),
        stdout=subprocess.PIPE,
        check=True,
        timeout=START_SECONDS_MAX,
    )
    facts = {name: float(value) for name, value in json.loads(done.stdout).items()}
    facts["rebuild s"] = rebuild_seconds
    return Turn(seconds=(facts["process ms"] / 1000,), facts=facts)


def _killed(directory: Path, rebuild_seconds: float, *how: str) -> Turn:
    """Kill a process at its work, then run one that gives a verdict."""
    with subprocess.Popen(_command(directory, ENDLESS), stderr=subprocess.PIPE) as working:
        assert working.stderr is not None, "a pipe was asked for"
        said = working.stderr.readline()
        working.kill()
    assert said == b"working\n", said + b": it was not at its work when it was killed"
    return _started(directory, rebuild_seconds, *how)


def _rebuilt(directory: Path, home: Path) -> float:
    """Return how long it takes to make all of an index's files again, as after a reboot."""
    url = f"sqlite:{directory / 'catalog.db'}"
    with closing(GeneratedLane(url, BATCH_IDS, BUCKET_SEALS)) as lane:
        began = time.perf_counter()
        with LaneIndex(lane.catalog, NAME, window_ms=WINDOW_MS_DEFAULT, home=Home(home)) as index:
            index.catch_up(lane.head)
            assert index.decided(lane.store.ids(1)).all(), "no id is ever lost"
        return time.perf_counter() - began


#: What is done to a directory, by what follows its size in the name.
TURNS: Mapping[str, tuple[Callable[..., Turn], tuple[str, ...]]] = {
    "": (_started, ()),
    KILLED: (_killed, ()),
    WORKER: (_started, (FORKED,)),
    WORKER_KILLED: (_killed, (FORKED,)),
}


@contextmanager
def _staged(lab: Lab) -> Iterator[Sequence[Contestant]]:
    sizes = (0.2, 1.0) if lab.quick else (1, 100)
    with ExitStack() as stack:
        contestants = []
        for first, size in zip((ONE, HUNDRED), sizes, strict=True):
            directory = stack.enter_context(lab.directory())
            lab.report(f"filling an index with {size:g} million ids")
            one = OfIndex(directory, int(size * MILLION))
            one.index.close()
            one.lane.close()
            with lab.directory() as home:
                rebuild = _rebuilt(directory, home)
            for name, (turn, how) in TURNS.items():
                turned = partial(turn, directory, rebuild, *how)
                contestants.append(Contestant(name=first + name, turn=turned))
        working = partial(_started, directory, rebuild, batches=BATCHES)
        yield [*contestants, Contestant(name=HUNDRED_WORKING, turn=working)]


def _extrapolated(standings: Mapping[str, Standing]) -> Mapping[str, float]:
    """Say how a lane of ten billion ids would start, in proportion."""
    grown = [standings[name].facts for name in (ONE, HUNDRED)]
    ids = [one["M ids"] * MILLION for one in grown]
    return {
        "s to the first verdict": beyond(ids, [one["process ms"] for one in grown], BILLIONS)
        / 1000,
        "hours to rebuild": beyond(ids, [one["rebuild s"] for one in grown], BILLIONS) / 3600,
    }


def _within(says: str, contestant: str, measure: str, limit_ms: float) -> Goal:
    return Goal(says=says, contestant=contestant, measure=measure, unit="ms", at_most=limit_ms)


BENCHMARKS = (
    Benchmark(
        name="dedup-start",
        says="A new process maps what another left and gives its first verdict, from the start of the "
        "process on: Python and what it imports are a fact of their own. A worker is forked where all is "
        "loaded, as `delivery.daemon` forks those of Spark. Memory is the kernel's count "
        "of anonymous pages, at work over a million ids more, and the filters' files. A rebuild is from "
        "segments that are made as they are read: what a catalog takes to hand them over comes on top.",
        unit="start",
        staged=_staged,
        baseline=ONE,
        rounds=(5, 1),
        derived=("one lane of 10 billion ids, in proportion", _extrapolated),
        goals=(
            _within("first verdict of a new process, 100 M", HUNDRED, "process ms", 1000),
            _within("the same after kill -9", HUNDRED + KILLED, "process ms", 1000),
            _within(
                "first verdict of a worker that Spark's daemon forks, 1 M",
                ONE + WORKER,
                "process ms",
                50,
            ),
            _within("the same after kill -9", ONE + WORKER_KILLED, "process ms", 50),
            Goal(
                says="anonymous memory and filters of a process over 100 M ids",
                contestant=HUNDRED_WORKING,
                measure="memory bytes/id",
                unit="bytes/id",
                at_most=3,
            ),
        ),
    ),
)
