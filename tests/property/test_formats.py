"""Every codec of the catalog: what was written comes back, and nothing else ever does."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dedup.errors import Corrupt, InvalidUsage
from dedup.formats import dropped as dropped_formats
from dedup.formats import lane as lane_formats
from dedup.formats import segment as segment_formats
from dedup.formats.envelope import ENVELOPE_BYTES, Kind, Reader, Writer, unwrap, wrap
from dedup.model import (
    Ack,
    BlobRef,
    Counts,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    Kept,
    ReadSeq,
    Seal,
    SegmentList,
    Slot,
    Source,
)

PLACE = "here"
NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 300)
IDENTITIES = st.binary(min_size=16, max_size=16)
NAMES = st.text(max_size=20)
BYTES = st.binary(max_size=200)

REFS = st.builds(HeadRef, IDENTITIES, NUMBERS, IDENTITIES)
SOURCES = st.builds(Source, IDENTITIES, NUMBERS)
FRONTIERS = st.dictionaries(SOURCES, NUMBERS, max_size=4).map(lambda d: Frontier.of(d.items()))
READS = st.lists(st.builds(ReadSeq, NAMES, IDENTITIES, IDENTITIES, NUMBERS), max_size=3).map(tuple)
BLOB_REFS = st.builds(BlobRef, chunks=NUMBERS, rows=NUMBERS, size=NUMBERS, digest=IDENTITIES)
SLOTS = st.builds(Slot, NAMES, IDENTITIES, NUMBERS, IDENTITIES)


def whole(kind: type, **columns: Any):
    """Draw every field: one that is added later is not forgotten here."""
    assert sorted(columns) == sorted(field.name for field in fields(kind))
    return st.builds(kind, **columns)


HEADS = whole(
    Head,
    ref=REFS,
    frontier=FRONTIERS,
    lane_time_ms=NUMBERS,
    minted_at_ms=NUMBERS,
    read_seqs=READS,
    topics=st.lists(st.tuples(NAMES, IDENTITIES), max_size=3).map(tuple),
    writes=st.lists(IDENTITIES, max_size=3).map(tuple),
    past=st.lists(st.builds(Kept, IDENTITIES, NUMBERS), max_size=3).map(tuple),
    state=BYTES,
    window_ms=NUMBERS,
    named=st.text(),
)


@st.composite
def counts(draw):
    verdicts = [draw(st.integers(0, 10**6)) for _ in range(4)]
    fresh, duplicate, remnant, abandoned = verdicts
    return Counts(
        read=sum(verdicts),
        fresh=fresh,
        duplicate=duplicate,
        remnant=remnant,
        abandoned=abandoned,
        dead_letter=draw(st.integers(0, fresh)),
        conflict=draw(st.integers(0, duplicate)),
        unnamed=draw(st.integers(0, sum(verdicts))),
    )


SEALS = whole(
    Seal,
    ref=REFS,
    start=FRONTIERS,
    end=FRONTIERS,
    minted_at_ms=NUMBERS,
    lane_time_ms=NUMBERS,
    code=NAMES,
    counts=counts(),
    learned=READS,
    outputs=BLOB_REFS,
    segment=BLOB_REFS,
    dropped=BLOB_REFS,
    inline_outputs=BYTES,
    inline_segment=BYTES,
    inline_dropped=BYTES,
    window_ms=NUMBERS,
    named=st.text(),
)
ACKS = st.builds(Ack, IDENTITIES, NUMBERS, FRONTIERS)
LISTS = whole(
    SegmentList,
    version=NUMBERS,
    upto=st.integers(-1, 2**64 - 2),
    slots=st.lists(SLOTS, max_size=4).map(tuple),
)


@st.composite
def parts(draw):
    origin = draw(st.sampled_from(segment_formats.Origin))
    internal = origin is segment_formats.Origin.INTERNAL
    ids = draw(st.sets(IDENTITIES, max_size=5))
    seqs = sorted(draw(st.sets(NUMBERS, max_size=4)))
    origins = tuple((Incarnation(draw(IDENTITIES)), seq) for seq in seqs)
    index = [draw(st.integers(0, len(origins) - 1)) for _ in ids] if origins else []
    return segment_formats.Part(
        segment_formats.Bucket(origin, draw(NUMBERS), draw(st.integers(1, 2**32))),
        segment_formats.raw_ids(ids),
        draw(READS) if internal else (),
        draw(st.just(b"") | st.binary(min_size=2 * len(ids), max_size=2 * len(ids))),
        origins,
        segment_formats.pack_indexes(np.array(index, dtype=np.uint32), len(origins)),
    )


SEGMENTS = st.lists(parts(), max_size=3).map(tuple)


@st.composite
def dropped_runs(draw):
    runs = []
    for source in draw(st.lists(SOURCES, max_size=3, unique=True)):
        behind = 0
        for _ in range(draw(st.integers(1, 4))):
            offset = behind + draw(st.integers(0, 2**40))
            count = draw(st.integers(1, 2**40))
            verdict = draw(st.sampled_from(dropped_formats.Verdict))
            runs.append(dropped_formats.Run(source, offset, count, verdict))
            behind = offset + count
    return runs


CODECS = {
    Kind.HEAD: (HEADS, lane_formats.encode_head, lane_formats.decode_head),
    Kind.SEAL: (SEALS, lane_formats.encode_seal, lane_formats.decode_seal),
    Kind.ACK: (ACKS, lane_formats.encode_ack, lane_formats.decode_ack),
    Kind.SEGMENT_LIST: (
        LISTS,
        lane_formats.encode_segment_list,
        lane_formats.decode_segment_list,
    ),
    Kind.SEGMENT: (SEGMENTS, segment_formats.encode_segment, segment_formats.decode_segment),
    Kind.DROPPED: (
        dropped_runs(),
        dropped_formats.encode_dropped,
        dropped_formats.decode_dropped,
    ),
}
each_codec = pytest.mark.parametrize("kind", CODECS)
modest = settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def written(data, kind):
    """Draw a value; return it with its stored form and its decoder."""
    values, encode, decode = CODECS[kind]
    value = data.draw(values)
    return value, encode(value), decode


@each_codec
@modest
@given(data=st.data())
def test_what_was_written_comes_back(kind, data):
    value, blob, decode = written(data, kind)
    assert decode(blob, PLACE) == value
    assert CODECS[kind][1](decode(blob, PLACE)) == blob


@each_codec
@modest
@given(data=st.data())
def test_a_blob_cut_anywhere_is_corrupt(kind, data):
    _, blob, decode = written(data, kind)
    cut = data.draw(st.integers(0, len(blob) - 1))
    with pytest.raises(Corrupt, match=PLACE):
        decode(blob[:cut], PLACE)


@each_codec
@modest
@given(data=st.data())
def test_a_blob_that_goes_on_is_corrupt(kind, data):
    _, blob, decode = written(data, kind)
    more = data.draw(st.binary(min_size=1, max_size=40))
    with pytest.raises(Corrupt, match=PLACE):
        decode(blob + more, PLACE)


@each_codec
@modest
@given(data=st.data())
def test_any_changed_byte_is_corrupt(kind, data):
    _, blob, decode = written(data, kind)
    at = data.draw(st.integers(0, len(blob) - 1))
    changed = bytearray(blob)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt, match=PLACE):
        decode(bytes(changed), PLACE)


@each_codec
@modest
@given(data=st.data())
def test_a_version_of_another_release_is_refused_with_what_to_do(kind, data):
    _, blob, decode = written(data, kind)
    known = unwrap(blob, kind, version_max=255, place=PLACE)[0]
    version = data.draw(st.integers(0, 255).filter(lambda it: not 1 <= it <= known))
    with pytest.raises(InvalidUsage, match="install the release that wrote it") as refused:
        decode(wrap(kind, version, blob[ENVELOPE_BYTES:]), PLACE)
    assert refused.value.subject == PLACE


@each_codec
@modest
@given(data=st.data())
def test_a_blob_of_another_kind_is_corrupt(kind, data):
    _, blob, decode = written(data, kind)
    other = data.draw(st.sampled_from([it for it in Kind if it is not kind]))
    with pytest.raises(Corrupt, match=f"a {kind.name} belongs here"):
        decode(wrap(other, 1, blob[ENVELOPE_BYTES:]), PLACE)


@each_codec
@settings(modest, max_examples=80)
@given(data=st.data())
def test_a_body_that_no_writer_of_ours_wrote_is_corrupt_or_a_value(kind, data):
    """Even below a right checksum: no other exception, no endless loop, no huge allocation."""
    values, encode, decode = CODECS[kind]
    body = bytearray(encode(data.draw(values))[ENVELOPE_BYTES:])
    if data.draw(st.booleans()):
        body = bytearray(data.draw(st.binary(max_size=300)))
    elif body:
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=12))
    try:
        value = decode(wrap(kind, 1, bytes(body)), PLACE)
    except Corrupt as corrupt:
        assert corrupt.subject == PLACE  # noqa: PT017 - both outcomes are right
    else:
        assert decode(encode(value), PLACE) == value


def test_dropped_offsets_name_a_partition_once_in_a_row():
    """Or one list would have two spellings, and the second could let offsets fall."""
    run = dropped_formats.Run(Source(bytes(16), 0), 7, 1, dropped_formats.Verdict.REMNANT)
    named = Writer().uint(1).raw(run.source.topic).uint(0).uint(7).uint(1).uint(run.verdict).body()
    body = Writer().uint(2).raw(named).raw(named).body()
    with pytest.raises(Corrupt, match="named again"):
        dropped_formats.decode_dropped(wrap(Kind.DROPPED, 1, body), PLACE)


@modest
@given(kind=st.sampled_from(Kind), version=st.integers(1, 255), body=BYTES)
def test_the_envelope_gives_back_what_it_was_given(kind, version, body):
    blob = wrap(kind, version, body)
    assert len(blob) == ENVELOPE_BYTES + len(body)
    assert unwrap(blob, kind, version_max=version, place=PLACE) == (version, body)


@modest
@given(number=NUMBERS, data=BYTES, text=NAMES, raw=BYTES)
def test_the_primitives_give_back_what_they_were_given(number, data, text, raw):
    body = Writer().uint(number).data(data).text(text).raw(raw).body()
    reader = Reader(body, PLACE)
    assert (reader.uint(), reader.data(), reader.text(), reader.raw(len(raw))) == (
        number,
        data,
        text,
        raw,
    )
    reader.end()


@modest
@given(body=st.binary(min_size=10, max_size=11).map(lambda it: bytes(b | 0x80 for b in it)))
def test_a_number_of_more_than_64_bits_is_corrupt(body):
    with pytest.raises(Corrupt, match="64 bits"):
        Reader(body, PLACE).uint()


def test_a_number_just_above_64_bits_is_corrupt():
    with pytest.raises(Corrupt, match="64 bits"):
        Reader(b"\xff" * 9 + b"\x02", PLACE).uint()
    assert Reader(b"\xff" * 9 + b"\x01", PLACE).uint() == 2**64 - 1


@modest
@given(body=st.binary(min_size=1, max_size=20))
def test_what_a_body_has_left_over_is_corrupt(body):
    reader = Reader(body, PLACE)
    with pytest.raises(Corrupt, match="longer than its fields"):
        reader.end()
    with pytest.raises(Corrupt, match="ends too early"):
        reader.raw(len(body) + 1)


def test_the_fixed_part_of_a_seal_is_small():
    """Longer lists go behind a reference, so that a seal stays one small row."""
    reads = tuple(ReadSeq(f"shop/orders/{n}", bytes(16), bytes(16), 2**40) for n in range(4))
    frontier = Frontier.of([(Source(bytes(16), 3), 2**40)])
    ref = HeadRef(bytes(16), 2**40, bytes(16))
    seal = Seal(
        ref=ref, start=frontier, end=frontier, minted_at_ms=2**42, lane_time_ms=2**42, learned=reads
    )
    assert len(lane_formats.encode_seal(seal)) < 1024
