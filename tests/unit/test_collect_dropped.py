"""Dropped offsets are collected after the entries that they account for, and never before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dedup.catalog.store import Blob
from dedup.collect import Keep, collect, survey
from dedup.model import Attempt
from tests.unit.collect_kit import seqs, stored, words
from tests.unit.house import LANE, House


def repeated(house: House, count: int, *, first: int = 0) -> None:
    """Seal records one by one, each with a repeat behind it."""
    for number in range(first, first + count):
        house.write(f"record {number}", f"record {number}")
        house.done()


def test_dropped_offsets_go_after_the_entries_that_they_account_for(house):
    house.inline_bytes_max = 0
    repeated(house, 3)
    assert stored(house, Blob.DROPPED) == [1, 2, 3]
    assert words(house)[-2:] == [
        "delete entries up to seq 3",
        "delete the dropped offsets of 3 attempts",
    ]
    collect(house.catalog(), LANE, Keep())
    assert (stored(house, Blob.DROPPED), seqs(house), words(house)) == ([], [], [])
    assert house.proved() == []


def test_dropped_offsets_stay_as_long_as_their_entries_although_outputs_and_ids_are_apart(house):
    house.inline_bytes_max = 0
    repeated(house, 4)
    collect(house.catalog(), LANE, Keep(entries_after=2))
    assert (stored(house, Blob.OUTPUTS), seqs(house)) == ([], [3, 4])
    assert stored(house, Blob.DROPPED) == [3, 4]
    assert house.proved() == []


@pytest.mark.parametrize("keep", [Keep(), Keep(entries_after=0)], ids=["as before", "keeps more"])
def test_dropped_offsets_that_a_killed_collector_left_go_with_the_next_one(house, keep):
    house.inline_bytes_max = 0
    repeated(house, 3)
    for step in survey(house.catalog(), LANE, Keep())[:-1]:
        assert step.perform(house.catalog())
    assert (seqs(house), stored(house, Blob.DROPPED)) == ([], [1, 2, 3])
    assert words(house, keep) == ["delete the dropped offsets of 3 attempts"]
    repeated(house, 1, first=3)
    collect(house.catalog(), LANE, keep)
    assert stored(house, Blob.DROPPED) == seqs(house)
    assert house.proved() == []


def test_dropped_offsets_of_losers_go_whether_their_winners_entry_is_there_or_not(house):
    house.inline_bytes_max = 0
    repeated(house, 2)
    place = min(house.store.slots(Blob.DROPPED, LANE), key=lambda slot: slot.seq)
    for number, keep in enumerate((Keep(entries_after=0), Keep())):
        late = replace(place, attempt=Attempt(bytes([number]) * 16))
        house.store.put(Blob.DROPPED, late, [b"late"])
        house.store.flush()
        collect(house.catalog(), LANE, keep)
        assert late not in list(house.store.slots(Blob.DROPPED, LANE))
        assert stored(house, Blob.DROPPED) == seqs(house)
    late = replace(place, attempt=Attempt(b"l" * 16))
    house.store.put(Blob.DROPPED, late, [b"late"])
    house.store.flush()
    collect(house.catalog(), LANE, Keep())
    assert stored(house, Blob.DROPPED) == [], "its entry is gone, and with it who won"
    assert house.proved() == []
