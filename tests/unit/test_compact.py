"""Compaction step by step: what is merged, what it keeps, and what it leaves when it is killed."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from itertools import pairwise

import pytest

from dedup import backup, compact
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_store
from dedup.catalog.store import Blob
from dedup.collect import Keep
from dedup.collect import survey as survey_collection
from dedup.compact import FAN, PLAIN_MIN, span_max, survey
from dedup.formats.merged import Merged, merged_at
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part, raw_ids
from dedup.index import ExactIndex
from dedup.model import ReadSeq
from tests.unit.house import LANE as HOUSE_LANE
from tests.unit.house import House
from tests.unit.segments_kit import (
    LANE,
    SENDER,
    WINDOW_MS,
    Shelf,
    ids,
    merge,
    part,
    record_id,
    shelved,
    tiers,
)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(MemoryStore())


# What is merged -------------------------------------------------------------------------------


def test_few_segments_are_left_alone(shelf):
    shelved(shelf, range(1), seals=PLAIN_MIN - 1)
    assert survey(shelf.catalog, LANE, WINDOW_MS) == []
    shelved(shelf, range(1, 2), seals=1)
    assert [step.what for step in survey(shelf.catalog, LANE, WINDOW_MS)] == [
        f"merge the ids of {PLAIN_MIN} seals",
        "list what was merged in place of what it was made of",
        "delete what was merged",
    ]


def test_a_lane_without_a_list_has_nothing_to_merge(shelf):
    assert survey(shelf.catalog, LANE, WINDOW_MS) == []
    assert survey(shelf.catalog, "no/such/lane", WINDOW_MS) == []


def test_segments_of_seals_become_one_for_each_bucket(shelf):
    names = shelved(shelf, range(3))
    merge(shelf)
    assert shelf.held() == ids(names)
    assert tiers(shelf) == [Bucket(Origin.EXTERNAL, number) for number in range(3)]
    assert shelf.stored() == set(shelf.slots())


def test_every_id_keeps_the_seal_it_came_from(shelf):
    first = shelf.seal(part(0, "abc"))
    second = shelf.seal(part(0, "xyz"))
    shelf.collect(WINDOW_MS)
    merge(shelf)
    (found,) = shelf.parts()
    origin = dict(zip(found, found.indexes().tolist(), strict=True))
    seqs = {name: found.origins[origin[record_id(name)]][1] for name in "abcxyz"}
    assert seqs == dict.fromkeys("abc", first.seq) | dict.fromkeys("xyz", second.seq)


def test_of_an_id_in_two_seals_the_oldest_wins(shelf):
    """An id comes twice when the index was told to forget it; merging must not count it twice."""
    first = shelf.seal(part(0, "ab"))
    shelf.seal(part(0, "bc"))
    shelf.collect(WINDOW_MS)
    merge(shelf)
    (found,) = shelf.parts()
    assert shelf.held() == ids(list("abc"))
    at = list(found).index(record_id("b"))
    assert found.origins[found.indexes()[at]] == (first.incarnation, first.seq)


def test_digests_are_kept(shelf):
    one = part(0, "ab")
    other = part(0, "c")
    shelf.seal(Part(one.bucket, one.ids, digests=b"1122"))
    shelf.seal(Part(other.bucket, other.ids, digests=b"33"))
    shelf.collect(WINDOW_MS)
    merge(shelf)
    (found,) = shelf.parts()
    digests = {one: found.digests[2 * at : 2 * at + 2] for at, one in enumerate(found)}
    first, second = list(one)
    assert digests == {first: b"11", second: b"22", record_id("c"): b"33"}


def test_a_segment_whose_entry_is_still_there_stays_with_it(shelf):
    shelved(shelf, range(1), seals=3)
    listed = shelf.catalog.segment_list(LANE)
    shelf.seal(part(1, "z"))
    slot = next(iter(shelf.stored() - set(listed.slots)))
    plan = survey_collection(shelf.catalog, LANE, Keep(window_ms=1 << 50))
    upto = [step.what.startswith("list") for step in plan].index(True)
    for step in plan[: upto + 1]:
        assert step.perform(shelf.catalog)
    merge(shelf)
    assert slot in shelf.slots()


@pytest.mark.parametrize("origin", Origin)
def test_closed_buckets_become_tiers_up_to_a_quarter_of_the_window(shelf, origin):
    names = []
    for number in range(70):
        mine = [f"{number} {one}" for one in "ab"]
        shelf.seal(part(number, mine[:1], origin=origin, seq=number))
        shelf.seal(part(number, mine[1:], origin=origin, seq=number))
        names += mine
        shelf.collect(1 << 50)
        merge(shelf)
    assert shelf.held() == ids(names)
    assert span_max(WINDOW_MS) == 16
    assert {bucket.span for bucket in tiers(shelf)} == {1, 4, 16}
    assert [bucket.number for bucket in tiers(shelf) if bucket.span == 16] == [0, 16, 32, 48]


@pytest.mark.parametrize(
    ("buckets", "span"), [(1, 1), (15, 1), (16, 4), (63, 4), (64, 16), (144, 16), (4320, 1024)]
)
def test_a_tier_spans_at_most_a_quarter_of_the_window(buckets, span):
    assert span_max(buckets * BUCKET_MS) == span


def test_the_list_stays_short_however_many_seals_there_are(shelf):
    longest = 0
    for number in range(400):
        for seal in range(5):
            shelf.seal(part(number // 4, [f"{number} {seal}"]))
        shelf.collect(1 << 50)
        merge(shelf)
        longest = max(longest, len(shelf.slots()))
    assert len(shelf.held()) == 2000
    rows = 100 // 16 + 1
    assert longest <= rows + 4 * (FAN - 1) * 3


def test_a_straggler_in_an_old_bucket_is_found_and_does_not_move_a_large_tier(shelf):
    names = shelved(shelf, range(20))
    merge(shelf)
    before = [slot for slot in shelf.slots() if merged_at(slot)[0].bucket.span == 16]
    assert before
    for late in range(2):
        shelf.seal(part(3, [f"late {late}"]))
    shelf.collect(1 << 50)
    merge(shelf)
    assert shelf.held() == ids([*names, "late 0", "late 1"])
    assert set(before) <= set(shelf.slots())


def test_a_large_merge_is_cut_into_pieces_and_chunks(shelf, monkeypatch):
    monkeypatch.setattr(compact, "PIECE_IDS", 20_000)
    names = []
    for seal in range(6):
        mine = [f"{seal} {one}" for one in range(12_000)]
        shelf.seal(part(0, mine))
        names += mine
        if seal % 2:
            shelf.collect(1 << 50)
            merge(shelf)
    shelf.seal(part(0, ["last"]))
    shelf.seal(part(0, ["of all"]))
    shelf.collect(1 << 50)
    merge(shelf)
    assert shelf.held() == ids([*names, "last", "of all"])
    (merged,) = {merged_at(slot)[0] for slot in shelf.slots()}
    assert merged == Merged(Bucket(Origin.EXTERNAL, 0), 2, merged.digest, 1)
    pieces = [shelf.catalog.store.get(Blob.SEGMENT, merged.slot(LANE, at)) for at in range(4)]
    assert [len(chunks) for chunks in pieces] == [2, 2, 2, 1]
    parts = shelf.parts()
    assert all(one.ids[-16:] < two.ids[:16] for one, two in pairwise(parts))


# History --------------------------------------------------------------------------------------


def test_a_backup_of_an_earlier_head_keeps_what_was_merged_with_later_ids_and_drops_those(shelf):
    """The merged segment holds ids of before and after; its slot says the lowest seq."""
    shelf.seal(part(0, "a"))
    shelf.seal(part(0, "b"))
    head = shelf.row.head
    shelf.seal(part(0, "c"))
    shelf.collect(WINDOW_MS)
    merge(shelf)
    store = MemoryStore()
    frames = backup.frames(shelf.catalog, [(LANE, head)])
    assert backup.restore(Catalog(store), frames, shelf.fresh) == [LANE]
    restored = Shelf(store)
    assert restored.held() == ids(list("ab")), "read with the head, c counts no more"
    (before,) = restored.parts()
    assert before.count == 3, "though it is stored"
    for name in "cdefgh":
        restored.seal(part(0, [name]))
        restored.collect(WINDOW_MS)
        merge(restored)
    assert sum(found.count for found in restored.parts()) == 8
    index = ExactIndex(restored.catalog, LANE, WINDOW_MS)
    index.catch_up(restored.row.head)
    assert all(index.holds(record_id(name)) for name in "abcdefgh")
    assert restored.held() == ids(list("abcdefgh"))


# Expiry ---------------------------------------------------------------------------------------


def test_a_tier_goes_when_lane_time_is_a_window_past_its_end(shelf):
    names = shelved(shelf, range(4))
    shelved(shelf, range(20, 22), seals=1)
    merge(shelf)
    assert tiers(shelf)[0] == Bucket(Origin.EXTERNAL, 0, 4)
    end_ms = 4 * BUCKET_MS
    shelf.seal(part(30, "x"), lane_time_ms=end_ms + WINDOW_MS - 1)
    shelf.collect(WINDOW_MS)
    assert set(ids(names)) <= set(shelf.held())
    shelf.seal(part(30, "y"), lane_time_ms=end_ms + WINDOW_MS)
    shelf.collect(WINDOW_MS)
    assert not set(ids(names)) & set(shelf.held())
    assert tiers(shelf)[0].number == 20
    assert shelf.stored() == set(shelf.slots())


def test_an_internal_tier_goes_when_all_that_it_has_seen_was_read(shelf):
    for number in range(8):
        shelf.seal(part(number, [number], origin=Origin.INTERNAL, seq=10 + number))
    shelf.collect(WINDOW_MS)
    merge(shelf)
    assert tiers(shelf)[0].span == 4
    shelf.seal(reads=[ReadSeq(*SENDER, 12)])
    shelf.collect(WINDOW_MS)
    assert len(shelf.held()) == 8, "the last of the four has not been read"
    shelf.seal(reads=[ReadSeq(*SENDER, 13)])
    shelf.collect(WINDOW_MS)
    assert len(shelf.held()) == 4


def test_a_lane_that_stood_still_for_longer_than_the_window_forgets_nothing(shelf):
    names = shelved(shelf, range(10))
    merge(shelf)
    still = Shelf(shelf.catalog.store)  # a process of next week: no clock has moved the lane
    still.collect(WINDOW_MS)
    merge(still)
    index = ExactIndex(still.catalog, LANE, WINDOW_MS)
    index.catch_up(still.row.head)
    assert all(index.holds(record_id(name)) for name in names)


def test_late_and_repeated_ids_at_every_edge_of_a_bucket():
    """A repeat is a duplicate wherever it falls, before, at and behind each edge, also when merged."""
    house = House(MemoryStore(), inline_bytes_max=0)
    edges = [k * BUCKET_MS + shift for k in range(1, 9) for shift in (-1, 0, 1)]
    runner_window = WINDOW_MS
    for number, edge in enumerate(edges):
        house.write(f"record {number}", timestamp_ms=edge)
        house.done(house.runner(window_ms=runner_window))
        for late in edges[: number + 1 : 5]:
            house.write(f"record {number}", timestamp_ms=late)
        house.done(house.runner(window_ms=runner_window))
        catalog = house.catalog()
        from_here = Keep(window_ms=runner_window)
        for step in survey_collection(catalog, HOUSE_LANE, from_here):
            assert step.perform(catalog)
        compact.compact(catalog, HOUSE_LANE, runner_window, plain_min=2)
    assert len(house.sent()) == len(edges)
    assert {bucket.span for bucket in tiers_of(house)} == {1, 4}
    assert house.proved() == []


def tiers_of(house: House) -> list[Bucket]:
    slots = house.catalog().segment_list(HOUSE_LANE).slots
    return [found[0].bucket for slot in slots if (found := merged_at(slot))]


# Size -----------------------------------------------------------------------------------------

#: What is allowed for an id on disk, and what a filter of 17.2 bits takes of it.
DISK_BYTES_MAX = 24
FILTER_BYTES = 2.2


def test_an_id_takes_at_most_24_bytes_in_sqlite_filters_and_digests_included(tmp_path):
    """Used pages are counted: what collection frees, SQLite fills again before the file grows."""
    path = tmp_path / "catalog.db"
    shelf = Shelf(open_store(f"sqlite:{path}"))
    rng = random.Random(1)
    count, per_seal = 0, 500
    for seal in range(400):
        chosen = raw_ids([rng.randbytes(16) for _ in range(per_seal)])
        bucket = Bucket(Origin.EXTERNAL, seal // 50)
        shelf.seal(Part(bucket, chosen, digests=rng.randbytes(2 * per_seal)))
        count += per_seal
    shelf.collect(1 << 50)
    compact.compact(shelf.catalog, LANE, WINDOW_MS)
    assert len(shelf.held()) == count
    shelf.catalog.store.close()
    with closing(sqlite3.connect(path)) as opened:
        pages, free, size = (
            opened.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
    assert (pages - free) * size / count + FILTER_BYTES <= DISK_BYTES_MAX
