"""The files of filters: found as they were left, or not at all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dedup.arrays import Ids
from dedup.errors import Unavailable
from dedup.filters import ENGINES, Filter, create_filter, new_filter, open_filter
from dedup.filters import files as filter_files
from dedup.filters import header as filter_header
from dedup.filters.header import PAGE_BYTES, SLOT_BYTES
from dedup.formats.segment import Bucket, Origin
from tests.unit.filters_kit import BUCKET, KEY, LANE, LATER, TAG, keys, random_ids


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


def test_closing_does_not_hide_the_error_on_its_way_up(path, engine):
    one = create(path, engine)
    held = one._bits  # as the frames of a traceback do
    one.close()
    with pytest.raises(AssertionError, match="the filter is open"):
        one.maybe(random_ids(1))
    assert held.fill() == 0.0


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
