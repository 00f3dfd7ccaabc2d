"""A catalog put back from a copy is told from one that somebody runs, and is accepted on purpose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dedup.backup import renewed
from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_catalog
from dedup.errors import InvalidUsage
from delivery import Delivery
from delivery.host import outdated, starting
from delivery.host.outdated import refuse_outdated
from delivery.operate.accepting import accept, let_begin, may_begin
from delivery.protocol import messages as m
from delivery.protocol.rest import Kind, Rest
from tests.unit.house import LANE, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import called, document, housed
from tests.unit.watch_kit import Cluster


@pytest.fixture
def house() -> House:
    """A lane that has sealed four records, and sent them."""
    made = House(MemoryStore())
    made.write(*"abcd")
    made.done(cut=2)
    return made


def put_back(house: House, more: str = "ef") -> MemoryStore:
    """Run on, then go back to a copy; return the catalog that knew more."""
    copy = MemoryStore(house.store.tables.copy())
    house.write(*more)
    house.done(cut=1)
    house.store, newer = copy, house.store
    return newer


def refuse(house: House, client: MemoryClient | None = None) -> None:
    refuse_outdated(house.catalog(), client or MemoryClient(house.broker), [LANE], ["out"])


def test_a_copy_that_was_put_back_is_refused_and_nothing_is_written(house):
    newer = put_back(house)
    with (
        house.untouched(),
        pytest.raises(
            InvalidUsage, match=r"out \[0\] offset 4 is of its seal 3.*last one is 2.*accept"
        ),
    ):
        refuse(house)
    house.store = newer
    refuse(house)


def test_a_catalog_as_it_is_reads_nothing(house, monkeypatch):
    monkeypatch.setattr(outdated, "read_ranges", lambda *_, **__: pytest.fail("all is delivered"))
    refuse(house)


def test_what_is_owed_and_was_sent_is_no_sign_of_a_copy(house):
    house.write("e")
    runner = house.runner()
    house.begin(runner)
    while not isinstance(next(iter(runner.state.todo), None), m.Acknowledge):
        house.turn(runner)
    assert len(house.sent()) == 5
    refuse(house)


def test_who_seals_between_the_row_and_the_topic_is_no_copy(house):
    house.write("e")
    client = MemoryClient(house.broker)
    client.meanwhile = lambda: None if len(house.sent()) == 5 else house.done()
    with_news = []
    client.after = lambda: with_news.append(len(house.sent()))
    refuse(house, client)
    assert with_news == [5]


def test_who_seals_while_the_topic_is_read_is_no_copy(house):
    """What lies behind the bounds is not read, whoever wrote it."""
    house.write("e")
    client = MemoryClient(house.broker)
    client.after = house.done
    refuse(house, client)


def test_a_history_that_was_given_up_and_other_writers_refuse_nobody(house):
    put_back(house)
    accept(house.catalog(), house.fresh, perform=True)
    refuse(house)
    house.done(house.runner("shop/other/0"))
    refuse(house)


def test_a_lane_that_never_sent_is_looked_for_behind_what_others_delivered(house, monkeypatch):
    """Its topic may be as old as it likes: what a copy forgot lies behind what it remembers."""
    other = "shop/price/1"
    house.broker.create("in2")
    house.done(house.runner(other, reads="in2"), topic="in2")
    asked = []
    real = outdated.read_ranges

    def read(client: object, topic: str, starts: dict, ends: dict, **more: object) -> object:
        asked.append(dict(starts))
        return real(client, topic, starts, ends, **more)

    monkeypatch.setattr(outdated, "read_ranges", read)
    copy = MemoryStore(house.store.tables.copy())
    house.write("x", topic="in2")
    house.done(house.runner(other, reads="in2"), topic="in2")
    house.store = copy
    with pytest.raises(InvalidUsage, match="its seal 1, and the catalog's last one is 0"):
        refuse_outdated(house.catalog(), MemoryClient(house.broker), [LANE, other], ["out"])
    assert asked == [{house.source("out"): 4}]


def test_what_is_looked_at_has_a_bound(house, monkeypatch):
    put_back(house)
    monkeypatch.setattr(outdated, "LOOKED_AT_MAX", 1)
    with pytest.raises(InvalidUsage, match="offset 5 is of its seal 4"):
        refuse(house)


# Lanes that never were ------------------------------------------------------------------------


def lose(house: House) -> None:
    """Go on with an empty catalog."""
    house.store = MemoryStore()


def test_a_catalog_that_knows_nothing_of_what_its_lane_sent_is_refused(house):
    lose(house)
    with (
        house.untouched(),
        pytest.raises(
            InvalidUsage,
            match=r"out \[0\] offset 0 was emitted by a lane of this name.*count twice.*"
            r"recover-a-lost-catalog.*accept memory: --stage shop/price",
        ),
    ):
        refuse(house)


def test_a_lost_catalog_is_noticed_by_any_lane_of_the_stage(house):
    lose(house)
    with pytest.raises(InvalidUsage, match="was emitted by a lane of this name"):
        refuse_outdated(
            house.catalog(), MemoryClient(house.broker), ["shop/price/7", LANE], ["other", "out"]
        )


def test_topics_that_others_wrote_refuse_no_first_start(house):
    """Other stages, of this catalog or another one, and whoever knows nothing of headers."""
    house.write("x", topic="out")
    for lane in ("shop/quote/0", "other/price/0", "shop/price/1"):
        refuse_outdated(house.catalog(), MemoryClient(house.broker), [lane], ["out"])
    lose(house)
    for lane in ("shop/quote/0", "other/price/0", "shop/price/1"):
        refuse_outdated(house.catalog(), MemoryClient(house.broker), [lane], ["out"])


def test_a_lost_lane_that_sent_nothing_doubles_nothing():
    house = House(MemoryStore())
    house.write(*"ab")
    house.done(house.runner(call=lambda _: None))
    lose(house)
    refuse(house)


def test_who_begins_a_lane_while_another_process_looks_is_no_stranger(house):
    """Several processes start at once: the row that decides is read after the topic."""
    house = House(MemoryStore())
    house.write(*"abcd")
    client = MemoryClient(house.broker)
    client.meanwhile = lambda: None if house.sent() else house.done()
    refuse(house, client)
    assert len(house.sent()) == 4


def test_of_lanes_that_never_were_the_end_of_a_log_is_looked_at(house, monkeypatch):
    lose(house)
    house.write(*"vwxyz", topic="out")
    monkeypatch.setattr(outdated, "NEVER_LOOKED_AT_MAX", 6)
    with pytest.raises(InvalidUsage, match="offset 3 was emitted"):
        refuse(house)
    monkeypatch.setattr(outdated, "NEVER_LOOKED_AT_MAX", 5)
    refuse(house)


def test_a_stage_begins_beside_what_it_emitted_where_that_is_said(house):
    lose(house)
    catalog = house.catalog()
    assert not let_begin(catalog, "shop/price").done
    with pytest.raises(InvalidUsage, match="was emitted by a lane of this name"):
        refuse(house)
    assert let_begin(catalog, "shop/price", perform=True).done
    refuse(house)
    house.done()
    with house.untouched(), pytest.raises(InvalidUsage, match=r"it has begun here.*stage reset"):
        let_begin(catalog, "shop/price", perform=True)


@pytest.mark.parametrize("name", ["price", "shop/", "/price", "shop/price/in-0"])
def test_a_stage_that_is_to_begin_is_named_in_full(house, name):
    with house.untouched(), pytest.raises(InvalidUsage, match="main/price"):
        let_begin(house.catalog(), name, perform=True)


# Accepting ------------------------------------------------------------------------------------


def test_what_is_accepted_gives_up_what_the_copy_does_not_know(house):
    put_back(house)
    found = accept(house.catalog(), house.fresh)
    assert (found.done, found.lanes) == (False, {LANE: 2})
    with pytest.raises(InvalidUsage):
        refuse(house)
    before = house.catalog().load(LANE)
    accept(house.catalog(), house.fresh, perform=True)
    row = house.catalog().load(LANE)
    assert row.head.ref.incarnation != before.head.ref.incarnation
    assert row.head.frontier == before.head.frontier
    assert row.head.last_kept(before.head.ref.incarnation) == 2
    house.done()
    # A receiver drops what was given up: of each input one version counts.
    assert len(house.sent()) == 8
    assert house.proved(restored=True) == []


def test_who_still_runs_a_lane_is_fenced(house):
    put_back(house)
    sleeper = house.runner()
    house.begin(sleeper)
    while not isinstance(next(iter(sleeper.state.todo), None), m.Append):
        house.turn(sleeper)
    accept(house.catalog(), house.fresh, perform=True)
    sleeper.drain()
    assert sleeper.state.stopped.end is m.End.FENCED


def test_a_lane_that_something_is_being_done_to_is_left_to_that(house):
    catalog = house.catalog()
    row = catalog.load(LANE)
    rest = Rest(kind=Kind.UNDER_WAY, verb="rename")
    resting = renewed(row, house.fresh)
    resting = replace(resting, head=replace(resting.head, state=rest.encode()))
    assert catalog.reincarnate(LANE, row.head.ref, resting)
    with house.untouched(), pytest.raises(InvalidUsage, match="rename` was begun"):
        accept(catalog, house.fresh, perform=True)


def test_the_verb(tmp_path: Path):
    def furnish(made: House) -> None:
        made.write(*"ab")
        made.done()

    path = tmp_path / "shop.db"
    with housed(path, furnish) as made:
        before = made.catalog().load(LANE).head.ref.incarnation
    assert "goes on behind seq 1" in called("catalog", "accept", f"sqlite:{path}").stdout
    assert not document("catalog", "accept", f"sqlite:{path}")["done"]
    found = document("catalog", "accept", f"sqlite:{path}", "--yes")
    assert (found["done"], found["lanes"], found["elsewhere"]) == (True, {LANE: 1}, [])
    catalog = open_catalog(f"sqlite:{path}")
    assert catalog.load(LANE).head.past[0].incarnation == before
    catalog.store.close()


def test_the_verb_for_a_stage(tmp_path: Path):
    url = f"sqlite:{tmp_path / 'shop.db'}"
    open_catalog(url).store.close()
    said = called("catalog", "accept", url, "--stage", "shop/price").stdout
    assert "counts twice\nnothing was done; --yes does it" in said
    found = document("catalog", "accept", url, "--stage", "shop/price", "--yes")
    assert (found["stage"], found["done"]) == ("shop/price", True)
    catalog = open_catalog(url)
    assert may_begin(catalog, "shop/price/in-0")
    assert may_begin(catalog, "shop/price.by-id/in-0")
    assert not may_begin(catalog, "shop/other/in-0")
    catalog.store.close()


def test_a_start_that_is_refused_makes_no_catalog(
    house: House, tmp_path: Path, monkeypatch
) -> None:
    """A mistyped name leaves nothing behind, and a file that was there is left alone."""
    house.write("a", "b")
    house.done(house.runner("shop/cost/in-0"))
    monkeypatch.setattr(starting, "open_client", lambda *_: Cluster(house.broker))
    mistyped = tmp_path / "plnat.db"
    d = Delivery(catalog=f"sqlite:{mistyped}", kafka="localhost:1", pipeline="shop")
    d.stage(reads="in", writes="out", name="cost", id_from="header:id")(lambda record: record)
    with pytest.raises(InvalidUsage, match="nothing was read or written") as told:
        starting.prepare(d.plan)
    assert str(mistyped) in told.value.subject
    said = ("catalog", "accept", d.plan.catalog, "--stage", "shop/cost")
    assert "there is no catalog yet" in called(*said).stdout
    called(*said[:-1], "cost", "--yes", code=2)
    assert list(tmp_path.iterdir()) == []
    open_catalog(d.plan.catalog).store.close()
    with pytest.raises(InvalidUsage, match="nothing was read or written"):
        starting.prepare(d.plan)
    assert mistyped.is_file(), "it was there before"
    mistyped.unlink()
    called(*said, "--yes")
    starting.prepare(d.plan)
