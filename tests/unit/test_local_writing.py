"""The overlay while a thread writes it: asked, bounded, taken over, forgotten, given up, left behind."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from dedup.arrays import pack
from dedup.errors import Unavailable
from dedup.formats.segment import BUCKET_MS
from dedup.local import Home, LaneIndex, writing
from dedup.local.manifest import Manifest
from tests.unit.local_lanes import NAME, TINY, Lane
from tests.unit.test_local_index import all_known, filled, opened, place_of

WAIT_SECONDS = 60
#: Ids that fill an overlay.
FULL = TINY.overlay_ids_max


class Thread:
    """The first thread that writes runs: it begins, and waits until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        #: How often somebody waited for one, and with that let it go on.
        self.waited = 0
        #: What it meets when it goes on.
        self.error: OSError | None = None
        self._monkeypatch = monkeypatch
        self._write_run = writing.write_run
        monkeypatch.setattr(writing, "write_run", self._write)

    def of(self, index: LaneIndex) -> None:
        """Notice who waits for this index's thread."""
        background = index._keeper._writer._background
        outcome, close = background.outcome, background.close

        def waiting(*, wait: bool = False) -> Any:
            if wait and background.busy:
                self.waited += 1
                self.go_on.set()
            return outcome(wait=wait)

        def closing() -> None:
            self.go_on.set()
            close()

        self._monkeypatch.setattr(background, "outcome", waiting)
        self._monkeypatch.setattr(background, "close", closing)

    def done(self, index: LaneIndex) -> None:
        """Let it go on, and wait until it has done what it is at."""
        self.go_on.set()
        future = index._keeper._writer._background._future
        assert future is not None
        future.exception(WAIT_SECONDS)

    def _write(self, *arguments: Any, **more: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            first = not self.begun.is_set()
            self.begun.set()
            assert not first or self.go_on.wait(WAIT_SECONDS)
            if self.error is not None:
                raise self.error
        return self._write_run(*arguments, **more)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Thread]:
    found = Thread(monkeypatch)
    yield found
    found.go_on.set()


def begun(lane: Lane, root: Path | None, thread: Thread, **more: Any) -> LaneIndex:
    """An index whose overlay is being written; what it holds is of one seal."""
    index = opened(lane, root, **more)
    index.catch_up(lane.head)
    thread.of(index)
    assert index.took(*lane.append([lane.fresh() for _ in range(FULL)]))
    assert thread.begun.wait(WAIT_SECONDS)
    return index


def manifest_of(lane: Lane, root: Path) -> Manifest:
    found = Home(root).place(lane.store.url, NAME).read()
    assert found is not None
    return found


def published(lane: Lane, root: Path) -> int:
    return manifest_of(lane, root).tag.seq


def all_left(lane: Lane, root: Path) -> bool:
    """Tell whether a new process has everything without reading a segment."""
    with opened(lane, root) as index:
        return all_known(index, lane) and index.counters.catalog_reads == 0


def test_ids_are_known_while_they_are_written_and_after(tmp_path, thread):
    lane = Lane()
    with begun(lane, tmp_path, thread) as index:
        assert all_known(index, lane)
        lane.append([lane.fresh() for _ in range(3)])
        assert all_known(index, lane)
        assert thread.waited == 0, "nobody waits while there is room"
        assert index.stats.overlay_ids == FULL + 3
        assert published(lane, tmp_path) == 0, "nothing is published that is not in a run"
        thread.done(index)
        assert all_known(index, lane)
        assert index.stats.overlay_ids == 3
        assert published(lane, tmp_path) == 1, "what came meanwhile is in no run"
    assert all_left(lane, tmp_path)


def test_others_read_what_is_set_aside_from_the_catalog(tmp_path, thread):
    lane = Lane()
    with begun(lane, tmp_path, thread) as index, opened(lane, tmp_path) as other:
        assert all_known(other, lane)
        assert other.counters.catalog_reads == 1
        assert other.counters.rebuilds == 0
        assert all_known(index, lane)


def test_whoever_has_filled_the_next_overlay_waits(tmp_path, thread):
    lane = Lane()
    with begun(lane, tmp_path, thread) as index:
        for _ in range(TINY.overlay_seals_max - 1):
            assert index.took(*lane.append([lane.fresh()]))
        assert thread.waited == 0
        assert index.took(*lane.append([lane.fresh()]))
        assert thread.waited == 1
        assert index.stats.overlay_ids <= FULL
        assert all_known(index, lane)


def test_chunks_that_are_written_are_not_put_together_with_others(tmp_path, thread):
    lane = Lane()
    limits = replace(TINY, overlay_ids_min=30, overlay_ids_max=30, overlay_seals_max=100)
    with opened(lane, tmp_path, limits=limits) as index:
        index.catch_up(lane.head)
        thread.of(index)
        for _ in range(10):
            assert index.took(*lane.append([lane.fresh() for _ in range(3)]))
        assert thread.begun.wait(WAIT_SECONDS)
        for _ in range(29):
            assert index.took(*lane.append([lane.fresh()]))
        assert thread.waited == 0
        chunks = [group.chunks.all for group in index._keeper.contents.groups.values()]
        assert [len(all_) for all_ in chunks] != [39], "others are put together"
        thread.done(index)
        assert all_known(index, lane)
        assert index.stats.overlay_ids == 29
        assert index.first_seen(pack(list(lane.sealed))) == [
            (lane.head.ref.incarnation, seq) for seq in lane.sealed.values()
        ]


def test_closing_waits_and_leaves_everything_and_no_thread(tmp_path, thread):
    lane = Lane()
    index = begun(lane, tmp_path, thread)
    lane.append([lane.fresh()])
    index.catch_up(lane.head)
    index.close()
    assert thread.waited == 1
    assert not [one for one in threading.enumerate() if "upkeep" in one.name]
    left = {path.name for path in place_of(lane, tmp_path).iterdir()}
    assert left == {*manifest_of(lane, tmp_path).names, "manifest", "lock"}
    assert all_left(lane, tmp_path)


def test_closing_without_a_home_leaves_no_thread(thread):
    lane = Lane()
    index = begun(lane, None, thread)
    index.close()
    assert not [one for one in threading.enumerate() if "upkeep" in one.name]


@pytest.mark.parametrize("more", [0, 1])
def test_what_is_ahead_of_runs_and_not_of_what_is_known_is_not_taken_over(tmp_path, thread, more):
    """regression: a writer lost its merges to readers that published what it had set aside."""
    lane = Lane()
    with begun(lane, tmp_path, thread) as index:
        filled(lane, 1, 1)
        with opened(lane, tmp_path) as other:
            assert all_known(other, lane)
        assert published(lane, tmp_path) == lane.head.ref.seq
        filled(lane, more, 1)
        index.catch_up(lane.head)
        index.settle()
        assert index.counters.adoptions == 0
        assert published(lane, tmp_path) == lane.head.ref.seq
    assert all_left(lane, tmp_path)


def test_who_takes_over_while_it_writes_does_not_fall_behind_it(tmp_path, thread):
    lane = Lane()
    with begun(lane, tmp_path, thread) as index:
        with opened(lane, tmp_path) as other:
            filled(lane, 3)
            assert all_known(other, lane)
        assert published(lane, tmp_path) == lane.head.ref.seq
        # The overlay that the third seal fills is begun to be written, and then the first is published.
        for head in lane.heads[2:4]:
            index.catch_up(head)
        assert index.counters.adoptions == 1
        index.settle()
        assert all_known(index, lane)
        index.settle()
        assert published(lane, tmp_path) == lane.head.ref.seq
    assert all_left(lane, tmp_path)


def test_a_new_beginning_lets_go_of_what_is_written(tmp_path, thread):
    """A restore: what the thread writes is of an abandoned history."""
    lane = filled(Lane(), 2)
    backup = lane.backup()
    with begun(lane, tmp_path, thread) as index:
        gone = set(lane.sealed)
        lane.restore(backup)
        gone -= set(lane.sealed)
        assert all_known(index, lane)
        assert gone
        assert not index.decided(pack(sorted(gone))).any()
        filled(lane, 5)
        assert all_known(index, lane)
        assert not index.decided(pack(sorted(gone))).any()
    assert all_left(lane, tmp_path)


def test_what_is_forgotten_while_it_is_written_does_not_come_back(tmp_path, thread):
    lane = Lane()
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        thread.of(index)
        kept = [lane.fresh() for _ in range(FULL)]
        assert index.took(*lane.append([lane.fresh()], {0: kept}))
        assert thread.begun.wait(WAIT_SECONDS)
        backup = lane.backup()
        lane.append([lane.fresh()], read=lane.head.ref.seq)
        index.catch_up(lane.head)
        assert not index.decided(*lane.asked(kept)).any()
        thread.done(index)
        index.catch_up(lane.head)
        assert not index.decided(*lane.asked(kept)).any()
        # Published under an earlier head, it would be missing after a restore.
        assert published(lane, tmp_path) == lane.head.ref.seq
    lane.restore(backup)
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)


def test_what_is_outlived_while_it_is_written_does_not_come_back(tmp_path, thread):
    """External ids share a group, which stays."""
    lane = Lane()
    with begun(lane, tmp_path, thread) as index:
        old = list(lane.sealed)
        young = [lane.fresh()]
        lane.append(young, step_ms=20 * BUCKET_MS)
        index.catch_up(lane.head)
        thread.done(index)
        index.catch_up(lane.head)
        assert not index.decided(pack(old)).any()
        assert index.decided(pack(young)).all()
        assert published(lane, tmp_path) == 0, "it is in no run"
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        assert index.counters.catalog_reads == 0
        assert not index.decided(pack(old)).any()
        assert index.decided(pack(young)).all()


def test_what_a_thread_cannot_write_is_written_at_once(tmp_path, thread):
    lane = Lane()
    with begun(lane, tmp_path, thread) as index:
        thread.error = OSError("no room")
        thread.done(index)
        assert all_known(index, lane)
        assert index.stats.overlay_ids == FULL
        assert index._keeper.contents.seals == 1, "a start would have to read it again"
        lane.append([lane.fresh()])
        assert all_known(index, lane)
        assert index.stats.overlay_ids == 0
        # The next one goes to a thread again.
        thread.error = None
        thread.begun.clear()
        lane.append([lane.fresh() for _ in range(FULL)])
        assert all_known(index, lane)
        assert thread.begun.wait(WAIT_SECONDS)
    assert all_left(lane, tmp_path)


def test_what_cannot_be_written_at_all_is_said(tmp_path, thread, monkeypatch):
    lane = Lane()
    with begun(lane, tmp_path, thread) as index:
        thread.error = OSError("no room")
        thread.done(index)
        index.catch_up(lane.head)

        def full(*_: Any, **__: Any) -> Any:
            raise OSError("no room")

        with monkeypatch.context() as patched:
            patched.setattr(writing, "write_run", full)
            lane.append([lane.fresh()])
            with pytest.raises(Unavailable, match="no room"):
                index.catch_up(lane.head)
            assert index.decided(*lane.asked(lane.sealed)).all()
        assert all_known(index, lane)
    assert all_left(lane, tmp_path)


def test_without_the_lock_what_was_written_is_published_later(tmp_path, thread):
    lane = Lane()
    with begun(lane, tmp_path, thread) as index:
        file = os.open(place_of(lane, tmp_path) / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(file, fcntl.LOCK_EX)
        thread.done(index)
        assert all_known(index, lane)
        assert index.counters.lock_misses == 1
        assert published(lane, tmp_path) == 0
        os.close(file)
        filled(lane, 3)
        assert all_known(index, lane)
        index.settle()
        assert published(lane, tmp_path) > 0
    assert all_left(lane, tmp_path)


def test_without_a_home_a_run_has_no_name_when_it_is_taken(thread, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lane = Lane()
    with begun(lane, None, thread) as index:
        thread.done(index)
        assert not list(tmp_path.rglob("run-*"))
        assert all_known(index, lane)
    assert not list(tmp_path.iterdir())


def test_what_is_retired_is_let_go_of_by_who_writes_next(tmp_path, thread):
    """Not by the lane, which would stand still meanwhile."""
    lane = Lane()
    gone: list[str] = []
    with begun(lane, tmp_path, thread) as index:
        index._keeper._writer.retire(lambda: gone.append(threading.current_thread().name))
        thread.done(index)
        assert index.took(*lane.append([lane.fresh()]))
        assert gone == []
        assert index.took(*lane.append([lane.fresh() for _ in range(FULL)]))
        thread.done(index)
        assert len(gone) == 1
        assert gone != [threading.main_thread().name]
        index._keeper._writer.retire(lambda: gone.append("in the end"))
    assert gone[1:] == ["in the end"]


def test_what_is_retired_goes_with_what_is_written_at_once_too(tmp_path):
    """A small overlay needs no thread."""
    lane = Lane()
    gone: list[int] = []
    with opened(lane, tmp_path, limits=replace(TINY, aside_ids=100)) as index:
        index.catch_up(lane.head)
        index._keeper._writer.retire(lambda: gone.append(1))
        assert index.took(*lane.append([lane.fresh() for _ in range(FULL)]))
        assert gone == [1]


def mapped(root: Path) -> set[str]:
    """Return which files of runs and filters this process has mapped, deleted ones too."""
    paths = {Path(at.path.removesuffix(" (deleted)")) for at in psutil.Process().memory_maps(False)}
    return {path.name for path in paths if root in path.parents}


def test_runs_that_were_merged_and_filters_that_were_outgrown_do_not_stay_mapped(tmp_path):
    lane = Lane()
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        for _ in range(30):  # when a thread has ended decides which flush comes last
            assert index.took(*lane.append([lane.fresh() for _ in range(FULL)]))
            index.settle()
            retired = mapped(tmp_path) - {path.name for path in place_of(lane, tmp_path).iterdir()}
            if done := bool(retired and index.counters.merges and index.counters.growths):
                break
        assert done
        for _ in range(2):
            assert index.took(*lane.append([lane.fresh() for _ in range(FULL)]))
        index.settle()
        assert mapped(tmp_path).isdisjoint(retired)
        assert all_known(index, lane)
