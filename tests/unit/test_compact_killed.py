"""Compaction killed at any call, repeated, and beside collectors, compactors and readers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

from dedup import compact
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import Blob
from dedup.collect import Keep, Step
from dedup.collect import survey as survey_collection
from dedup.compact import survey
from dedup.index import ExactIndex
from dedup.model import Slot
from delivery.testing.faulty import Crashed, Fault
from tests.unit.house import failing
from tests.unit.segments_kit import (
    LANE,
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


# Killed, and run again ------------------------------------------------------------------------


def busy(shelf: Shelf) -> list[str]:
    """A lane with segments to merge, to tier and to forget."""
    names = shelved(shelf, range(8))
    merge(shelf)
    return names + shelved(shelf, range(8, 10), seals=3)


def test_killed_at_any_call_and_run_again_it_ends_the_same():
    ends = set()
    for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.REPEATED):
        for after in range(1 << 10):
            shelf = Shelf(MemoryStore())
            names = ids(busy(shelf))
            store = failing(shelf.catalog.store, "put", fault, times=1, after=after)
            crashed = dies(store)
            assert shelf.held() == names
            merge(shelf)
            shelf.collect(WINDOW_MS)
            assert shelf.held() == names
            assert shelf.stored() == set(shelf.slots()), "nothing is left over"
            ends.add(frozenset(bucket for bucket in tiers(shelf)))
            if not crashed and fault is not Fault.REPEATED:
                assert after > 1
                break
            if fault is Fault.REPEATED and after > 8:
                break
    assert len(ends) == 1


@pytest.mark.parametrize("method", ["replace_list", "delete"])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_killed_at_the_list_or_at_the_delete_it_loses_nothing(method, fault):
    for after in range(1 << 10):
        shelf = Shelf(MemoryStore())
        names = ids(busy(shelf))
        crashed = dies(failing(shelf.catalog.store, method, fault, times=1, after=after))
        assert shelf.held() == names
        merge(shelf)
        shelf.collect(WINDOW_MS)
        assert shelf.held() == names
        assert shelf.stored() == set(shelf.slots()), "nothing is left over"
        if not crashed:
            assert after > 0
            return


def dies(store: object) -> bool:
    try:
        compact.compact(Catalog(store), LANE, WINDOW_MS, plain_min=2)
    except Crashed:
        return True
    return False


def test_a_merge_that_was_killed_before_the_list_writes_the_same_again(shelf):
    names = shelved(shelf, range(3))
    first = survey(shelf.catalog, LANE, WINDOW_MS, plain_min=2)
    assert first[0].perform(shelf.catalog)
    before = {slot: shelf.catalog.store.get(Blob.SEGMENT, slot) for slot in shelf.stored()}
    again = survey(shelf.catalog, LANE, WINDOW_MS, plain_min=2)
    assert again[0].perform(shelf.catalog)
    after = {slot: shelf.catalog.store.get(Blob.SEGMENT, slot) for slot in shelf.stored()}
    assert before == after
    assert all(step.perform(shelf.catalog) for step in again[1:])
    assert shelf.held() == ids(names)


def test_leftovers_that_are_about_to_be_deleted_are_not_listed_by_the_same_merge_again(shelf):
    """The collector has seen them, closed the list to them, and sleeps before its delete."""
    names = shelved(shelf, range(3))
    killed = survey(shelf.catalog, LANE, WINDOW_MS, plain_min=2)
    assert killed[0].perform(shelf.catalog)
    collector = survey_collection(shelf.catalog, LANE, Keep(window_ms=WINDOW_MS))
    assert collector[0].what == "close the list to leftovers"
    assert collector[0].perform(shelf.catalog)
    assert not killed[1].perform(shelf.catalog), "the list it read is closed"
    merge(shelf)
    assert all(step.perform(shelf.catalog) for step in collector[1:])
    assert shelf.held() == ids(names)
    assert shelf.stored() == set(shelf.slots())


def test_of_two_compactors_at_once_one_gives_up(shelf):
    names = shelved(shelf, range(3))
    plans = [survey(shelf.catalog, LANE, WINDOW_MS, plain_min=2) for _ in range(2)]
    for step in plans[0]:
        assert step.perform(shelf.catalog)
    assert [step.perform(shelf.catalog) for step in plans[1][:1]] == [False], "its inputs are gone"
    assert shelf.held() == ids(names)


def orders(first: int, second: int) -> Iterator[list[int]]:
    """Every order of two plans of these lengths."""
    for places in combinations(range(first + second), first):
        yield [0 if at in places else 1 for at in range(first + second)]


def test_a_compactor_beside_a_collector_in_every_order_and_killed_anywhere():
    """What is held before is held after, whichever plan gives up, and whoever is killed when."""
    names = ids(
        [f"{number} {seal} {one}" for number in range(3) for seal in range(3) for one in "abc"]
    )
    lengths = [len(plan) for plan in plans(Shelf(MemoryStore()))]
    assert lengths[0] == 3
    assert lengths[1] >= 4
    for order in orders(*lengths):
        shelf = Shelf(MemoryStore())
        both = [iter(plan) for plan in plans(shelf)]
        alive = [True, True]
        for turn in order:
            step = next(both[turn])
            alive[turn] = alive[turn] and step.perform(shelf.catalog)
            held = shelf.held()
            entries = {seal.ref.seq for seal in shelf.catalog.history(LANE, shelf.row.head)}
            upto = shelf.catalog.segment_list(LANE).upto
            assert len(held) == len(set(held))
            assert set(held) <= set(names)
            assert len(held) == len(names) or set(range(upto + 1, 10)) <= entries
        merge(shelf)
        shelf.collect(WINDOW_MS)
        assert shelf.held() == names
        assert shelf.stored() == set(shelf.slots())


def plans(shelf: Shelf) -> tuple[list[Step], list[Step]]:
    """The plans of a compactor that finds leftovers of another, and of a collector with work."""
    for number in range(2):
        for seal in range(3):
            shelf.seal(part(number, [f"{number} {seal} {one}" for one in "abc"]))
    shelf.collect(WINDOW_MS)
    killed = survey(shelf.catalog, LANE, WINDOW_MS, plain_min=2)
    assert killed[0].perform(shelf.catalog)
    for seal in range(3):
        shelf.seal(part(2, [f"2 {seal} {one}" for one in "abc"]))
    compactor = survey(shelf.catalog, LANE, WINDOW_MS, plain_min=2)
    return compactor, survey_collection(shelf.catalog, LANE, Keep(window_ms=WINDOW_MS))


def test_a_reader_with_an_older_list_reads_it_again(shelf):
    names = shelved(shelf, range(3))

    class Interrupted(Catalog):
        """A catalog in which segments are merged between reading the list and reading them."""

        merged = False

        def segment_list(self, lane):
            listed = super().segment_list(lane)
            if not self.merged:
                self.merged = True
                assert merge(shelf)
            return listed

    index = ExactIndex(Interrupted(shelf.catalog.store), LANE, WINDOW_MS)
    index.catch_up(shelf.row.head)
    assert all(index.holds(record_id(name)) for name in names)


def test_a_piece_of_which_chunks_are_missing_counts_as_gone(shelf):
    """A store may show a deletion half done; the reader then reads the list again."""
    shelf.seal(part(0, range(20_000)))
    shelf.collect(WINDOW_MS)
    (slot,) = shelf.slots()
    first, second = shelf.catalog.store.get(Blob.SEGMENT, slot)
    torn = Slot(slot.lane, slot.incarnation, slot.seq, slot.attempt)
    shelf.catalog.store.delete(Blob.SEGMENT, [torn])
    shelf.catalog.store.put(Blob.SEGMENT, torn, [first])
    merged = survey(shelf.catalog, LANE, WINDOW_MS, plain_min=1)
    assert not merged[0].perform(shelf.catalog)
    shelf.catalog.store.put(Blob.SEGMENT, torn, [first, second])
    assert merged[0].perform(shelf.catalog)
