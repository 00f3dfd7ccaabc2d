"""Collection step by step: its order, what it keeps, and what a kill between two steps leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.catalog.store import Blob
from dedup.collect import Keep, collect, survey
from dedup.errors import Corrupt
from dedup.formats.segment import BUCKET_MS
from dedup.index import ExactIndex, Memo
from dedup.model import Attempt, HeadRef, Incarnation, Kept, Seal
from delivery.checker import Finding
from delivery.protocol import messages as m
from tests.unit.collect_kit import SHORT_MS, raced, sealed, seqs, stored, words
from tests.unit.house import LANE, House

# Order and dry run ----------------------------------------------------------------------------


def test_the_mark_comes_first_and_entries_go_after_their_ids_are_listed(house):
    house.inline_bytes_max = 0
    sealed(house, 3)
    assert words(house) == [
        "mark outputs up to seq 3 as collected",
        "delete the outputs of 3 attempts",
        "list the ids of seals up to 3 apart from their entries",
        "delete entries up to seq 3",
    ]


def test_ids_that_ride_in_a_seal_are_stored_apart_before_they_are_listed(house):
    sealed(house, 2)
    assert words(house) == [
        "mark outputs up to seq 2 as collected",
        "store the ids of seal 1 apart from it",
        "store the ids of seal 2 apart from it",
        "list the ids of seals up to 2 apart from their entries",
        "delete entries up to seq 2",
    ]


def test_what_was_listed_is_done(house):
    sealed(house, 2)
    planned = words(house)
    assert collect(house.catalog(), LANE, Keep()) == planned
    assert words(house) == []
    assert (seqs(house), house.proved()) == ([], [])


def test_a_dry_run_changes_nothing(house):
    house.inline_bytes_max = 0
    raced(house)
    with house.untouched():
        assert words(house)


def test_of_a_lane_that_never_was_nothing_is_collected(house):
    assert survey(house.catalog(), "no/such/lane", Keep()) == []


def test_what_is_not_acknowledged_stays(house):
    house.inline_bytes_max = 0
    house.write("a")
    runner = house.runner()
    house.begin(runner)
    while not isinstance(next(iter(runner.state.todo), None), m.Acknowledge):
        house.turn(runner)
    done = collect(house.catalog(), LANE, Keep())
    assert done == [
        "list the ids of seals up to 0 apart from their entries",
        "delete entries up to seq 0",
    ]
    assert stored(house, Blob.OUTPUTS) == [1]
    assert house.catalog().load(LANE).collected == 0


# What is kept ---------------------------------------------------------------------------------


def test_outputs_stay_for_replays(house):
    house.inline_bytes_max = 0
    sealed(house, 4)
    collect(house.catalog(), LANE, Keep(outputs_after=2))
    assert stored(house, Blob.OUTPUTS) == [3, 4]
    assert house.catalog().load(LANE).collected == 2
    assert seqs(house) == [3, 4], "an entry stays as long as its outputs"
    assert house.proved() == []


def test_entries_stay_for_audits_although_their_outputs_went(house):
    house.inline_bytes_max = 0
    sealed(house, 4)
    collect(house.catalog(), LANE, Keep(entries_after=1))
    assert (stored(house, Blob.OUTPUTS), seqs(house)) == ([], [2, 3, 4])
    assert house.catalog().segment_list(LANE).upto == 1
    assert house.proved() == []


def test_keeping_less_later_goes_on_where_it_was(house):
    sealed(house, 4)
    for keep in (Keep(entries_after=1), Keep(entries_after=3, outputs_after=2), Keep()):
        collect(house.catalog(), LANE, keep)
        assert house.proved() == []
    assert seqs(house) == []
    assert [slot.seq for slot in house.catalog().segment_list(LANE).slots] == [1, 2, 3, 4]


def test_an_id_whose_entry_went_is_still_a_duplicate(house):
    sealed(house, 3)
    collect(house.catalog(), LANE, Keep())
    house.write("record 1", "new")
    house.done()
    assert len(house.sent()) == 4
    assert house.proved() == []


# Losers and leftovers -------------------------------------------------------------------------


def test_what_losers_stored_goes_and_what_won_stays(house):
    house.inline_bytes_max = 0
    raced(house)
    catalog = house.catalog()
    winners = {seal.ref.attempt for seal in all_seals(house)}
    house.store.flush()
    losers = {s for kind in Blob for s in house.store.slots(kind, LANE)}
    assert any(slot.attempt not in winners for slot in losers)
    collect(catalog, LANE, Keep(outputs_after=0, entries_after=-1))
    for kind in Blob:
        assert {slot.attempt for slot in house.store.slots(kind, LANE)} <= winners
    assert house.proved() == []


def all_seals(house: House) -> list[Seal]:
    catalog = house.catalog()
    return catalog.seals(LANE, catalog.load(LANE).head.ref.incarnation, 0, 1 << 40)


def test_what_losers_were_noted_for_goes_with_the_entries(house):
    raced(house)
    assert list(house.store.losers(LANE))
    collect(house.catalog(), LANE, Keep(entries_after=0))
    assert list(house.store.losers(LANE)), "they are compared with the winners' entries"
    done = collect(house.catalog(), LANE, Keep())
    assert list(house.store.losers(LANE)) == []
    assert any(what.startswith("forget the digests of") for what in done)


def test_chunks_of_an_append_in_flight_stay(house):
    house.inline_bytes_max = 0
    sealed(house, 2)
    house.write("late")
    runner = house.runner()
    house.begin(runner)
    while not isinstance(next(iter(runner.state.todo), None), m.Append):
        house.turn(runner)
    collect(house.catalog(), LANE, Keep())
    assert stored(house, Blob.OUTPUTS) == [3]
    runner.drain()
    assert runner.state.stopped.end is m.End.DONE
    assert house.proved() == []


def test_ids_that_a_loser_stored_late_go_although_the_entry_went_before(house):
    """Nobody names them, and no entry says any more who won."""
    house.inline_bytes_max = 0
    sealed(house, 2)
    (place, *_) = [slot for slot in house.store.slots(Blob.SEGMENT, LANE) if slot.seq == 1]
    collect(house.catalog(), LANE, Keep())
    late = replace(place, attempt=Attempt(b"l" * 16))
    house.store.put(Blob.SEGMENT, late, [b"late"])
    house.store.flush()
    collect(house.catalog(), LANE, Keep())
    assert stored(house, Blob.SEGMENT) == [1, 2]
    assert late not in list(house.store.slots(Blob.SEGMENT, LANE))
    assert house.proved() == []


# Ids that may be forgotten --------------------------------------------------------------------


def test_ids_past_the_window_are_forgotten_although_new_seals_are_listed_in_the_same_plan(house):
    """A busy lane has always something to list."""
    house.inline_bytes_max = 0
    keep = Keep(window_ms=SHORT_MS)
    sealed(house, 2, at_ms=BUCKET_MS)
    collect(house.catalog(), LANE, keep)
    sealed(house, 2, at_ms=30 * BUCKET_MS, first=2)
    planned = words(house, keep)
    assert collect(house.catalog(), LANE, keep) == planned
    assert any("no record can repeat" in what for what in planned)
    assert [slot.seq for slot in house.catalog().segment_list(LANE).slots] == [3, 4]
    assert stored(house, Blob.SEGMENT) == [3, 4]


def test_ids_within_the_window_stay(house):
    sealed(house, 2, at_ms=BUCKET_MS)
    sealed(house, 1, at_ms=11 * BUCKET_MS, first=2)
    collect(house.catalog(), LANE, Keep(window_ms=SHORT_MS))
    collect(house.catalog(), LANE, Keep(window_ms=SHORT_MS))
    assert stored(house, Blob.SEGMENT) == [1, 2, 3]


class Interrupted(Catalog):
    """A catalog beside which a collector does all its work while somebody reads entries."""

    def __init__(self, house: House, keep: Keep) -> None:
        super().__init__(house.store, inline_bytes_max=house.inline_bytes_max)
        self.collector, self.keep = house.catalog(), keep
        self.runs = 2

    def seals(self, lane, incarnation, first, last):
        found = super().seals(lane, incarnation, first, last)
        if found and last - first > 1:
            while self.runs:
                self.runs -= 1
                collect(self.collector, lane, self.keep)
        return found


@pytest.mark.parametrize("slept", [True, False], ids=["follows", "rebuilds"])
def test_an_index_that_reads_entries_while_their_ids_are_forgotten_is_built_anew(house, slept):
    house.inline_bytes_max = 0
    memo = Memo()
    sealed(house, 1, at_ms=BUCKET_MS)
    head = house.catalog().load(LANE).head
    if slept:
        ExactIndex(house.catalog(), LANE, SHORT_MS, memo).catch_up(head)
    sealed(house, 3, at_ms=BUCKET_MS, first=1)
    sealed(house, 1, at_ms=30 * BUCKET_MS, first=4)
    catalog = Interrupted(house, Keep(window_ms=SHORT_MS))
    index = ExactIndex(catalog, LANE, SHORT_MS, memo)
    head = house.catalog().load(LANE).head
    index.catch_up(head)
    assert catalog.runs == 0
    assert memo.tag == head.ref
    assert stored(house, Blob.SEGMENT) == [5], "the collector came in between"


def test_ids_that_are_gone_without_having_been_listed_are_corrupt(house):
    house.inline_bytes_max = 0
    sealed(house, 2)
    house.store.delete(Blob.SEGMENT, list(house.store.slots(Blob.SEGMENT, LANE)))
    index = ExactIndex(house.catalog(), LANE, SHORT_MS)
    with pytest.raises(Corrupt, match="seq 1"):
        index.catch_up(house.catalog().load(LANE).head)


# Killed, and run again ------------------------------------------------------------------------


@pytest.mark.parametrize("inline_bytes_max", [0, 4096])
def test_killed_after_any_step_and_run_again_it_ends_the_same(tmp_path, inline_bytes_max):
    """On SQLite, by another process each time, beside a lane that goes on."""
    ends, kill, steps = [], 0, 1
    while kill <= steps:
        url = f"sqlite:{tmp_path / f'killed {kill}.db'}"
        house = House(open_store(url), inline_bytes_max=inline_bytes_max)
        raced(house)
        keep = Keep(window_ms=SHORT_MS)
        collect(house.catalog(), LANE, keep)
        sealed(house, 2, at_ms=BUCKET_MS)
        sealed(house, 2, at_ms=30 * BUCKET_MS, first=2)
        plan = survey(house.catalog(), LANE, keep)
        steps = len(plan)
        for step in plan[:kill]:
            assert step.perform(house.catalog()), step.what
        assert forgiven(house) == []
        house.store.close()
        house.store = open_store(url)
        while collect(house.catalog(), LANE, keep):
            assert forgiven(house) == []
        ends.append((seqs(house), [stored(house, kind) for kind in Blob]))
        house.write("record 3", "and on")
        house.done(house.runner(window_ms=SHORT_MS))
        assert seqs(house) == [house.catalog().load(LANE).head.ref.seq]
        house.store.close()
        kill += 1
    assert len(ends) > 4
    assert ends == [ends[0]] * len(ends)


def forgiven(house: House) -> list[Finding]:
    """What the checker finds, told how long ids are held."""
    for name, asked in house.inputs.items():
        house.inputs[name] = replace(asked, window_ms=SHORT_MS)
    return house.proved()


def test_of_two_collectors_at_once_one_gives_up_its_plan(house):
    sealed(house, 3)
    plans = [survey(house.catalog(), LANE, Keep()) for _ in range(2)]
    first = [step.perform(house.catalog()) for step in plans[0]]
    assert all(first)
    assert not plans[1][0].perform(house.catalog()), "the mark has moved"
    assert house.proved() == []


def test_a_plan_made_before_a_restore_is_void_after_it(house):
    house.inline_bytes_max = 0
    sealed(house, 2)
    plan = survey(house.catalog(), LANE, Keep())
    catalog = house.catalog()
    row = catalog.load(LANE)
    ref = HeadRef(Incarnation(house.fresh()), row.head.ref.seq, Attempt(house.fresh()))
    past = (Kept(row.head.ref.incarnation, row.head.ref.seq),)
    ack = replace(row.ack, incarnation=ref.incarnation)
    reborn = replace(row, head=replace(row.head, ref=ref, past=past), ack=ack)
    assert catalog.reincarnate(LANE, row.head.ref, reborn)
    assert [step.perform(catalog) for step in plan[:1]] == [False]
    assert not plan[-1].perform(catalog)
    collect(catalog, LANE, Keep())
    assert house.proved() == []
