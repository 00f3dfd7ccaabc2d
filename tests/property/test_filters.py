"""No false negative, ever: any ids, any batches, any size, in memory and in files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.arrays import Ids, from_raw
from dedup.filters import ENGINES, create_filter, grown, new_filter, open_filter
from dedup.filters.header import PAGE_BYTES
from dedup.filters.sizing import GROWTH_FACTOR, lines
from dedup.formats.segment import Bucket, Origin
from dedup.model import LANE_NAME_BYTES_MAX, HeadRef

#: With the compiled library and without it.
pytestmark = pytest.mark.usefixtures("both_ways")

engines = pytest.mark.parametrize("engine", sorted(ENGINES))

NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 300)
IDENTITIES = st.binary(min_size=16, max_size=16)
#: Halves that collide, and halves that do not.
HALVES = st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**34, 2**63, 2**64 - 1]) | NUMBERS
IDS = st.lists(st.tuples(HALVES, HALVES), max_size=60).map(
    lambda pairs: np.array(pairs, dtype=np.uint64).reshape(-1, 2)
)
BATCHES = st.lists(IDS, max_size=6)
CAPACITIES = st.integers(1, 5_000)
RATES = st.floats(1e-6, 0.1)
KEYS = st.none() | IDENTITIES
TAGS = st.builds(HeadRef, IDENTITIES, NUMBERS, IDENTITIES)
BUCKETS = st.builds(Bucket, st.sampled_from(Origin), st.integers(0, 2**40), st.integers(1, 10_000))
LANES = st.text(st.characters(codec="utf-8"), max_size=60).filter(
    lambda name: len(name.encode()) <= LANE_NAME_BYTES_MAX
)


@engines
@given(batches=BATCHES, capacity=CAPACITIES, rate=RATES, key=KEYS)
def test_what_was_added_is_found_whatever_it_is(engine, batches, capacity, rate, key):
    one = new_filter(capacity, engine=engine, rate=rate, key=key)
    for index, batch in enumerate(batches):
        one.add(batch)
        for known in batches[: index + 1]:
            assert one.maybe(known).all()
    assert one.count == sum(map(len, batches))
    assert 0 <= one.rate() <= 1


@given(raw=st.binary(max_size=400), times=st.integers(1, 2_000), key=KEYS)
def test_a_batch_that_meets_itself_in_a_few_words_loses_nothing(raw, times, key):
    """Many patterns for one word in one batch: the scatter keeps one of them."""
    ids = from_raw(raw[: len(raw) // 16 * 16])
    crowd = np.repeat(ids, times, axis=0)
    crowd[:, 1] += np.arange(len(crowd), dtype=np.uint64) << np.uint64(34)
    one = new_filter(40, key=key)
    one.add(crowd)
    assert one.maybe(crowd).all()


@engines
@settings(deadline=None)
@given(
    batches=BATCHES,
    sized=st.tuples(CAPACITIES, KEYS),
    tags=st.lists(TAGS, min_size=1, max_size=4),
    whose=st.fixed_dictionaries({"lane": LANES, "bucket": BUCKETS}),
)
def test_every_reopened_file_keeps_every_id(engine, batches, sized, tags, whose):
    whose = whose | {"engine": engine}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "filter"
        create_filter(path, sized[0], key=sized[1], **whose).close()
        for index, tag in enumerate(tags):
            writer = open_filter(path, writable=True, **whose)
            reader = open_filter(path, **whose)
            known: list[Ids] = batches[: index + 1]
            writer.add(np.concatenate([*known, np.empty((0, 2), dtype=np.uint64)]))
            writer.set_tag(tag)
            assert reader.tag == tag
            assert reader.count == writer.count
            writer.close()
            for batch in known:
                assert reader.maybe(batch).all()
            reader.close()


@given(data=st.data())
@settings(deadline=None)
def test_a_damaged_page_is_none_or_an_earlier_state(data):
    """Whatever is left of the header, no id is denied that the tag found promises."""
    ids = np.arange(40, dtype=np.uint64).reshape(-1, 2)
    whose = {"lane": "a/b/0", "bucket": Bucket(Origin.INTERNAL, 5)}
    tags = [HeadRef(b"i" * 16, seq, b"a" * 16) for seq in range(4)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "filter"
        one = create_filter(path, 100, **whose)
        for seq, tag in enumerate(tags):
            one.add(ids[seq * 5 : seq * 5 + 5])
            one.set_tag(tag)
        one.close()
        whole = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, PAGE_BYTES - 1))
            piece = data.draw(st.binary(min_size=1, max_size=300))[: PAGE_BYTES - at]
            whole[at : at + len(piece)] = piece
        with path.open("r+b") as file:  # in place: the inode stays
            file.write(whole)
        found = open_filter(path, **whose)
        if found is not None:
            assert found.tag in tags[-2:]
            assert found.maybe(ids[: 5 * (found.tag.seq + 1)]).all()
            found.close()


@given(size=st.integers(0, 12_000))
@settings(deadline=None)
def test_a_file_of_any_other_length_is_none(size):
    whose = {"lane": "a/b/0", "bucket": Bucket(Origin.INTERNAL, 5)}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "filter"
        one = create_filter(path, 2_000, **whose)
        length = PAGE_BYTES + one.nbytes
        one.close()
        with path.open("r+b") as file:
            file.truncate(size)
        found = open_filter(path, **whose)
        assert (found is not None) == (size == length)


@given(capacity=st.integers(1, 10**8), more=st.integers(0, 10**7), rate=RATES)
def test_more_ids_never_need_fewer_lines(capacity, more, rate):
    if rate >= 1e-3:
        assert lines(capacity, rate) <= lines(capacity + more, rate)


@given(capacity=st.integers(1, 10**9), count=st.integers(0, 10**9))
def test_a_grown_filter_holds_what_it_must_and_then_some(capacity, count):
    new = grown(capacity, count)
    assert new >= max(capacity, count)
    if count > capacity:
        assert new >= GROWTH_FACTOR * count
