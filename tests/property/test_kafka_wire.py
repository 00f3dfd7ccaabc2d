"""Record batches and columns: the same records as another client writes and reads."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from delivery.kafka.wire import codecs, cutting
from delivery.kafka.wire.decoding import BrokenBatch, aborts, decode
from delivery.kafka.wire.encoding import cuts
from tests.property.wire_kit import (
    ALIKE,
    CODECS,
    COUNTS,
    HEADER_BYTES,
    NOW_MS,
    blobs,
    both,
    built,
    changed,
    columns,
    encoded,
    names,
    one,
    ours,
    patient,
    rows,
    sealed,
    theirs,
)

# What is written ----------------------------------------------------------------------------------


@patient
@given(columns=columns(), codec=st.sampled_from(CODECS))
def test_another_client_reads_what_we_write_and_so_do_we(columns, codec):
    batch = encoded(*columns, codec)
    (found,) = MemoryRecords(bytes(batch))
    assert found.validate_crc()
    assert (found.base_offset, found.last_offset_delta) == (0, len(columns[0]) - 1)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (77, 3, 9)
    assert (found.first_timestamp, found.max_timestamp) == (NOW_MS, NOW_MS)
    wanted = [
        (row, NOW_MS, k, v, list(h)) for row, (k, v, h) in enumerate(zip(*columns, strict=True))
    ]
    assert theirs(batch) == wanted
    assert ours(batch) == wanted


@patient
@given(columns=columns())
def test_rows_written_alike_and_one_by_one_are_the_same_bytes(columns):
    one_by_one = [encoded(*([column[row]] for column in columns)) for row in range(len(columns[0]))]
    together = ours(encoded(*columns))
    assert [row[2:] for row in together] == [row[2:] for one in one_by_one for row in ours(one)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("length", [63, 64, 8191, 8192, 16_385, 1 << 20, (2 << 20) + 1])
def test_lengths_of_every_width_are_written_and_read(codec, length):
    value = random.Random(length).randbytes(200) * (length // 200 + 1)
    for count in (1, ALIKE) if length < 1 << 20 else (1,):
        batch = encoded(
            [value[:length]] * count,
            [value[1 : length + 1]] * count,
            [(("h", value[2 : length + 2]),)] * count,
            codec,
        )
        assert ours(batch) == theirs(batch)
        assert ours(batch)[-1][3] == value[1 : length + 1]


@pytest.mark.parametrize("keyed", [False, True])
def test_more_rows_than_the_tables_hold_are_written_and_read(keyed):
    keys = [b"k%d" % (row % 7) if keyed else None for row in range(9_000)]
    values = [b"v" * (row % 90) for row in range(9_000)]
    headers = [(("id", b"%016d" % row),) for row in range(9_000)]
    batch = encoded(keys, values, headers, codecs.LZ4)
    assert ours(batch) == theirs(batch)
    assert [row[3] for row in ours(batch)] == values


def test_long_rows_among_short_ones_are_written_and_read():
    values = [bytes(3_000_000 if row in {3, 99} else row) for row in range(100)]
    batch = encoded([None] * 100, values, [()] * 100)
    assert [row[3] for row in ours(batch)] == values
    assert ours(batch) == theirs(batch)


@pytest.mark.parametrize("codec", CODECS)
def test_what_does_not_become_smaller_is_left_as_it_is(codec):
    batch = encoded([None], [b"x"], [()], codec)
    assert one(batch).codec == codecs.NONE
    assert one(encoded([None], [b"x" * 500], [()], codec)).codec == codec


@patient
@given(columns=columns(), bytes_max=st.integers(0, 20_000))
@example(columns=([None] * 3, [b""] * 3, [()] * 3), bytes_max=0)
def test_no_batch_is_larger_than_it_may_be(columns, bytes_max):
    ends = cuts(*columns, bytes_max)
    assert ends[-1] == len(columns[0])
    for first, end in pairwise([0, *ends]):
        batch = encoded(*(column[first:end] for column in columns))
        assert end == first + 1 or (end > first and len(batch) <= bytes_max)


def test_rows_that_fit_are_one_batch_and_none_are_no_batch():
    assert cuts([None] * 900, [bytes(1000)] * 900, [(("id", bytes(16)),)] * 900, 1_000_000) == [900]
    assert cuts([None] * 9, [bytes(10)] * 9, [()] * 9, 1_000_000) == [9]
    assert cuts([], [], [], 1_000_000) == []


# What is read -------------------------------------------------------------------------------------

records = st.lists(
    st.tuples(
        st.integers(0, 3) | st.integers(0, 100_000),
        st.integers(0, 2**40) | st.sampled_from([0, NOW_MS, NOW_MS + 1, 2**60]),
        st.none() | blobs,
        st.none() | blobs,
        st.lists(st.tuples(names, st.none() | blobs), max_size=3),
    ),
    min_size=1,
    max_size=5,
)


@patient
@given(
    kinds=records,
    count=st.sampled_from(COUNTS),
    seed=st.integers(0, 2**32),
    codec=st.sampled_from(CODECS),
    base=st.integers(0, 2**40),
)
def test_what_another_client_writes_is_read(kinds, count, seed, codec, base):
    data = built(codec, random.Random(seed).choices(kinds, k=count), base=base)
    wanted = theirs(data)
    assert ours(data) == wanted
    one_by_one, as_columns = both(one(data))
    assert one_by_one == as_columns == (wanted, None)
    assert one(data).last_offset == wanted[-1][0]


@pytest.mark.parametrize("codec", CODECS)
def test_thousands_of_records_are_read(codec):
    rng = random.Random(codec)
    some = [
        (
            rng.randrange(2),
            NOW_MS + rng.randrange(10 ** rng.randrange(1, 12)),
            rng.choice([None, b"", rng.randbytes(9)]),
            rng.choice([None, b"", rng.randbytes(rng.randrange(300))]),
            [("é", rng.choice([None, b"", b"x"]))] * rng.randrange(3),
        )
        for _ in range(3_000)
    ]
    data = built(codec, some, base=5) + built(codec, some[:1], base=50_000)
    assert ours(data) == theirs(data)


@patient
@given(
    steps=st.lists(st.lists(st.integers(-2, 9), min_size=4, max_size=4), min_size=1, max_size=20)
)
def test_pieces_are_the_same_whichever_way_they_are_cut(steps):
    """A row is a gap before each of two pieces and its length; a negative one is a null's."""
    at = 0
    spans = ([], [])
    for gap, first, between, second in steps:
        for column, skip, length in zip(spans, (gap, between), (first, second), strict=True):
            at += max(skip, 0)
            column.append((at, length))
            at += max(length, 0)
    data = random.Random(at).randbytes(at + 3)
    wanted = [[None if n < 0 else data[p : p + n] for p, n in column] for column in spans]
    arrays = [tuple(np.array(column, dtype=np.int64).T.copy()) for column in spans]
    assert cutting.by_arrow(data, arrays) == wanted
    assert cutting.by_slices(data, arrays) == wanted
    assert cutting.cut(data, arrays) == wanted


@pytest.mark.parametrize("count", COUNTS)
def test_a_null_value_of_a_header_is_empty(count):
    data = built(0, [(0, 1, None, b"v", [("h", None), ("g", b"x")])] * count)
    assert [row[4] for row in ours(data)] == [[("h", b""), ("g", b"x")]] * count


@pytest.mark.parametrize("count", COUNTS)
def test_records_the_broker_stamped_have_the_time_of_the_batch(count):
    data = built(3, [(0, row, None, b"v" * 30, []) for row in range(count)])
    attributes = struct.unpack_from(">h", data, 21)[0]
    data = changed(changed(data, 35, ">q", NOW_MS), 21, ">h", attributes | 0x08)
    assert one(data).append_time
    assert [row[1] for row in ours(data)] == [NOW_MS] * count
    assert ours(data) == theirs(data)


def test_a_batch_says_who_wrote_it_and_what_it_is():
    data = built(0, [(0, 5, b"k", b"v", [])] * 2, base=9, producer=7)
    batch = one(data)
    assert (batch.base_offset, batch.last_offset, batch.count) == (9, 10, 2)
    assert (batch.producer_id, batch.transactional, batch.control) == (7, True, False)
    assert (batch.first_ms, batch.max_ms, batch.append_time, batch.codec) == (5, 5, False, 0)
    assert batch.intact()
    plain = one(built(0, [(0, 5, b"k", b"v", [])]))
    assert (plain.producer_id, plain.transactional) == (-1, False)


@pytest.mark.parametrize(("kind", "aborted"), [(0, True), (1, False)])
def test_a_marker_says_whether_it_aborts(kind, aborted):
    key = struct.pack(">hh", 0, kind)
    marker = changed(built(0, [(0, 5, key, bytes(6), [])], base=30), 21, ">h", 0x30)
    batch = one(marker)
    assert batch.control
    assert batch.transactional
    assert aborts(batch) is aborted


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_marker_that_says_nothing_is_broken(key):
    marker = changed(built(0, [(0, 5, key, bytes(6), [])]), 21, ">h", 0x30)
    with pytest.raises(BrokenBatch, match="marker"):
        aborts(one(marker))


def test_a_record_of_data_is_no_marker():
    with pytest.raises(BrokenBatch, match="marker"):
        aborts(one(built(0, [(0, 5, bytes(4), b"", [])])))


@pytest.mark.parametrize("codec", CODECS)
def test_what_compaction_leaves_of_a_batch_is_no_records_and_where_it_ended(codec):
    data = built(0, [(0, 5, None, b"v", [])] * 4, base=100)
    empty = changed(changed(data[:HEADER_BYTES], 57, ">i", 0), 21, ">h", codec)
    batch = one(empty)
    assert (rows(decode(batch)), batch.last_offset) == ([], 103)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("alike", [True, False])
def test_records_before_a_header_name_that_is_not_utf_8_are_read(count, alike):
    bad = count - 1 if not alike else 0
    some = [
        (0, 5, None, b"v", [("nnnn" if alike or row == bad else "good", b"x")])
        for row in range(count)
    ]
    some.append((0, 5, None, b"behind", []))
    data = built(0, some, base=7)
    data = sealed(data.replace(b"nnnn", b"n\xff\xfen"))
    found = decode(one(data))
    assert found.unreadable == 7 + bad
    assert [row[0] for row in rows(found)] == list(range(7, 7 + bad))
    one_by_one, as_columns = both(one(data))
    assert one_by_one == as_columns
    whole = sealed(built(0, some[:-1], base=7).replace(b"nnnn", b"n\xff\xfen"))
    one_by_one, as_columns = both(one(whole))
    assert one_by_one == as_columns == (rows(found), 7 + bad)
