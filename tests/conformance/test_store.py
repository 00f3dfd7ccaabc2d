"""The contract of the store port, method by method, on every store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dedup.catalog.store import Blob, RawAck
from dedup.model import HeadRef, Incarnation
from tests.conformance.values import attempt, incarnation, raw_lane, slot, successor

WRONG_HEADS = {
    "incarnation": lambda ref: replace(ref, incarnation=incarnation()),
    "seq": lambda ref: replace(ref, seq=ref.seq + 1),
    "attempt": lambda ref: replace(ref, attempt=attempt()),
}
wrong_head = pytest.mark.parametrize("wrong", WRONG_HEADS.values(), ids=WRONG_HEADS.keys())


def test_a_lane_that_never_was_is_none(store, lane):
    assert store.read(lane) is None
    assert store.entries(lane, incarnation(), 0, 10) == []
    assert lane not in list(store.lanes())


def test_a_lane_is_created_once(store_factory, lane):
    mine, other = raw_lane(), raw_lane()
    assert store_factory().create(lane, mine, b"entry 0")
    assert not store_factory().create(lane, other, b"other")
    assert store_factory().read(lane) == mine
    assert store_factory().entries(lane, mine.ref.incarnation, 0, 0) == [(0, b"entry 0")]
    assert store_factory().entries(lane, other.ref.incarnation, 0, 0) == []


def test_an_append_moves_the_head_and_adds_the_entry(store_factory, lane):
    row = raw_lane()
    store = store_factory()
    assert store.create(lane, row, b"entry 0")
    ref = successor(row.ref)
    assert store.append(lane, row.ref, ref, b"head 1", b"entry 1")
    reader = store_factory()
    assert reader.read(lane) == replace(row, ref=ref, head=b"head 1")
    assert reader.entries(lane, ref.incarnation, 0, 9) == [(0, b"entry 0"), (1, b"entry 1")]


@wrong_head
def test_an_append_on_any_other_head_is_lost(store, lane, wrong):
    row = raw_lane()
    store.create(lane, row, b"entry 0")
    expected = wrong(row.ref)
    assert not store.append(lane, expected, successor(row.ref), b"head 1", b"entry 1")
    assert store.read(lane) == row
    assert store.entries(lane, row.ref.incarnation, 0, 9) == [(0, b"entry 0")]


def test_an_append_to_no_lane_is_lost(store, lane):
    ref = raw_lane().ref
    assert not store.append(lane, ref, successor(ref), b"head 1", b"entry 1")
    assert store.read(lane) is None


def test_the_same_append_again_changes_nothing_and_the_head_names_it(store, lane):
    """A writer recognises its own attempt; a store may say at once that it was won."""
    row = raw_lane()
    store.create(lane, row, b"entry 0")
    ref = successor(row.ref)
    assert store.append(lane, row.ref, ref, b"head 1", b"entry 1")
    store.append(lane, row.ref, ref, b"head 1", b"entry 1")
    assert store.read(lane) == replace(row, ref=ref, head=b"head 1")
    assert store.entries(lane, ref.incarnation, 0, 9) == [(0, b"entry 0"), (1, b"entry 1")]


def test_a_collected_entry_is_never_won_again(store, lane):
    """An append compares the head, not the absence of an entry."""
    row = raw_lane()
    store.create(lane, row, b"entry 0")
    ref = successor(row.ref)
    store.append(lane, row.ref, ref, b"head 1", b"entry 1")
    assert store.delete_entries(lane, ref.incarnation, 0, 1, head=ref.incarnation)
    assert not store.append(lane, row.ref, successor(row.ref), b"sleeper", b"sleeper")
    assert store.entries(lane, ref.incarnation, 0, 9) == []
    assert store.read(lane).ref == ref


def test_an_append_writes_neither_acknowledgement_nor_collected(store, lane):
    row = raw_lane()
    store.create(lane, row, b"entry 0")
    ref = successor(row.ref)
    store.append(lane, row.ref, ref, b"head 1", b"entry 1")
    ack = RawAck(ref.incarnation, 1, b"ack 1")
    assert store.acknowledge(lane, row.ack, ack)
    assert store.raise_collected(lane, ref.incarnation, 0, 1)
    store.append(lane, ref, successor(ref), b"head 2", b"entry 2")
    after = store.read(lane)
    assert (after.ack, after.collected) == (ack, 1)


@wrong_head
def test_a_new_incarnation_replaces_only_the_head_it_expects(store, lane, wrong):
    row = raw_lane()
    store.create(lane, row, b"entry 0")
    fresh = raw_lane(replace(row.ref, incarnation=incarnation(), attempt=attempt()), collected=3)
    assert not store.reincarnate(lane, wrong(row.ref), fresh)
    assert store.read(lane) == row
    assert store.reincarnate(lane, row.ref, fresh)
    assert store.read(lane) == fresh


def test_a_new_incarnation_puts_back_no_acknowledgement_that_moved_meanwhile(store, lane):
    row = raw_lane()
    store.create(lane, row, b"entry 0")
    ack = replace(row.ack, seq=row.ack.seq + 1, blob=b"further")
    assert store.acknowledge(lane, row.ack, ack)
    fresh = raw_lane(replace(row.ref, incarnation=incarnation(), attempt=attempt()))
    assert not store.reincarnate(lane, row.ref, fresh, (row.ack.seq, 0))
    assert store.raise_collected(lane, row.ref.incarnation, 0, 1)
    assert not store.reincarnate(lane, row.ref, fresh, (ack.seq, 0))
    assert store.read(lane) == replace(row, ack=ack, collected=1)
    assert store.reincarnate(lane, row.ref, fresh, (ack.seq, 1))
    assert store.read(lane) == fresh


def test_a_new_incarnation_fences_and_keeps_the_old_entries(store, lane):
    row = raw_lane()
    store.create(lane, row, b"entry 0")
    fresh = raw_lane(replace(row.ref, incarnation=incarnation()))
    store.reincarnate(lane, row.ref, fresh)
    assert not store.append(lane, row.ref, successor(row.ref), b"head 1", b"old")
    assert not store.raise_collected(lane, row.ref.incarnation, 0, 1)
    assert not store.delete_entries(lane, row.ref.incarnation, 0, 0, head=row.ref.incarnation)
    assert store.entries(lane, row.ref.incarnation, 0, 0) == [(0, b"entry 0")]
    ref = successor(fresh.ref)
    assert store.append(lane, fresh.ref, ref, b"head 1", b"new")
    assert store.entries(lane, ref.incarnation, 0, 9) == [(1, b"new")]
    assert store.delete_entries(lane, row.ref.incarnation, 0, 0, head=ref.incarnation)
    assert store.entries(lane, row.ref.incarnation, 0, 9) == []


def test_no_lane_no_new_incarnation(store, lane):
    row = raw_lane()
    assert not store.reincarnate(lane, row.ref, raw_lane())
    assert store.read(lane) is None


@pytest.mark.parametrize("field", ["incarnation", "seq"])
def test_an_acknowledgement_moves_only_from_what_it_expects(store, lane, field):
    row = raw_lane()
    store.create(lane, row, b"entry 0")
    ack = RawAck(row.ref.incarnation, 1, b"ack 1")
    wrong = replace(row.ack, **{field: incarnation() if field == "incarnation" else 7})
    assert not store.acknowledge(lane, wrong, ack)
    assert store.read(lane) == row
    assert store.acknowledge(lane, row.ack, ack)
    assert store.read(lane) == replace(row, ack=ack)
    assert not store.acknowledge(lane, row.ack, RawAck(row.ref.incarnation, 2, b"late"))


def test_no_lane_no_acknowledgement_and_no_mark(store, lane):
    owner = incarnation()
    assert not store.acknowledge(lane, RawAck(owner, 0, b""), RawAck(owner, 1, b""))
    assert not store.raise_collected(lane, owner, 0, 1)
    assert not store.delete_entries(lane, owner, 0, 1, head=owner)


def test_collected_is_raised_only_from_what_it_was(store, lane):
    row = raw_lane()
    store.create(lane, row, b"entry 0")
    assert not store.raise_collected(lane, row.ref.incarnation, 1, 2)
    assert not store.raise_collected(lane, incarnation(), 0, 2)
    assert store.read(lane) == row
    assert store.raise_collected(lane, row.ref.incarnation, 0, 2)
    assert store.read(lane) == replace(row, collected=2)


def test_entries_come_in_order_with_gaps_where_collected(store, lane):
    row = raw_lane()
    store.create(lane, row, b"entry 0")
    ref = row.ref
    for seq in range(1, 21):
        expected, ref = ref, successor(ref)
        assert store.append(lane, expected, ref, b"head", b"entry %d" % seq)
    owner = ref.incarnation
    assert store.delete_entries(lane, owner, 3, 5, head=owner)
    found = store.entries(lane, owner, 1, 19)
    assert [seq for seq, _ in found] == [1, 2, *range(6, 20)]
    assert all(entry == b"entry %d" % seq for seq, entry in found)
    assert store.entries(lane, owner, 3, 5) == []
    assert store.entries(lane, incarnation(), 0, 20) == []
    assert not store.delete_entries(lane, owner, 0, 20, head=incarnation())
    assert len(store.entries(lane, owner, 0, 20)) == 18


def test_more_entries_than_one_page_are_deleted(store, lane):
    row = raw_lane()
    store.create(lane, row, b"entry")
    ref = row.ref
    for _ in range(300):
        expected, ref = ref, successor(ref)
        assert store.append(lane, expected, ref, b"head", b"entry")
    assert store.delete_entries(lane, ref.incarnation, 0, 299, head=ref.incarnation)
    assert store.entries(lane, ref.incarnation, 0, 300) == [(300, b"entry")]


def test_entries_are_imported_into_a_lane_without_one(store_factory, lane):
    """As a restore does, which may be killed and run again."""
    writer, reader = store_factory(), store_factory()
    past = incarnation()
    entries = [(seq, b"entry %d" % seq) for seq in range(3, 600)]
    assert not writer.import_entries(lane, past, entries[:1])
    assert not writer.import_entries(lane, past, [])
    row = raw_lane(HeadRef(incarnation(), 599, attempt()))
    assert writer.create(lane, row, None)
    assert reader.entries(lane, row.ref.incarnation, 0, 600) == []
    assert writer.import_entries(lane, past, entries[:300])
    assert writer.import_entries(lane, past, entries)
    assert writer.import_entries(lane, past, [])
    assert reader.entries(lane, past, 0, 600) == entries
    assert reader.read(lane) == row


def test_a_segment_list_is_replaced_only_by_its_successor(store_factory, lane):
    mine, other = store_factory(), store_factory()
    assert mine.read_list(lane) is None
    assert not mine.replace_list(lane, 1, 2, b"two")
    assert mine.replace_list(lane, None, 1, b"one")
    assert not other.replace_list(lane, None, 1, b"another one")
    assert other.read_list(lane) == (1, b"one")
    assert other.replace_list(lane, 1, 2, b"two")
    assert not mine.replace_list(lane, 1, 2, b"late")
    assert mine.read_list(lane) == (2, b"two")


def test_losers_are_noted_and_forgotten_by_position(store, lane):
    first, second, third = (
        slot(lane, HeadRef(incarnation(), seq, attempt())) for seq in range(1, 4)
    )
    for place in (third, first, second, first):
        store.note_loser(place, b"digest %d" % place.seq)
    store.note_loser(replace(first, lane=f"{lane}/longer"), b"elsewhere")
    assert sorted(store.losers(lane)) == [
        (place, b"digest %d" % place.seq) for place in sorted((first, second, third))
    ]
    store.forget_losers(lane, 2)
    assert list(store.losers(lane)) == [(third, b"digest 3")]
    assert len(list(store.losers(f"{lane}/longer"))) == 1


def test_a_setting_is_stored_once_for_everybody(store_factory, lane):
    assert store_factory().find_setting(lane) is None
    assert store_factory().setting(lane, "QUORUM") == "QUORUM"
    assert store_factory().setting(lane, "ONE") == "QUORUM"
    assert store_factory().find_setting(lane) == "QUORUM"
    assert store_factory().setting(f"{lane}'s", "") == ""


def test_pipelines_share_a_catalog_and_lanes_are_listed_sorted(store_factory, lane):
    writer, reader = store_factory(), store_factory()
    names = [f"{lane}/{name}" for name in ("b", "a/0", "ü", "日本", "a/10", "a", "'; --", "🙂")]
    rows = {name: raw_lane() for name in names}
    for name, row in rows.items():
        assert writer.create(name, row, name.encode())
    listed = list(reader.lanes())
    assert listed == sorted(listed)
    assert [name for name in listed if name.startswith(lane)] == sorted(names)
    for name, row in rows.items():
        assert reader.read(name) == row
        assert reader.entries(name, row.ref.incarnation, 0, 0) == [(0, name.encode())]


def test_any_bytes_and_any_identity_come_back(store, lane):
    """No value is special: zeros, highest bytes, nothing."""
    for name, byte in (("zeros", b"\0"), ("ones", b"\xff"), ("quote", b"'")):
        owner = Incarnation(byte * 16)
        ref = HeadRef(owner, 0, attempt())
        row = replace(raw_lane(ref), head=byte * 100, ack=RawAck(owner, 0, b""))
        assert store.create(f"{lane}/{name}", row, byte)
        assert store.read(f"{lane}/{name}") == row
        assert store.entries(f"{lane}/{name}", owner, 0, 0) == [(0, byte)]


def test_threads_share_a_store_object(store, lane):
    """Eight threads race for one lane through one object: one winner an entry."""
    row = raw_lane()
    store.create(lane, row, b"entry 0")

    def race(_: int) -> int:
        won = 0
        while (head := store.read(lane).ref).seq < 40:
            ref = successor(head)
            store.put(Blob.OUTPUTS, slot(lane, ref), [bytes(ref.attempt)])
            if store.append(lane, head, ref, b"head", bytes(ref.attempt)):
                won += 1
            else:
                store.delete(Blob.OUTPUTS, [slot(lane, ref)])
        return won

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 40
    entries = store.entries(lane, row.ref.incarnation, 1, 40)
    assert [seq for seq, _ in entries] == list(range(1, 41))
    for seq, entry in entries:
        place = slot(lane, HeadRef(row.ref.incarnation, seq, entry))
        assert store.get(Blob.OUTPUTS, place) == [entry]


def test_closing_twice_is_fine(store_factory):
    store = store_factory()
    store.close()
    store.close()
