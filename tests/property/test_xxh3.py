"""XXH3-128 in arrays against the package: every shape of the algorithm, every way in."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dedup import xxh3, xxh3_vectors
from dedup.arrays import to_raw
from dedup.errors import InvalidUsage
from dedup.ids import minted, minted_many, named, named_many, positional, positional_many
from dedup.model import Attempt, Source, TopicId
from dedup.xxh3 import PAYS, hash_column, hash_counted, hash_names, hash_rows
from dedup.xxh3_vectors import BLOCK_ROWS, PREFIX_BYTES, VECTOR_BYTES_MAX, counted, hash_vectors

#: With the compiled library and without it.
pytestmark = pytest.mark.usefixtures("both_ways")

#: Behind the last length that arrays can do.
LENGTHS = range(301)
#: Enough that every way of choosing takes the array, whatever the length.
MANY = PAYS[-1][1]
KINDS = (pa.binary(), pa.large_binary())


def expected(messages):
    return b"".join(xxhash.xxh3_128_digest(bytes(message)) for message in messages)


def edges(length):
    """Rows that carries and signs trip over: all zeros, all ones, one bit, and arbitrary ones."""
    rows = np.random.default_rng(length).integers(0, 256, (8, length), dtype=np.uint8)
    rows[0], rows[1], rows[2], rows[3] = 0, 255, 0x80, 1
    return rows


def test_arrays_agree_with_the_package_at_every_length():
    every = {length: edges(length) for length in range(1, VECTOR_BYTES_MAX + 1)}
    wrong = [n for n, rows in every.items() if to_raw(hash_vectors(rows)) != expected(rows)]
    assert wrong == []


@given(
    hnp.arrays(
        np.uint8,
        st.tuples(st.integers(0, 5), st.integers(1, VECTOR_BYTES_MAX)),
        elements=st.integers(0, 255),
    )
)
def test_arrays_agree_with_the_package_on_any_rows(rows):
    assert to_raw(hash_vectors(rows)) == expected(rows)


def test_rows_of_any_length_are_hashed_one_way_or_the_other():
    every = {length: edges(length) for length in LENGTHS}
    wrong = [n for n, rows in every.items() if to_raw(hash_rows(rows)) != expected(rows)]
    assert wrong == []


@pytest.mark.parametrize("length", [1, 3, 5, 8, 12, 16, 17, 36, 128, 240])
@pytest.mark.parametrize("rows_of", ["columns", "reversed", "every other", "one repeated", "wide"])
def test_rows_may_lie_anyhow(length, rows_of):
    wide = np.random.default_rng(length).integers(0, 256, (40, length * 2), dtype=np.uint8)
    rows = {
        "columns": np.asfortranarray(wide[:, :length]),
        "reversed": wide[::-1, length - 1 :: -1],
        "every other": wide[::2, ::2],
        "one repeated": np.broadcast_to(wide[0, :length], (40, length)),
        "wide": wide[:, 1 : length + 1],
    }[rows_of]
    before = rows.tobytes()
    assert to_raw(hash_vectors(rows)) == to_raw(hash_rows(rows)) == expected(rows)
    assert rows.tobytes() == before


@pytest.mark.parametrize("length", [2, 7, 16, 32, 36])
@pytest.mark.parametrize("count", [BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS + 3])
def test_blocks_join_without_a_seam(length, count):
    rows = np.random.default_rng(count).integers(0, 256, (count, length), dtype=np.uint8)
    assert to_raw(hash_rows(rows)) == expected(rows)


def test_no_rows_make_no_ids():
    for length in (0, 1, 16, 36, 300):
        assert hash_rows(np.empty((0, length), dtype=np.uint8)).shape == (0, 2)
    assert hash_names([]).shape == (0, 2)
    assert hash_counted(bytes(PREFIX_BYTES), np.empty(0, dtype=np.uint64)).shape == (0, 2)


def test_what_is_not_bytes_is_no_message():
    with pytest.raises(AssertionError, match="messages are bytes"):
        hash_rows(np.zeros((2, 16), dtype=np.int8))
    with pytest.raises(AssertionError, match="hashed differently"):
        hash_vectors(np.zeros((2, VECTOR_BYTES_MAX + 1), dtype=np.uint8))


@given(st.lists(st.binary(max_size=300)))
def test_names_agree_with_the_package(names):
    assert to_raw(hash_names(names)) == to_raw(named_many(names)) == expected(names)
    assert to_raw(named_many(names)) == b"".join(map(named, names))


@given(st.binary(min_size=PREFIX_BYTES, max_size=PREFIX_BYTES), st.lists(st.integers(0, 2**64 - 1)))
def test_counted_messages_agree_with_the_package(prefix, numbers):
    array = np.array(numbers, dtype=np.uint64)
    messages = [prefix + number.to_bytes(8, "little") for number in numbers]
    assert to_raw(counted(prefix, array)) == expected(messages)
    assert to_raw(hash_counted(prefix, array)) == expected(messages)


def test_a_prefix_of_all_ones_carries_as_it_should():
    numbers = np.array([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1] * 50, dtype=np.uint64)
    for prefix in (b"\xff" * PREFIX_BYTES, bytes(PREFIX_BYTES)):
        messages = [prefix + int(number).to_bytes(8, "little") for number in numbers]
        assert to_raw(hash_counted(prefix, numbers)) == expected(messages)


columns = st.lists(st.binary(max_size=40)) | st.integers(0, 40).flatmap(
    lambda length: st.lists(st.binary(min_size=length, max_size=length))
)


@given(columns, st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 3))
def test_a_slice_of_a_column_is_hashed_alone(names, kind, before, behind):
    column = pa.array([b"before"] * before + names + [b"behind"] * behind, type=kind)
    assert to_raw(hash_column(column.slice(before, len(names)))) == expected(names)


@given(names=columns, kind=st.sampled_from(KINDS))
def test_a_column_in_arrays_agrees_too(names, kind):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(xxh3, "PAYS", ((20, 1), (30, 3)))
        assert to_raw(hash_column(pa.array(names, type=kind))) == expected(names)
        assert to_raw(hash_column(pa.array([b"x", *names], type=kind)[1:])) == expected(names)


@given(st.lists(st.text(max_size=20)))
def test_text_is_hashed_in_utf8(texts):
    encoded = [text.encode() for text in texts]
    assert to_raw(hash_column(pa.array(texts, type=pa.string()))) == expected(encoded)
    assert to_raw(hash_column(pa.array(texts, type=pa.large_string()))) == expected(encoded)


@pytest.mark.parametrize("length", [0, 1, 16, 36, 250])
@pytest.mark.parametrize("count", [0, 5, MANY])
def test_a_column_of_one_width(length, count):
    rows = np.random.default_rng(length).integers(0, 256, (count, length), dtype=np.uint8)
    names = [row.tobytes() for row in rows]
    for kind in (pa.binary(length), *KINDS):
        column = pa.array([bytes(length), *names, bytes(length)], type=kind)[1:-1]
        assert to_raw(hash_column(column)) == expected(names)


def test_lengths_that_many_share_go_together_and_the_rest_one_by_one():
    generator = np.random.default_rng(5)
    lengths = generator.choice(
        [0, 7, 11, 16, 36, 240, 500], 4 * MANY, p=[0.01, *[0.195] * 5, 0.015]
    )
    names = [generator.bytes(length) for length in lengths.tolist()]
    assert to_raw(hash_column(pa.array(names, type=pa.binary()))) == expected(names)


def test_chunks_are_hashed_in_their_order():
    chunks = [[b"a", b"bb"], [], [b"c" * 300]]
    column = pa.chunked_array([pa.array(chunk, type=pa.binary()) for chunk in chunks])
    assert to_raw(hash_column(column)) == expected([b"a", b"bb", b"c" * 300])
    assert hash_column(pa.chunked_array([], type=pa.binary())).shape == (0, 2)


def test_a_null_has_no_id():
    with pytest.raises(InvalidUsage, match="1 of 3 values are null"):
        hash_column(pa.array([b"a", None, b"b"]))
    # One that a slice leaves out is nobody's business.
    assert to_raw(hash_column(pa.array([None, b"a"])[1:])) == expected([b"a"])


@pytest.mark.parametrize("column", [pa.array([1]), pa.array([b"a"]).dictionary_encode()])
def test_what_is_neither_bytes_nor_text_is_refused(column):
    with pytest.raises(InvalidUsage, match="cast the column to binary"):
        hash_column(column)


def test_threads_do_not_share_their_registers():
    rows = {length: edges(length).repeat(BLOCK_ROWS // 4, axis=0) for length in (16, 32, 36, 200)}
    wrong = []

    def hash_again_and_again(length):
        first = to_raw(hash_vectors(rows[length]))
        if first != expected(rows[length]):
            wrong.append(length)
        wrong.extend(length for _ in range(5) if to_raw(hash_vectors(rows[length])) != first)

    threads = [threading.Thread(target=hash_again_and_again, args=(length,)) for length in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_every_byte_of_the_secret_matters(monkeypatch):
    """A byte that no length meets could be wrong, and nobody would know."""
    right = xxh3_vectors._SECRET
    every = [edges(length) for length in (1, 4, 9, 32, 128, 136, 160, 192, 224, 240)]
    hashes = [expected(rows) for rows in every]
    unnoticed = []
    for at in range(len(right)):
        wrong = bytearray(right)
        wrong[at] ^= 1
        monkeypatch.setattr(xxh3_vectors, "_SECRET", bytes(wrong))
        if [to_raw(hash_vectors(rows)) for rows in every] == hashes:
            unnoticed.append(at)
    assert unnoticed == []


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**31 - 1),
    st.lists(st.integers(0, 2**63 - 1)),
)
def test_places_of_many_are_the_places_of_each(topic, partition, offsets):
    source = Source(TopicId(topic), partition)
    ids = positional_many(source, np.array(offsets, dtype=np.int64))
    assert to_raw(ids) == b"".join(positional(source, offset) for offset in offsets)


def test_a_negative_offset_is_no_place():
    with pytest.raises(AssertionError, match="offsets are not negative"):
        positional_many(Source(TopicId(bytes(16)), 0), np.array([3, -1]))


@given(
    st.binary(min_size=16, max_size=16),
    st.lists(st.integers(0, 3)) | st.lists(st.just(2)),
    st.integers(0, 2**62),
)
def test_outputs_of_many_are_the_outputs_of_each(attempt, edges_of, first):
    attempt = Attempt(attempt)
    ids = minted_many(attempt, np.array(edges_of, dtype=np.int32), first)
    each = [minted(attempt, edge, first + at) for at, edge in enumerate(edges_of)]
    assert to_raw(ids) == b"".join(each)


def test_many_outputs_of_several_edges():
    attempt, edges_of = Attempt(b"\xff" * 16), np.arange(MANY, dtype=np.int32) % 3
    each = [minted(attempt, edge, 7 + at) for at, edge in enumerate(edges_of.tolist())]
    assert to_raw(minted_many(attempt, edges_of, 7)) == b"".join(each)
    with pytest.raises(AssertionError, match="edges are not negative"):
        minted_many(attempt, edges_of - 1, 0)
