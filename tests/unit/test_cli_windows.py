"""`delivery catalog compact` and the windows of stages: what is held how long, and what is refused."""

from __future__ import annotations

from dedup.expiry import WINDOW_MS_MAX
from tests.unit.house import House
from tests.unit.operate_kit import called, document, shop, url

__all__ = ["shop", "url"]

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
NOW = ("--keep-entries", "0", "--yes")


def aged(house: House, window_ms: int) -> None:
    """Let lane time move on by three days, with a process that has this window."""
    house.write("three days later", timestamp_ms=3 * DAY_MS)
    house.done(house.runner(window_ms=window_ms))


def held(url: str, *more: str) -> dict[str, int]:
    did = document("catalog", "compact", url, *more, *NOW)
    return {lane["lane"].split("/")[1]: lane["window_ms"] for lane in did["lanes"]}


def ids(url: str) -> int:
    return document("catalog", "inspect", url, "price")["lanes"][0]["ids"]


def test_each_lane_holds_ids_for_the_window_it_ran_with(shop, url):
    aged(shop, WEEK_MS)
    assert held(url) == {"price": WEEK_MS, "ship": DAY_MS}
    assert ids(url) == 28
    before = len(shop.sent())
    shop.write("r0-0")
    shop.done(shop.runner(window_ms=WEEK_MS))
    assert len(shop.sent()) == before, "its publisher may repeat it for a week"


def test_a_stage_that_runs_with_a_shorter_window_says_so_with_its_next_seal(shop, url):
    aged(shop, WEEK_MS)
    shop.write("under the shorter one", timestamp_ms=3 * DAY_MS)
    shop.done(shop.runner(window_ms=DAY_MS))
    assert held(url) == {"price": DAY_MS, "ship": DAY_MS}
    assert ids(url) == 2


def test_a_window_below_the_one_that_a_lane_ran_with_is_refused(shop, url):
    aged(shop, WEEK_MS)
    with shop.untouched():
        for window in ("24h", "167h"):
            said = called("catalog", "compact", url, "--window", window, *NOW, code=2).stderr
            for words in (
                "lane shop/price/0 was sealed with one of 168 h",
                "the repeats take effect a second time",
                "nothing was done",
                "leave out --window",
            ):
                assert words in " ".join(said.split())
    assert held(url, "--window", "7d") == {"price": WEEK_MS, "ship": WEEK_MS}, "longer is held"
    assert document("catalog", "compact", url, "ship", "--window", "24h")["lanes"]


def test_a_lane_that_says_no_window_is_held_for_the_longest_there_can_be(shop, url):
    """It was begun, and never ran; or last before seals said it."""
    lane = "shop/silent/0"
    runner = shop.runner(lane)
    shop.begin(runner)
    while shop.catalog().load(lane) is None:
        assert shop.turn(runner)
    assert held(url)["silent"] == WINDOW_MS_MAX
    assert held(url, "--window", "24h")["silent"] == WINDOW_MS_MAX
    assert document("catalog", "inspect", url, "silent")["lanes"][0]["window_ms"] is None
    assert document("catalog", "inspect", url, "price")["lanes"][0]["window_ms"] == DAY_MS


def test_a_window_no_stage_can_have_is_refused(shop, url):
    with shop.untouched():
        result = called("catalog", "compact", url, "--window", "31d", "--yes", code=2)
        assert "at most 30 days" in result.stderr
        assert "30s, 15min" in called("catalog", "compact", url, "--window", "x", code=2).stderr
