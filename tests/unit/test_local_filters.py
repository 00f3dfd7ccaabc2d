"""The filters of an index: made as chosen, made anew for another choice, counted, and crowded."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from dedup.arrays import pack
from dedup.filters import Filters
from dedup.local import Home, LaneIndex
from dedup.local.limits import LIMITS
from dedup.local.shelf import filters_of
from dedup.local.stats import Asked
from tests.unit.local_lanes import NAME, Lane
from tests.unit.test_local_index import all_known, filled, opened


@pytest.mark.parametrize(
    "more",
    [{"key": b"k" * 16}, {"rate": 0.01}, {"engine": "pybloom-live"}],
    ids=["key", "rate", "engine"],
)
def test_other_filters_are_made_from_the_runs(tmp_path, more):
    lane = filled(Lane())
    with opened(lane, tmp_path) as index:
        assert all_known(index, lane)
    for chosen in (Filters(**more), Filters()):
        with opened(lane, tmp_path, filters=chosen) as index:
            assert all_known(index, lane)
            held = [group.filter.filter for group in index._keeper.contents.groups.values()]
            made = [Filters(engine=f.engine, rate=f.target_rate, key=f.key) for f in held]
            assert made == [chosen]
            index.took(*lane.append([lane.fresh() for _ in range(20)]))
            assert all_known(index, lane)
            assert index.stats.counters.rebuilds == 0
        # What lies there for the next process is as it was chosen, and says so.
        place = Home(tmp_path).place(lane.store.url, NAME)
        assert filters_of(place.read(), place) == chosen


def test_how_filters_did_is_added_up_by_all_processes_of_a_host(tmp_path):
    lane = filled(Lane())
    place, told = Home(tmp_path).place(lane.store.url, NAME), Asked()

    def asking(filters: Filters) -> LaneIndex:
        index = opened(lane, tmp_path, filters=filters)
        index.catch_up(lane.head)
        index.took(*lane.append([lane.fresh() for _ in range(20)]))
        assert not index.decided(pack([lane.fresh() for _ in range(500)])).any()
        return index

    for _ in range(2):
        processes = [asking(Filters(rate=0.1)) for _ in range(2)]
        for index in processes:
            told = told.plus(index.counters.asked)
            index.close()
            assert place.read().asked == told
    assert told.probes == told.avoided + told.positives == 2000
    assert told.positives == told.false_positives
    assert told.rate == pytest.approx(told.positives / 2000)
    # Filters that are made otherwise begin anew: nobody could tell their rates apart.
    with asking(Filters()) as index:
        pass
    assert (
        place.read().asked == index.counters.asked == Asked(500, *astuple(index.counters.asked)[1:])
    )


@pytest.mark.parametrize(("key", "alarmed"), [(None, True), (b"k" * 16, False)])
def test_ids_that_crowd_a_filter_raise_the_alarm_unless_it_has_a_key(key, alarmed):
    lane = Lane()
    # All in the first lines of a filter without a key: the second four bytes choose them.
    crowd = [bytes(5) + lane.random.randbytes(7) + bytes(4) for _ in range(20_000)]
    with opened(lane, None, filters=Filters(key=key), limits=LIMITS) as index:
        index.catch_up(lane.head)
        lane.append(crowd)
        assert all_known(index, lane)
        assert bool(index.stats.alarm) == alarmed
