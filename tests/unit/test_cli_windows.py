"""`delivery catalog compact` and the windows of stages: what is held how long, and what is refused."""

from __future__ import annotations

from pathlib import Path

from delivery.operate.compaction import Rules
from tests.unit.house import House
from tests.unit.operate_kit import called, document, housed, shop, url

__all__ = ["shop", "url"]

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


def test_compact_forgets_no_id_unless_it_is_told_the_window(shop, url):
    """A collector cannot know how long a publisher may repeat itself."""
    shop.write("a day later", timestamp_ms=3 * DAY_MS)
    shop.done()
    document("catalog", "compact", url, "--keep-entries", "0", "--yes")
    assert document("catalog", "inspect", url, "price")["lanes"][0]["ids"] == 28
    document("catalog", "compact", url, "--keep-entries", "0", "--window", "24h", "--yes")
    assert document("catalog", "inspect", url, "price")["lanes"][0]["ids"] == 1


def declaring(directory: Path, pipeline: str = "shop", **windows: str) -> str:
    """A file that declares stages with these windows."""
    file = directory / "pipeline.py"
    stages = (
        f'd.stage(reads="in", name="{name}", window="{window}")(len)\n'
        for name, window in windows.items()
    )
    made = f'd = Delivery(catalog="memory:", kafka="nowhere:9092", pipeline="{pipeline}")\n'
    file.write_text("from delivery import Delivery\n" + made + "".join(stages))
    return str(file)


def aged(house: House, window_ms: int) -> None:
    """Let lane time move on by three days."""
    house.write("three days later", timestamp_ms=3 * DAY_MS)
    house.done(house.runner(window_ms=window_ms))


def test_a_window_below_the_one_that_a_stage_declares_is_refused(shop, url, tmp_path):
    aged(shop, WEEK_MS)
    file = declaring(tmp_path, price="7d", ship="24h")
    options = ("--pipeline", file, "--keep-entries", "0", "--yes")
    with shop.untouched():
        for window in ("24h", "167h"):
            said = called("catalog", "compact", url, "--window", window, *options, code=2).stderr
            for words in (
                "stage shop/price declares 168 h",
                "the repeats take effect a second time",
                "nothing was done",
                "leave out --window",
            ):
                assert words in " ".join(said.split())
    document("catalog", "compact", url, "ship", "--window", "24h", *options)
    did = document("catalog", "compact", url, "--window", "7d", *options)
    assert [lane["window_ms"] for lane in did["lanes"]] == [WEEK_MS, WEEK_MS]
    before = len(shop.sent())
    shop.write("r0-0")
    shop.done(shop.runner(window_ms=WEEK_MS))
    assert len(shop.sent()) == before, "its publisher may repeat it for a week"


def test_without_a_window_each_lane_has_the_one_that_its_stage_declares(shop, url, tmp_path):
    aged(shop, DAY_MS)
    file = declaring(tmp_path, price="7d", ship="24h")
    options = ("--pipeline", file, "--keep-entries", "0", "--yes")
    did = document("catalog", "compact", url, *options)
    assert [lane["window_ms"] for lane in did["lanes"]] == [WEEK_MS, DAY_MS]
    assert document("catalog", "inspect", url, "price")["lanes"][0]["ids"] == 28
    declaring(tmp_path, price="24h")
    did = document("catalog", "compact", url, *options)
    undeclared = Rules().window_ms
    assert [lane["window_ms"] for lane in did["lanes"]] == [DAY_MS, undeclared]
    assert document("catalog", "inspect", url, "price")["lanes"][0]["ids"] == 1
    did = document("catalog", "compact", url, "--window", "24h", *options)
    assert [lane["window_ms"] for lane in did["lanes"]] == [DAY_MS, undeclared], "a receiver's, say"


def test_a_pipeline_of_other_stages_knows_no_window_here(shop, url, tmp_path):
    file = declaring(tmp_path, pipeline="shoe", price="24h")
    with shop.untouched():
        said = called("catalog", "compact", url, "--pipeline", file, "--yes", code=2).stderr
        assert "declares none of these stages" in " ".join(said.split())
    with housed(tmp_path / "empty.db"):
        empty = f"sqlite:{tmp_path / 'empty.db'}"
        assert document("catalog", "compact", empty, "--pipeline", file)["lanes"] == []


def test_a_window_that_nobody_compared_is_said_to_be(url, tmp_path):
    words = "nobody has compared --window"
    file = declaring(tmp_path, price="24h", ship="24h")
    assert words in called("catalog", "compact", url, "--window", "24h").stdout
    assert words not in called("catalog", "compact", url).stdout
    compared = called("catalog", "compact", url, "--window", "24h", "--pipeline", file).stdout
    assert words not in compared


def test_a_window_no_stage_can_have_is_refused(shop, url):
    with shop.untouched():
        result = called("catalog", "compact", url, "--window", "31d", "--yes", code=2)
        assert "at most 30 days" in result.stderr
        assert "30s, 15min" in called("catalog", "compact", url, "--window", "x", code=2).stderr
