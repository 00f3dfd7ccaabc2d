"""A receiver's database moved, lost or put back: refused until somebody says what is meant."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dedup.catalog.open import open_catalog
from dedup.catalog.store import Blob
from dedup.errors import Corrupt, InvalidUsage
from delivery.services.kafka import Kafka
from tests.integration.receiver_kit import PARTITIONS, World, consume, once_each
from tests.unit.operate_kit import called, document


@pytest.fixture
def world(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> World:
    return World(kafka.bootstrap, unique("report"), tmp_path).make()


def test_a_database_that_is_not_the_one_is_refused_until_it_is_accepted(world: World) -> None:
    world.send(range(20))
    consume(world, world.receiver(bounded=True))
    right = world.root / "right.db"
    shutil.move(world.database, right)
    with pytest.raises(InvalidUsage, match="no such file"):
        list(world.receiver(bounded=True))
    with closing(sqlite3.connect(world.database)) as connection:
        connection.execute("CREATE TABLE effect (id TEXT, place INTEGER, made BLOB)")
        connection.commit()
    with pytest.raises(InvalidUsage, match="not the database"):
        consume(world, world.receiver(bounded=True))
    assert not world.effects()
    # Moved: said where it is.
    world.send(range(20, 30))
    shutil.copy(right, world.database)
    consume(world, world.receiver(bounded=True, database=str(world.database)))
    assert world.effects() == once_each(range(30))
    # Lost, and begun anew: all of it is done again, in the new one.
    world.database.unlink()
    with closing(sqlite3.connect(world.database)) as connection:
        connection.execute("CREATE TABLE effect (id TEXT, place INTEGER, made BLOB)")
        connection.commit()
    world.receiver().accept(str(world.database))
    consume(world, world.receiver(bounded=True))
    assert world.effects() == once_each(range(30))


def test_a_database_put_back_is_followed_unless_its_ids_were_collected(world: World) -> None:
    world.send(range(20))
    consume(world, world.receiver(bounded=True))
    backup = world.root / "backup.db"
    shutil.copy(world.database, backup)
    world.send(range(20, 200))
    consume(world, world.receiver(bounded=True))
    # Older, and everything it needs is there: what it forgot is done again, in it.
    shutil.copy(backup, world.database)
    consume(world, world.receiver(bounded=True))
    assert world.effects() == once_each(range(200))
    assert world.receiver().collect()
    world.send([*range(190, 210)])
    consume(world, world.receiver(bounded=True))
    assert world.effects() == once_each(range(210))
    # Older than what was collected: its own ids may be gone with those it never saw.
    shutil.copy(backup, world.database)
    with pytest.raises(InvalidUsage, match="that was collected"):
        consume(world, world.receiver(bounded=True))
    world.receiver().accept(str(world.database))
    world.send([*range(10), *range(200, 220)])
    consume(world, world.receiver(bounded=True))
    assert world.effects() == once_each(range(220))


def test_a_catalog_that_lacks_what_the_database_names_is_refused(world: World) -> None:
    world.send(range(300))
    consume(world, world.receiver(bounded=True))
    catalog = world.root / "catalog.db"
    for file in world.root.glob("catalog.db*"):
        file.unlink()
    with closing(open_catalog(f"sqlite:{catalog}").store):
        pass
    with pytest.raises(InvalidUsage, match="does not know this lane"):
        consume(world, world.receiver(bounded=True))
    assert world.effects() == once_each(range(300))


def test_segments_that_are_missing_stop_it(world: World) -> None:
    world.send(range(3000))
    # Ids of a bundle this large do not ride in its seal.
    consume(world, world.receiver(bounded=True, bundle_rows=1000))
    with closing(open_catalog(world.plan.catalog).store) as store:
        lane = next(iter(store.lanes()))
        slots = list(store.slots(Blob.SEGMENT, lane))
        assert slots
        store.delete(Blob.SEGMENT, slots)
    world.send(range(3000, 3010))
    with pytest.raises(Corrupt, match="a segment that is gone"):
        consume(world, world.receiver(bounded=True))


def test_what_became_of_a_record_in_a_database_is_told_from_it(world: World) -> None:
    """By the verbs, and held against the effects themselves: they say at which place each was."""
    world.send([*range(60), *range(10)])
    consume(world, world.receiver(bounded=True))
    world.send([60])
    with closing(sqlite3.connect(world.database)) as connection:
        effects = {
            (int(name) % PARTITIONS, place)
            for name, place in connection.execute("SELECT id, place FROM effect")
        }
    url = world.plan.catalog

    def told(verb: str, place: str, *more: str) -> tuple[str, dict[str, Any]]:
        words = verb.split()
        kafka = ("--kafka", world.bootstrap) if verb == "explain" else ()
        found = document(*words, url, *kafka, "--offset", f"{world.topic}/{place}", *more)
        (one,) = found["reads" if "reads" in found else "readings"]
        (kept,) = found["databases"]
        assert one["lane"] == kept["lane"]
        return one["fate"], kept

    every = [(partition, offset) for partition in range(PARTITIONS) for offset in range(35)]
    for partition, offset in every:
        right = "fresh" if (partition, offset) in effects else "duplicate"
        for verb in ("catalog lookup", "explain"):
            fate, kept = told(verb, f"{partition}/{offset}")
            assert (fate, kept["unread"]) == (right, None)
            assert kept["database"] == str(world.database)
    assert len(effects) == 60
    assert [told(verb, "0/35")[0] for verb in ("catalog lookup", "explain")] == ["pending"] * 2
    found = document("catalog", "lookup", url, "--name", "7")
    assert [one["lane"] for one in found["decisions"]] == [f"shop/billing/{world.topic}-1"]

    moved = world.root / "moved.db"
    world.database.rename(moved)
    for verb in ("catalog lookup", "explain"):
        for place in ("0/3", "1/34", "0/35"):
            fate, kept = told(verb, place)
            assert fate == "elsewhere"
            assert kept["database"] == str(world.database)
            assert "no such file here" in kept["unread"]
        assert told(verb, "1/34", "--database", str(moved))[0] == "duplicate"
    wrong = ("explain", url, "--kafka", world.bootstrap, "--name", "7")
    said = called(*wrong, code=2).stderr
    assert "their databases were not read" in said
    assert str(world.database) in said
