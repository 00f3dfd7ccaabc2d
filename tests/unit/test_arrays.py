"""Ids as arrays against the bytes they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.arrays import (
    contains,
    first_places,
    firsts,
    firsts_in_order,
    from_raw,
    order,
    pack,
    sorted_unique,
    to_raw,
)

#: Few values in few bytes, so that halves agree in every way, and both ends of the order.
halves = st.sampled_from(
    [bytes(8), bytes(7) + b"\x01", b"\x80" + bytes(7), b"\xff" * 8]
) | st.binary(min_size=8, max_size=8)
some_ids = st.lists(st.tuples(halves, halves).map(b"".join), max_size=40)


@given(some_ids)
def test_an_id_has_two_spellings(ids):
    array = pack(ids)
    assert array.shape == (len(ids), 2)
    assert array.dtype == np.uint64
    assert array.flags.c_contiguous
    assert to_raw(array) == b"".join(ids)
    assert (from_raw(memoryview(b"".join(ids))) == array).all()
    assert [int(high) << 64 | int(low) for high, low in array] == [
        int.from_bytes(each, "big") for each in ids
    ]


def test_an_array_is_its_owners_own():
    raw = bytes(32)
    array = from_raw(raw)
    array[:] = 7
    assert raw == bytes(32)


def test_part_of_an_id_is_refused():
    with pytest.raises(AssertionError, match="16 bytes each"):
        from_raw(bytes(17))
    with pytest.raises(AssertionError, match="an id is 16 bytes"):
        pack([bytes(15), bytes(17)])


@given(some_ids)
def test_ids_are_ordered_as_their_bytes_are_and_equal_ones_as_they_came(ids):
    expected = sorted(range(len(ids)), key=lambda at: (ids[at], at))
    assert order(pack(ids)).tolist() == expected


@given(some_ids)
def test_the_first_of_each_kind_is_the_first_in_the_order_given(ids):
    assert firsts(pack(ids)).tolist() == [each not in ids[:at] for at, each in enumerate(ids)]
    assert first_places(pack(ids)).tolist() == [ids.index(each) for each in ids]
    once = [ids.index(each) for each in sorted(set(ids))]
    assert firsts_in_order(pack(ids)).tolist() == once


@given(some_ids)
def test_a_stored_run_is_sorted_and_unique(ids):
    assert to_raw(sorted_unique(pack(ids))) == b"".join(sorted(set(ids)))


@given(some_ids, some_ids)
def test_membership_is_that_of_a_set(known, asked):
    run = sorted_unique(pack(known))
    both = [*asked, *known[:5]]
    assert contains(run, pack(both)).tolist() == [each in known for each in both]


def large(count, *, high_bits):
    """Make ids with repeats, of which many agree in the high half if it has few bits."""
    generator = np.random.default_rng(high_bits)
    ids = generator.integers(0, 2**64, (count, 2), dtype=np.uint64)
    ids[:, 0] >>= np.uint64(64 - high_bits)
    return np.concatenate([ids, ids[:: 3 if high_bits % 2 else 20], ids[:1].repeat(9, axis=0)])


@pytest.mark.parametrize("high_bits", [64, 63, 9, 1])
def test_many_ids_behave_as_few_do(high_bits):
    ids = large(20_000, high_bits=high_bits)
    raw = to_raw(ids)
    each = [raw[at : at + 16] for at in range(0, len(raw), 16)]
    expected = sorted(range(len(each)), key=lambda at: (each[at], at))
    assert order(ids).tolist() == expected
    run = sorted_unique(ids)
    assert to_raw(run) == b"".join(sorted(set(each)))
    seen = dict.fromkeys(each)
    assert firsts(ids).sum() == len(seen)
    assert to_raw(ids[firsts(ids)]) == b"".join(seen)
    others = ids ^ np.uint64(1 << 40)
    assert contains(run, ids).all()
    assert not contains(run, others).any()


def test_the_same_id_again_and_again():
    ids = np.full((10_000, 2), 2**64 - 1, dtype=np.uint64)
    assert firsts(ids).tolist() == [True] + [False] * 9_999
    assert order(ids).tolist() == list(range(10_000))
    assert to_raw(sorted_unique(ids)) == b"\xff" * 16


def test_views_are_ids_too():
    ids = large(2_000, high_bits=64)[::-2]
    copied = ids.copy()
    assert (order(ids) == order(copied)).all()
    assert (firsts(ids) == firsts(copied)).all()
    assert to_raw(ids) == to_raw(copied)
    assert contains(sorted_unique(ids), ids).all()
