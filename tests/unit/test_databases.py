"""Lanes in users' databases: told as they are where the database is here, and as unknown where not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from delivery.operate.databases import Kept, with_databases
from delivery.operate.explaining import explain
from delivery.operate.logs import Cluster
from delivery.operate.story import Reading, Story
from sinks.sql import SqliteLedger
from tests.unit.house import House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import BILLING, SECOND, again, begun_elsewhere, billed, chained, read_on


@pytest.fixture
def shop(house: House) -> House:
    chained(house)
    return house


def in_databases(house: House, topic: str, offset: int, *files: Path) -> tuple[Story, Kept]:
    """Tell a story with the lanes of databases, and how the receiver's is kept."""
    with with_databases(Catalog(house.store), list(map(str, files))) as (catalog, kept):
        cluster = Cluster(MemoryClient(house.broker))
        (one,) = kept.values()
        assert one.lane == BILLING
        return explain(catalog, cluster, topic, 0, offset), one


def by_catalog(house: House, topic: str, offset: int) -> Story:
    """Tell a story as whoever does not look for databases."""
    cluster = Cluster(MemoryClient(house.broker))
    return explain(Catalog(house.store), cluster, topic, 0, offset)


def reading_of(told: Story, lane: str) -> Reading:
    (found,) = [one for one in told.readings if one.lane == lane]
    return found


def test_a_lane_in_a_database_that_is_not_here_is_elsewhere_not_pending(shop: House) -> None:
    """The catalog knows where it began, and nothing of what it has sealed since."""
    begun_elsewhere(shop, 2)
    for tell in (by_catalog, lambda *place: in_databases(*place)[0]):
        fates = [reading_of(tell(shop, "out", at), BILLING).fate for at in (1, 2, 9, 99)]
        assert fates == ["before the lane began", "elsewhere", "elsewhere", "elsewhere"]
        (output,) = tell(shop, "in", 5).readings[0].outputs
        assert [dict(copy.receivers) for copy in output.copies] == [
            {BILLING: "elsewhere", SECOND: "fresh"}
        ]
    _, kept = in_databases(shop, "out", 9)
    assert kept.database == "/gone/billing.db"
    assert kept.unread is not None
    assert "no such file here" in kept.unread
    assert "--database" in kept.unread


def test_a_lane_in_a_database_that_is_here_is_told_as_it_is(shop: House, tmp_path: Path) -> None:
    """By its own seals, which say the same as those of a stage that has read the same."""
    database = tmp_path / "billing.db"
    billed(shop, database)
    shop.write("more")
    shop.done()
    first, copies = shop.sent()[-1].offset, [again(shop, -1), again(shop, 0)]
    billed(shop, database)
    read_on(shop)
    before = database.read_bytes(), shop.picture()
    for offset in range(copies[1] + 2):
        told, kept = in_databases(shop, "out", offset)
        assert kept == Kept(lane=BILLING, database=str(database), unread=None)
        mine, theirs = reading_of(told, BILLING), reading_of(told, SECOND)
        assert (mine.fate, mine.named, mine.original and mine.original.place) == (
            *(theirs.fate, theirs.named),
            theirs.original and theirs.original.place,
        )
        assert [one.offset for one in mine.repeats] == [one.offset for one in theirs.repeats]
        assert len(mine.attempts) == (mine.fate != "pending")
    fates = [reading_of(in_databases(shop, "out", at)[0], BILLING).fate for at in (first, *copies)]
    assert fates == ["fresh", "duplicate", "remnant"]
    assert reading_of(told, BILLING).fate == "pending", "nobody has written it"
    assert (database.read_bytes(), shop.picture()) == before, "all of it is only read"
    # Without the database nobody knows, and a stale frontier is nobody's fate.
    fates = [reading_of(by_catalog(shop, "out", at), BILLING).fate for at in (0, first)]
    assert fates == ["elsewhere", "elsewhere"]


def test_a_database_that_was_moved_is_read_where_it_is_said_to_be(
    shop: House, tmp_path: Path
) -> None:
    database, moved = tmp_path / "billing.db", tmp_path / "moved here.db"
    billed(shop, database)
    database.rename(moved)
    told, kept = in_databases(shop, "out", 3)
    assert (reading_of(told, BILLING).fate, kept.database) == ("elsewhere", str(database))
    told, kept = in_databases(shop, "out", 3, moved)
    assert (reading_of(told, BILLING).fate, kept.database) == ("fresh", str(moved))
    other = tmp_path / "other.db"
    other.touch()
    with pytest.raises(InvalidUsage, match="no receiver has ever sealed in it"):
        in_databases(shop, "out", 3, other)
    assert other.read_bytes() == b"", "who looks makes nothing"
    SqliteLedger(other).close()
    with pytest.raises(InvalidUsage, match="keeps no lane that"):
        in_databases(shop, "out", 3, other)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE delivery_database SET identity = zeroblob(16)", "it is not the database"),
        ("UPDATE delivery_lane SET incarnation = zeroblob(16)", "their histories differ"),
        ("UPDATE delivery_database SET version = 9", "its tables have version 9"),
        ("DROP TABLE delivery_database", "no receiver has ever sealed in it"),
    ],
)
def test_a_database_that_contradicts_the_catalog_tells_nothing(
    shop: House, tmp_path: Path, change: str, why: str
) -> None:
    database = tmp_path / "billing.db"
    billed(shop, database)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(change)
        connection.commit()
    told, kept = in_databases(shop, "out", 3)
    assert reading_of(told, BILLING).fate == "elsewhere"
    assert reading_of(told, SECOND).fate == "fresh"
    assert kept.unread is not None
    assert why in kept.unread


def test_a_lane_that_a_database_has_nothing_of_stands_where_it_began(
    shop: House, tmp_path: Path
) -> None:
    """Its process died between the catalog's row and the database's."""
    database = tmp_path / "billing.db"
    billed(shop, database)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DELETE FROM delivery_lane")
        connection.execute("DELETE FROM delivery_entry")
        connection.commit()
    told, kept = in_databases(shop, "out", 3)
    assert (reading_of(told, BILLING).fate, kept.unread) == ("pending", None)
