"""One suite for every engine, in anonymous memory and in a file; then the files themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dedup.arrays import Ids
from dedup.errors import InvalidUsage, Unavailable
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
from dedup.filters import files as filter_files
from dedup.filters import header as filter_header
from dedup.filters.blocked import patterns
from dedup.filters.header import PAGE_BYTES, SLOT_BYTES
from dedup.filters.sizing import CROWDED_LINE_SHARE, LINES_MAX, PATTERNS, load, strangers
from dedup.formats.segment import Bucket, Origin
from dedup.model import HeadRef

LANE = "shop/price/0"
BUCKET = Bucket(Origin.EXTERNAL, 2_970_000)
KEY = b"0123456789abcdef"
TAG = HeadRef(b"incarnation-----", 7, b"attempt---------")
LATER = HeadRef(b"incarnation-----", 8, b"another attempt-")
#: So many strangers that a rate of 0.1% is measured to within a tenth.
STRANGERS = 1_000_000
#: A measured rate may be so much above what was asked for.
RATE_FACTOR_MAX = 1.2
#: The layout of version 1 on little-endian machines. Another value means that filters of another
#: version would be misread: raise the version with it.
LAYOUT = 17025650255110781893

engines = pytest.mark.parametrize("engine", sorted(ENGINES))
keys = pytest.mark.parametrize("key", [None, KEY], ids=["unkeyed", "keyed"])


def random_ids(count: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)


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
    one = new_filter(20_011, engine="pybloom", rate=0.01)
    one.add(random_ids(20_011))
    assert one.maybe(random_ids(100_000, seed=1)).mean() <= RATE_FACTOR_MAX * 0.01


def test_an_id_takes_seventeen_bits_at_a_tenth_of_a_percent():
    assert bits_per_id(0.001) == pytest.approx(17.1, abs=0.1)
    assert new_filter(1_000_000).nbytes * 8 == pytest.approx(17.1e6, rel=0.01)
    pybloom = new_filter(100_000, engine="pybloom").nbytes * 8
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
        new_filter(10, engine="pybloom")
    path = tmp_path / "f"
    create_filter(path, 10, lane=LANE, bucket=BUCKET).close()
    with pytest.raises(InvalidUsage, match=r"exactly-once-delivery\[pybloom\]"):
        open_filter(path, lane=LANE, bucket=BUCKET, engine="pybloom")


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


def test_random_ids_never_make_a_line_that_passes_for_crowded():
    """At the highest rate that can be asked for, lines are fullest."""
    one = new_filter(2_000_000, rate=0.1)
    one.add(random_ids(2_000_000))
    assert not one.crowded()
    assert CROWDED_LINE_SHARE < 1


# Files --------------------------------------------------------------------------------------------


@pytest.fixture(params=sorted(ENGINES))
def engine(request):
    return request.param


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "bucket.filter"


def create(path: Path, engine: str, **how: object) -> Filter:
    return create_filter(path, 1_000, lane=LANE, bucket=BUCKET, engine=engine, **how)


def reopen(path: Path, engine: str, **how: object) -> Filter | None:
    return open_filter(path, **{"lane": LANE, "bucket": BUCKET, "engine": engine} | how)


def put(path: Path, engine: str, **how: object) -> Ids:
    """Leave a filter with ids and a tag in a file."""
    ids = random_ids(1_000)
    one = create(path, engine, **how)
    one.add(ids)
    one.set_tag(TAG)
    one.close()
    return ids


@keys
@pytest.mark.parametrize("writable", [False, True])
def test_a_file_is_found_again_as_it_was_left(path, engine, key, writable):
    ids = put(path, engine, key=key, rate=0.01)
    one = reopen(path, engine, writable=writable)
    assert one is not None
    assert (one.engine, one.capacity, one.target_rate) == (engine, 1_000, 0.01)
    assert (one.count, one.tag) == (1_000, TAG)
    assert one.maybe(ids).all()
    assert one.maybe(random_ids(10_000, seed=1)).mean() < 0.02
    one.close()


def test_a_second_writer_goes_on_where_the_first_one_stopped(path, engine):
    ids = put(path, engine)
    more = random_ids(200, seed=1)
    one = reopen(path, engine, writable=True)
    one.add(more)
    one.set_tag(LATER)
    one.close()
    again = reopen(path, engine)
    assert (again.tag, again.count) == (LATER, 1_200)
    assert again.maybe(np.concatenate([ids, more])).all()
    again.close()


def test_bits_without_a_tag_are_there_and_promise_nothing(path, engine):
    put(path, engine)
    more = random_ids(200, seed=1)
    one = reopen(path, engine, writable=True)
    one.add(more)
    one.close()
    again = reopen(path, engine)
    assert (again.tag, again.count) == (TAG, 1_000)
    assert again.maybe(more).all()
    again.close()


def test_a_reader_sees_the_writers_bits_tag_and_count_appear(path, engine):
    writer = create(path, engine)
    reader = reopen(path, engine)
    ids = random_ids(300)
    assert (reader.tag, reader.count) == (None, 0)
    assert not reader.maybe(ids).any()
    writer.add(ids)
    assert reader.maybe(ids).all()
    writer.set_tag(TAG)
    assert (reader.tag, reader.count) == (TAG, 300)
    writer.close()
    assert reader.tag == TAG
    reader.close()


def test_a_reader_changes_nothing(path, engine):
    put(path, engine)
    reader = reopen(path, engine)
    before = path.read_bytes()
    with pytest.raises(AssertionError, match="a reader changes nothing"):
        reader.add(random_ids(1))
    with pytest.raises(AssertionError, match="a reader changes nothing"):
        reader.set_tag(LATER)
    reader.close()
    assert path.read_bytes() == before


def test_a_closed_filter_is_closed_and_may_be_closed_again(path, engine):
    for one in (create(path, engine), new_filter(10, engine=engine)):
        one.set_tag(TAG)
        one.close()
        one.close()
        with pytest.raises(AssertionError, match="the filter is open"):
            one.maybe(random_ids(1))
        assert one.tag == TAG


def test_a_rebuild_takes_the_place_of_a_file_that_others_still_map(path, engine):
    ids = put(path, engine)
    reader = reopen(path, engine)
    rebuilt = create(path, engine)
    assert reader.maybe(ids).all()
    assert reader.tag == TAG
    assert rebuilt.tag is None
    assert not rebuilt.maybe(ids).all()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    reader.close()
    rebuilt.close()


def test_what_a_dead_creator_left_is_replaced(path, engine):
    left = path.with_name(path.name + ".new")
    left.write_bytes(b"torn" * 5_000)
    put(path, engine)
    assert not left.exists()
    assert reopen(path, engine).tag == TAG


@pytest.mark.parametrize(
    "other",
    [
        {"lane": "shop/price/1"},
        {"bucket": Bucket(Origin.INTERNAL, 2_970_000)},
        {"bucket": Bucket(Origin.EXTERNAL, 2_970_001)},
        {"bucket": Bucket(Origin.EXTERNAL, 2_970_000, 4)},
    ],
    ids=["lane", "origin", "number", "span"],
)
def test_a_file_of_somebody_else_is_none(path, engine, other):
    put(path, engine)
    assert reopen(path, engine, **other) is None
    assert reopen(path, engine) is not None


def test_a_file_of_the_other_engine_is_none(path, engine):
    put(path, engine)
    (other,) = set(ENGINES) - {engine}
    assert reopen(path, other) is None


def test_a_file_of_another_boot_is_none(path, engine, monkeypatch):
    put(path, engine)
    monkeypatch.setattr(filter_files, "boot_id", lambda: "another boot")
    assert reopen(path, engine) is None


@pytest.mark.parametrize(("what", "value"), [("version", "0"), ("layout", 1)])
def test_a_file_of_another_release_of_the_engine_is_none(path, engine, monkeypatch, what, value):
    put(path, engine)
    monkeypatch.setattr(type(ENGINES[engine]), what, lambda _: value)
    assert reopen(path, engine) is None


def test_a_file_of_another_format_is_none(path, engine, monkeypatch):
    put(path, engine)
    monkeypatch.setattr(filter_header, "VERSION", 2)
    assert reopen(path, engine) is None


def test_a_copy_is_none_because_it_may_be_of_two_moments(path, engine):
    put(path, engine)
    copied = path.with_name("copy")
    shutil.copy2(path, copied)
    assert reopen(copied, engine) is None
    path.rename(path.with_name("moved"))
    assert reopen(path.with_name("moved"), engine) is not None


def test_where_there_is_no_file_there_is_no_filter(path, engine):
    assert reopen(path, engine) is None
    assert reopen(path.parent, engine) is None
    assert reopen(path.parent, engine, writable=True) is None
    assert reopen(path / "below", engine) is None
    path.touch()
    assert reopen(path, engine) is None


def test_a_short_or_a_long_file_is_none(path, engine):
    put(path, engine)
    whole = path.read_bytes()
    for size in (1, SLOT_BYTES, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert reopen(path, engine) is None, size
    path.write_bytes(whole + b"\0")
    assert reopen(path, engine) is None
    path.write_bytes(whole)
    assert reopen(path, engine) is not None


def test_a_torn_header_is_the_one_before_it_or_none(path, engine):
    """Each byte in turn; the last tag has the newer slot, the one before it the older."""
    put(path, engine)
    one = reopen(path, engine, writable=True)
    one.set_tag(LATER)
    one.close()
    whole = path.read_bytes()
    newer, older = whole[:SLOT_BYTES], whole[SLOT_BYTES:PAGE_BYTES]
    used = len(newer.rstrip(b"\0"))
    with path.open("r+b") as file:
        for at in range(used):
            file.seek(at)
            file.write(bytes([newer[at] ^ 0x41]))
            file.flush()
            found = reopen(path, engine)
            assert found is not None, at
            assert found.tag == TAG, at
            found.close()
            file.seek(at)
            file.write(newer[at : at + 1])
        file.seek(SLOT_BYTES)
        file.write(bytes(len(older)))
        file.flush()
        assert reopen(path, engine).tag == LATER
        file.seek(used // 2)
        file.write(b"????")
        file.flush()
        assert reopen(path, engine) is None


def test_a_live_reader_whose_page_is_destroyed_relies_on_nothing(path):
    put(path, "blocked")
    reader = reopen(path, "blocked")
    assert reader.tag == TAG
    with path.open("r+b") as file:
        file.write(bytes(PAGE_BYTES))
    assert reader.tag is None
    reader.close()


def test_a_file_is_its_owners_alone_because_it_holds_the_key(path, engine):
    put(path, engine, key=KEY)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_has_its_room_from_the_beginning(path):
    """A mapped hole that finds no room on the disk later would kill the process."""
    create_filter(path, 1_000_000, lane=LANE, bucket=BUCKET).close()
    stat = path.stat()
    assert stat.st_blocks * 512 >= stat.st_size


def test_a_file_system_that_refuses_is_unavailable(path, engine):
    with pytest.raises(Unavailable, match="no id was lost"):
        create(path / "no" / "directory", engine)
    path.mkdir()
    with pytest.raises(Unavailable, match="has room for"):
        create(path, engine)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_zeros_are_written_where_the_system_cannot_reserve(path, engine, monkeypatch):
    monkeypatch.delattr("os.posix_fallocate")
    ids = put(path, engine)
    one = reopen(path, engine)
    assert one.maybe(ids).all()
    one.close()


def test_the_time_of_boot_stands_in_for_its_name(monkeypatch, tmp_path):
    named = filter_header.boot_id()
    assert len(named) == 36
    monkeypatch.setattr(filter_header, "_BOOT_ID", tmp_path / "none")
    assert filter_header.boot_id().startswith("booted ")
    assert filter_header.boot_id() != named


READ_ELSEWHERE = """
import sys
from pathlib import Path
import numpy as np
from dedup.filters import open_filter
from dedup.formats.segment import Bucket, Origin
one = open_filter(
    Path(sys.argv[1]), lane="shop/price/0", bucket=Bucket(Origin.EXTERNAL, 2970000),
    engine=sys.argv[2],
)
ids = np.random.default_rng(0).integers(0, 2**64, (1000, 2), dtype=np.uint64)
print(one.maybe(ids).all(), one.tag.seq, one.count)
"""


def test_another_process_finds_the_same(path, engine):
    writer = create(path, engine, key=KEY)
    writer.add(random_ids(1_000))
    writer.set_tag(TAG)
    said = subprocess.run(
        [sys.executable, "-c", READ_ELSEWHERE, str(path), engine],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said.split() == ["True", "7", "1000"]
    writer.close()
