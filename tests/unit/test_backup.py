"""Backup and restore across stores: what comes back, whom it fences, what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dedup.backup import (
    READS_MAX,
    Frame,
    back_up,
    downstream_first,
    frames,
    restore,
    take,
)
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_store
from dedup.catalog.store import Blob
from dedup.collect import Keep, collect
from dedup.errors import Corrupt, DeliveryError, InvalidUsage, Unavailable
from dedup.formats.envelope import Kind, Reader, Writer, unwrap, wrap
from dedup.model import Attempt, Frontier, HeadRef, Incarnation, Kept
from delivery.protocol import messages as m
from tests.unit.house import LANE, House, rows

SECOND, THIRD = "shop/ship/0", "shop/bill/0"
CHAIN = (LANE, SECOND, THIRD)


def chain(house: House) -> None:
    """Three stages, one behind the other."""
    house.broker.create("shipped")
    house.broker.create("billed")
    house.write(*"abcab")
    chained(house)


def chained(house: House) -> None:
    """Run all three to the end of what is there."""
    ends = (("in", "out", ()), ("out", "shipped", (LANE,)), ("shipped", "billed", (SECOND,)))
    for lane, (reads, writes, senders) in zip(CHAIN, ends, strict=True):
        runner = house.runner(lane, reads=reads, writes=(writes,), senders=senders)
        house.done(runner, cut=2, topic=reads)


def saved(house: House) -> list[bytes]:
    return list(back_up(house.catalog()))


def put_back(house: House, stream: list[bytes], url: str) -> None:
    """Restore into another store, which the house then uses."""
    house.store.close()
    house.store = open_store(url)
    restore(house.catalog(), stream, house.fresh)
    house.store.close()
    # A file is opened anew: what was not written is not there.
    house.store = open_store(url) if url != "memory:" else house.store


def lasting(catalog: Catalog, lane: str) -> object:
    """All of a lane that a restore keeps, however often it is restored."""
    row, listed = catalog.load(lane), catalog.segment_list(lane)
    head = row.head
    owners = [kept.incarnation for kept in head.past] + [head.ref.incarnation]
    seals = [seal for owner in dict.fromkeys(owners) for seal in catalog.seals(lane, owner, 0, 99)]
    return (
        replace(head, ref=None, past=()),
        head.ref.seq,
        replace(row.ack, incarnation=None),
        listed and (listed.upto, listed.slots),
        seals,
        [catalog.get(kind, lane, seal) for kind in (Blob.SEGMENT, Blob.DROPPED) for seal in seals],
    )


@pytest.fixture
def files(tmp_path: Path) -> Iterator[str]:
    """Give URLs of catalogs that do not exist yet."""
    return (f"sqlite:{tmp_path / f'restored {number}.db'}" for number in range(9))


# There and back -------------------------------------------------------------------------------


@pytest.mark.parametrize("inline_bytes_max", [0, 4096])
@pytest.mark.parametrize("collected", [False, True])
def test_memory_to_sqlite_to_memory_keeps_every_lane(files, inline_bytes_max, collected):
    house = House(MemoryStore(), inline_bytes_max=inline_bytes_max)
    chain(house)
    if collected:
        for lane in CHAIN:
            collect(house.catalog(), lane, Keep(entries_after=1, outputs_after=1))
        house.write(*"de")
        chained(house)
    before = {lane: lasting(house.catalog(), lane) for lane in CHAIN}
    first = saved(house)
    catalog = Catalog(open_store(next(files)), inline_bytes_max=inline_bytes_max)
    assert sorted(restore(catalog, first, house.fresh)) == sorted(CHAIN)
    catalog.store.close()
    catalog = Catalog(open_store(catalog.store.url), inline_bytes_max=inline_bytes_max)
    assert {lane: lasting(catalog, lane) for lane in CHAIN} == before
    second = list(back_up(catalog))
    catalog.store.close()
    house.store = MemoryStore()
    restore(house.catalog(), second, house.fresh)
    assert {lane: lasting(house.catalog(), lane) for lane in CHAIN} == before
    house.write(*"xya")
    chained(house)
    assert len(house.sent("billed")) == len({*"abcxya"} | ({*"de"} if collected else set()))
    assert house.proved(restored=True) == []


@pytest.mark.parametrize("inline_bytes_max", [0, 4096])
def test_what_was_sealed_and_not_delivered_is_delivered_after_the_restore(files, inline_bytes_max):
    house = House(MemoryStore(), inline_bytes_max=inline_bytes_max)
    house.write(*"abc")
    runner = house.runner()
    house.begin(runner)
    while not isinstance(next(iter(runner.state.todo), None), m.Emit):
        house.turn(runner, cut=3)
    assert house.sent() == []
    put_back(house, saved(house), next(files))
    house.done(house.runner(call=lambda _: pytest.fail("it is sealed: no user code runs again")))
    assert len(house.sent()) == 3
    assert house.proved(restored=True) == []
    house.store.close()


def test_everybody_from_before_is_fenced(house, files):
    house.write(*"ab")
    house.done()
    house.write("c")
    sleeper = house.runner()
    house.begin(sleeper)
    while not isinstance(next(iter(sleeper.state.todo), None), m.Append):
        house.turn(sleeper)
    head = house.catalog().load(LANE).head
    stream = saved(house)
    house.store.close()
    catalog = Catalog(open_store(next(files)))
    restore(catalog, stream, house.fresh)
    row = catalog.load(LANE)
    assert row.head.ref.incarnation != head.ref.incarnation
    assert row.head.ref.seq == head.ref.seq
    assert row.head.past == (Kept(head.ref.incarnation, head.ref.seq),)
    assert row.ack.incarnation == row.head.ref.incarnation
    sleeper._catalog = catalog
    sleeper.drain()
    assert sleeper.state.stopped.end is m.End.FENCED
    assert catalog.load(LANE) == row
    assert len(house.sent()) == 2
    catalog.store.close()


def test_what_was_sealed_after_the_backup_runs_again_and_its_history_is_abandoned(house, files):
    chain(house)
    stream = saved(house)
    house.write(*"de")
    chained(house)
    assert len(house.sent("billed")) == 5
    put_back(house, stream, next(files))
    chained(house)
    assert house.proved(restored=True) == []
    dropped = [
        seal.counts.abandoned
        for lane in (SECOND, THIRD)
        for seal in house.catalog().seals(
            lane, house.catalog().load(lane).head.ref.incarnation, 0, 99
        )
    ]
    assert sum(dropped) > 0
    house.store.close()


def test_a_lane_may_be_collected_and_restored_again_and_again(house, files):
    house.write(*"ab")
    house.done(cut=1)
    for turn, url in zip(range(3), files, strict=False):
        collect(house.catalog(), LANE, Keep())
        put_back(house, saved(house), url)
        house.write("a", f"new {turn}")
        house.done()
        assert house.proved(restored=True) == []
    assert len(house.catalog().load(LANE).head.past) == 3
    assert len(house.sent()) == 5
    house.store.close()


def test_only_the_lanes_of_a_prefix_are_saved(house):
    chain(house)
    catalog = Catalog(MemoryStore())
    assert restore(catalog, back_up(house.catalog(), "shop/ship"), house.fresh) == [SECOND]
    assert list(catalog.lanes()) == [SECOND]


def test_a_catalog_without_lanes_has_a_backup_too(house, files):
    stream = saved(house)
    assert len(stream) == 1
    put_back(house, stream, next(files))
    assert list(house.store.lanes()) == []
    house.store.close()


# Order and moving targets ---------------------------------------------------------------------


def lanes_of(stream: list[bytes]) -> list[str]:
    found = []
    for frame in stream:
        reader = Reader(unwrap(frame, Kind.BACKUP, version_max=1, place="test")[1], "test")
        if reader.uint() == Frame.LANE:
            found.append(reader.text())
    return found


def test_a_chain_is_taken_downstream_first(house):
    chain(house)
    assert lanes_of(saved(house)) == [THIRD, SECOND, LANE]


def test_lanes_that_form_a_circle_are_taken_by_name(house):
    house.write("a")
    house.done(house.runner("shop/b/0", reads="in", writes=("out",)))
    house.done(house.runner("shop/a/0", reads="out", writes=("in",), senders=()), topic="out")
    assert downstream_first(house.catalog()) == ["shop/a/0", "shop/b/0"]


def test_a_lane_is_saved_as_it_was_when_its_head_was_taken(house):
    house.inline_bytes_max = 0
    house.write(*"abc")
    house.done(cut=1)
    heads = [(LANE, take(house.catalog(), LANE))]
    house.write(*"de")
    house.done(cut=1)
    collect(house.catalog(), LANE, Keep())
    catalog = Catalog(MemoryStore(), inline_bytes_max=0)
    restore(catalog, frames(house.catalog(), heads), house.fresh)
    row = catalog.load(LANE)
    assert (row.head.ref.seq, row.ack.seq) == (3, 3)
    assert row.head.frontier == Frontier.of([(house.source(), 3)])
    assert [slot.seq for slot in catalog.segment_list(LANE).slots] == [1, 2, 3]


class Growing(Catalog):
    """A catalog with a new lane each time its lanes are listed."""

    def __init__(self, house: House) -> None:
        super().__init__(house.store)
        self.house, self.listed = house, 0

    def lanes(self, prefix: str = "") -> Iterator[str]:
        self.listed += 1
        self.house.done(self.house.runner(f"shop/more/{self.listed}"))
        return super().lanes(prefix)


def test_a_catalog_that_changes_faster_than_it_is_read_is_not_saved(house):
    catalog = Growing(house)
    with pytest.raises(Unavailable, match="no backup was made"):
        list(back_up(catalog))
    assert catalog.listed == 2 * READS_MAX


# What is refused ------------------------------------------------------------------------------


def torn(stream: list[bytes]) -> dict[str, list[bytes]]:
    """Ways in which a stream can be damaged."""
    middle = len(stream) // 2
    flipped = bytearray(stream[middle])
    flipped[-1] ^= 1
    later = wrap(Kind.BACKUP, 2, b"")
    strange = wrap(Kind.BACKUP, 1, Writer().uint(99).body())
    stray = wrap(Kind.SEAL, 1, b"")
    return {
        "nothing": [],
        "the last frame is missing": stream[:-1],
        "a frame in the middle is missing": [*stream[:middle], *stream[middle + 1 :]],
        "a frame is there twice": [*stream[:middle], *stream[middle - 1 :]],
        "something behind the end": [*stream, stream[0]],
        "two backups": [*stream, *stream],
        "a bit flipped": [*stream[:middle], bytes(flipped), *stream[middle + 1 :]],
        "a frame is cut": [*stream[:middle], stream[middle][:-3], *stream[middle + 1 :]],
        "the last frame is cut": [*stream[:-1], stream[-1][:-1]],
        "another blob": [*stream[:middle], stray, *stream[middle + 1 :]],
        "a newer release": [*stream[:middle], later, *stream[middle + 1 :]],
        "a frame of no kind": [*stream[:middle], strange, *stream[middle + 1 :]],
        "the frames of one lane first": [stream[1], stream[0], *stream[2:]],
    }


@pytest.mark.parametrize("how", list(torn([wrap(Kind.BACKUP, 1, b"x")] * 4)))
def test_a_torn_backup_is_refused_and_nothing_is_written(house, files, how):
    chain(house)
    stream = torn(saved(house))[how]
    catalog = Catalog(open_store(next(files)))
    empty = rows(catalog.store)
    with pytest.raises(DeliveryError) as raised:
        restore(catalog, stream, house.fresh)
    assert isinstance(raised.value, Corrupt | InvalidUsage)
    assert "nothing was" in raised.value.hint
    assert rows(catalog.store) == empty
    catalog.store.close()


def test_a_blob_of_a_newer_release_inside_a_frame_is_refused_before_anything_is_written(house):
    chain(house)
    stream = saved(house)
    newer = Writer().text(LANE).data(wrap(Kind.SEAL, 9, b""))
    frame = wrap(Kind.BACKUP, 1, Writer().uint(Frame.ENTRY).raw(newer.body()).body())
    end = wrap(Kind.BACKUP, 1, Writer().uint(Frame.END).uint(len(stream)).body())
    catalog = Catalog(MemoryStore())
    with pytest.raises(InvalidUsage, match="install the release"):
        restore(catalog, [*stream[:-1], frame, end], house.fresh)
    assert list(catalog.lanes()) == []


def test_a_catalog_that_is_not_empty_is_refused_and_left_as_it_is(house):
    chain(house)
    stream = saved(house)
    with house.untouched(), pytest.raises(InvalidUsage, match="it holds lanes already"):
        restore(house.catalog(), stream, house.fresh)


def test_an_incarnation_of_the_wrong_length_is_a_programming_error(house):
    chain(house)
    catalog = Catalog(MemoryStore())
    with pytest.raises(AssertionError, match="16 bytes"):
        restore(catalog, saved(house), lambda: b"short")
    assert list(catalog.lanes()) == []
    with pytest.raises(AssertionError, match="16 bytes"):
        HeadRef(Incarnation(b"i" * 17), 0, Attempt(b"a" * 16))
