"""The contract of the store port about the chunks of attempts, on every store."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from dedup.catalog.store import CHUNK_BYTES_MAX, Blob
from dedup.model import HeadRef
from tests.conformance.values import attempt, incarnation, raw_lane, slot, successor


@pytest.mark.parametrize("kind", list(Blob))
def test_chunks_come_back_in_order_and_once(store_factory, lane, kind):
    writer, reader = store_factory(), store_factory()
    place = slot(lane, raw_lane().ref)
    chunks = [b"%d" % number for number in range(12)]
    assert writer.get(kind, place) == []
    writer.put(kind, place, chunks)
    writer.put(kind, place, chunks)
    assert writer.get(kind, place) == chunks
    assert writer.create(lane, raw_lane(), b"entry 0")
    assert reader.get(kind, place) == chunks
    other = Blob.SEGMENT if kind is Blob.OUTPUTS else Blob.OUTPUTS
    assert reader.get(other, place) == []


def test_chunks_put_before_an_append_are_readable_by_everybody_after_it(store_factory, lane):
    writer, reader = store_factory(), store_factory()
    row = raw_lane()
    writer.create(lane, row, b"entry 0")
    ref = successor(row.ref)
    writer.put(Blob.OUTPUTS, slot(lane, ref), [b"outputs"])
    writer.put(Blob.SEGMENT, slot(lane, ref), [b"segment"])
    assert writer.append(lane, row.ref, ref, b"head 1", b"entry 1")
    assert reader.get(Blob.OUTPUTS, slot(lane, ref)) == [b"outputs"]
    assert reader.get(Blob.SEGMENT, slot(lane, ref)) == [b"segment"]
    assert list(reader.slots(Blob.OUTPUTS, lane)) == [slot(lane, ref)]


def test_chunks_put_before_a_list_are_readable_by_everybody_after_it(store_factory, lane):
    """A merged segment counts because the list names it."""
    writer, reader = store_factory(), store_factory()
    place = slot(lane, raw_lane().ref)
    for version, kept in ((1, None), (2, 1)):
        merged = replace(place, seq=version)
        writer.put(Blob.SEGMENT, merged, [b"merged"])
        assert writer.replace_list(lane, kept, version, b"list")
        assert reader.get(Blob.SEGMENT, merged) == [b"merged"]


def test_chunks_put_before_a_flush_are_readable_by_everybody_after_it(store_factory, lane):
    """No row of this store may ever name them: the lane is in somebody's own database."""
    writer, reader = store_factory(), store_factory()
    places = [slot(lane, raw_lane().ref) for _ in range(3)]
    for place in places:
        writer.put(Blob.OUTPUTS, place, [b"outputs", bytes(place.attempt)])
    writer.flush()
    for place in places:
        assert reader.get(Blob.OUTPUTS, place) == [b"outputs", bytes(place.attempt)]
    writer.close()
    writer.close()
    assert sorted(reader.slots(Blob.OUTPUTS, lane)) == sorted(places)
    reader.flush()


def test_the_chunks_of_a_loser_never_touch_those_of_the_winner(store_factory, lane):
    winner, loser, reader = store_factory(), store_factory(), store_factory()
    row = raw_lane()
    winner.create(lane, row, b"entry 0")
    won, lost = successor(row.ref), successor(row.ref)
    loser.put(Blob.OUTPUTS, slot(lane, lost), [b"lost"])
    winner.put(Blob.OUTPUTS, slot(lane, won), [b"won"])
    assert winner.append(lane, row.ref, won, b"head 1", b"won")
    assert not loser.append(lane, row.ref, lost, b"head 1", b"lost")
    assert loser.get(Blob.OUTPUTS, slot(lane, lost)) == [b"lost"]
    loser.delete(Blob.OUTPUTS, [slot(lane, lost)])
    for store in (loser, reader):
        assert store.get(Blob.OUTPUTS, slot(lane, lost)) == []
        assert store.get(Blob.OUTPUTS, slot(lane, won)) == [b"won"]
        assert set(store.slots(Blob.OUTPUTS, lane)) == {slot(lane, won)}


def test_large_chunks_and_many_bytes(store_factory, lane):
    """More than any store holds back, in chunks as large as a store must take."""
    writer, reader = store_factory(), store_factory()
    row = raw_lane()
    writer.create(lane, row, b"entry 0")
    ref = successor(row.ref)
    chunks = [os.urandom(CHUNK_BYTES_MAX) for _ in range(20)]
    writer.put(Blob.OUTPUTS, slot(lane, ref), chunks)
    # Compared outside of the assertions, because to print a difference of 10 MiB takes minutes.
    own = writer.get(Blob.OUTPUTS, slot(lane, ref)) == chunks
    assert own, "the writer reads what it put"
    assert writer.append(lane, row.ref, ref, b"head 1", b"entry 1")
    everybody = reader.get(Blob.OUTPUTS, slot(lane, ref)) == chunks
    assert everybody, "a reader reads what was put"


def test_deleting_chunks_twice_or_never_stored_is_fine(store, lane):
    ref = raw_lane().ref
    store.put(Blob.OUTPUTS, slot(lane, ref), [b"x"])
    store.put(Blob.SEGMENT, slot(lane, ref), [b"y"])
    absent = slot(lane, successor(ref))
    store.delete(Blob.OUTPUTS, iter([slot(lane, ref), absent]))
    store.delete(Blob.OUTPUTS, [slot(lane, ref)])
    store.delete(Blob.OUTPUTS, [])
    assert store.get(Blob.OUTPUTS, slot(lane, ref)) == []
    assert store.get(Blob.SEGMENT, slot(lane, ref)) == [b"y"]


def test_slots_are_listed_once_each_up_to_the_last(store_factory, lane):
    writer, reader = store_factory(), store_factory()
    row = raw_lane()
    writer.create(lane, row, b"entry 0")
    other = f"{lane}/longer"
    ref, places = row.ref, []
    for _ in range(12):
        expected, ref = ref, successor(ref)
        loser = replace(ref, attempt=attempt())
        for name in (ref, loser):
            writer.put(Blob.OUTPUTS, slot(lane, name), [b"a", b"b", b"c"])
            places.append(slot(lane, name))
        writer.put(Blob.OUTPUTS, slot(other, ref), [b"other lane"])
        writer.put(Blob.SEGMENT, slot(lane, ref), [b"other kind"])
        assert writer.append(lane, expected, ref, b"head", b"entry")
    for store in (writer, reader):
        assert sorted(store.slots(Blob.OUTPUTS, lane)) == sorted(places)
        upto = [place for place in places if place.seq <= 5]
        assert sorted(store.slots(Blob.OUTPUTS, lane, last=5)) == sorted(upto)
        assert len(list(store.slots(Blob.SEGMENT, lane))) == 12
        assert list(store.slots(Blob.OUTPUTS, lane, last=0)) == []


def test_more_slots_than_one_page_are_listed_and_deleted_while_listing(store, lane):
    owner = incarnation()
    places = [slot(lane, HeadRef(owner, seq // 2, attempt())) for seq in range(600)]
    for place in places:
        store.put(Blob.OUTPUTS, place, [b"x"])
    row = raw_lane()
    store.create(lane, row, b"entry 0")
    assert store.append(lane, row.ref, successor(row.ref), b"head", b"entry")
    assert sorted(store.slots(Blob.OUTPUTS, lane)) == sorted(places)
    listing = store.slots(Blob.OUTPUTS, lane, last=250)
    store.delete(Blob.OUTPUTS, listing)
    assert sorted(store.slots(Blob.OUTPUTS, lane)) == sorted(p for p in places if p.seq > 250)
