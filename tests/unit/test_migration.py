"""A catalog is moved: it runs in one place at most, wherever the move is killed, and arrives as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_catalog
from dedup.catalog.store import Blob
from dedup.errors import Corrupt, InvalidUsage
from dedup.model import Slot
from delivery.operate.compaction import Rules, tidy
from delivery.operate.migration.migrate import POINTS, migrate
from delivery.operate.verification import verify
from delivery.protocol import messages as m
from tests.unit.house import LANE, House, rows
from tests.unit.operate_kit import SECOND, called, chained, document, housed

NOW_MS = 1_800_000_000_000


class Killed(Exception):
    """The process died here."""


def furnish(house: House) -> None:
    """Two stages whose chunks lie beside their seals; the first one's ids are listed apart."""
    house.inline_bytes_max = 0
    chained(house)
    catalog = house.catalog()
    row = catalog.load(LANE)
    assert row is not None
    catalog.note_loser(Slot(LANE, row.head.ref.incarnation, 3, b"l" * 16), b"d" * 16)
    tidy(catalog, SECOND, Rules(entries_ms=0), NOW_MS, perform=True)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with housed(tmp_path / "old.db", furnish) as house:
        house.inline_bytes_max = 0
        yield house


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Catalog]:
    with closing(open_catalog(f"sqlite:{tmp_path / 'new.db'}").store) as store:
        yield Catalog(store)


def test_everything_arrives_as_it_was(house, target):
    before = rows(house.store)
    found = migrate(house.catalog(), target)
    assert found.done
    assert [move.lane for move in found.lanes] == [SECOND, LANE]
    assert rows(target.store) == before
    assert verify(target.store, [LANE, SECOND]).whole


def test_the_pipeline_goes_on_in_the_target(house, target):
    migrate(house.catalog(), target)
    house.store, old = target.store, house.store
    house.write("r0-0", "new-1", "r1-1", "new-2")
    house.done(house.runner(), cut=2)
    house.done(
        house.runner(SECOND, reads="out", writes=("end",), senders=(LANE,)), topic="out", cut=2
    )
    assert house.proved() == []
    house.store = old


def test_whoever_has_the_source_open_can_seal_nothing_any_more(house, target):
    house.write("before")
    asleep = house.runner()
    house.begin(asleep)
    while not asleep.state.lane.hungry:
        assert house.turn(asleep)
    migrate(house.catalog(), target)
    sent = len(house.sent())
    for _ in range(200):
        if asleep.state.stopped is not None or not house.turn(asleep):
            break
    assert asleep.state.stopped is not None
    assert asleep.state.stopped.end in (m.End.FENCED, m.End.REFUSED)
    assert len(house.sent()) == sent
    # Nor can whoever opens it, and he is told where it went.
    stop = house.run(house.runner())
    assert stop.end is m.End.REFUSED
    assert target.store.url in stop.why


def test_nothing_runs_in_the_target_before_the_source_is_out_of_use(house, target):
    def at(point: str) -> None:
        if point == "checked":
            raise Killed

    with pytest.raises(Killed):
        migrate(house.catalog(), target, at=at)
    source, house.store = house.store, target.store
    stop = house.run(house.runner())
    assert stop.end is m.End.REFUSED
    assert "is not finished: run the same again" in stop.why
    house.store = source
    # The source goes on, and the copy is brought up to it.
    house.write("meanwhile")
    house.done()
    assert migrate(house.catalog(), target).done
    assert target.load(LANE).head.frontier.at(house.source()) == 31


@pytest.mark.parametrize("allowed", range(1, 12))
def test_killed_anywhere_the_same_again_finishes_it(house, target, allowed):
    before = rows(house.store)
    passed: list[str] = []

    def at(point: str) -> None:
        passed.append(point)
        if len(passed) == allowed:
            raise Killed

    with suppress(Killed):
        migrate(house.catalog(), target, at=at)
    assert len(passed) == min(allowed, 9)
    # A lane is in use in one of the two at most.
    for lane in (LANE, SECOND):
        used = [
            catalog.load(lane) is not None and not catalog.load(lane).head.state
            for catalog in (house.catalog(), target)
        ]
        assert used != [True, True]
    assert migrate(house.catalog(), target).done
    assert rows(target.store) == before
    assert migrate(house.catalog(), target).done


def test_every_point_is_passed(house, target):
    passed: list[str] = []
    migrate(house.catalog(), target, at=passed.append)
    assert tuple(dict.fromkeys(passed)) == POINTS


def test_a_job_that_still_runs_is_noticed_and_nothing_is_fenced(house, target):
    before = house.catalog().load(LANE)

    def at(point: str) -> None:
        if point == "checked":
            house.write("meanwhile")
            house.done()

    with pytest.raises(InvalidUsage, match="so its stage runs"):
        migrate(house.catalog(), target, at=at)
    row = house.catalog().load(LANE)
    assert row.head.ref.incarnation == before.head.ref.incarnation
    assert row.head.ref.seq == before.head.ref.seq + 1
    assert migrate(house.catalog(), target).done


def test_a_target_with_lanes_of_its_own_is_refused(house, tmp_path):
    with housed(tmp_path / "other.db", chained) as other:
        before = rows(other.store)
        with pytest.raises(InvalidUsage, match="holds lanes of its own"):
            migrate(house.catalog(), other.catalog())
        assert rows(other.store) == before


def test_what_was_moved_elsewhere_is_not_moved_again(house, target, tmp_path):
    migrate(house.catalog(), target)
    with closing(open_catalog(f"sqlite:{tmp_path / 'third.db'}").store) as store:
        with pytest.raises(InvalidUsage, match="it was moved to"):
            migrate(house.catalog(), Catalog(store))
        # But onwards from where it is.
        assert migrate(target, Catalog(store)).done


def test_a_damaged_source_is_not_moved(house, target):
    slot = next(house.store.slots(Blob.SEGMENT, LANE))
    chunks = house.store.get(Blob.SEGMENT, slot)
    flipped = chunks[0][:-1] + bytes([chunks[0][-1] ^ 1])
    house.store.put(Blob.SEGMENT, slot, [flipped, *chunks[1:]])
    house.store.flush()
    with pytest.raises(Corrupt, match="nothing was fenced"):
        migrate(house.catalog(), target)
    assert house.catalog().load(LANE).head.state == b""


def test_a_copy_that_differs_is_not_used(house, target):
    def at(point: str) -> None:
        if point == "lane-copied":
            target.store.delete(Blob.SEGMENT, list(target.store.slots(Blob.SEGMENT, LANE)))

    with pytest.raises(Corrupt, match="is not what is there"):
        migrate(house.catalog(), target, at=at)
    assert house.catalog().load(LANE).head.state == b""
    assert migrate(house.catalog(), target).done


@pytest.mark.usefixtures("house")
def test_the_verb_says_what_it_would_do_and_does_it(tmp_path):
    old, new = f"sqlite:{tmp_path / 'old.db'}", f"sqlite:{tmp_path / 'new.db'}"
    assert called("catalog", "migrate", old, old, code=2).stderr.count("name another catalog") == 1
    planned = document("catalog", "migrate", old, new)
    assert (planned["done"], {lane["step"] for lane in planned["lanes"]}) == (False, {"waiting"})
    assert not (tmp_path / "new.db").exists()
    moved = document("catalog", "migrate", old, new, "--yes")
    assert (moved["done"], {lane["step"] for lane in moved["lanes"]}) == (True, {"moved"})
    assert "there is nothing to do" in called("catalog", "migrate", old, new).output
    assert called("catalog", "verify", new).exit_code == 0
