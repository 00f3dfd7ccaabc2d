"""The operator's verbs on a real Cassandra say what they say of a file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dedup.backup import back_up, restore
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_store
from dedup.errors import InvalidUsage
from delivery.protocol.messages import End
from delivery.services.cassandra import Cassandra
from delivery.testing.faulty import Crashed, Fault, FaultyStore, Wire
from tests.unit.house import LANE, House, rows
from tests.unit.operate_kit import SECOND, called, chained, copied, document, housed


def test_every_verb_serves_a_catalog_in_cassandra(
    cassandra: Cassandra, unique: Callable[[str], str], tmp_path: Path
) -> None:
    server = f"cassandra://{cassandra.contact_points[0]}:{cassandra.port}"
    url = f"{server}/{unique('shop')}"
    assert "there is no catalog" in called("catalog", "inspect", url, code=2).stderr
    house = House(MemoryStore(), inline_bytes_max=0)
    chained(house)
    store = open_store(url)
    copied(house.store, store)
    store.close()

    lanes = document("catalog", "inspect", url)["lanes"]
    assert [(lane["lane"], lane["ids"], lane["seq"]) for lane in lanes] == [
        (LANE, 27, 6),
        (SECOND, 27, 6),
    ]
    assert len(document("stage", "list", url)["stages"]) == 2
    (decision,) = document("catalog", "lookup", url, "--name", "r1-3")["decisions"]
    assert (decision["lane"], decision["seq"]) == (LANE, 3)
    (read,) = document("catalog", "lookup", url, "--offset", "in/0/9")["reads"]
    assert read["fate"] == "duplicate"

    said = document("catalog", "compact", url, "--keep-entries", "0")
    did = document("catalog", "compact", url, "--keep-entries", "0", "--yes")
    assert [lane | {"done": True} for lane in said["lanes"]] == did["lanes"]
    verified = document("catalog", "verify", url)
    assert verified["whole"]
    (decision,) = document("catalog", "lookup", url, "--name", "r1-3")["decisions"]
    assert (decision["lane"], decision["seq"], decision["kept_in"]) == (LANE, 3, "list")

    file, other = str(tmp_path / "shop.backup"), f"{server}/{unique('other')}"
    document("catalog", "backup", url, file)
    assert document("catalog", "restore", file, other)["lanes"] == {LANE: 6, SECOND: 6}
    assert document("catalog", "restore", file, other, "--yes")["done"]
    assert document("catalog", "verify", other)["ids"] == verified["ids"]


def test_a_killed_restore_into_cassandra_is_finished_by_the_same(
    cassandra: Cassandra, unique: Callable[[str], str]
) -> None:
    url = f"cassandra://{cassandra.contact_points[0]}:{cassandra.port}/{unique('killed')}"
    house = House(MemoryStore(), inline_bytes_max=0)
    chained(house)
    stream = list(back_up(house.catalog()))
    for at in (1, 2, 20):
        with closing(open_store(url, restoring=True)) as store:
            wire = Wire({}, lambda number, _, at=at: Fault.CRASH_AFTER if number == at else None)
            with pytest.raises(Crashed):
                restore(Catalog(FaultyStore(store, wire)), stream, house.fresh)
        with pytest.raises(InvalidUsage, match="delivery catalog restore"):
            open_store(url)
    with closing(open_store(url, restoring=True)) as store:
        restore(Catalog(store), stream, house.fresh)
    with closing(open_store(url)) as store:
        assert {lane: Catalog(store).load(lane).head.ref.seq for lane in store.lanes()} == {
            LANE: 6,
            SECOND: 6,
        }
    assert document("catalog", "verify", url)["whole"]


def test_a_catalog_is_moved_from_a_file_into_cassandra_and_back(
    cassandra: Cassandra, unique: Callable[[str], str], tmp_path: Path
) -> None:
    url = f"cassandra://{cassandra.contact_points[0]}:{cassandra.port}/{unique('moved')}"
    with housed(tmp_path / "old.db", chained) as house:
        house.inline_bytes_max = 0
        before = rows(house.store)
        broker, inputs = house.broker, house.inputs
    old, back = f"sqlite:{tmp_path / 'old.db'}", f"sqlite:{tmp_path / 'back.db'}"
    assert not document("catalog", "migrate", old, url)["done"]
    assert document("catalog", "migrate", old, url, "--yes")["done"]
    with closing(open_store(url)) as store:
        assert rows(store) == before
    assert document("catalog", "verify", url)["whole"]
    # Who opens the file goes nowhere; the pipeline goes on in Cassandra, and then in a file again.
    with closing(open_store(old)) as store:
        house.store = store
        stop = house.run(house.runner())
        assert stop.end is End.REFUSED
        assert "it goes on in" in stop.why
    with closing(open_store(url)) as store:
        house.store, house.broker, house.inputs = store, broker, inputs
        house.write("r0-0", "in-cassandra")
        house.done()
        assert house.proved(finished=False) == []
    assert document("catalog", "migrate", url, back, "--yes")["done"]
    with closing(open_store(url)) as store:
        house.store = store
        house.write("too late")
        assert house.run(house.runner()).end is End.REFUSED
    with closing(open_store(back)) as store:
        house.store = store
        house.done()
        house.done(house.runner(SECOND, reads="out", writes=("end",), senders=(LANE,)), topic="out")
        assert house.proved() == []
