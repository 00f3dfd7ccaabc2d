"""No false negative, at a hundred million ids: restarts, hops, damage, readers, kill -9, restores.

What it is: one lane whose segments are generated, followed by processes (this file, run) that share
a home, one after another and at once.
What it must not know: which file holds what.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.generated import NAME, GeneratedLane
from dedup.expiry import WINDOW_MS_MAX
from dedup.filters import ENGINE_DEFAULT, Filters
from dedup.local import Home, LaneIndex
from dedup.model import Incarnation
from tests.crash.conftest import TakeDown

SEAL_IDS = 100_000
SEALS = 1_000
#: The package takes fifty to a hundred times as long.
SEALS_OF_THE_PACKAGE = 50
#: Two days: several units of the window, so that runs are merged when one is over.
BUCKET_SEALS = 3
#: Of the ids that were checked before, a later check looks at every n-th seal.
SAMPLE = 17
STRANGERS = 10_000
MEMORY_BYTES_MAX = 6 << 30
WAIT_SECONDS = 1_200


def lane_of(root: Path) -> GeneratedLane:
    return GeneratedLane(f"sqlite:{root / 'catalog.db'}", SEAL_IDS, BUCKET_SEALS)


def opened(lane: GeneratedLane, root: Path) -> LaneIndex:
    filters = Filters(engine=(root / "engine").read_text())
    home = Home(root / "home")
    return LaneIndex(lane.catalog, NAME, window_ms=WINDOW_MS_MAX, home=home, filters=filters)


def check(lane: GeneratedLane, index: LaneIndex, step: int) -> None:
    """Ask for every id of every n-th seal up to the head, and for ids that nobody sealed."""
    for seq in range(1, lane.head.ref.seq + 1, step):
        assert index.decided(lane.store.ids(seq)).all(), f"an id of seal {seq} is denied"
    strangers = np.random.default_rng().integers(0, 2**64, (STRANGERS, 2), dtype=np.uint64)
    assert not index.decided(strangers).any()


def write(root: str, last: str, die: str) -> None:
    """Seal up to a seq, taking what is sealed; then check a sample and end, or be killed."""
    lane = lane_of(Path(root))
    index = opened(lane, Path(root))
    index.catch_up(lane.head)
    while lane.head.ref.seq < int(last):
        assert index.took(*lane.append())
        if lane.head.ref.seq % 50 == 0:
            index.catch_up(lane.head)
            seq = int(np.random.default_rng().integers(1, lane.head.ref.seq))
            assert index.decided(lane.store.ids(seq)).all()
    if die == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    check(lane, index, SAMPLE)
    index.close()
    lane.close()


def read(root: str, last: str, _: str) -> None:
    """Follow the lane beside its writer, checking samples, until it has that seq."""
    lane = lane_of(Path(root))
    while lane.head.ref.seq < int(last):
        with opened(lane, Path(root)) as index:
            index.catch_up(lane.load())
            check(lane, index, 10 * SAMPLE)
    lane.close()


def audit(root: str, last: str, step: str) -> None:
    """Check, after whatever has happened to the files; what was given up with a restore is free."""
    lane = lane_of(Path(root))
    index = opened(lane, Path(root))
    index.catch_up(lane.head)
    check(lane, index, int(step))
    for seq in range(lane.head.ref.seq + 1, int(last) + 1, int(step)):
        assert not index.decided(lane.store.ids(seq)).any(), (
            f"an id of seal {seq} is taken for known"
        )
    index.close()
    lane.close()


def started(verb: str, root: Path, last: int, more: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.test_local_deep", verb, str(root), str(last), more],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
    )


def ended(child: subprocess.Popen[bytes], status: int = 0) -> None:
    _, errors = child.communicate(timeout=WAIT_SECONDS)
    assert child.returncode == status, errors.decode()


def files(root: Path, kind: str) -> list[Path]:
    return sorted(root.glob(f"home/*/*/{kind}-*"), key=lambda path: path.stat().st_size)


def restored(root: Path, seq: int) -> None:
    """Put the catalog back, under files that know more."""
    lane = lane_of(root)
    lane.restore(seq, Incarnation(b"after a restore-"))
    lane.close()


def follow(root: Path, seals: int, engine: str = ENGINE_DEFAULT) -> None:
    """Everything that may happen to a lane's files, at so many seals."""
    (root / "engine").write_text(engine)
    lane_of(root).close()
    # A process is killed; another goes on from its files, with readers beside it.
    ended(started("write", root, seals // 2, "die"), -signal.SIGKILL)
    readers = [started("read", root, seals) for _ in range(2)]
    ended(started("write", root, seals))
    for reader in readers:
        ended(reader)
    # Every id, by a process that only has the files.
    ended(started("audit", root, seals, "1"))
    # The filter is deleted: another is made from the runs.
    for path in files(root, "filter"):
        path.unlink()
    ended(started("audit", root, seals, str(SAMPLE)))
    # The largest run is torn: everything is made anew from the catalog.
    largest = files(root, "run")[-1]
    torn = largest.with_name("torn")
    with largest.open("rb") as whole, torn.open("wb") as part:
        part.write(whole.read(largest.stat().st_size // 3))
    torn.replace(largest)
    ended(started("audit", root, seals, str(SAMPLE)))
    # The catalog is put back to half of it; then what it had forgotten is sealed again, and all of
    # it is there.
    restored(root, seals // 2)
    ended(started("audit", root, seals, str(SAMPLE)))
    ended(started("write", root, seals))
    ended(started("audit", root, seals, "1"))
    # Everything is deleted.
    shutil.rmtree(root / "home")
    ended(started("audit", root, seals, str(SAMPLE)))


def test_no_false_negative_among_a_million_ids(tmp_path):
    follow(tmp_path, 10)


@pytest.mark.slow
def test_no_false_negative_among_a_hundred_million_ids(tmp_path, take_down: TakeDown):
    follow(tmp_path, SEALS)
    take_down(kind="killed")


@pytest.mark.slow
def test_no_false_negative_among_five_million_ids_with_the_package(tmp_path, take_down: TakeDown):
    follow(tmp_path, SEALS_OF_THE_PACKAGE, "pybloom-live")
    take_down(kind="killed")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    {"write": write, "read": read, "audit": audit}[sys.argv[1]](*sys.argv[2:])
