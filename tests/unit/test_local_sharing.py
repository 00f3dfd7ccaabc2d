"""How much of a lane's index only one process has: a share of the ids, and so many seals."""

from __future__ import annotations

from dataclasses import replace

from dedup.local.limits import LIMITS
from tests.unit.local_lanes import TINY, Lane
from tests.unit.test_local_index import all_known, opened
from tests.unit.test_local_writing import published

#: Nothing merges and no filter grows, so that only sharing publishes.
STILL = replace(TINY, aside_ids=100, fanout=1000, first_ids=10_000)
FULL = STILL.overlay_ids_min


def behind(lane: Lane, root) -> int:
    """Return how many seals the other processes of the host would have to read."""
    return lane.head.ref.seq - published(lane, root)


def test_what_one_process_keeps_to_itself_is_a_share_of_all_ids(tmp_path):
    lane = Lane()
    limits = replace(STILL, overlay_seals_max=1000, apart_share=1 / 4, apart_ids_max=1000)
    with opened(lane, tmp_path, limits=limits) as index:
        index.catch_up(lane.head)
        kept = []
        for done in range(1, 25):
            assert index.took(*lane.append([lane.fresh() for _ in range(FULL)]))
            kept.append(behind(lane, tmp_path))
            assert kept[-1] < max(1, done / 4)
        assert max(kept) == 4, "not every flush is published"
        assert 0 in kept[12:], "some are"
        # Who dies without a word leaves the rest to be read.
        with opened(lane, tmp_path, limits=limits) as other:
            assert all_known(other, lane)
            assert other.counters.catalog_reads == kept[-1] > 0
            assert other.counters.rebuilds == 0


def test_however_many_ids_there_are_a_start_reads_so_many_at_most(tmp_path):
    lane = Lane()
    limits = replace(STILL, overlay_seals_max=1000, apart_share=1.0, apart_ids_max=3 * FULL)
    with opened(lane, tmp_path, limits=limits) as index:
        index.catch_up(lane.head)
        kept = []
        for _ in range(12):
            assert index.took(*lane.append([lane.fresh() for _ in range(FULL)]))
            kept.append(behind(lane, tmp_path))
    assert max(kept) == 2
    assert kept[-3:] == [0, 1, 2]


def test_of_however_few_ids_they_are_a_start_reads_so_many_seals_at_most(tmp_path):
    lane = Lane()
    limits = replace(STILL, overlay_seals_max=4, apart_share=1.0, apart_ids_max=1000)
    with opened(lane, tmp_path, limits=limits) as index:
        index.catch_up(lane.head)
        for _ in range(40):
            assert index.took(*lane.append([lane.fresh()]))
            assert behind(lane, tmp_path) <= 2 * limits.overlay_seals_max


def test_in_large_lanes_a_merge_comes_first():
    assert LIMITS.apart_ids_max > LIMITS.fanout * LIMITS.overlay_ids_max
