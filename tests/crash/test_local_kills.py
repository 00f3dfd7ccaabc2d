"""kill -9 of a process that keeps a lane's ids on its host, at every step; and two at once.

What it is: processes (this file, run) that follow a lane head by head on a home, killed by
themselves at a named step, and what the next process finds.
What it must not know: what is in which file.

Allowed after a kill: anything that costs time. Never allowed: an id that was decided and is not
found, one that was never decided and is, leftovers that stay for ever.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dedup.arrays import pack
from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.formats.segment import BUCKET_MS
from dedup.index import ExactIndex
from dedup.local import Home, LaneIndex
from dedup.local.home import UNBORN_SECONDS_MAX
from dedup.local.steps import STEPS, WORKSHOP_BORN, WORKSHOP_UNBORN
from dedup.model import Head, advance
from tests.crash.conftest import TakeDown
from tests.unit.local_lanes import NAME, TINY, WINDOW_MS, Lane

WAIT_SECONDS = 120
SEALS = 40
STRANGERS = 20
#: A process makes its directory once; what dies meanwhile leaves other things.
IN_ITS_DIRECTORY = tuple(step for step in STEPS if step not in {WORKSHOP_UNBORN, WORKSHOP_BORN})


def heads(catalog: Catalog) -> Iterator[Head]:
    """Every head that the lane has had."""
    row = catalog.load(NAME)
    assert row is not None
    first, *seals = catalog.history(NAME, row.head)
    head = Head(ref=first.ref, frontier=first.end)
    yield head
    for seal in seals:
        head = advance(head, seal)
        yield head


def follow(url: str, home: str, step: str, nth: str) -> None:
    """Follow a lane, and die at the n-th time that a step is told; what is killed is this process."""
    told: Counter[str] = Counter()

    def at(name: str) -> None:
        told[name] += 1
        if name == step and told[name] == int(nth):
            os.kill(os.getpid(), signal.SIGKILL)

    store = open_store(url)
    catalog = Catalog(store)
    index = LaneIndex(catalog, NAME, window_ms=WINDOW_MS, home=Home(Path(home)), limits=TINY, at=at)
    for head in heads(catalog):
        index.catch_up(head)
    index.close()
    store.close()


def agree(url: str, home: str) -> None:
    """Follow a lane and compare with the exact index at every head it is not behind."""
    store = open_store(url)
    catalog = Catalog(store)
    index = LaneIndex(catalog, NAME, window_ms=WINDOW_MS, home=Home(Path(home)), limits=TINY)
    oracle = ExactIndex(catalog, NAME, WINDOW_MS)
    for head in heads(catalog):
        index.catch_up(head)
        oracle.catch_up(head)
        held = [
            (one, -1 if bucket.origin.name == "EXTERNAL" else bucket.number)
            for bucket, ids in oracle.memo.buckets.items()
            for one in ids.ids
        ]
        # Behind what the other has published, an append is lost, and buckets may have gone.
        assert index.tag is not None
        assert index.tag == head.ref or index.tag.seq > head.ref.seq
        if held and index.tag == head.ref:
            numbers = np.array([number for _, number in held], dtype=np.int64)
            assert index.decided(pack([one for one, _ in held]), numbers).all()
        strangers = pack([os.urandom(16) for _ in range(STRANGERS)])
        assert not index.decided(strangers).any()
    index.close()
    store.close()


@pytest.fixture(scope="module")
def lane(tmp_path_factory) -> Iterator[Lane]:
    """A lane in SQLite whose buckets grow, are merged, and go."""
    store = open_store(f"sqlite:{tmp_path_factory.mktemp('lane') / 'catalog.db'}")
    lane = Lane(store=store)
    for number in range(SEALS):
        now = lane.head.lane_time_ms // BUCKET_MS
        lane.append(
            [lane.fresh() for _ in range(number % 7)],
            {now: [lane.fresh() for _ in range(number % 5)]},
            step_ms=BUCKET_MS if number % 3 == 0 else 0,
            read=max(0, number - 6) if number % 4 == 0 else None,
        )
    yield lane
    store.close()


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.test_local_kills", *arguments],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
    )


def killed(lane: Lane, home: Path, step: str, nth: int) -> None:
    child = started("follow", lane.store.url, str(home), step, str(nth))
    _, errors = child.communicate(timeout=WAIT_SECONDS)
    assert child.returncode == -signal.SIGKILL, errors.decode()


def proved(lane: Lane, home: Path) -> None:
    """Check what a new process answers, and what it leaves."""
    oracle = ExactIndex(lane.catalog, NAME, WINDOW_MS)
    oracle.catch_up(lane.head)
    with LaneIndex(lane.catalog, NAME, window_ms=WINDOW_MS, home=Home(home), limits=TINY) as index:
        index.catch_up(lane.head)
        ids = [*lane.ever, *(os.urandom(16) for _ in range(STRANGERS))]
        known = index.decided(*lane.asked(ids)).tolist()
        missing = [one for one, is_known in zip(ids, known, strict=True) if not is_known]
        assert not [one for one in missing if oracle.holds(one)]
        assert set(ids) - set(missing) <= set(lane.sealed)
    place = Home(home).place(lane.store.url, NAME)
    manifest = place.read()
    assert manifest is not None
    assert {path.name for path in place.path.iterdir()} == {*manifest.names, "manifest", "lock"}


@pytest.mark.parametrize("step", [WORKSHOP_UNBORN, WORKSHOP_BORN])
def test_killed_while_it_makes_its_directory_a_process_leaves_nothing(lane, tmp_path, step):
    killed(lane, tmp_path / "home", step, 1)
    place = Home(tmp_path / "home").place(lane.store.url, NAME)
    left = [path for path in place.path.iterdir() if path.is_dir()]
    assert len(left) == 1
    then = time.time() - UNBORN_SECONDS_MAX - 1
    os.utime(left[0], (then, then))
    proved(lane, tmp_path / "home")


@pytest.mark.parametrize("step", IN_ITS_DIRECTORY)
def test_killed_at_a_step_nothing_is_lost_and_nothing_stays(lane, tmp_path, step):
    killed(lane, tmp_path / "home", step, 2)
    proved(lane, tmp_path / "home")


def test_two_processes_on_one_home_agree_with_the_catalog_at_every_head(lane, tmp_path):
    pair = [started("agree", lane.store.url, str(tmp_path / "home")) for _ in range(2)]
    for child in pair:
        _, errors = child.communicate(timeout=WAIT_SECONDS)
        assert child.returncode == 0, errors.decode()
    proved(lane, tmp_path / "home")


@pytest.mark.slow
@pytest.mark.parametrize("step", IN_ITS_DIRECTORY)
def test_killed_at_a_step_again_and_again(lane, tmp_path, step, take_down: TakeDown):
    """Each process is killed a little later than the one before, on the same home."""
    home = tmp_path / "home"
    for nth in range(1, 6):
        child = started("follow", lane.store.url, str(home), step, str(nth))
        child.communicate(timeout=WAIT_SECONDS)
        assert child.returncode in (-signal.SIGKILL, 0)
        copy = tmp_path / f"copy-{nth}"
        subprocess.run(["cp", "-r", str(home), str(copy)], check=True)
        proved(lane, copy)
    take_down(kind="killed")


if __name__ == "__main__":
    {"follow": follow, "agree": agree}[sys.argv[1]](*sys.argv[2:])
