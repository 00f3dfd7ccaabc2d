"""Writes that share a commit: all of them are there once it has ended, or none of them counts."""

from __future__ import annotations

import contextlib

import pytest

from dedup.catalog.open import open_store
from dedup.catalog.store import Blob, RawAck
from dedup.errors import Corrupt, DeliveryError
from dedup.model import Slot
from tests.conformance.values import attempt, raw_lane, successor


def test_what_a_group_answers_is_there_when_it_has_ended(store_factory, lane):
    store = store_factory()
    lanes = [f"{lane}/{number}" for number in range(3)]
    rows = [raw_lane() for _ in lanes]
    for name, row in zip(lanes, rows, strict=True):
        store.create(name, row, b"entry 0")
    refs = [successor(row.ref) for row in rows]
    slots = [
        Slot(name, ref.incarnation, ref.seq, ref.attempt)
        for name, ref in zip(lanes, refs, strict=True)
    ]
    for slot in slots:
        store.put(Blob.OUTPUTS, slot, [b"rows of " + slot.lane.encode()])
    ack = RawAck(rows[2].ref.incarnation, 1, b"acknowledged")
    with store.group():
        won = [
            store.append(lanes[0], rows[0].ref, refs[0], b"head 1", b"entry 1"),
            store.append(lanes[1], successor(rows[1].ref), refs[1], b"head 1", b"entry 1"),
            store.acknowledge(lanes[2], rows[2].ack, ack),
        ]
    assert won == [True, False, True]
    reader = store_factory()
    assert reader.read(lanes[0]).ref == refs[0]
    assert reader.read(lanes[1]) == rows[1]
    assert reader.read(lanes[2]).ack == ack
    # What the loser stored is readable too: it went along with what was won.
    for slot in slots:
        assert reader.get(Blob.OUTPUTS, slot) == [b"rows of " + slot.lane.encode()]


@pytest.fixture
def sqlite_url(tmp_path) -> str:
    return f"sqlite:{tmp_path / 'catalog.db'}"


@pytest.mark.parametrize("swallowed", [True, False], ids=["swallowed", "raised"])
def test_a_write_that_fails_spoils_its_whole_group(sqlite_url, swallowed):
    """Whoever asked may have taken the error for an answer: what came before it is gone all the same."""
    with contextlib.closing(open_store(sqlite_url)) as store:
        row = raw_lane()
        store.create("one", row, b"entry 0")
        ref = successor(row.ref)
        slot = Slot("one", ref.incarnation, ref.seq, ref.attempt)
        store.put(Blob.OUTPUTS, slot, [b"rows"])
        kept = contextlib.suppress(DeliveryError) if swallowed else contextlib.nullcontext()

        def spoiled() -> None:
            with store.group():
                assert store.append("one", row.ref, ref, b"head 1", b"entry 1")
                with kept, store._file.write("fail", "the test") as write:
                    write("INSERT INTO no_such_table VALUES (1)", ())

        with pytest.raises(DeliveryError):
            spoiled()
        with contextlib.closing(open_store(sqlite_url)) as reader:
            assert reader.read("one") == row
            assert reader.get(Blob.OUTPUTS, slot) == []
        # What was held back for the seal goes along with the next one.
        assert store.append("one", row.ref, ref, b"head 1", b"entry 1")
        with contextlib.closing(open_store(sqlite_url)) as reader:
            assert reader.get(Blob.OUTPUTS, slot) == [b"rows"]


def test_an_error_of_the_caller_rolls_a_group_back(sqlite_url):
    with contextlib.closing(open_store(sqlite_url)) as store:
        row = raw_lane()
        store.create("one", row, b"entry 0")

        def stopped() -> None:
            with store.group():
                assert store.append("one", row.ref, successor(row.ref), b"head 1", b"entry 1")
                raise Corrupt("test", "the caller", "stopped")

        with pytest.raises(Corrupt):
            stopped()
        assert store.read("one") == row
        other = Slot("one", row.ref.incarnation, 1, attempt())
        store.put(Blob.OUTPUTS, other, [b"rows"])
        store.flush()
        assert store.get(Blob.OUTPUTS, other) == [b"rows"]
