"""`delivery report`: one page that loads nothing, escapes everything, and draws what was sealed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from dedup.catalog.memory import MemoryStore
from dedup.filters import Filters
from dedup.local import Home, LaneIndex
from dedup.local.limits import Limits
from delivery.watch.charts import Axis, bars, lines, short, stacks
from delivery.watch.history import SLICES, history
from delivery.watch.kills import Kill
from delivery.watch.page import KILLS_MAX, page
from delivery.watch.rows import read_rows
from tests.unit.house import LANE, WINDOW_MS, House
from tests.unit.operate_kit import called, document
from tests.unit.watch_kit import busy, observed, shop

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


def drawings(text: str) -> list[ET.Element]:
    return [
        ET.fromstring(one)  # noqa: S314  it is our own page
        for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    ]


def test_the_page_loads_nothing_and_runs_nothing(text: str) -> None:
    assert LOADING.findall(text) == []
    assert "default-src 'none'" in text
    assert len(text) < 300_000


def test_the_page_is_whole_and_every_stage_has_its_charts(text: str) -> None:
    found = outline(text)
    assert text.startswith("<!doctype html>")
    assert (found.tags.count("section"), found.tags.count("figure")) == (2, 12)
    assert found.tags.count("h1") == found.tags.count("main") == 1
    # No repeats in the second stage: two of its charts say so instead of drawing nothing.
    assert found.tags.count("svg") == len(drawings(text)) == 10


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
    catalog = found.catalog()
    limits = Limits(overlay_ids_min=8, overlay_ids_max=8, first_ids=64)
    index = LaneIndex(
        catalog,
        LANE,
        window_ms=WINDOW_MS,
        home=Home(tmp_path),
        filters=Filters(key=bytes(16)),
        limits=limits,
    )
    index.catch_up(catalog.load(LANE).head)
    index.close()
    seen = observed(found, home=tmp_path)
    assert sum(one.ids for one in seen.filters) == 50
    assert all(0 < one.rate <= one.target * 2 for one in seen.filters)
    assert "Filters of this host" in page(seen)


# Charts -------------------------------------------------------------------------------------------


@pytest.fixture
def axis() -> Axis:
    return Axis(0, 7_200_000, 4)


def test_a_gap_is_a_gap(axis: Axis) -> None:
    (drawing,) = drawings(lines("t", "s", axis, [("a", [1, np.nan, 2, 3])]))
    paths = [one.get("d", "") for one in drawing.iter("path")]
    assert [path.count("L") for path in paths] == [1, 1]


def test_every_value_can_be_pointed_at(axis: Axis) -> None:
    (drawing,) = drawings(stacks("t", "s", axis, [("a", [1, 0, 2, 0]), ("b", [1, 0, 0, 5])]))
    told = [one.text for one in drawing.iter("title")]
    assert told == ["00:00\na: 1\nb: 1", "01:00\na: 2", "01:30\nb: 5"]


def test_stacks_stand_on_each_other(axis: Axis) -> None:
    (drawing,) = drawings(stacks("t", "s", axis, [("a", [2, 0, 0, 0]), ("b", [4, 0, 0, 0])]))
    lower, upper = (one for one in drawing.iter("rect") if "bar" in one.get("class", ""))
    assert float(upper.get("y", 0)) + float(upper.get("height", 0)) == pytest.approx(
        float(lower.get("y", 0)), abs=0.2
    )
    assert float(upper.get("height", 0)) == pytest.approx(
        2 * float(lower.get("height", 0)), rel=0.01
    )


def test_bars_are_as_long_as_their_values() -> None:
    (drawing,) = drawings(bars("t", "s", [("one", 10.0), ("two", 5.0), ("none", 0.0)]))
    widths = [float(one.get("width", 0)) for one in drawing.iter("rect")]
    assert widths[1] == pytest.approx(widths[0] / 2, rel=0.01)
    assert widths[2] == 0


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (999, "999"), (1_500, "1.5k"), (2.5e6, "2.5M"), (3e9, "3G")]
)
def test_numbers_are_short(value: float, said: str) -> None:
    assert short(value) == said


@pytest.mark.parametrize("most", [0.0004, 0.07, 0.9, 1, 2.9, 3, 17, 99, 1_001, 987_654])
def test_an_axis_ends_above_the_largest_value_and_not_far(axis: Axis, most: float) -> None:
    (drawing,) = drawings(lines("t", "s", axis, [("a", [most, 0, 0, 0])]))
    (path,) = (one.get("d", "") for one in drawing.iter("path"))
    y = float(path.split()[1].split("L")[0])
    assert 7.9 <= y <= 110


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
