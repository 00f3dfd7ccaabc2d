"""What is quick about frozen values gives what the plain way gives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.frozen import replace
from dedup.model import Attempt, Frontier, HeadRef, Incarnation, Source, TopicId
from delivery.batch import Batch, joined
from delivery.protocol.state import Lane, Phase

REF = HeadRef(Incarnation(b"i" * 16), 7, Attempt(b"a" * 16))
SOURCES = [Source(TopicId(bytes([topic]) * 16), number) for topic in (1, 2) for number in (0, 1)]
frontiers = st.dictionaries(st.sampled_from(SOURCES), st.integers(0, 9), max_size=3)


def test_a_value_with_some_fields_changed():
    lane = Lane(tickets=3, story=())
    for changes in ({}, {"phase": Phase.OPEN}, {"tickets": 4, "losses": 1}):
        ours, plain = replace(lane, **changes), dataclasses.replace(lane, **changes)
        assert ours == plain
        assert ours.story == plain.story
    assert replace(REF, seq=8) == HeadRef(REF.incarnation, 8, REF.attempt)


def test_what_its_class_refuses_is_refused():
    with pytest.raises(AssertionError, match="16 bytes"):
        replace(REF, attempt=b"short")
    with pytest.raises(TypeError, match="unexpected keyword"):
        replace(REF, sequence=8)


@given(frontiers, frontiers)
def test_frontiers_are_what_dictionaries_of_offsets_are(one, other):
    mine, theirs = Frontier.of(one.items()), Frontier.of(other.items())
    every = {**one, **other}
    most = {source: max(one.get(source, 0), other.get(source, 0)) for source in every}
    assert dict(mine.merged(theirs)) == most
    assert mine.covers(theirs) == all(one.get(at, -1) >= offset for at, offset in other.items())
    assert Frontier.of(mine.positions) == mine
    assert list(mine) == sorted(one.items())


def test_a_position_is_not_negative():
    with pytest.raises(AssertionError, match="not negative"):
        Frontier.of([(SOURCES[0], -1)])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_batches_as_one(counts):
    batches, at = [], 0
    for count in counts:
        offsets = np.arange(at, at + count, dtype=np.int64)
        batches.append(
            Batch(
                SOURCES[0],
                offsets,
                offsets + 1_000,
                [b"k%d" % offset for offset in offsets],
                [b"v%d" % offset if offset % 2 else None for offset in offsets],
                [(("n", b"%d" % offset),) if offset % 3 else None for offset in offsets],
            )
        )
        at += count + 1  # a hole
    one = joined(batches)
    assert list(one) == [record for batch in batches for record in batch]
    assert len(one) == sum(counts)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8, unique=True),
    st.tuples(*[st.integers(0, 6)] * 2),
)
def test_a_cut_is_what_lies_in_the_range(offsets, ends):
    offsets, (start, end) = sorted(offsets), sorted(ends)
    column = np.array(offsets, dtype=np.int64)
    names = [b"%d" % offset for offset in offsets]
    batch = Batch(SOURCES[0], column, column, names, names, [()] * len(names))
    assert batch.cut(start, end).offsets.tolist() == [o for o in offsets if start <= o < end]
