"""`delivery catalog inspect` and `compact`, `delivery stage list`: what they say is what is there."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace

import pytest

import delivery.cli.catalog.compact as compact_verb
from dedup import compact
from dedup.catalog.store import Blob
from dedup.filters import Filters
from dedup.local import Home, LaneIndex
from dedup.model import Incarnation, Seal
from delivery.cli import tables
from delivery.cli.durations import DURATION
from delivery.operate import compaction, opening, watched
from delivery.operate.compaction import Rules, tidy
from delivery.operate.lanes import inspect
from delivery.receiver import keeping
from tests.unit.collect_kit import raced
from tests.unit.filters_kit import random_ids
from tests.unit.house import LANE, WINDOW_MS, House, rows
from tests.unit.operate_kit import SECOND, called, document, housed, shop, url

__all__ = ["shop", "url"]

#: Later than every record of a house.
NOW_MS = 1_800_000_000_000
#: Small enough that a few seals are worth a merge.
FEW = 3


def all_seals(house: House, lane: str = LANE) -> list[Seal]:
    catalog = house.catalog()
    return catalog.history(lane, catalog.load(lane).head)


# inspect ------------------------------------------------------------------------------------------


def test_inspect_says_of_every_lane_what_its_rows_say(shop, url):
    found = document("catalog", "inspect", url)
    assert found["catalog"] == url
    assert [lane["lane"] for lane in found["lanes"]] == [LANE, SECOND]
    row, lane = shop.catalog().load(LANE), found["lanes"][0]
    assert (lane["pipeline"], lane["stage"], lane["reads"]) == ("shop", "price", "0")
    assert (lane["seq"], lane["acknowledged"], lane["collected"]) == (6, 6, 0)
    assert lane["incarnation"] == row.head.ref.incarnation.hex()
    assert lane["frontier"] == [{"topic": "in", "partition": 0, "offset": 30}]
    assert lane["delivered"] == [{"topic": "out", "partition": 0, "offset": 27}]
    assert (lane["pending"], lane["pending_ms"], lane["database"]) == (0, None, None)
    assert lane["age_ms"] > 0
    assert (lane["entries"], lane["first"], lane["ids"]) == (7, 0, 27)
    assert (lane["unlisted"], lane["listed"], lane["segments"]) == (6, 0, 6)
    assert {name: lane["counts"][name] for name in ("read", "fresh", "duplicate")} == {
        "read": 30,
        "fresh": 27,
        "duplicate": 3,
    }
    assert lane["size"] == sum(lane["sizes"].values()) > 0


def test_inspect_shows_what_waits_to_be_delivered(shop, url):
    ack = shop.catalog().load(LANE).ack
    shop.write("late")
    runner = shop.runner()
    shop.begin(runner)
    while shop.catalog().load(LANE).head.ref.seq == 6:
        assert shop.turn(runner)
    (lane,) = document("catalog", "inspect", url, "price")["lanes"]
    assert (lane["seq"], lane["acknowledged"], lane["pending"]) == (7, ack.seq, 1)
    assert lane["pending_ms"] > 0


def test_inspect_counts_ids_wherever_they_lie(shop, url, monkeypatch):
    """In entries, in listed segments of single seals, in merged ones cut into pieces."""
    monkeypatch.setattr(compact, "PIECE_IDS", 5)
    monkeypatch.setattr("delivery.operate.lanes.PIECE_IDS", 5)
    monkeypatch.setattr(compact, "PLAIN_MIN", FEW)
    tidy(shop.catalog(), LANE, Rules(entries_ms=0), NOW_MS, perform=True)
    listed = shop.catalog().segment_list(LANE)
    compact.compact(shop.catalog(), LANE, 10**9, plain_min=FEW)
    merged = shop.catalog().segment_list(LANE)
    assert len(listed.slots) == 6, "one segment a seal"
    assert len(merged.slots) == 6, "27 ids in pieces of five"
    shop.write("new-1", "new-2")
    shop.done()
    lane = document("catalog", "inspect", url, "price")["lanes"][0]
    assert lane["ids"] == 29
    assert lane["listed"] == 0
    (tier,) = lane["tiers"]
    assert (tier["pieces"], tier["ids"], tier["origin"]) == (6, 27, "external")
    assert (lane["unlisted"], lane["segments"]) == (1, 7)
    stored = sum(
        len(chunk) for slot in merged.slots for chunk in shop.store.get(Blob.SEGMENT, slot)
    )
    assert tier["size"] == pytest.approx(stored, rel=0.2)


def test_inspect_reads_again_when_a_segment_went_meanwhile(shop, monkeypatch):
    tidy(shop.catalog(), LANE, Rules(entries_ms=0), NOW_MS, perform=True)
    catalog = shop.catalog()
    real, lost = catalog.store.get, []

    def get(kind, slot):
        if not lost:
            lost.append(slot)
            compact.compact(shop.catalog(), LANE, 10**9, plain_min=FEW)
        return real(kind, slot)

    monkeypatch.setattr(catalog.store, "get", get)
    (lane,) = inspect(catalog, [LANE], NOW_MS)
    assert lost
    assert (lane.ids, lane.listed, len(lane.tiers)) == (27, 0, 1)


def test_inspect_changes_nothing(shop, url):
    with shop.untouched():
        called("catalog", "inspect", url)
        called("catalog", "inspect", url, "shop/price", "0")
        called("stage", "list", url)
        called("catalog", "compact", url, "--keep-entries", "0")


def test_inspect_says_how_the_filters_of_this_host_are_and_did(shop, url, tmp_path):
    filters = Filters(engine="pybloom-live", rate=0.1, key=b"sixteen secrets!")
    index = LaneIndex(
        shop.catalog(), LANE, window_ms=WINDOW_MS, home=Home(tmp_path / "home"), filters=filters
    )
    index.catch_up(shop.catalog().load(LANE).head)
    assert not index.decided(random_ids(200)).any()
    asked = index.counters.asked
    index.close()
    home = "--home", str(tmp_path / "home")
    first, second = document("catalog", "inspect", url, *home)["lanes"]
    found = first["filters"]
    assert second["filters"] is None, "no process of this host has run that lane"
    (one,) = found.pop("each")
    assert found == {
        "engine": "pybloom-live",
        "target": 0.1,
        "keyed": True,
        "probes": 200,
        "positives": asked.positives,
        "false_positives": asked.positives,
        "avoided": 200 - asked.positives,
        "measured": asked.positives / 200,
    }
    assert (one["origin"], one["ids"], one["saturated"]) == ("external", 27, False)
    assert 0 < one["fill"] < 1
    assert 0 <= one["rate"] <= 0.1
    assert set(one) == {"origin", "ids", "size", "fill", "rate", "saturated"}
    told = called("catalog", "inspect", url, "price", "0", *home).stdout
    for words in ("pybloom-live at 10.000%, with a key", "27 external ids in", "200 ids"):
        assert words in told
    assert "sixteen" not in told
    elsewhere = called("catalog", "inspect", url, "price", "0", "--home", str(tmp_path)).stdout
    assert "none on this host" in elsewhere


def test_filters_of_a_package_that_is_not_here_are_left_out(shop, url, tmp_path, monkeypatch):
    home, filters = Home(tmp_path / "home"), Filters(engine="pybloom-live")
    index = LaneIndex(shop.catalog(), LANE, window_ms=WINDOW_MS, home=home, filters=filters)
    index.catch_up(shop.catalog().load(LANE).head)
    index.close()
    monkeypatch.setitem(sys.modules, "pybloom_live", None)
    (lane,) = document("catalog", "inspect", url, "price", "--home", str(home.root))["lanes"]
    assert lane["filters"]["engine"] == "pybloom-live"
    assert lane["filters"]["each"] == []


def test_a_lane_alone_tells_everything(url):
    told = called("catalog", "inspect", url, "price", "0").stdout
    for words in ("kept in", "incarnation", "frontier", "in 0: 30", "27", "entries"):
        assert words in told


def test_a_narrow_terminal_cuts_nothing_off(url, monkeypatch):
    wide = called("catalog", "inspect", url).stdout
    assert wide.splitlines()[0].split()[:4] == ["lane", "seq", "ack", "coll"]
    monkeypatch.setattr("delivery.cli.catalog.inspect.wide", lambda: 30)
    narrow = called("catalog", "inspect", url).stdout
    assert max(map(len, narrow.splitlines())) <= 30
    assert set(wide.split()) - {"lane", "2", "lanes"} <= set(narrow.split()) | {"2"}


@pytest.mark.parametrize("columns", [12, 20, 40, 200, None])
def test_a_table_fits_or_becomes_blocks(columns):
    lines = tables.table(["lane", "ids"], [["shop/price/orders-0", "1,000,000"]], columns)
    assert "1,000,000" in "".join(line.strip() for line in lines)
    if columns is not None and columns >= len("shop/price/orders-0"):
        assert max(map(len, lines)) <= columns


def test_a_block_leaves_out_what_its_row_has_nothing_in():
    rows = [["orders-0", "1", "2"], ["2 lanes", "", "4"]]
    assert tables.table(["lane", "seq", "ids"], rows, 10)[3:] == ["2 lanes", "  ids  4"]


def test_figures_in_words():
    assert [tables.size(count) for count in (0, 999, 1000, 2_500_000, -1500)] == [
        *("0 B", "999 B", "1.0 kB", "2.5 MB", "-1.5 kB"),
    ]
    assert [tables.ago(ms) for ms in (None, 500, 90_000, 7_200_000, 172_800_000)] == [
        *("-", "0.5 s", "90 s", "2 h", "2 d"),
    ]
    assert tables.when(1_700_000_000_007) == "2023-11-14 22:13:20.007 UTC"
    converted = [DURATION.convert(text, None, None) for text in ("0", "30s", "15min", "12h", "7d")]
    assert converted == [0, 30_000, 900_000, 43_200_000, 604_800_000]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.db",), "there is no catalog at"),
        (("shop.db", "prise"), "name one of shop/price, shop/ship"),
        (("shop.db", "price", "1"), "name one of shop/price/0"),
    ],
)
def test_what_is_not_there_is_an_error_that_says_what_is(shop, tmp_path, arguments, said):
    assert shop.store.url
    name, *rest = arguments
    result = called("catalog", "inspect", f"sqlite:{tmp_path / name}", *rest, code=2)
    assert said in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "nowhere.db").exists()


def test_an_empty_catalog_is_no_error(tmp_path):
    with housed(tmp_path / "empty.db"):
        url = f"sqlite:{tmp_path / 'empty.db'}"
        assert "no stage ever ran" in called("catalog", "inspect", url).stdout
        assert "no stage ever ran" in called("stage", "list", url).stdout
        assert document("catalog", "compact", url)["lanes"] == []


# stage list ---------------------------------------------------------------------------------------


def test_stage_list_names_topics_where_somebody_reads_them(shop, url):
    found = document("stage", "list", url)["stages"]
    assert [(one["pipeline"], one["stage"]) for one in found] == [
        ("shop", "price"),
        ("shop", "ship"),
    ]
    price, ship = found[0], found[1]
    assert (price["reads"], price["writes"]) == (["in"], ["out"])
    assert (ship["reads"], ship["writes"]) == (["out"], [shop.broker.names["end"].hex()])
    assert (price["lanes"], price["seals"], price["pending"], price["records"]) == (1, 6, 0, 30)
    assert "shop/price" in called("stage", "list", url).stdout


# compact ------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_then_happens(shop, url, tmp_path, monkeypatch):
    monkeypatch.setattr(compact, "PLAIN_MIN", FEW)
    raced(shop)
    options = ("--keep-entries", "0")
    said = document("catalog", "compact", url, *options)
    assert not said["done"]
    copy = tmp_path / "copy.db"
    shop.store.close()
    shutil.copy(tmp_path / "shop.db", copy)
    did = document("catalog", "compact", f"sqlite:{copy}", *options, "--yes")
    assert did["done"]
    for one, two in zip(said["lanes"], did["lanes"], strict=True):
        assert one | {"done": True} == two
    assert said["freed"] == did["freed"]
    assert any(lane["merges"] for lane in did["lanes"])
    assert any(lane["deeds"]["counts"].get("losers") for lane in did["lanes"])


def test_compact_keeps_entries_for_audits_and_says_so(shop, url):
    document("catalog", "compact", url, "--keep-entries", "36500d", "--yes")
    assert len(all_seals(shop)) == 7
    said = called("catalog", "compact", url, "--keep-entries", "36500d").stdout
    assert "an audit can still read them" in said
    document("catalog", "compact", url, "--keep-entries", "0", "--yes")
    assert all_seals(shop) == []
    assert "would go: nothing" in called("catalog", "compact", url).stdout


def test_compact_leaves_what_is_not_delivered_and_says_so(shop, url):
    shop.write("late")
    runner = shop.runner()
    shop.begin(runner)
    while shop.catalog().load(LANE).head.ref.seq == 6:
        assert shop.turn(runner)
    did = document("catalog", "compact", url, "--keep-entries", "0", "--yes")
    (price,) = [lane for lane in did["lanes"] if lane["lane"] == LANE]
    assert any("not acknowledged" in text for text in price["stays"])
    assert [seal.ref.seq for seal in all_seals(shop)] == [7]
    shop.done(shop.runner())
    assert shop.proved(finished=False) == []
    assert shop.sent()[-1].header("delivery") is not None


def test_the_defaults_are_those_of_the_function():
    assert DURATION.convert(compact_verb.ENTRIES_KEPT, None, None) == Rules().entries_ms


def test_a_lane_in_a_database_is_left_to_its_receiver(shop, url):
    assert opening._IN_DATABASE == keeping._IN_DATABASE
    row = shop.catalog().load(LANE)
    ref = replace(row.head.ref, incarnation=Incarnation(b"x" * 16))
    state = keeping._IN_DATABASE + bytes(16) + b"billing.db"
    head = replace(row.head, ref=ref, state=state)
    moved = replace(row, head=head, ack=replace(row.ack, incarnation=ref.incarnation))
    assert shop.catalog().reincarnate(LANE, row.head.ref, moved)
    with shop.untouched():
        did = document("catalog", "compact", url, "price", "--keep-entries", "0", "--yes")
    assert "its receiver collects it" in did["lanes"][0]["stays"][0]
    assert document("catalog", "inspect", url, "price")["lanes"][0]["database"] == "billing.db"
    assert document("stage", "list", url)["stages"][0]["databases"] == ["billing.db"]


def test_compact_beside_a_writer_is_followed_again(shop, monkeypatch):
    """A plan that a writer made void is made again; what was promised meanwhile stays."""
    catalog = shop.catalog()
    real, moved = catalog.store.raise_collected, []

    def raise_collected(lane, incarnation, expected, collected):
        if not moved:
            moved.append(lane)
            assert real(lane, incarnation, expected, 2)
        return real(lane, incarnation, expected, collected)

    monkeypatch.setattr(catalog.store, "raise_collected", raise_collected)
    did = tidy(catalog, LANE, Rules(entries_ms=0), NOW_MS, perform=True)
    assert moved
    assert not did.void
    assert all_seals(shop) == []
    shop.write("later", "r0-1")
    shop.done()
    assert shop.proved(finished=False) == []


def test_a_plan_that_is_always_void_ends_and_says_so(shop, monkeypatch):
    catalog = shop.catalog()
    monkeypatch.setattr(catalog.store, "raise_collected", lambda *_: False)
    did = tidy(catalog, LANE, Rules(entries_ms=0), NOW_MS, perform=True)
    assert did.void
    assert did.steps == ()


def test_a_rehearsal_keeps_bounded_bytes(shop, monkeypatch):
    monkeypatch.setattr(compact, "PLAIN_MIN", FEW)
    monkeypatch.setattr(watched, "REHEARSED_BYTES_MAX", 1)
    said = tidy(shop.catalog(), LANE, Rules(entries_ms=0), NOW_MS)
    assert said.more
    assert said.merges == 0
    assert compaction.tidy(shop.catalog(), LANE, Rules(entries_ms=0), NOW_MS, perform=True).merges


def test_a_compacted_catalog_still_drops_every_repeat(shop, url):
    document("catalog", "compact", url, "--keep-entries", "0", "--yes")
    before = len(shop.sent("end"))
    chained_again = [f"r{number}-{at}" for number in range(3) for at in range(9)]
    shop.write(*chained_again)
    shop.done(cut=5)
    shop.done(
        shop.runner(SECOND, reads="out", writes=("end",), senders=(LANE,)), topic="out", cut=5
    )
    assert len(shop.sent("end")) == before
    assert shop.proved() == []
    assert rows(shop.store)
