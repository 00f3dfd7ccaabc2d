"""Headers as columns against headers one by one: the same bytes, the same verdicts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.arrays import pack, to_raw
from dedup.model import LANE_NAME_BYTES_MAX, Incarnation, RecordId
from delivery.header import (
    BLOCK_VALUES,
    NO_PARENT,
    Header,
    decode_header,
    decode_headers,
    encode_header,
    encode_headers,
)
from delivery.protocol.senders import Mark

identities = st.binary(min_size=16, max_size=16)
u64 = st.integers(0, 2**64 - 1)
names = st.sampled_from(["l", "shop/price/orders-0", "shop/price/orders-1", "läne", "l" * 255])
marks = st.builds(
    Mark, names, identities.map(Incarnation), u64, u64, kept=st.booleans()
) | st.builds(Mark, names, st.just(Incarnation(bytes(16))), st.integers(0, 2), st.just(1))
parents = st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
headers = st.builds(Header, identities.map(RecordId), marks, parents)


@st.composite
def damaged(draw):
    """A value of ours that lost bytes, gained some, or had one changed, anywhere."""
    value = bytearray(encode_header(draw(headers)))
    at = draw(st.integers(0, len(value) - 1) | st.integers(0, 2) | st.integers(62, 64)) % len(value)
    how = draw(st.sampled_from(["cut", "grown", "changed"]))
    if how == "cut":
        return bytes(value[:at])
    if how == "grown":
        return bytes(value) + draw(st.binary(max_size=260))
    value[at] = draw(st.integers(0, 255))
    return bytes(value)


values = st.none() | headers.map(encode_header) | damaged() | st.binary(max_size=400)


def one_by_one(some_values):
    return [None if value is None else decode_header(value) for value in some_values]


def as_headers(columns):
    """Read the columns as a receiver would."""
    raw = to_raw(columns.ids)
    return [
        Header(
            RecordId(raw[at * 16 : at * 16 + 16]),
            columns.marks[mark],
            (int(columns.partitions[at]), int(columns.offsets[at])),
        )
        if columns.ours[at]
        else None
        for at, mark in enumerate(columns.mark_of.tolist())
    ]


@given(st.lists(values, max_size=30))
def test_columns_say_of_every_value_what_decoding_it_says(some_values):
    columns = decode_headers(some_values)
    assert as_headers(columns) == one_by_one(some_values)
    assert len(set(columns.marks)) == len(columns.marks)


@given(st.lists(values, max_size=30))
def test_what_is_not_ours_says_nothing(some_values):
    columns = decode_headers(some_values)
    foreign = ~columns.ours
    assert not columns.ids[foreign].any()
    assert (columns.partitions[foreign] == NO_PARENT[0]).all()
    assert (columns.offsets[foreign] == NO_PARENT[1]).all()


@given(st.lists(st.tuples(identities, parents, st.booleans())), marks, st.booleans())
def test_columns_are_encoded_as_each_record_is(records, mark, mixed):
    ids = pack([record_id for record_id, _, _ in records])
    partitions = np.array([parent[0] for _, parent, _ in records], dtype=np.int32)
    offsets = np.array([parent[1] for _, parent, _ in records], dtype=np.int64)
    kept = np.array([each for _, _, each in records], dtype=np.bool_) if mixed else None
    expected = [
        encode_header(
            Header(RecordId(record_id), replace(mark, kept=flag) if mixed else mark, parent)
        )
        for record_id, parent, flag in records
    ]
    assert encode_headers(ids, mark, partitions, offsets, kept) == expected


def bundle(count, mark):
    ids = np.random.default_rng(mark.seq).integers(0, 2**64, (count, 2), dtype=np.uint64)
    offsets = np.arange(count, dtype=np.int64)
    return encode_headers(ids, mark, np.zeros(count, dtype=np.int32), offsets)


MARK = Mark("shop/price/orders-0", Incarnation(b"i" * 16), 7, 1_700_000_000_000)
OTHER = replace(MARK, sender="shop/price/orders-10", seq=8)


@pytest.mark.parametrize("count", [1, BLOCK_VALUES - 1, BLOCK_VALUES, 2 * BLOCK_VALUES + 5])
def test_a_bundle_of_one_sender_has_one_mark(count):
    some_values = bundle(count, MARK)
    columns = decode_headers(some_values)
    assert columns.marks == (MARK,)
    assert as_headers(columns) == one_by_one(some_values)


def test_senders_may_take_turns_across_blocks():
    ours, theirs = bundle(BLOCK_VALUES, MARK), bundle(BLOCK_VALUES, OTHER)
    turns = [value for pair in zip(ours, theirs, strict=True) for value in pair]
    turns[5] = turns[BLOCK_VALUES + 3] = None
    turns[6] = b"\x02" + turns[6][1:]
    columns = decode_headers(turns)
    assert columns.marks == (MARK, OTHER)
    assert as_headers(columns) == one_by_one(turns)
    assert columns.ours.sum() == len(turns) - 3


def test_no_values_are_no_headers():
    columns = decode_headers([])
    assert columns.marks == ()
    assert columns.ids.shape == (0, 2)
    nobody = np.empty(0, dtype=np.int64)
    assert encode_headers(columns.ids, MARK, nobody.astype(np.int32), nobody) == []


def test_the_longest_name_is_ours_and_one_byte_more_is_not():
    longest = encode_header(Header(RecordId(bytes(16)), replace(MARK, sender="")))
    some_values = [longest + b"l" * count for count in (0, 1, LANE_NAME_BYTES_MAX, 256)]
    assert decode_headers(some_values).ours.tolist() == [False, True, True, False]


def test_values_that_are_not_utf8_or_of_another_version_are_not_ours():
    value = encode_header(Header(RecordId(bytes(16)), MARK))
    foreign = [value[:-1] + b"\xff", b"\x02" + value[1:], value[:1] + b"\x02" + value[2:]]
    assert decode_headers([*foreign, value]).ours.tolist() == [False, False, False, True]
