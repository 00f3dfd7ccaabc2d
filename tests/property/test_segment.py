"""Segments in numbers: cut, chunked, and read back whole or not at all."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.catalog.store import CHUNK_BYTES_MAX
from dedup.errors import Corrupt
from dedup.formats.segment import (
    CHUNK_IDS,
    Bucket,
    Origin,
    Part,
    decode_segment,
    dense,
    encode_segment,
    pack_indexes,
    raw_ids,
    segment_chunks,
    whole_segment,
)
from dedup.model import Attempt, Frontier, Head, HeadRef, Incarnation, Kept, ReadSeq, TopicId

BUCKET = Bucket(Origin.EXTERNAL, 3, 4)
OLD, NEW, LOST = (Incarnation(name * 16) for name in (b"o", b"n", b"l"))
#: Kept: 0 to 4 of the old incarnation, 5 to 9 of the new one.
HEAD = Head(ref=HeadRef(NEW, 9, Attempt(b"a" * 16)), frontier=Frontier(), past=(Kept(OLD, 4),))
SEALS = ((OLD, 0), (OLD, 4), (NEW, 5), (OLD, 6), (NEW, 9), (LOST, 10), (NEW, 11))
modest = settings(deadline=None, max_examples=100)


def large(count: int, *, origins: int = 0, digests: bool = False) -> Part:
    rng = random.Random(count)
    of = np.array([rng.randrange(origins) for _ in range(count)] if origins else [], dtype=np.int64)
    return Part(
        BUCKET,
        raw_ids([rng.randbytes(16) for _ in range(count)]),
        digests=rng.randbytes(2 * count) if digests else b"",
        origins=tuple((OLD, 3 * seq) for seq in range(origins)),
        origin_of=pack_indexes(of, origins),
    )


@st.composite
def merged_parts(draw):
    ids = draw(st.sets(st.binary(min_size=16, max_size=16), max_size=40))
    index = [draw(st.integers(0, len(SEALS) - 1)) for _ in ids]
    digests = draw(st.just(b"") | st.binary(min_size=2 * len(ids), max_size=2 * len(ids)))
    of = pack_indexes(np.array(index, dtype=np.int64), len(SEALS))
    return Part(BUCKET, raw_ids(ids), digests=digests, origins=SEALS, origin_of=of)


def facts(part: Part) -> list[tuple[bytes, bytes, object]]:
    """Everything said about each id."""
    of = part.indexes().tolist() if part.origins else [None] * part.count
    return [
        (one, part.digests[2 * at : 2 * at + 2], part.origins[of[at]] if part.origins else None)
        for at, one in enumerate(part)
    ]


@modest
@given(merged_parts(), st.integers(0, 40), st.integers(0, 40))
def test_rows_of_a_part_say_the_same_about_their_ids(part, first, end):
    first, end = sorted((min(first, part.count), min(end, part.count)))
    cut = part.rows(first, end)
    assert facts(cut) == facts(part)[first:end]
    assert set(cut.origins) <= set(SEALS)


@modest
@given(merged_parts())
def test_ids_of_abandoned_seals_do_not_count(part):
    kept = {(OLD, 0), (OLD, 4), (NEW, 5), (NEW, 9)}
    assert facts(part.of_history(HEAD)) == [fact for fact in facts(part) if fact[2] in kept]


@modest
@given(merged_parts())
def test_a_merged_part_comes_back(part):
    assert decode_segment(encode_segment((part,)), "here") == (part,)


def test_ids_of_a_plain_part_count_whatever_the_history():
    part = large(100)
    assert part.of_history(HEAD) is part


@pytest.mark.parametrize("count", [1, CHUNK_IDS - 1, CHUNK_IDS, CHUNK_IDS + 1, 3 * CHUNK_IDS + 5])
@pytest.mark.parametrize("origins", [0, 1, 70_000])
def test_a_segment_is_cut_into_chunks_that_every_store_takes(count, origins):
    part = large(count, origins=origins, digests=True)
    chunks = segment_chunks((part,))
    assert len(chunks) == -(-count // CHUNK_IDS)
    assert all(len(chunk) <= CHUNK_BYTES_MAX for chunk in chunks)
    parts = whole_segment(chunks, "here")
    assert [fact for one in parts for fact in facts(one)] == facts(part)
    ranges = [(one.ids[:16], one.ids[-16:]) for one in parts]
    assert ranges == sorted(ranges), "the chunks follow each other in the order of their ids"


@pytest.mark.parametrize("missing", range(3))
def test_a_segment_with_a_chunk_missing_is_not_whole(missing):
    chunks = segment_chunks((large(2 * CHUNK_IDS + 1),))
    assert len(chunks) == 3
    del chunks[missing]
    assert whole_segment(chunks, "here") is None
    assert whole_segment([], "here") is None


def test_seqs_of_origins_may_lie_as_far_apart_as_they_like():
    seqs = [0, 1, 256, 1 << 16, 1 << 33, (1 << 64) - 1]
    origins = tuple((NEW if seq % 2 else OLD, seq) for seq in seqs)
    ids = raw_ids([bytes([at]) * 16 for at in range(6)])
    part = Part(BUCKET, ids, origins=origins, origin_of=pack_indexes(np.arange(6), 6))
    assert decode_segment(encode_segment((part,)), "here") == (part,)


@modest
@given(st.lists(st.integers(0, 50) | st.integers(0, 1 << 40), max_size=50))
def test_numbers_are_told_apart(numbers):
    known, places = dense(np.array(numbers, dtype=np.int64))
    assert known.tolist() == sorted(set(numbers))
    assert [known[place] for place in places] == numbers


@pytest.mark.parametrize("count", [3, 200])
def test_ids_that_are_not_sorted_or_come_twice_are_corrupt(count):
    ids = [bytes([1 + at]) * 16 for at in range(count)]
    for wrong in ([*ids, ids[-1]], [ids[1], ids[0], *ids[2:]]):
        good = encode_segment((Part(BUCKET, b"".join(sorted(set(wrong)))),))
        part = object.__new__(Part)
        for name, value in (
            ("bucket", BUCKET),
            ("ids", b"".join(wrong)),
            ("seen", ()),
            ("digests", b""),
            ("origins", ()),
            ("origin_of", b""),
        ):
            object.__setattr__(part, name, value)
        bad = encode_segment((part,))
        assert good != bad
        with pytest.raises(Corrupt, match="sorted and unique"):
            decode_segment(bad, "here")


def test_what_a_reader_could_not_rely_on_is_refused():
    ids = b"a" * 16 + b"b" * 16
    read = ReadSeq("s", OLD, TopicId(b"t" * 16), 1)
    for more in (
        {"ids": ids[:-1]},
        {"digests": b"123"},
        {"seen": (read,)},
        {"origins": ((OLD, 1),)},
        {"origin_of": b"\0\0\0\0"},
        {"origins": ((OLD, 1),), "origin_of": b"\0\0\1\0"},
        {"origins": ((OLD, 1), (NEW, 1)), "origin_of": b"\0\0\0\0"},
        {"origins": ((OLD, 2), (OLD, 1)), "origin_of": b"\0\0\0\0"},
    ):
        with pytest.raises(AssertionError):
            Part(**{"bucket": BUCKET, "ids": ids, **more})
    with pytest.raises(AssertionError, match="at least ten minutes"):
        Bucket(Origin.EXTERNAL, 1, 0)
