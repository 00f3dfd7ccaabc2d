"""Record batches that are broken, one way or another: an error, and never other records."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.kafka.wire import codecs
from delivery.kafka.wire.decoding import BrokenBatch, OldFormat, decode, split
from tests.property.wire_kit import (
    CODECS,
    FREE,
    HEADER_BYTES,
    MAGIC_AT,
    MANY,
    NOW_MS,
    both,
    built,
    changed,
    one,
    ours,
    patient,
    rows,
    sealed,
    theirs,
)

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
        for row in range(MANY + 1)
    ]
    alike = [(0, NOW_MS, None, b"some value", [("id", bytes(16))])] * MANY
    return [
        built(codec, some, base=1000)
        for some in (mixed, mixed[:4], alike, alike[:2])
        for codec in CODECS
    ]


VICTIMS = victims()
#: Those that are not compressed.
PLAIN = VICTIMS[:: len(CODECS)]


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
    which=st.sampled_from(PLAIN),
    at=st.integers(0, 10_000),
    put=st.binary(min_size=1, max_size=6) | st.sampled_from([b"\xff" * 9, b"\x01", b"\x80\x01"]),
)
def test_both_ways_of_reading_find_the_same_broken(which, at, put):
    data = bytearray(which)
    at = HEADER_BYTES + at % (len(data) - HEADER_BYTES)
    data[at : at + len(put)] = put
    one_by_one, as_columns = both(one(sealed(data)))
    assert one_by_one == as_columns


@pytest.mark.parametrize("data", PLAIN, ids=range(len(PLAIN)))
def test_records_cut_short_are_broken(data):
    for end in range(HEADER_BYTES, len(data)):
        batch = one(sealed(data[:end]))
        with pytest.raises(BrokenBatch) as caught:
            decode(batch)
        assert caught.value.offset == 1000
        if end > HEADER_BYTES:
            assert both(batch) == [None, None]


@pytest.mark.parametrize("data", PLAIN, ids=range(len(PLAIN)))
def test_something_behind_the_records_is_broken(data):
    for more in (b"\0", bytes(7), b"\x0c" + bytes(6)):
        with pytest.raises(BrokenBatch):
            decode(one(sealed(data + more)))


@pytest.mark.parametrize("data", PLAIN, ids=range(len(PLAIN)))
@pytest.mark.parametrize("step", [-(2**31) + 99, -99, -2, -1, 1, 1000])
def test_another_number_of_records_is_broken(data, step):
    (count,) = struct.unpack_from(">i", data, 57)
    with pytest.raises(BrokenBatch):
        ours(changed(data, 57, ">i", count + step))


@pytest.mark.parametrize("data", PLAIN, ids=range(len(PLAIN)))
def test_an_offset_behind_the_last_one_is_broken(data):
    (delta,) = struct.unpack_from(">i", data, 23)
    with pytest.raises(BrokenBatch):
        ours(changed(data, 23, ">i", delta - 1))
    assert ours(changed(data, 23, ">i", delta + 9)) == ours(data)


@pytest.mark.parametrize("count", [2, MANY])
def test_offsets_that_do_not_rise_are_broken(count):
    body = bytes([14, 0, 0, 0, 1, 2, 120, 0]) * count
    data = built(0, [(0, 0, None, b"x", [])] * count)[:HEADER_BYTES] + body
    with pytest.raises(BrokenBatch, match="rise"):
        ours(sealed(data))


@pytest.mark.parametrize("count", [1, MANY])
def test_every_negative_length_is_a_null_as_kafka_reads_it(count):
    body = b"".join(bytes([12, 0, 0, 2 * row, 3, 5, 0]) for row in range(count))
    data = sealed(built(0, [(0, 0, None, b"", [])] * count)[:HEADER_BYTES] + body)
    assert [row[2:] for row in ours(data)] == [(None, None, [])] * count
    assert ours(data) == theirs(data)


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize(("length", "headers"), [(13, 0), (12, 1)])
def test_a_record_of_negative_length_or_with_less_than_no_headers_is_broken(count, length, headers):
    body = b"".join(bytes([length, 0, 0, 2 * row, 1, 1, headers]) for row in range(count))
    data = sealed(built(0, [(0, 0, None, b"", [])] * count)[:HEADER_BYTES] + body)
    with pytest.raises(BrokenBatch):
        ours(data)


@pytest.mark.parametrize("count", [1, MANY])
def test_a_time_of_more_bits_than_there_are_loses_them_whichever_way_it_is_read(count):
    time = b"\xff" * 9 + b"\x7f"
    some = [bytes([30, 0]) + time + bytes([2 * row, 1, 1, 0]) for row in range(count)]
    data = sealed(built(0, [(0, 0, None, b"", [])] * count)[:HEADER_BYTES] + b"".join(some))
    one_by_one, as_columns = both(one(data))
    assert one_by_one == as_columns
    assert one_by_one[0][0][1] == -(2**63)


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


def test_blocks_of_lz4_are_independent_as_kafka_wants_them_and_do_not_tell_their_size():
    flags = codecs.compress(codecs.LZ4, b"some text " * 99_999)[4]
    assert flags & 0b0010_0000
    assert not flags & 0b0000_1000


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
