"""Verbs about whole catalogs read a receiver's lanes in its database, and say so where they cannot."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dedup.catalog.open import open_catalog
from delivery.watch.collector import Collector
from delivery.watch.rates import Rates
from tests.unit.house import House
from tests.unit.operate_kit import BILLING, SECOND, billed, called, document
from tests.unit.watch_kit import WRITTEN_MS, Cluster
from tests.unit.watch_kit import shop as furnished

KAFKA = ("--kafka", "memory")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with furnished(tmp_path / "shop.db", monkeypatch) as house:
        billed(house, tmp_path / "billing.db")
        yield house


@pytest.fixture
def url(shop: House) -> str:
    return shop.store.url


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "billing.db"


def away(database: Path) -> Path:
    """Move a database where nobody looks for it."""
    return database.rename(database.with_name("moved.db"))


def test_an_audit_proves_a_lane_in_a_database(url: str, database: Path) -> None:
    before = database.read_bytes()
    found = document("audit", url, *KAFKA, "--finished")
    assert (found["verdict"], found["unproved"]) == ("exact", {})
    assert {BILLING, SECOND} <= set(found["proved"])
    assert database.read_bytes() == before, "it is only read"


def test_an_audit_finds_what_is_wrong_in_a_database(url: str, database: Path) -> None:
    """A lane that is read there is held against the topics like any other one."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DELETE FROM delivery_entry WHERE seq = 2")
        connection.commit()
    found = document("audit", url, *KAFKA, code=1)
    assert {one["lane"] for one in found["findings"]} == {BILLING}


def test_a_lane_whose_database_is_away_is_never_called_exact(url: str, database: Path) -> None:
    moved = away(database)
    found = document("audit", url, *KAFKA, "--finished", code=3)
    assert (found["verdict"], found["findings"]) == ("unproved", [])
    (why,) = found["unproved"].values()
    assert str(database) in why
    assert "--database" in why
    assert BILLING not in found["proved"]
    assert SECOND in found["proved"], "all others are proved"
    told = document("audit", url, *KAFKA, "--finished", "--database", str(moved))
    assert (told["verdict"], told["unproved"]) == ("exact", {})


def test_a_follower_finds_a_database_that_comes_later(url: str, database: Path, tmp_path) -> None:
    """What was proved before stays proved; what is read now is proved from its beginning."""
    moved, state = away(database), tmp_path / "shop.proved"
    document("audit", url, *KAFKA, "--state", str(state), code=3)
    moved.rename(database)
    assert document("audit", url, *KAFKA, "--state", str(state))["verdict"] == "exact"


def test_what_is_watched_is_what_the_database_says(url: str, database: Path) -> None:
    (stage,) = [
        one for one in document("stage", "list", url)["stages"] if one["stage"] == "billing"
    ]
    assert stage["seals"] > 1
    assert stage["records"] > 0
    assert (stage["databases"], stage["unread"]) == ([str(database)], [])
    late = document("lag", url, *KAFKA, "--stage", "billing")["stages"][0]
    assert (late["behind"], late["late_ms"]) == (0, 0)
    assert document("guarantee", url, *KAFKA)["state"] == "exact"
    (lane,) = document("catalog", "inspect", url, "billing")["lanes"]
    assert lane["database"] == str(database)
    assert lane["counts"]["fresh"] == lane["ids"] > 0


def test_what_is_not_read_is_unknown(url: str, database: Path) -> None:
    moved = away(database)
    lines = called("stage", "list", url).stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("shop/billing ")]
    assert line.split()[4:7] == ["-", "-", "-"]
    assert "no such file here" in lines[-2]
    assert document("lag", url, *KAFKA, "--stage", "billing")["stages"][0]["behind"] is None
    found = document("guarantee", url, *KAFKA, code=3)
    (reason,) = [one for stage in found["stages"] for one in stage["reasons"]]
    assert (reason["subject"], reason["kind"]) == (BILLING, "elsewhere")
    assert "--database" in reason["advice"]
    assert "no such file here" in called("catalog", "inspect", url, "billing").stdout
    for verb in (("guarantee", *KAFKA), ("lag", *KAFKA), ("stage", "list"), ("catalog", "inspect")):
        words = [*verb[:2], url] if verb[0] in ("stage", "catalog") else [verb[0], url, *verb[1:]]
        called(*words, "--database", str(moved))


def test_a_database_that_comes_and_goes_is_counted_once(shop: House, database: Path) -> None:
    """Of a look without it nothing is known; the next one goes on where the last one ended."""
    rates = Rates(shop.catalog(), Cluster(shop.broker))
    rates.look(WRITTEN_MS)
    shop.write("more", "and more")
    shop.done()
    moved = away(database)
    (gone,) = [one for one in rates.look(WRITTEN_MS).stages if one.stage == "billing"]
    assert (gone.state, gone.behind, gone.records_a_second) == ("unknown", None, 0)
    moved.rename(database)
    billed(shop, database)
    collector = Collector(
        lambda: open_catalog(shop.store.url), lambda: Cluster(shop.broker), lambda: WRITTEN_MS
    )
    rates.look(WRITTEN_MS)
    assert rates._tallies.lanes[BILLING].counts["fresh"] == 2
    text = collector.look().text()
    collector.close()
    assert f'lane="{BILLING}"' in text


def test_topics_that_no_stage_reads_have_names_where_kafka_is_asked(url: str) -> None:
    """Without it, the last line says who knows them."""
    by = {one["stage"]: one for one in document("stage", "list", url)["stages"]}
    (identity,) = by["ship"]["writes"]
    assert by["ship"]["unnamed"] == [identity]
    assert by["price"]["writes"] == ["out"]
    assert "--kafka names it" in called("stage", "list", url).stdout.splitlines()[-1]
    by = {one["stage"]: one for one in document("stage", "list", url, *KAFKA)["stages"]}
    assert (by["ship"]["writes"], by["ship"]["unnamed"]) == (["end"], [])
    assert "--kafka" not in called("stage", "list", url, *KAFKA).stdout
