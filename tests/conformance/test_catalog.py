"""The typed catalog on every store: limits, contradictions, and what a reader may believe."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from dedup.catalog.catalog import INLINE_BYTES_MAX, Catalog
from dedup.catalog.store import CHUNK_BYTES_MAX, Blob, RawAck, RawLane
from dedup.errors import Corrupt, InvalidUsage
from dedup.formats.lane import (
    encode_ack,
    encode_head,
    encode_seal,
    encode_segment_list,
)
from dedup.model import LANE_NAME_BYTES_MAX, Ack, LaneRow, SegmentList
from tests.conformance.values import (
    acknowledged,
    attempt,
    first,
    following,
    incarnation,
    reborn,
    slot,
    successor,
)


def started(catalog: Catalog, lane: str):
    """Create a lane and return its head."""
    head, seal = first()
    assert catalog.create(lane, head, seal)
    return head


def raw_row(head):
    """Give the head row that the catalog would write."""
    ack = Ack(head.ref.incarnation, 0)
    raw_ack = RawAck(ack.incarnation, ack.seq, encode_ack(ack))
    return RawLane(head.ref, encode_head(head), raw_ack, 0)


def test_a_lane_lives_through_all_its_steps(store_factory, lane):
    catalog, reader = Catalog(store_factory()), Catalog(store_factory())
    head, seal = first()
    assert catalog.create(lane, head, seal)
    assert not catalog.create(lane, *first())
    assert reader.load(lane) == LaneRow(head=head, ack=Ack(head.ref.incarnation, 0))
    outputs, segment = [os.urandom(9000), os.urandom(100)], [os.urandom(64)]
    after, sealed = following(head, outputs, segment)
    assert catalog.put(Blob.OUTPUTS, slot(lane, sealed.ref), outputs, 10) == sealed.outputs
    assert catalog.put(Blob.SEGMENT, slot(lane, sealed.ref), segment, 10) == sealed.segment
    assert catalog.append(lane, head.ref, after, sealed)
    assert not catalog.append(lane, head.ref, *following(head))
    assert reader.seals(lane, head.ref.incarnation, 0, 5) == [seal, sealed]
    assert reader.get(Blob.OUTPUTS, lane, sealed) == outputs
    assert reader.get(Blob.SEGMENT, lane, sealed) == segment
    ack = acknowledged(after)
    assert catalog.acknowledge(lane, Ack(head.ref.incarnation, 0), ack)
    row = reader.load(lane)
    assert row == LaneRow(head=after, ack=ack)
    assert catalog.raise_collected(lane, row, 1)
    assert not catalog.raise_collected(lane, row, 1)
    row = reader.load(lane)
    assert (row.collected, row.settled) == (1, 1)
    assert catalog.delete_seals(lane, row, head.ref.incarnation, 1)
    assert reader.seal(lane, head.ref.incarnation, 1) is None


def test_a_new_incarnation_fences_writers_and_collectors(catalog, lane):
    head = started(catalog, lane)
    after, seal = following(head)
    assert catalog.append(lane, head.ref, after, seal)
    row = catalog.load(lane)
    fresh = reborn(after)
    assert not catalog.reincarnate(
        lane, head.ref, LaneRow(head=fresh, ack=Ack(fresh.ref.incarnation, 0))
    )
    assert catalog.reincarnate(
        lane, after.ref, LaneRow(head=fresh, ack=Ack(fresh.ref.incarnation, 0))
    )
    late, late_seal = following(after)
    assert not catalog.append(lane, after.ref, late, late_seal)
    assert not catalog.acknowledge(lane, row.ack, acknowledged(after))
    resolution = catalog.resolve(lane, late.ref.incarnation, late.ref.seq)
    assert resolution.seal is None
    assert resolution.row.head == fresh
    assert catalog.seal(lane, head.ref.incarnation, 1) == seal, "the past stays readable"


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES_MAX])
def test_small_outputs_ride_in_the_seal(store_factory, lane, size):
    catalog, reader = Catalog(store_factory()), Catalog(store_factory())
    head = started(catalog, lane)
    chunks = [os.urandom(size)] if size else []
    after, seal = following(head, chunks)
    assert catalog.put(Blob.OUTPUTS, slot(lane, seal.ref), chunks, 10) == seal.outputs
    assert catalog.append(lane, head.ref, after, seal)
    assert reader.get(Blob.OUTPUTS, lane, reader.seal(lane, seal.ref.incarnation, 1)) == chunks
    assert list(reader.store.slots(Blob.OUTPUTS, lane)) == []


def test_outputs_above_the_limit_are_stored_beside_the_seal(store_factory, lane):
    catalog, reader = Catalog(store_factory()), Catalog(store_factory())
    head = started(catalog, lane)
    chunks = [os.urandom(INLINE_BYTES_MAX + 1)]
    after, seal = following(head, chunks)
    catalog.put(Blob.OUTPUTS, slot(lane, seal.ref), chunks, 10)
    assert catalog.append(lane, head.ref, after, seal)
    assert list(reader.store.slots(Blob.OUTPUTS, lane)) == [slot(lane, seal.ref)]
    assert reader.get(Blob.OUTPUTS, lane, seal) == chunks
    catalog.store.delete(Blob.OUTPUTS, [slot(lane, seal.ref)])
    assert reader.get(Blob.OUTPUTS, lane, seal) is None


DAMAGES = {
    "flipped": lambda chunks: [chunks[0][:-1] + bytes([chunks[0][-1] ^ 1]), *chunks[1:]],
    "one missing": lambda chunks: chunks[:1],
    "one too many": lambda chunks: [*chunks, b""],
    "swapped": lambda chunks: chunks[::-1],
    "cut elsewhere": lambda chunks: [chunks[0][:-1], chunks[0][-1:] + chunks[1]],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
@pytest.mark.parametrize("kind", list(Blob))
def test_chunks_that_are_not_those_sealed_are_corrupt(catalog, lane, kind, damage):
    head = started(catalog, lane)
    chunks = [os.urandom(6000), os.urandom(6000)]
    after, seal = following(head, **{kind.value: chunks})
    catalog.store.put(kind, slot(lane, seal.ref), damage(chunks))
    assert catalog.append(lane, head.ref, after, seal)
    with pytest.raises(Corrupt, match=f"{kind.value} of {lane} seq 1"):
        catalog.get(kind, lane, seal)


def test_columns_that_contradict_the_head_are_corrupt(store, lane):
    catalog = Catalog(store)
    for number, wrong in enumerate(("incarnation", "seq", "attempt")):
        head, _ = first()
        value = {"incarnation": incarnation(), "seq": 3, "attempt": attempt()}[wrong]
        row = replace(raw_row(head), ref=replace(head.ref, **{wrong: value}))
        assert store.create(f"{lane}/{number}", row, b"")
        with pytest.raises(Corrupt, match=f"head of {lane}/{number}"):
            catalog.load(f"{lane}/{number}")


def test_columns_that_contradict_the_acknowledgement_are_corrupt(store, lane):
    catalog = Catalog(store)
    head, _ = first()
    owner = head.ref.incarnation
    other = incarnation()
    for number, raw in enumerate(
        (
            RawAck(owner, 1, encode_ack(Ack(owner, 0))),
            RawAck(other, 0, encode_ack(Ack(owner, 0))),
            RawAck(other, 0, encode_ack(Ack(other, 0))),
            RawAck(owner, 1, encode_ack(Ack(owner, 1))),
        )
    ):
        assert store.create(f"{lane}/{number}", replace(raw_row(head), ack=raw), b"")
        with pytest.raises(Corrupt, match=f"head of {lane}/{number}"):
            catalog.load(f"{lane}/{number}")


def test_an_entry_that_names_another_position_is_corrupt(store, lane):
    catalog = Catalog(store)
    head = started(catalog, lane)
    after, seal = following(head)
    _, elsewhere = following(after)
    stored = encode_seal(elsewhere)
    assert store.append(lane, head.ref, seal.ref, encode_head(after), stored)
    with pytest.raises(Corrupt, match=f"entry 1 of {lane}"):
        catalog.seal(lane, seal.ref.incarnation, 1)


def test_a_seal_in_the_place_of_a_head_is_corrupt(store, lane):
    head, seal = first()
    assert store.create(lane, replace(raw_row(head), head=encode_seal(seal)), b"")
    with pytest.raises(Corrupt, match=f"head of {lane}"):
        Catalog(store).load(lane)


def test_a_segment_list_is_compared_by_version(catalog, lane):
    assert catalog.segment_list(lane) is None
    one = SegmentList(version=1, upto=4, slots=(slot(lane, first()[0].ref),))
    assert catalog.replace_segment_list(lane, None, one)
    assert not catalog.replace_segment_list(lane, None, one)
    two = replace(one, version=2, upto=9)
    assert catalog.replace_segment_list(lane, one, two)
    assert not catalog.replace_segment_list(lane, one, two)
    assert catalog.segment_list(lane) == two


def test_a_segment_list_of_another_version_than_its_row_is_corrupt(catalog, lane):
    catalog.store.replace_list(lane, None, 1, encode_segment_list(SegmentList(version=2)))
    with pytest.raises(Corrupt, match=f"segment list of {lane}"):
        catalog.segment_list(lane)


def test_a_chunk_over_the_limit_is_refused_and_nothing_written(catalog, lane):
    place = slot(lane, successor(first()[0].ref))
    with pytest.raises(InvalidUsage, match="cut it smaller"):
        catalog.put(Blob.OUTPUTS, place, [b"small", bytes(CHUNK_BYTES_MAX + 1)], 2)
    assert catalog.store.get(Blob.OUTPUTS, place) == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a\0b",
        "x" * (LANE_NAME_BYTES_MAX + 1),
        "日" * (LANE_NAME_BYTES_MAX // 3 + 1),
        "a\ud800b",
    ],
    ids=["empty", "NUL", "long", "long in UTF-8", "lone surrogate"],
)
def test_a_lane_with_an_impossible_name_is_refused_and_nothing_written(catalog, name):
    with pytest.raises(InvalidUsage, match="nothing was written"):
        catalog.create(name, *first())
    assert name not in list(catalog.lanes())


def test_a_lane_with_the_longest_name_is_taken(catalog, lane):
    name = f"{lane}/{'ü' * LANE_NAME_BYTES_MAX}".encode()[:LANE_NAME_BYTES_MAX].decode(
        errors="ignore"
    )
    assert catalog.create(name, *first())
    assert list(catalog.lanes(name)) == [name]


def test_writes_that_skip_the_law_are_programming_errors(catalog, lane):
    head = started(catalog, lane)
    after, seal = following(head)
    beyond, beyond_seal = following(after)
    with pytest.raises(AssertionError, match="gapless"):
        catalog.append(lane, head.ref, beyond, beyond_seal)
    with pytest.raises(AssertionError, match="its seal"):
        catalog.append(lane, head.ref, after, beyond_seal)
    other = reborn(after)
    with pytest.raises(AssertionError, match="incarnation"):
        catalog.append(lane, head.ref, other, replace(seal, ref=other.ref))
    with pytest.raises(AssertionError, match="seq 0"):
        catalog.create(f"{lane}/late", after, seal)
    row = catalog.load(lane)
    with pytest.raises(AssertionError, match="acknowledged"):
        catalog.raise_collected(lane, row, 1)
    assert catalog.load(lane) == row
