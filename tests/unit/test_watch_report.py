"""`delivery report`: one page that loads nothing, escapes everything, and draws what was sealed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest

from dedup.catalog.memory import MemoryStore
from delivery.watch.filters import Health
from delivery.watch.history import SLICES, history
from delivery.watch.kills import Kill
from delivery.watch.page import KILLS_MAX, LANES_MAX, page
from delivery.watch.rows import read_rows
from tests.unit.house import LANE, House
from tests.unit.operate_kit import called, document
from tests.unit.watch_kit import busy, drawings, indexed, observed, shop, told

#: Tags that have no end.
VOID = {"meta"}
#: What a page may not load or run.
LOADING = re.compile(r"https?:|//|@import|url\(|<script|<link|<img|<iframe|\bsrc=|\bhref=|\bon\w+=")


@pytest.fixture(scope="module")
def house() -> House:
    found = House(MemoryStore())
    busy(found, rounds=24)
    found.write("late", timestamp_ms=found.now - 200_000)
    return found


@pytest.fixture(scope="module")
def text(house: House) -> str:
    return page(observed(house))


class Outline(HTMLParser):
    """The tags of a page, which have to close in the order in which they opened."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert len({name for name, _ in attrs}) == len(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


def charts(text: str, title: str) -> list[Element]:
    """The drawings of a page with a title."""
    return [one for one in drawings(text) if one.get("aria-label", "").startswith(f"{title}. ")]


def test_the_page_loads_nothing_and_runs_nothing(text: str) -> None:
    assert LOADING.findall(text) == []
    assert "default-src 'none'" in text
    assert len(text) < 300_000


def test_the_page_is_whole_and_every_stage_has_its_charts(text: str) -> None:
    found = outline(text)
    assert text.startswith("<!doctype html>")
    # Six of each stage, and two of how far behind all are.
    assert (found.tags.count("section"), found.tags.count("figure")) == (2, 2 * 6 + 2)
    assert found.tags.count("h1") == found.tags.count("main") == 1
    # No repeats in the second stage: two of its charts say so instead of drawing nothing.
    assert found.tags.count("svg") == len(drawings(text)) == 12


def test_drawings_say_what_they_show_and_stay_inside(text: str) -> None:
    for one in drawings(text):
        assert one.get("role") == "img"
        assert len(one.get("aria-label", "")) > 20
        _, _, width, height = map(float, one.get("viewBox", "").split())
        for mark in one.iter("rect"):
            x, y, wide, tall = (
                float(mark.get(name, "-1")) for name in ("x", "y", "width", "height")
            )
            assert x >= 0
            assert x + wide <= width + 1
            assert y >= -0.1
            assert y + tall <= height + 0.1
    assert re.findall(r"\b(?:nan|inf|None)\b", text) == []


def test_the_page_knows_light_and_dark(text: str) -> None:
    light, dark = text.partition("prefers-color-scheme:dark")[::2]
    names = set(re.findall(r"(--\w+):", light))
    assert set(re.findall(r"(--\w+):", dark.partition("}}")[0])) == names
    assert set(re.findall(r"var\((--\w+)\)", text)) <= names
    assert 'name="viewport"' in text


def brightness(colour: str) -> float:
    """The relative luminance of a colour, as contrast is measured."""
    raw = colour.lstrip("#")
    raw = "".join(digit * 2 for digit in raw) if len(raw) == 3 else raw
    parts = [int(raw[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_can_be_told_from_what_is_behind_them(text: str) -> None:
    light, dark = text.partition("prefers-color-scheme:dark")[::2]
    for sheet in (light, dark.partition("}}")[0]):
        colours = dict(re.findall(r"--(\w+):\s*(#\w+)", sheet.replace("\n", "")))
        for name in ("ink", "soft", "good", "warn", "bad", "c0", "c1", "c2", "c3"):
            for behind in ("card", "page"):
                pair = sorted((brightness(colours[name]), brightness(colours[behind])))
                contrast = (pair[1] + 0.05) / (pair[0] + 0.05)
                assert contrast >= (3 if name.startswith("c") else 4.5), (name, behind)


def test_the_page_says_what_was_sealed(house: House, text: str) -> None:
    words = " ".join(outline(text).words)
    catalog = house.catalog()
    seals = catalog.history(LANE, catalog.load(LANE).head)
    read = sum(seal.counts.read for seal in seals)
    repeats = sum(seal.counts.duplicate for seal in seals)
    assert f"{read:,} read, {read - repeats:,} outputs." in words
    assert f"{repeats:,} of {read:,} records; 0 with another payload." in words
    assert "shop/price holds things up" in words
    assert "PROTECTED" in words


def test_without_kafka_the_page_says_what_is_missing(house: House) -> None:
    words = " ".join(outline(page(observed(house, kafka=False))).words)
    assert "UNKNOWN" in words
    assert "Kafka was not asked: name the brokers with --kafka." in words


def test_an_empty_catalog_has_a_page() -> None:
    words = " ".join(outline(page(observed(House(MemoryStore())))).words)
    assert "No stage ever ran on it." in words
    assert "Too little was seen" in words


def test_names_are_escaped() -> None:
    found = House(MemoryStore())
    found.write("a", "b", "a")
    found.done(found.runner('shop/<script>alert("1")</script> & co/0'))
    text = page(observed(found))
    outline(text)
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_kills_are_listed_and_marked_in_every_chart_over_time(house: House, text: str) -> None:
    seen = observed(house)
    began, ended = seen.history.since_ms, seen.history.until_ms
    kills = [Kill(began + 1, "a <worker>"), Kill((began + ended) // 2, "the job")]
    marked = page(seen, [Kill(began - 1, "before all that is shown"), *kills])
    assert LOADING.findall(marked) == []
    assert "3 killed" in " ".join(outline(marked).words)
    assert "a <worker>" in outline(marked).words
    charts = [one for one in drawings(marked) if one.findall("rect[@class='hover']")]
    for one in charts:
        lines_down = [line for line in one.iter("line") if line.get("class") == "mark"]
        assert len(lines_down) == len(kills), "none of what lies before the chart"
        said = " ".join(title.text or "" for title in one.iter("title"))
        assert "killed: the job" in said
    assert len(charts) == 5
    assert 'id="kills"' not in text
    assert 'class="mark"' not in text


def test_of_very_many_kills_the_latest_are_listed(house: House) -> None:
    seen = observed(house)
    kills = [Kill(seen.history.since_ms + at, f"number {at}") for at in range(KILLS_MAX + 3)]
    found = outline(page(seen, kills))
    assert "number 2" not in found.words
    assert "number 3" in found.words
    assert "The oldest 3 are not listed." in " ".join(found.words)


def test_filters_of_a_home_are_shown(tmp_path: Path) -> None:
    found = House(MemoryStore())
    found.write(*(f"r{at}" for at in range(50)))
    found.done()
    indexed(found, tmp_path)
    seen = observed(found, home=tmp_path)
    assert sum(one.ids for one in seen.filters) == 50
    assert all(0 < one.rate <= one.target * 2 for one in seen.filters)
    drawn = page(seen)
    assert "Filters of this host" in drawn
    (one,) = seen.filters
    (chart,) = charts(drawn, "False hits")
    assert told(chart) == [
        f"shop/price/0, external: {100 * one.rate:.2g}% of {100 * one.target:.2g}%"
    ]


def test_lag_is_charted_in_the_order_of_the_flow(house: House) -> None:
    seen = observed(house)
    price, ship = seen.lag.stages
    price, ship = replace(price, late_ms=4_000, behind=3), replace(ship, late_ms=9_000, behind=None)
    text = page(replace(seen, lag=replace(seen.lag, stages=(price, ship))))
    (age,), (behind,) = charts(text, "The oldest that waits"), charts(text, "Records behind")
    assert told(age) == ["shop/price: 4 s", "shop/ship: 9 s"]
    assert told(behind) == ["shop/price: 3"]
    assert "Stages of which it is not known: 1." in behind.get("aria-label", "")


def test_lag_that_nobody_knows_is_no_chart(house: House) -> None:
    seen = observed(house)
    unknown = tuple(replace(one, late_ms=None, behind=None) for one in seen.lag.stages)
    text = page(replace(seen, lag=replace(seen.lag, stages=unknown)))
    assert charts(text, "Records behind") == []
    assert "Stages of which it is not known: 2." in " ".join(outline(text).words)


def test_of_very_many_stages_those_furthest_behind_are_charted(house: House) -> None:
    seen = observed(house)
    first = seen.lag.stages[0]
    many = tuple(replace(first, stage=f"s{at}", behind=at) for at in range(LANES_MAX + 2))
    text = page(
        replace(
            seen,
            lag=replace(seen.lag, stages=many),
            guarantee=replace(
                seen.guarantee,
                stages=tuple(replace(seen.guarantee.stages[0], stage=one.stage) for one in many),
            ),
        )
    )
    (behind,) = charts(text, "Records behind")
    assert told(behind)[0] == "shop/s2: 2"
    assert len(told(behind)) == LANES_MAX
    assert "left out: 2." in behind.get("aria-label", "")


def test_filters_are_charted_against_the_rate_asked_for_the_worst_first(house: House) -> None:
    fine = Health(
        lane="shop/price/0",
        origin="external",
        ids=10,
        size=100,
        fill=0.3,
        rate=0.0005,
        target=0.001,
        saturated=False,
    )
    emptier = replace(fine, rate=0.0001)
    full = replace(fine, origin="internal", rate=0.004, saturated=True)
    text = page(replace(observed(house), filters=(emptier, fine, full)))
    outline(text)
    (chart,) = charts(text, "False hits")
    assert told(chart) == [
        "shop/price/0, internal: 0.4% of 0.1%",
        "shop/price/0, external: 0.05% of 0.1%",
    ]


def test_history_adds_up_to_what_was_sealed(house: House) -> None:
    catalog = house.catalog()
    found = history(catalog, read_rows(catalog)).stages[0]
    seals = catalog.history(LANE, catalog.load(LANE).head)
    assert found.total("read") == sum(seal.counts.read for seal in seals)
    assert found.total("seals") == len(seals) - 1
    assert all(len(column) == SLICES for column in found.sums.values())
    assert sum(found.lanes.values()) == found.total("read")


# The verb -----------------------------------------------------------------------------------------


@pytest.fixture
def sold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with shop(tmp_path / "shop.db", monkeypatch) as found:
        yield found


def test_the_verb_writes_the_page(sold: House, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    asked = ("report", sold.store.url, "--kafka", "here:1", "-o", str(file))
    found = document(*asked)
    assert (found["file"], found["size"]) == (str(file), file.stat().st_size)
    assert (found["stages"], found["kafka"]) == (["shop/price", "shop/ship"], True)
    outline(file.read_text())
    assert "open it in a browser" in called(*asked).stdout
    assert [one.name for one in tmp_path.iterdir() if "unfinished" in one.name] == []


def test_a_file_that_cannot_be_written_is_an_error(sold: House, tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere" / "report.html")
    assert "name another file" in called("report", sold.store.url, "-o", missing, code=2).stderr


def test_what_is_older_is_left_out(sold: House, tmp_path: Path) -> None:
    file = str(tmp_path / "report.html")
    assert document("report", sold.store.url, "-o", file)["seals"] > 0
    assert document("report", sold.store.url, "-o", file, "--since", "1h")["seals"] == 0


def test_the_verb_takes_what_chaos_has_said(sold: House, tmp_path: Path) -> None:
    said = tmp_path / "chaos.json"
    said.write_text('{"died": [{"at_ms": 1700000000000, "what": "the job with all below it"}]}')
    file = tmp_path / "page.html"
    found = document("report", sold.store.url, "-o", str(file), "--chaos", str(said))
    assert found["kills"] == 1
    assert "the job with all below it" in file.read_text()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"died": [{"what": "the job"}]}', '{"died": 3}'])
def test_what_chaos_has_not_said_is_refused(sold: House, tmp_path: Path, text: str) -> None:
    said, file = tmp_path / "chaos.json", tmp_path / "page.html"
    said.write_text(text)
    result = called("report", sold.store.url, "-o", str(file), "--chaos", str(said), code=2)
    assert "delivery chaos --json" in result.stderr
    assert not file.exists()
