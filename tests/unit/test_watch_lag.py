"""`delivery lag`: what waits, since when, and who holds it up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dedup.model import Source
from delivery.watch.collector import Collector
from delivery.watch.lag import LATE_MS
from delivery.watch.rows import read_rows
from delivery.watch.waiting import Doors
from tests.unit.house import LANE, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import SECOND, begun_elsewhere, called, document
from tests.unit.watch_kit import looked, shop


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with shop(tmp_path / "shop.db", monkeypatch) as found:
        yield found


def test_stages_stand_in_the_order_of_the_flow(house: House) -> None:
    rows = read_rows(house.catalog())
    assert [one.name for one in rows.stages] == ["shop/price", "shop/ship"]
    assert next(rows.topic(topic) for one in rows.stages for topic in one.writes) == "out"


def test_nothing_waits_where_everything_is_read(house: House) -> None:
    found = looked(house, house.now)
    for one in found.stages:
        assert (one.behind, one.waiting_ms, one.pending, one.pending_ms) == (0, 0, 0, 0)
        assert (one.oldest_ms, one.unclaimed, one.late_ms) == (None, 0, 0)
    assert found.holdup is None


def test_a_record_that_nobody_read_waits_since_its_timestamp(house: House) -> None:
    written = house.now
    house.write("late", "later", timestamp_ms=written)
    found = looked(house, written + 60_000)
    price, ship = found.stages
    assert (price.behind, price.waiting_ms, price.oldest_ms) == (2, 60_000, written)
    assert (ship.behind, ship.late_ms) == (0, 0)
    assert found.holdup is not None
    assert (found.holdup.stage, found.holdup.late_ms) == ("price", 60_000)
    assert "seals nothing" in found.holdup.why


def test_what_a_stage_made_waits_since_it_was_minted(house: House) -> None:
    house.write("late", timestamp_ms=house.now)
    house.done()
    sealed = house.catalog().load(LANE).head.minted_at_ms
    price, ship = looked(house, sealed + 20_000).stages
    assert (price.behind, price.sealed_ms) == (0, sealed)
    assert (ship.behind, ship.waiting_ms, ship.oldest_ms) == (1, 20_000, sealed)


def test_without_kafka_the_catalog_says_what_its_own_stages_left(house: House) -> None:
    house.write("late", timestamp_ms=house.now)
    house.done()
    sealed = house.catalog().load(LANE).head.minted_at_ms
    price, ship = looked(house, sealed + 20_000, kafka=False).stages
    assert (price.behind, price.waiting_ms, price.unclaimed) == (None, None, None)
    assert ship.behind == 1
    # The oldest seal that may have sent something that waits: never younger than the truth.
    assert ship.waiting_ms >= 20_000


def test_a_seal_that_is_not_acknowledged_is_pending_since_it_was_minted(house: House) -> None:
    house.write("late")
    runner = house.runner()
    house.begin(runner)
    while house.catalog().load(LANE).head.ref.seq == 6:
        assert house.turn(runner)
    minted = house.catalog().load(LANE).head.minted_at_ms
    found = looked(house, minted + LATE_MS)
    price = found.stages[0]
    assert (price.pending, price.pending_ms, price.oldest_ms) == (1, LATE_MS, minted)
    assert found.holdup is not None
    assert "not acknowledged" in found.holdup.why
    assert looked(house, minted + LATE_MS - 1).holdup is None


def test_a_partition_without_a_lane_is_behind_by_all_it_holds(house: House) -> None:
    house.broker.partitions[Source(house.broker.names["in"], 1)] = ()
    house.write("a", "b", partition=1)
    price = looked(house, house.now).stages[0]
    assert (price.unclaimed, price.behind) == (1, 2)
    assert "partitions of its input without a lane yet: 1" in said(house)


def test_the_oldest_of_two_stages_holds_up(house: House) -> None:
    house.write("first", timestamp_ms=house.now)
    house.done()
    early = house.catalog().load(LANE).head.minted_at_ms
    house.write("second", timestamp_ms=early + 5_000)
    found = looked(house, early + 30_000)
    assert [one.late_ms for one in found.stages] == [25_000, 30_000]
    assert found.holdup is not None
    assert found.holdup.stage == "ship"


def test_a_lane_in_its_users_database_is_unknown_not_behind(house: House) -> None:
    begun_elsewhere(house, 0)
    found = {one.stage: one for one in looked(house, house.now).stages}
    billing = found["billing"]
    assert (billing.behind, billing.waiting_ms, billing.late_ms) == (None, None, None)
    assert found["ship"].behind == 0
    with closing(Collector(house.catalog, None, house.now_ms)) as looks:
        assert (
            'delivery_lane_seals_total{pipeline="shop",stage="billing"' not in looks.look().text()
        )


def said(house: House, *more: str) -> str:
    return called("lag", house.store.url, "--kafka", "here:1", *more).stdout


def test_the_verb_names_who_holds_up(house: House) -> None:
    house.write("late", timestamp_ms=time.time_ns() // 1_000_000 - 3_600_000)
    assert "shop/price holds things up, by 60 min" in said(house)
    assert "nothing holds things up" in said(house, "--late", "2h")
    lines = said(house, "--lanes").splitlines()
    assert [line.split()[0] for line in lines if line.startswith("shop/")][:4] == [
        "shop/price",
        "shop/ship",
        LANE,
        SECOND,
    ]


def test_the_verb_asks_about_one_stage(house: House) -> None:
    found = document("lag", house.store.url, "--kafka", "here:1", "--stage", "shop/ship")
    assert [one["stage"] for one in found["stages"]] == ["ship"]
    assert (found["kafka"], found["holdup"]) == (True, None)
    called("lag", house.store.url, "--stage", "nothing", code=2)


def test_looking_changes_nothing(house: House) -> None:
    house.write("late")
    with house.untouched():
        looked(house, house.now)
        looked(house, house.now, kafka=False)


def test_a_log_that_was_cut_is_read_from_where_it_begins(house: House) -> None:
    house.write("a", timestamp_ms=house.now - 5_000)
    house.write("b", timestamp_ms=house.now)
    end = house.broker.high([house.source()]).at(house.source()) or 0
    doors = Doors(MemoryClient(house.broker, {house.source(): end - 1}))
    found = doors.first_ms({house.source(): end - 2})
    assert found == {house.source(): house.now}
    assert doors.first_ms({house.source(): end}) == {}
