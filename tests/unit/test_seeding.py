"""Lanes that know ids before they read anything: all of it at once, and nothing by halves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dedup import compact
from dedup.arrays import pack
from dedup.catalog.store import Blob
from dedup.collect import Keep, collect
from dedup.errors import Indeterminate, InvalidUsage, Unavailable
from dedup.expiry import WINDOW_MS_DEFAULT
from dedup.formats.segment import BUCKET_MS
from dedup.ids import named, named_many
from dedup.index import ExactIndex
from dedup.local import LaneIndex
from dedup.model import Frontier
from dedup.seeding import Beginning, Gathering, Seeds, begin, begun_as
from delivery.checker import Kind
from delivery.testing.faulty import Fault
from sinks.memory import MemoryEmitter
from tests.unit.house import LANE, House, failing, seals, values

NOW = 1_700_000_000_000


def beginning(house: House, start: int = 0, mark: str = "seed-1") -> Beginning:
    source = house.source()
    return Beginning(
        start=Frontier.of([(source, start)]),
        topics=(("in", source.topic),),
        writes=MemoryEmitter(house.broker, ["out"]).writes,
        lane_time_ms=NOW,
        mark=mark,
    )


def seeds(*names: str) -> Seeds:
    gathering = Gathering()
    gathering.add(named_many([name.encode() for name in names]))
    return Seeds.of(gathering.ids, NOW)


def planted(house: House, *names: str, start: int = 0, store=None) -> bool:
    told = beginning(house, start)
    return begin(house.catalog(store), LANE, told, seeds(*names), house.fresh)


@pytest.mark.parametrize("inline_bytes_max", [0, 4096])
def test_what_a_lane_was_seeded_with_takes_no_effect(house, inline_bytes_max):
    house.inline_bytes_max = inline_bytes_max
    house.write(*"abcad")
    assert planted(house, "b", "d", "never comes")
    house.done(cut=2)
    assert values(house) != []
    assert [seal.counts.fresh for seal in seals(house)] == [0, 1, 1, 0]
    assert [seal.counts.duplicate for seal in seals(house)] == [0, 1, 1, 1]
    assert house.proved() == []


def test_a_seeded_lane_begins_where_it_is_told(house):
    house.write(*"abcd")
    assert planted(house, "d", start=2)
    house.done()
    assert len(house.sent()) == 1
    assert [(seal.counts.read, seal.counts.fresh) for seal in seals(house)] == [(0, 0), (2, 1)]
    assert house.proved() == []


def test_the_first_seal_says_who_began_the_lane_and_holds_every_seed(house):
    assert begun_as(house.catalog(), LANE) is None
    planted(house, *"abc")
    assert begun_as(house.catalog(), LANE) == "seed-1"
    (seal,) = seals(house)
    assert (seal.segment.rows, seal.counts.read, seal.lane_time_ms) == (3, 0, NOW)
    head = house.catalog().load(LANE).head
    for index in (
        ExactIndex(house.catalog(), LANE, WINDOW_MS_DEFAULT),
        LaneIndex(house.catalog(), LANE, window_ms=WINDOW_MS_DEFAULT),
    ):
        index.catch_up(head)
        assert all(index.holds(named(name)) for name in (b"a", b"b", b"c"))
        assert not index.holds(named(b"d"))
        getattr(index, "close", bool)()


def test_a_lane_that_exists_is_left_as_it_is(house):
    house.write("a")
    house.done()
    with house.untouched():
        before = house.catalog().load(LANE)
    assert not planted(house, "b")
    assert house.catalog().load(LANE) == before
    house.write("b")
    house.done()
    assert len(house.sent()) == 2, "the seeds of a refused beginning count for nothing"
    assert house.proved() == []


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_REQUEST, Fault.LOST_REPLY])
@pytest.mark.parametrize("method", ["put", "create"])
def test_an_answer_that_is_lost_makes_one_lane_with_its_own_seeds(house, method, fault):
    house.inline_bytes_max = 0
    house.write(*"ab")
    store = failing(house.store, method, fault, times=1)
    if method == "put":
        with pytest.raises((Unavailable, Indeterminate)):
            planted(house, "b", store=store)
        assert begun_as(house.catalog(), LANE) is None
    assert planted(house, "b", store=store)
    house.done()
    assert len(house.sent()) == 1
    assert house.proved() == []


def test_of_two_at_once_one_begins_the_lane_and_the_other_leaves_nothing_that_counts(house):
    house.inline_bytes_max = 0
    house.write(*"ab")
    assert [planted(house, "a"), planted(house, "b")] == [True, False]
    house.done()
    assert len(house.sent()) == 1
    assert house.proved() == []


def test_what_a_killed_seeding_stored_is_collected_once_the_lane_was_made_without(house):
    house.inline_bytes_max = 0
    store = failing(house.store, "create", Fault.REFUSED)
    with pytest.raises(Unavailable):
        planted(house, *"ab", store=store)
    house.store.flush()
    assert [slot.seq for slot in house.store.slots(Blob.SEGMENT, LANE)] == [0]
    house.write(*"ab")
    house.done()
    assert len(house.sent()) == 2
    collect(house.catalog(), LANE, Keep(entries_after=-1, outputs_after=0))
    assert [slot.seq for slot in house.store.slots(Blob.SEGMENT, LANE)] == [1]
    assert house.proved() == []


def test_seeds_outlive_collection_and_merges_until_the_window_is_past_them(house):
    house.inline_bytes_max = 0
    planted(house, "old")
    house.write("a", "old", timestamp_ms=NOW)
    house.done()
    catalog = house.catalog()
    house.now = NOW + 2 * WINDOW_MS_DEFAULT
    collect(catalog, LANE, Keep())
    compact.compact(catalog, LANE, WINDOW_MS_DEFAULT, plain_min=1)
    collect(catalog, LANE, Keep())
    assert house.proved() == []
    house.write("old", "b", timestamp_ms=NOW + BUCKET_MS)
    house.done()
    assert len(house.sent()) == 2
    assert house.proved() == []
    house.write("c", timestamp_ms=NOW + WINDOW_MS_DEFAULT + 2 * BUCKET_MS)
    house.done()
    house.write("old", timestamp_ms=NOW + WINDOW_MS_DEFAULT + 2 * BUCKET_MS)
    house.done()
    assert len(house.sent()) == 4, "the window is past it"


def test_repeats_of_seeds_that_were_forgotten_since_are_told_apart_by_saying_so(house):
    """Their entries stay for audits, and the seeds went with the window."""
    planted(house, "old")
    house.now = NOW + 2 * WINDOW_MS_DEFAULT
    house.write("a", "old", timestamp_ms=NOW)
    house.done()
    house.write("b", timestamp_ms=NOW + WINDOW_MS_DEFAULT + 2 * BUCKET_MS)
    house.done()
    while collect(house.catalog(), LANE, Keep(entries_after=0)):
        continue
    assert house.catalog().segment_list(LANE).slots == ()
    assert [seal.ref.seq for seal in seals(house)] == [1, 2]
    assert [finding.kind for finding in house.proved()] == [Kind.NOT_DECIDED]
    told = replace(house.inputs[LANE], window_ms=WINDOW_MS_DEFAULT, seeded=True)
    house.inputs[LANE] = told
    assert house.proved() == []


def test_seeds_in_a_bucket_that_goes_at_another_time_are_found(house):
    late = Seeds.of(named_many([b"a"]), NOW + BUCKET_MS)
    assert begin(house.catalog(), LANE, beginning(house), late, house.fresh)
    house.write("b")
    house.done()
    assert [finding.kind for finding in house.proved()] == [Kind.BUCKET]


def test_gathered_ids_are_each_kept_once_in_their_order():
    gathering, drawn = Gathering(), random.Random(1)
    names = [drawn.randbytes(16) for _ in range(500)]
    for at in range(0, 1000, 100):
        gathering.add(pack([names[number % 500] for number in range(at, at + 100)]))
    raw = [row.astype(">u8").tobytes() for row in gathering.ids]
    assert raw == sorted(names)


def test_more_ids_than_a_reader_of_the_seal_could_hold_are_refused():
    gathering = Gathering(most=10)
    gathering.add(named_many([b"%d" % number for number in range(8)]))
    gathering.add(named_many([b"%d" % number for number in range(10)]))
    assert len(gathering.ids) == 10
    gathering.add(named_many([b"one more"]))
    with pytest.raises(InvalidUsage, match="nothing was written"):
        _ = gathering.ids
