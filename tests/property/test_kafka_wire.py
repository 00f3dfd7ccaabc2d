"""Record batches and columns: the same records as another client writes and reads, or an error."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from delivery.kafka.wire import codecs, decoding
from delivery.kafka.wire.decoding import BrokenBatch, OldFormat, aborts, decode, split
from delivery.kafka.wire.encoding import cuts, encode, stamp
from delivery.kafka.wire.reading import Broken

patient = settings(deadline=None)

HEADER_BYTES = 61
MAGIC_AT = 16
NOW_MS = 1_700_000_000_123
CODECS = range(5)
#: On both sides of every change of method.
COUNTS = [1, 2, 5, 11, 12, 13, 39, 40, 41, 63, 64, 65, 150]
#: Bytes of a batch that the CRC does not cover, and no length: its first offset, its leader's epoch.
FREE = {*range(8), *range(12, 16)}

blobs = st.binary(max_size=9) | st.integers(0, 400).map(bytes)
names = st.sampled_from(["id", "", "ключ", "x-" + "n" * 70])
some_headers = st.lists(st.tuples(names, blobs), max_size=3).map(tuple)


@st.composite
def columns(draw):
    """Rows that are all alike, or of a few kinds, or of many."""
    count = draw(st.sampled_from(COUNTS))
    rng = random.Random(draw(st.integers(0, 2**32)))
    keys = draw(
        st.just([None]) | st.lists(blobs, min_size=1) | st.lists(st.none() | blobs, min_size=1)
    )
    values = draw(st.lists(blobs, min_size=1) | st.lists(st.none() | blobs, min_size=1))
    if draw(st.booleans()):
        shape = draw(st.lists(names, max_size=3))
        width = draw(st.none() | st.integers(0, 100))
        headers = [
            tuple(
                (name, rng.randbytes(rng.randrange(100) if width is None else width))
                for name in shape
            )
            for _ in range(count)
        ]
    else:
        headers = rng.choices(draw(st.lists(some_headers, min_size=1, max_size=5)), k=count)
    return rng.choices(keys, k=count), rng.choices(values, k=count), headers


def encoded(keys, values, headers, codec=0):
    batch = encode(keys, values, headers, timestamp_ms=NOW_MS, codec=codec)
    assert type(batch) is bytearray
    stamp(batch, 77, 3, 9)
    return batch


def rows(found):
    """Return columns as another client returns records."""
    headers = [list(some or ()) for some in found.headers]
    assert [] not in found.headers
    assert () not in found.headers
    assert found.offsets.dtype == found.timestamps_ms.dtype == np.int64
    plain = (
        found.offsets.tolist(),
        found.timestamps_ms.tolist(),
        found.keys,
        found.values,
        headers,
    )
    return list(zip(*plain, strict=True))


def ours(data):
    return [row for batch in split(memoryview(data)) for row in rows(decode(batch))]


def theirs(data):
    return [
        (r.offset, r.timestamp, r.key, r.value, [(name, value or b"") for name, value in r.headers])
        for batch in MemoryRecords(bytes(data))
        for r in batch
    ]


def one(data):
    (batch,) = split(memoryview(data))
    return batch


def sealed(batch):
    """Return a batch whose length and CRC are those of its bytes, whatever these are."""
    batch = bytearray(batch)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def changed(batch, at, kind, value):
    batch = bytearray(batch)
    struct.pack_into(kind, batch, at, value)
    return sealed(batch)


def built(codec, records, *, base=0, magic=2, producer=-1):
    """Return a batch of another client's; a record is a step in offsets, and what it holds."""
    builder = MemoryRecordsBuilder(
        magic, codec, 1 << 30, 0, producer >= 0, producer, producer, producer
    )
    for step, *record in records:
        builder.skip(step)
        builder.append(*record)
    builder.close()
    data = builder.buffer()
    struct.pack_into(">q", data, 0, base)
    return bytes(data)


def both(batch):
    """Return what each of our ways of reading makes of a batch; None: it is broken."""
    data = codecs.decompress(batch.codec, batch.records)
    found = []
    for way in (decoding._one_by_one, decoding._as_columns):
        try:
            made = way(batch, data)
            found.append((rows(made), made.unreadable))
        except Broken:
            found.append(None)
    return found


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
    for count in (1, 15) if length < 1 << 20 else (1,):
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


# What is broken -----------------------------------------------------------------------------------


def victims():
    """Batches to break: few records and many, alike and not, plain and compressed."""
    mixed = [
        (
            row % 3,
            NOW_MS + row * 37,
            None if row % 5 else b"key",
            b"v" * (row % 80),
            [("n", b"x")] * (row % 3),
        )
        for row in range(50)
    ]
    alike = [(0, NOW_MS, None, b"some value", [("id", bytes(16))])] * 45
    return [
        built(codec, some, base=1000)
        for some in (mixed, mixed[:4], alike, alike[:2])
        for codec in CODECS
    ]


VICTIMS = victims()


@pytest.mark.parametrize("data", VICTIMS, ids=range(len(VICTIMS)))
def test_an_incomplete_batch_is_passed_over(data):
    whole = VICTIMS[0]
    for end in range(0, len(data), 7):
        assert list(split(memoryview(data)[:end])) == []
    for end in (0, 1, 11, 12, 17, 60, 61, len(data) - 1):
        assert ours(whole + data[:end]) == theirs(whole)


@patient
@given(which=st.sampled_from(VICTIMS), at=st.integers(0, 10_000), change=st.integers(1, 255))
def test_a_changed_byte_is_noticed(which, at, change):
    data = bytearray(which)
    at %= len(data)
    data[at] ^= change
    try:
        found = ours(data)
    except OldFormat:
        found = None if at == MAGIC_AT else "another format"
    except BrokenBatch:
        found = None
    assert not found or at in FREE


@settings(deadline=None, max_examples=400)
@given(
    which=st.sampled_from(VICTIMS),
    at=st.integers(0, 10_000),
    put=st.binary(min_size=1, max_size=6)
    | st.sampled_from([b"\xff" * 9, b"\xff" * 12, b"\x01", b"\x80\x01"]),
)
def test_a_batch_changed_before_its_crc_was_made_is_broken_or_read_alike(which, at, put):
    data = bytearray(which)
    at = 21 + at % (len(data) - 21)
    data[at : at + len(put)] = put
    try:
        batch = one(sealed(data))
        made = decode(batch)
    except BrokenBatch:
        made = None
    if made is not None:
        assert len(rows(made)) == batch.count or made.unreadable is not None
        assert both(batch) == [(rows(made), made.unreadable)] * 2


@settings(deadline=None, max_examples=400)
@given(
    which=st.sampled_from([data for data in VICTIMS if data[22] & 7 == 0]),
    at=st.integers(0, 10_000),
    put=st.binary(min_size=1, max_size=6) | st.sampled_from([b"\xff" * 9, b"\x01", b"\x80\x01"]),
)
def test_both_ways_of_reading_find_the_same_broken(which, at, put):
    data = bytearray(which)
    at = HEADER_BYTES + at % (len(data) - HEADER_BYTES)
    data[at : at + len(put)] = put
    one_by_one, as_columns = both(one(sealed(data)))
    assert one_by_one == as_columns


@pytest.mark.parametrize("which", [0, 5, 10, 15])
def test_records_cut_short_are_broken(which):
    data = VICTIMS[which]
    for end in range(HEADER_BYTES, len(data)):
        batch = one(sealed(data[:end]))
        with pytest.raises(BrokenBatch) as caught:
            decode(batch)
        assert caught.value.offset == 1000
        if end > HEADER_BYTES:
            assert both(batch) == [None, None]


@pytest.mark.parametrize("data", VICTIMS, ids=range(len(VICTIMS)))
def test_something_behind_the_records_is_broken(data):
    if data[22] & 7:
        return
    for more in (b"\0", bytes(7), b"\x0c" + bytes(6)):
        with pytest.raises(BrokenBatch):
            decode(one(sealed(data + more)))


@pytest.mark.parametrize("which", [0, 5, 10, 15])
@pytest.mark.parametrize("step", [-2, -1, 1, 1000])
def test_another_number_of_records_is_broken(which, step):
    data = VICTIMS[which]
    (count,) = struct.unpack_from(">i", data, 57)
    with pytest.raises(BrokenBatch):
        ours(changed(data, 57, ">i", count + step))


@pytest.mark.parametrize("which", [0, 5, 10, 15])
def test_an_offset_behind_the_last_one_is_broken(which):
    data = VICTIMS[which]
    (delta,) = struct.unpack_from(">i", data, 23)
    with pytest.raises(BrokenBatch):
        ours(changed(data, 23, ">i", delta - 1))
    assert ours(changed(data, 23, ">i", delta + 9)) == ours(data)


@pytest.mark.parametrize("count", [2, 50])
def test_offsets_that_do_not_rise_are_broken(count):
    body = bytes([14, 0, 0, 0, 1, 2, 120, 0]) * count
    data = built(0, [(0, 0, None, b"x", [])] * count)[:HEADER_BYTES] + body
    with pytest.raises(BrokenBatch, match="rise"):
        ours(sealed(data))


@pytest.mark.parametrize("count", [1, 50])
def test_every_negative_length_is_a_null_as_kafka_reads_it(count):
    body = b"".join(bytes([12, 0, 0, 2 * row, 3, 5, 0]) for row in range(count))
    data = sealed(built(0, [(0, 0, None, b"", [])] * count)[:HEADER_BYTES] + body)
    assert [row[2:] for row in ours(data)] == [(None, None, [])] * count
    assert ours(data) == theirs(data)


def test_no_length_is_negative_and_none_too_short_for_a_batch():
    data = bytearray(VICTIMS[0])
    for length in (-1, -(2**31), 5, 48):
        struct.pack_into(">i", data, 8, length)
        with pytest.raises(BrokenBatch):
            ours(data)


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_format_is_told_apart(magic):
    data = built(0, [(0, NOW_MS, b"k", b"some value", [])], base=4, magic=magic)
    with pytest.raises(OldFormat) as caught:
        ours(data)
    assert caught.value.offset == 4


def test_a_format_and_a_codec_that_are_not_there_yet_are_broken():
    data = bytearray(VICTIMS[0])
    data[16] = 3
    with pytest.raises(BrokenBatch, match="format 3"):
        ours(data)
    with pytest.raises(BrokenBatch, match="codec 5"):
        ours(changed(VICTIMS[0], 21, ">h", 5))


@pytest.mark.parametrize("base", [-1, -(2**63), 2**63 - 1])
def test_an_offset_that_no_log_has_is_broken(base):
    data = bytearray(VICTIMS[0])
    struct.pack_into(">q", data, 0, base)
    with pytest.raises(BrokenBatch):
        ours(data)


# Codecs -------------------------------------------------------------------------------------------


@patient
@given(
    codec=st.sampled_from(CODECS),
    data=st.binary(max_size=99)
    | st.integers(0, 200_000).map(lambda size: b"abcdefg" * (size // 7)),
)
def test_what_was_compressed_is_what_comes_back(codec, data):
    assert codecs.decompress(codec, memoryview(codecs.compress(codec, data))) == data


def test_snappy_without_its_frame_is_read():
    from kafka.codec import snappy_encode  # noqa: PLC0415  an extra of kafka-python

    data = b"some text " * 99
    assert codecs.decompress(codecs.SNAPPY, snappy_encode(data, xerial_compatible=False)) == data


def test_snappy_does_not_take_the_memory_that_it_is_told_to():
    with pytest.raises(codecs.Garbled, match="said to hold"):
        codecs.decompress(codecs.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20))


@pytest.mark.parametrize("codec", [-1, 5, 7])
def test_a_codec_that_cannot_be_had_is_named(codec):
    for call in (codecs.compress, codecs.decompress):
        with pytest.raises(codecs.NoCodec, match=f"codec {codec}"):
            call(codec, b"")


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_no_codec_made_is_garbled(codec):
    whole = codecs.compress(codec, b"some text " * 99)
    for data in (b"", b"x", b"no such thing " * 9, whole[:-1], whole[: len(whole) // 2]):
        with pytest.raises(codecs.Garbled):
            codecs.decompress(codec, data)
