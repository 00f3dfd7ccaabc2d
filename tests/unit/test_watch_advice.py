"""`delivery advice`: what is concluded follows from what was seen, and nothing from too little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dedup.catalog.memory import MemoryStore
from dedup.collect import Keep, collect
from dedup.compact import compact
from delivery.operate.logs import Cluster as Topics
from delivery.watch.advice import RECORDS_MIN, Topic, advise, window_for
from delivery.watch.distances import LABELS, Distances, distances
from delivery.watch.filters import Health
from delivery.watch.history import SLICES, History, StageHistory
from delivery.watch.lag import Lag, StageLag
from delivery.watch.rows import read_rows
from delivery.watch.tally import BUNDLE_BOUNDS, Histogram
from tests.unit.house import LANE, WINDOW_MS, House
from tests.unit.operate_kit import again, called, chained, document, read_on
from tests.unit.watch_kit import Cluster, shop

HOUR_MS = 3_600_000


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with shop(tmp_path / "shop.db", monkeypatch) as found:
        yield found


def seen(sizes: list[int], *, seconds: float = 100, **more: Any) -> History:
    """A stage that sealed bundles of these sizes."""
    bundles = Histogram(BUNDLE_BOUNDS)
    for size in sizes:
        bundles.add(size)
    sums = {
        name: np.zeros(SLICES)
        for name in ("fresh", "duplicate", "remnant", "abandoned", "read", "seals", "outputs")
    } | {"dead_letter": np.zeros(SLICES)}
    sums["read"][0] = sum(sizes)
    sums["seals"][0] = len(sizes)
    for name, count in more.pop("sums", {}).items():
        sums[name][0] = count
    lanes = more.pop("lanes", {"shop/price/in-0": sum(sizes)})
    stage = StageHistory(
        pipeline="shop",
        stage="price",
        sums=sums,
        delay_ms=(np.zeros(SLICES), np.zeros(SLICES)),
        bundles=bundles,
        lanes=lanes,
        losers=more.pop("losers", {}),
    )
    assert not more
    return History(since_ms=0, until_ms=int(seconds * 1000), stages=(stage,))


def late(late_ms: int) -> Lag:
    stage = StageLag(
        pipeline="shop",
        stage="price",
        behind=1,
        waiting_ms=late_ms,
        pending=0,
        pending_ms=0,
        oldest_ms=None,
        sealed_ms=None,
        unclaimed=0,
        late_ms=late_ms,
        lanes=(),
    )
    return Lag(stages=(stage,), holdup=None)


def told(history: History, lag: Lag | None = None, **more: Any) -> dict[Topic, tuple[str, str]]:
    found = advise(history, more.get("found", {}), lag or late(0), more.get("filters", ()))
    return {one.topic: (one.seen, one.change) for one in found}


@pytest.mark.parametrize(
    ("longest_ms", "window"),
    [
        (0, "1h"),
        (HOUR_MS // 2, "1h"),
        (HOUR_MS // 2 + 1, "6h"),
        (12 * HOUR_MS, "24h"),
        (7 * 24 * HOUR_MS, "14d"),
        (8 * 24 * HOUR_MS, "30d"),
    ],
)
def test_a_window_holds_twice_the_longest_distance(longest_ms: int, window: str) -> None:
    assert window_for(longest_ms) == window


def named(*distances_ms: int, window_ms: int = 0) -> Distances:
    """Repeats by publishers, so late."""
    late_ms = list(distances_ms)
    return Distances(sampled=5, found_ms=late_ms, named_ms=late_ms, window_ms=window_ms)


def test_a_window_is_suggested_from_what_was_found() -> None:
    history = seen([10] * 10, sums={"duplicate": 5})
    some = named(1_000, 3 * HOUR_MS)
    assert told(history, found={"shop/price": some})[Topic.WINDOW] == (
        "5 repeats in 1.7 min; of 2 that were looked up the latest came 3.0 h after its original",
        'window="6h" holds at least 2 times that',
    )
    gone = told(history, found={"shop/price": Distances(sampled=5)})[Topic.WINDOW]
    assert "no original could be found" in gone[0]
    far = named(20 * 24 * HOUR_MS)
    assert "there is no longer one" in told(history, found={"shop/price": far})[Topic.WINDOW][1]
    assert Topic.WINDOW not in told(history)


@pytest.mark.parametrize(
    ("watched_hours", "window_hours", "change"),
    [
        (1, 24, ""),  # whatever comes a day later cannot have been seen
        (25, 24, 'window="6h" holds'),
        (1, 1, 'window="6h" holds'),
        (1, 6, ""),
        (1, 0, 'window="6h" holds'),
    ],
)
def test_a_shorter_window_is_suggested_only_by_who_watched_the_longer_one(
    watched_hours: int, window_hours: int, change: str
) -> None:
    history = seen([10] * 10, sums={"duplicate": 5}, seconds=watched_hours * 3600)
    found = named(1_000, 3 * HOUR_MS, window_ms=window_hours * HOUR_MS)
    saw, told_to = told(history, found={"shop/price": found})[Topic.WINDOW]
    assert told_to.startswith(change)
    assert bool(told_to) == bool(change)
    assert ("that long was not looked at" in saw) == (watched_hours < window_hours == 24)


def test_what_stages_make_needs_no_window() -> None:
    history = seen([10] * 10, sums={"duplicate": 5})
    assert Topic.WINDOW not in told(
        history, found={"shop/price": Distances(sampled=5, found_ms=[1_000])}
    )


def test_too_little_says_nothing() -> None:
    assert told(seen([1] * (RECORDS_MIN - 1))) == {}


def test_full_bundles_of_a_late_stage_ask_for_tasks() -> None:
    history = seen([20_000] * 5)
    assert "raise tasks" in told(history, late(1))[Topic.BUNDLES][1]
    assert told(history, late(0))[Topic.BUNDLES] == ("5 bundles of 20,000 records on average", "")


def test_many_small_bundles_may_be_fewer() -> None:
    assert "micro-batch" in told(seen([2] * 1_000, seconds=100))[Topic.BUNDLES][1]
    assert told(seen([2] * 1_000, seconds=1_000))[Topic.BUNDLES][1] == ""


def test_dead_letters_are_counted_and_one_is_named() -> None:
    history = seen([10] * 50, seconds=SLICES)
    assert Topic.LETTERS not in told(history)
    history.stages[0].sums["dead_letter"][3:5] = 7
    (without,) = advise(history, {}, late(0))
    assert without.seen == "14 of 500 records went to dead letters since 1970-01-01 00:00:03 UTC"
    assert "`delivery explain` --offset TOPIC/PARTITION/OFFSET of one" in without.change
    (one,) = advise(history, {}, late(0), (), {"shop/price": "bad/0/9"})
    assert "`delivery explain` --offset bad/0/9 says why" in one.change


def test_a_crowded_lane_is_named() -> None:
    lanes = {f"shop/price/in-{at}": 0 for at in range(8)} | {"shop/price/in-3": 2_000}
    found, change = told(seen([2_000], lanes=lanes))[Topic.LANES]
    assert found == "shop/price/in-3 read 100% of all records of 8 lanes, 7 of which read none"
    assert "more partitions do not split a key" in change
    even = {f"shop/price/in-{at}": 250 for at in range(8)}
    assert told(seen([2_000], lanes=even))[Topic.LANES][1] == ""


def test_repeats_and_losers_and_filters() -> None:
    full = Health(
        lane="shop/price/in-0",
        origin="external",
        ids=1,
        size=1,
        fill=0.9,
        rate=0.5,
        target=0.001,
        saturated=True,
    )
    history = seen([2_000], sums={"duplicate": 1_500}, losers={"shop/price/in-0": 3})
    found = told(history, filters=(full,))
    assert found[Topic.REPEATS][0] == "75% of what it read were repeats"
    assert found[Topic.LOSERS][0] == "3 attempts lost a race, beside 1 seals"
    assert found[Topic.FILTERS][0].startswith("1 filters of shop/price/in-0 are saturated")


# Distances ----------------------------------------------------------------------------------------


def repeated(*gaps_ms: int) -> House:
    """A stage whose publisher repeats its first record after each of these times."""
    found = House(MemoryStore())
    at = found.now
    found.write("first", "other", timestamp_ms=at)
    found.done()
    for gap in gaps_ms:
        found.now = max(found.now, at + gap)  # lane time is never ahead of the clock
        found.write(f"between {gap}", "first", timestamp_ms=at + gap)
        found.done()
    return found


def looked_up(house: House) -> Distances:
    catalog = house.catalog()
    (stage,) = read_rows(catalog).stages
    return distances(catalog, Topics(Cluster(house.broker)), stage)


def test_a_distance_is_the_time_between_a_repeat_and_its_original() -> None:
    house = repeated(500, 30_000, 2 * HOUR_MS)
    found = looked_up(house)
    assert (found.sampled, found.found_ms) == (3, [500, 30_000, 2 * HOUR_MS])
    assert (found.named_ms, found.window_ms) == (found.found_ms, WINDOW_MS)
    assert dict(zip(LABELS, found.classes, strict=True)) == {
        label: int(label in {"1 s", "1 min", "6 h"}) for label in LABELS
    }


def test_a_distance_is_that_to_the_last_effect_by_then() -> None:
    """Repeated after a second, again after three windows, and a second later."""
    house = repeated(1_000)
    house.now += 3 * WINDOW_MS
    house.write("later", timestamp_ms=house.now)
    house.done()
    for _ in range(2):
        house.now += 1_000
        house.write("first", timestamp_ms=house.now)
        house.done()
    found = looked_up(house).found_ms
    assert len(found) == 2
    assert all(1_000 <= one < 2_000 for one in found), "the clock goes on by itself a little"


def test_what_is_sent_again_by_us_is_late_and_named_by_nobody() -> None:
    house = House(MemoryStore())
    chained(house)
    house.write("more")
    house.done()
    again(house, -1)
    read_on(house)
    catalog = house.catalog()
    _, stage = read_rows(catalog).stages
    found = distances(catalog, Topics(Cluster(house.broker)), stage)
    assert (found.sampled, len(found.found_ms), found.named_ms) == (1, 1, [])


def test_a_repeat_in_the_same_bundle_is_no_distance_away() -> None:
    house = House(MemoryStore())
    house.write("twice", "twice", timestamp_ms=house.now)
    house.done()
    assert looked_up(house).found_ms == [0]


def test_the_time_of_a_merged_id_is_known_to_ten_minutes() -> None:
    house = repeated(*range(1_000, 40_000, 1_000))
    catalog = house.catalog()
    compact(catalog, LANE, WINDOW_MS)
    collect(catalog, LANE, Keep(window_ms=WINDOW_MS))
    assert catalog.seal(LANE, catalog.load(LANE).head.ref.incarnation, 1) is None
    house.now += 2 * HOUR_MS
    house.write("first", timestamp_ms=house.now)
    house.done()
    found = looked_up(house)
    assert found.sampled == 1
    assert 2 * HOUR_MS <= found.found_ms[0] <= 2 * HOUR_MS + 660_000


def test_what_kafka_has_deleted_is_not_in_the_sample() -> None:
    house = repeated(500)
    cluster = Cluster(house.broker, {house.source(): 4})
    (stage,) = read_rows(house.catalog()).stages
    assert distances(house.catalog(), Topics(cluster), stage).sampled == 0


# The verb -----------------------------------------------------------------------------------------


def test_the_verb_says_what_it_saw(house: House) -> None:
    asked = ("advice", house.store.url)
    found = document(*asked, "--kafka", "here:1")
    assert (found["kafka"], [one["topic"] for one in found["advice"]]) == (True, ["window"])
    said = called(*asked, "--kafka", "here:1").stdout
    assert "after its original; its window is 1.0 d, and that long was not looked at\n" in said
    assert "name the brokers with --kafka" in called(*asked).stdout
