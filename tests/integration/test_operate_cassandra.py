"""The operator's verbs on a real Cassandra say what they say of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dedup.catalog.memory import MemoryStore
from dedup.catalog.open import open_store
from delivery.services.cassandra import Cassandra
from tests.unit.house import LANE, House
from tests.unit.operate_kit import SECOND, called, chained, copied, document


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
