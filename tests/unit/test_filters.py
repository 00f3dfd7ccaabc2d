"""One suite for every engine, in anonymous memory and in a file: answers, sizes, chosen ids, layout."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from dedup.arrays import Ids
from dedup.errors import InvalidUsage
from dedup.filters import (
    ENGINES,
    KEY_BYTES,
    Filter,
    bits_per_id,
    create_filter,
    grown,
    new_filter,
    open_filter,
    saturated,
)
from dedup.filters.blocked import _summed, patterns
from dedup.filters.sizing import LINES_MAX, PATTERNS, load, strangers
from tests.unit.filters_kit import BUCKET, KEY, LANE, LATER, TAG, keys, random_ids

#: With the compiled library and without it.
pytestmark = pytest.mark.usefixtures("both_ways")

#: So many strangers that a rate of 0.1% is measured to within a tenth.
STRANGERS = 1_000_000
#: A measured rate may be so much above what was asked for.
RATE_FACTOR_MAX = 1.2
#: The layout of version 1 on little-endian machines. Another value means that filters of another
#: version would be misread: raise the version with it.
LAYOUT = 17025650255110781893

engines = pytest.mark.parametrize("engine", sorted(ENGINES))


@pytest.fixture(params=["memory", "file"])
def made(request, tmp_path):
    """Give a function that makes filters in memory, or in files."""
    living = []

    def make(capacity: int, **how: object) -> Filter:
        if request.param == "memory":
            living.append(new_filter(capacity, **how))
        else:
            path = tmp_path / f"{len(living)}.filter"
            living.append(create_filter(path, capacity, lane=LANE, bucket=BUCKET, **how))
        return living[-1]

    yield make
    for one in living:
        one.close()


# What every filter does --------------------------------------------------------------------------


@engines
@keys
def test_what_was_added_is_found_and_strangers_hardly_ever(made, engine, key):
    one = made(5_000, engine=engine, key=key)
    ids = random_ids(5_000)
    assert not one.maybe(ids).any(), "an empty filter says no"
    one.add(ids[:2_000])
    one.add(ids[2_000:])
    assert one.maybe(ids).all()
    assert one.maybe(random_ids(20_000, seed=1)).mean() < 0.003
    assert one.count == 5_000


@engines
def test_a_batch_may_be_empty_sliced_or_repeat_itself(made, engine):
    one = made(1_000, engine=engine)
    ids = random_ids(500)
    one.add(ids[:0])
    assert one.maybe(ids[:0]).shape == (0,)
    one.add(ids[::2])
    one.add(np.concatenate([ids[1:2]] * 50))
    assert one.maybe(ids[::2]).all()
    assert one.maybe(ids[1:2]).all()


@engines
def test_beyond_its_capacity_a_filter_only_says_yes_more_often(made, engine):
    one = made(100, engine=engine)
    ids = random_ids(5_000)
    assert not saturated(one)
    one.add(ids)
    assert one.maybe(ids).all()
    assert saturated(one)


@engines
def test_fill_and_rate_are_what_is_measured(made, engine):
    one = made(20_000, engine=engine, rate=0.01)
    assert (one.fill(), one.rate()) == (0.0, 0.0)
    one.add(random_ids(20_000))
    measured = one.maybe(random_ids(100_000, seed=1)).mean()
    assert measured == pytest.approx(one.rate(), rel=0.25)
    assert 0.4 < one.fill() < 0.6
    assert not saturated(one)


@engines
def test_a_tag_is_kept(made, engine):
    one = made(100, engine=engine)
    assert one.tag is None
    one.set_tag(TAG)
    assert one.tag == TAG
    one.set_tag(LATER)
    assert one.tag == LATER


@engines
def test_a_filter_says_what_it_is(made, engine):
    one = made(1_000, engine=engine, rate=0.01)
    assert (one.engine, one.capacity, one.target_rate, one.count) == (engine, 1_000, 0.01, 0)
    assert 1_000 < one.nbytes < 3_000


@engines
def test_filters_of_several_threads_do_not_meet(made, engine):
    filters = [made(3_000, engine=engine, key=KEY) for _ in range(2)]
    wrong = []

    def work(one: Filter, seed: int) -> None:
        for step in range(10):
            ids = random_ids(300, seed=10 * seed + step)
            one.add(ids)
            wrong.append(int((~one.maybe(ids)).sum()))

    threads = [threading.Thread(target=work, args=(one, seed)) for seed, one in enumerate(filters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * 20
    for seed, one in enumerate(filters):
        everything = np.concatenate([random_ids(300, seed=10 * seed + s) for s in range(10)])
        assert one.maybe(everything).all()


# Sizes --------------------------------------------------------------------------------------------


@keys
@pytest.mark.parametrize(
    ("capacity", "rate"),
    [(1_000, 0.01), (4_096, 0.001), (99_991, 0.001), (262_144, 0.01), (1_000_003, 0.001)],
)
def test_blocked_keeps_its_rate_up_to_its_capacity_at_any_size(capacity, rate, key):
    one = new_filter(capacity, rate=rate, key=key)
    one.add(random_ids(capacity))
    measured = float(one.maybe(random_ids(STRANGERS, seed=1)).mean())
    assert measured <= RATE_FACTOR_MAX * rate
    assert measured >= rate / RATE_FACTOR_MAX, "more memory than needed"


def test_pybloom_keeps_its_rate_up_to_its_capacity():
    one = new_filter(20_011, engine="pybloom-live", rate=0.01)
    one.add(random_ids(20_011))
    assert one.maybe(random_ids(100_000, seed=1)).mean() <= RATE_FACTOR_MAX * 0.01


def test_an_id_takes_seventeen_bits_at_a_tenth_of_a_percent():
    assert bits_per_id(0.001) == pytest.approx(17.1, abs=0.1)
    assert new_filter(1_000_000).nbytes * 8 == pytest.approx(17.1e6, rel=0.01)
    pybloom = new_filter(100_000, engine="pybloom-live").nbytes * 8
    assert pybloom == pytest.approx(14.4e5, rel=0.01)


def test_sizing_inverts_the_rate():
    rates = [1e-6, 1e-4, 1e-3, 1e-2, 1e-1]
    assert [strangers(load(rate)) for rate in rates] == pytest.approx(rates)
    assert strangers(0.0) == pytest.approx(0.0, abs=1e-12)


def test_a_filter_grows_by_half_when_it_must():
    assert grown(1_000, 999) == grown(1_000, 1_000) == 1_000
    assert grown(1_000, 1_001) == 1_502
    assert grown(1, 10_000) == 15_000


@engines
@pytest.mark.parametrize(("capacity", "rate"), [(0, 0.001), (-5, 0.001), (10, 0.5), (10, 0.0)])
def test_impossible_sizes_are_refused(engine, capacity, rate):
    with pytest.raises(InvalidUsage, match=r"at least one id|choose a rate"):
        new_filter(capacity, engine=engine, rate=rate)


def test_a_filter_larger_than_its_index_is_refused():
    with pytest.raises(InvalidUsage, match="shorter window"):
        new_filter(LINES_MAX * 31)


def test_an_unknown_engine_is_refused():
    with pytest.raises(InvalidUsage, match="there are blocked, pybloom"):
        new_filter(10, engine="cuckoo")


def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pybloom_live", None)
    with pytest.raises(InvalidUsage, match=r"exactly-once-delivery\[pybloom\]"):
        new_filter(10, engine="pybloom-live")
    path = tmp_path / "f"
    create_filter(path, 10, lane=LANE, bucket=BUCKET).close()
    with pytest.raises(InvalidUsage, match=r"exactly-once-delivery\[pybloom\]"):
        open_filter(path, lane=LANE, bucket=BUCKET, engine="pybloom-live")


# Ids that somebody chose --------------------------------------------------------------------------


def chosen_ids(count: int, capacity: int, lines: int, seed: int) -> Ids:
    """Ids that all fall into the first few lines of an unkeyed filter."""
    ids = random_ids(count, seed)
    share = lines * load(0.001) / capacity
    low = np.random.default_rng(seed).integers(0, int(2**32 * share), count, dtype=np.uint64)
    ids[:, 0] = (ids[:, 0] >> np.uint64(32) << np.uint64(32)) | low
    return ids


def test_chosen_ids_crowd_an_unkeyed_filter_and_spread_in_a_keyed_one():
    capacity, honest = 200_000, random_ids(100_000)
    attack, more = (chosen_ids(10_000, capacity, 4, seed) for seed in (1, 2))
    unkeyed, keyed = new_filter(capacity), new_filter(capacity, key=KEY)
    for one in (unkeyed, keyed):
        one.add(honest)
        assert not saturated(one)
        one.add(attack)
        assert one.maybe(honest).all()
        assert one.maybe(attack).all()
        assert one.fill() < 0.5, "over all of it nothing is to be seen"
    assert unkeyed.maybe(more).mean() > 0.99
    assert saturated(unkeyed)
    assert unkeyed.rate() < 0.01, "honest ids hardly suffer"
    assert keyed.maybe(more).mean() < 0.003
    assert not saturated(keyed)


@pytest.mark.parametrize("key", [bytes(KEY_BYTES), KEY, b"\xff" * KEY_BYTES])
@pytest.mark.parametrize("step", [1, 2**32, 2**40, 3], ids=hex)
def test_with_a_key_ids_that_are_numbers_spread(key, step):
    count = 50_000
    one = new_filter(count, key=key)
    ids = np.zeros((2 * count, 2), dtype=np.uint64)
    ids[:, 1] = np.arange(2 * count, dtype=np.uint64) * np.uint64(step)
    one.add(ids[:count])
    assert one.maybe(ids[:count]).all()
    assert one.maybe(ids[count:]).mean() < 0.005
    assert not saturated(one)


def test_whoever_shards_by_the_outer_bits_takes_none_of_the_filter():
    """Ids of one shard agree in the bits that chose it; the filter uses others."""
    one = new_filter(50_000)
    outer = np.uint64(0xFFFFFFFF00000000), np.uint64(0x00000000FFFFFFFF)

    def shard(count: int, seed: int) -> Ids:
        ids = random_ids(count, seed)
        ids[:, 0] &= outer[1]
        ids[:, 1] &= outer[0]
        return ids

    one.add(shard(50_000, 1))
    assert one.maybe(shard(500_000, 2)).mean() <= RATE_FACTOR_MAX * 0.001


def test_two_keys_choose_different_bits_and_one_key_the_same():
    ids, strange = random_ids(1_000), random_ids(1_000, seed=1)
    memory = []
    for key in (KEY, KEY, b"another key 0123", None):
        one = new_filter(1_000, key=key, rate=0.1)
        one.add(ids)
        memory.append(one.maybe(np.concatenate([ids, strange])).tobytes())
    assert memory[0] == memory[1]
    assert len(set(memory)) == 3


def test_a_key_has_sixteen_bytes():
    with pytest.raises(AssertionError, match="16 bytes"):
        new_filter(10, key=b"short")


# The layout ---------------------------------------------------------------------------------------


def test_the_layout_of_a_version_never_changes():
    assert ENGINES["blocked"].layout() == LAYOUT
    assert ENGINES["blocked"].version() == "1"


def test_patterns_are_four_different_bits_each_and_use_every_bit():
    table = patterns()
    assert len(set(table.tolist())) == PATTERNS
    assert set(np.bitwise_count(table).tolist()) == {4}
    uses = [int(((table >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    assert min(uses) > 180
    assert max(uses) < 340


def test_the_fullest_and_the_emptiest_lines_are_counted():
    counts = np.zeros((66, 8), dtype=np.uint8)
    for row in range(65):
        counts[row] = row
    counts[65] = [1, 64, 0, 3, 5, 7, 0, 11]
    assert _summed(counts).tolist() == counts.sum(axis=1).tolist()


def test_random_ids_never_make_a_line_that_passes_for_crowded():
    """At the highest rate that can be asked for, lines are fullest."""
    one = new_filter(2_000_000, rate=0.1)
    one.add(random_ids(2_000_000))
    assert not one.crowded()
