"""The index on the host, way by way: who takes what from where, and what it costs."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dedup.arrays import from_raw, pack
from dedup.errors import Corrupt
from dedup.formats.segment import BUCKET_MS
from dedup.local import Home, LaneIndex, home, shared
from dedup.model import Incarnation
from tests.unit.local_lanes import NAME, TINY, WINDOW_MS, Lane

#: With the compiled library and without it.
pytestmark = pytest.mark.usefixtures("both_ways")

ONE = Incarnation(b"1" * 16)
TWO = Incarnation(b"2" * 16)


def opened(lane: Lane, root: Path | None, **more: Any) -> LaneIndex:
    settings = {"window_ms": WINDOW_MS, "limits": TINY, **more}
    return LaneIndex(lane.catalog, NAME, home=None if root is None else Home(root), **settings)


def filled(lane: Lane, seals: int = 12, count: int = 5) -> Lane:
    for _ in range(seals):
        lane.append([lane.fresh() for _ in range(count)])
    return lane


def all_known(index: LaneIndex, lane: Lane) -> bool:
    index.catch_up(lane.head)
    known = index.decided(*lane.asked(lane.sealed)).all()
    return bool(known and not index.decided(pack([lane.fresh() for _ in range(50)])).any())


def place_of(lane: Lane, root: Path) -> Path:
    return Home(root).place(lane.store.url, NAME).path


# Who takes what -----------------------------------------------------------------------------------


def test_a_process_that_sealed_itself_reads_nothing_back(tmp_path):
    lane = Lane()
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        read = index.stats.counters.catalog_reads
        for _ in range(10):
            assert index.took(*lane.append([lane.fresh() for _ in range(3)]))
        assert all_known(index, lane)
        assert index.stats.counters.catalog_reads == read


def test_only_the_direct_successor_is_taken(tmp_path):
    lane = Lane()
    with opened(lane, tmp_path) as index:
        assert not index.took(*lane.append([lane.fresh()]))
        index.catch_up(lane.head)
        lane.append([lane.fresh()])
        after = lane.append([lane.fresh()])
        assert not index.took(*after)
        assert all_known(index, lane)
        assert not index.took(*after)


def test_a_seal_of_a_new_incarnation_is_read_not_taken(tmp_path):
    lane = filled(Lane())
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        lane.restore(lane.backup())
        assert not index.took(*lane.append([lane.fresh()]))
        assert all_known(index, lane)


def test_what_was_taken_counts_after_a_restore_too(tmp_path):
    lane = filled(Lane(), 3)
    lane.restore(lane.backup())
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        for _ in range(20):
            seal, parts = lane.append([lane.fresh() for _ in range(3)])
            assert index.took(seal, parts)
            assert index.decided(from_raw(parts[0].ids)).all()
        assert all_known(index, lane)


def test_parts_that_are_not_all_of_the_seal_are_refused(tmp_path):
    lane = Lane()
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        seal, parts = lane.append([lane.fresh(), lane.fresh()])
        with pytest.raises(AssertionError, match="all parts"):
            index.took(seal, (parts[0].rows(0, 1),))


def test_an_abandoned_history_is_forgotten(tmp_path):
    lane = filled(Lane())
    backup = lane.backup()
    filled(lane)
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
        gone = set(lane.sealed)
        lane.restore(backup)
        assert all_known(index, lane)
        gone -= set(lane.sealed)
        assert gone
        assert not index.decided(pack(sorted(gone))).any()


def test_a_missing_segment_is_corruption_not_an_empty_one():
    lane = filled(Lane(inline_bytes_max=0))
    lane.store.tables.chunks.clear()
    with opened(lane, None) as index, pytest.raises(Corrupt, match="is gone"):
        index.catch_up(lane.head)


def test_an_internal_id_is_asked_in_its_bucket_only():
    lane = Lane()
    inside, outside = lane.fresh(), lane.fresh()
    lane.append([outside], {7: [inside]})
    with opened(lane, None) as index:
        index.catch_up(lane.head)
        ids = pack([inside, inside, inside, outside, outside])
        asked = np.array([7, 8, -1, -1, 7], dtype=np.int64)
        assert index.decided(ids, asked).tolist() == [True, False, False, True, False]
        assert index.holds(inside)
        assert index.decided(pack([])).tolist() == []


def test_the_seal_and_the_digest_of_an_id_are_kept(tmp_path):
    lane = filled(Lane(), 30)
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        assert index.stats.counters.merges
        ids = list(lane.sealed)
        seals = index.first_seen(pack(ids))
        assert seals == [(lane.head.ref.incarnation, lane.sealed[one]) for one in ids]
        known, digests = index.digests_of(pack([*ids, lane.fresh()]))
        assert known.tolist() == [True] * len(ids) + [False]
        assert digests.tolist()[:-1] == [int.from_bytes(one[:2], "little") for one in ids]


# Starts -------------------------------------------------------------------------------------------


def test_a_warm_start_reads_no_segment(tmp_path):
    lane = filled(Lane())
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
        assert index.stats.counters.catalog_reads == 0
        assert index.stats.counters.rebuilds == 0


def test_another_boot_is_another_beginning(tmp_path, monkeypatch):
    lane = filled(Lane())
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
    monkeypatch.setattr(home, "boot_id", lambda: "another")
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
        assert index.stats.counters.rebuilds == 1


def test_whatever_byte_of_the_manifest_is_lost_it_costs_time(tmp_path):
    lane = filled(Lane())
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
    path = place_of(lane, tmp_path) / "manifest"
    whole = path.read_bytes()
    place = Home(tmp_path).place(lane.store.url, NAME)
    assert place.read() is not None
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        assert place.read() is None
        path.write_bytes(whole[:size] + bytes([whole[size] ^ 1]) + whole[size + 1 :])
        assert place.read() is None
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
        assert index.stats.counters.rebuilds == 1


def test_two_catalogs_and_two_lanes_do_not_meet(tmp_path):
    first, second = filled(Lane(seed=1)), filled(Lane(seed=2))
    for lane in (first, second, first):
        with opened(lane, tmp_path) as index:
            assert all_known(index, lane)


def test_without_a_home_a_killed_process_leaves_no_ids(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lane = filled(Lane(), 40)
    index = opened(lane, None)
    assert all_known(index, lane)
    filled(lane, 20)
    assert all_known(index, lane)
    index.settle()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lock"]
    index.close()
    assert not list(tmp_path.iterdir())


# Beside others ------------------------------------------------------------------------------------


def test_without_the_lock_ids_go_on_in_private_and_are_published_later(tmp_path):
    lane = filled(Lane())
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        file = os.open(place_of(lane, tmp_path) / "lock", os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX)
        filled(lane, 20)
        assert all_known(index, lane)
        assert index.stats.counters.lock_misses
        before = Home(tmp_path).place(lane.store.url, NAME).read()
        assert before is not None
        assert before.tag.seq < lane.head.ref.seq
        os.close(file)
        filled(lane, 3)
        assert all_known(index, lane)
    after = Home(tmp_path).place(lane.store.url, NAME).read()
    assert after is not None
    assert after.tag == lane.head.ref


def test_while_somebody_else_sets_bits_they_go_to_a_filter_at_the_side(tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "SIDE_IDS", 16)
    lane = filled(Lane())
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        place = place_of(lane, tmp_path)
        locks = [os.open(path, os.O_RDONLY) for path in place.glob("filter-*")]
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_EX)
        lane.append([lane.fresh() for _ in range(3)])
        assert all_known(index, lane)
        assert index.stats.anonymous_bytes
        filled(lane, 20)
        assert all_known(index, lane)
        for lock in locks:
            os.close(lock)
        filled(lane, 3)
        assert all_known(index, lane)
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
        assert index.stats.counters.rebuilds == 0


def test_who_is_behind_takes_over_what_another_has_published(tmp_path):
    lane = filled(Lane())
    slow, quick = opened(lane, tmp_path), opened(lane, tmp_path)
    slow.catch_up(lane.head)
    filled(lane, 30)
    quick.catch_up(lane.head)
    read = slow.stats.counters.catalog_reads
    assert all_known(slow, lane)
    assert slow.stats.counters.catalog_reads - read < 30
    slow.close()
    quick.close()


def test_an_older_head_is_not_told_of_what_was_sealed_on_top_of_it(tmp_path):
    lane = filled(Lane())
    head = lane.head
    seal, parts = lane.append([lane.fresh()])
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        index.catch_up(head)
        assert not index.decided(from_raw(parts[0].ids)).any()
        assert index.stats.counters.rebuilds == 1
        assert index.tag == seal.ref
        assert all_known(index, lane)


def test_what_was_forgotten_is_not_missing_after_a_restore(tmp_path):
    """regression: an older tag was published without what a newer head had forgotten."""
    lane = Lane()
    kept = [lane.fresh() for _ in range(8)]
    lane.append((), {0: kept})
    backup = lane.backup()
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        lane.append([lane.fresh()], read=lane.head.ref.seq)
        index.catch_up(lane.head)
        assert not index.decided(*lane.asked(kept)).any()
    lane.restore(backup)
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)


# Work in threads ----------------------------------------------------------------------------------


def test_long_upkeep_goes_on_in_a_thread_and_leaves_none(tmp_path):
    lane = Lane()
    with opened(lane, tmp_path, limits=replace(TINY, inline_ids=0)) as index:
        index.catch_up(lane.head)
        for _ in range(60):
            index.took(*lane.append([lane.fresh() for _ in range(5)]))
            index.settle()
        assert index.stats.counters.merges
        assert index.stats.counters.growths
        assert all_known(index, lane)
    assert not [one for one in threading.enumerate() if "upkeep" in one.name]


def test_closing_waits_for_a_thread_that_works():
    lane = Lane()
    index = opened(lane, None, limits=replace(TINY, inline_ids=0))
    index.catch_up(lane.head)
    filled(lane, 60)
    index.catch_up(lane.head)
    index.close()
    index.close()
    assert not [one for one in threading.enumerate() if "upkeep" in one.name]


def test_runs_stay_few_and_files_are_those_of_the_manifest(tmp_path):
    lane = Lane()
    with opened(lane, tmp_path) as index:
        index.catch_up(lane.head)
        for _ in range(200):
            index.took(*lane.append([lane.fresh() for _ in range(4)], step_ms=BUCKET_MS // 10))
            assert sum(bucket.runs for bucket in index.stats.buckets) <= 16
        index.catch_up(lane.head)
        assert index.stats.ids < len(lane.sealed)  # the window has passed over the first ones
    manifest = Home(tmp_path).place(lane.store.url, NAME).read()
    assert manifest is not None
    left = {path.name for path in place_of(lane, tmp_path).iterdir()}
    assert left - {"upkeep"} == {*manifest.names, "manifest", "lock"}
