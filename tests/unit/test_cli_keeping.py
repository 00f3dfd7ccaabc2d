"""`delivery catalog verify`, `backup` and `restore`: what is damaged is found, what is whole comes back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_catalog
from dedup.catalog.store import Blob
from dedup.formats.lane import decode_segment_list, encode_segment_list
from delivery.operate import keeping
from delivery.operate.compaction import Rules, tidy
from delivery.operate.verification import verify
from tests.unit.house import LANE, House
from tests.unit.operate_kit import SECOND, called, chained, document, housed

NOW_MS = 1_800_000_000_000


def furnish(house: House) -> None:
    """Two stages whose chunks lie beside their seals; the first one's ids are listed apart."""
    house.inline_bytes_max = 0
    chained(house)
    tidy(house.catalog(), LANE, Rules(entries_ms=0), NOW_MS, perform=True)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A catalog in a file."""
    with housed(tmp_path / "shop.db", furnish):
        pass
    return tmp_path / "shop.db"


def flipped(stored: bytes, at: int) -> bytes:
    """Return bytes of which one is another."""
    return stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :]


def change(path: Path, *statements: str) -> None:
    """Do something to the rows of a catalog that no writer of ours would."""
    with closing(sqlite3.connect(path)) as database:
        database.create_function("flipped", 2, flipped)
        for statement in statements:
            changed = database.execute(statement, {"first": LANE, "second": SECOND}).rowcount
            assert changed, f"nothing was changed: {statement}"
        database.commit()


def reread(path: Path, edit: Callable[[Catalog], None]) -> None:
    catalog = open_catalog(f"sqlite:{path}")
    edit(catalog)
    catalog.store.close()


def listed_twice(path: Path) -> None:
    """Let the list name a copy of a segment that it names already."""

    def edit(catalog: Catalog) -> None:
        old = catalog.segment_list(LANE)
        assert old is not None
        copy = old.slots[0].__class__(LANE, old.slots[0].incarnation, 0, b"c" * 16)
        catalog.store.put(Blob.SEGMENT, copy, catalog.store.get(Blob.SEGMENT, old.slots[0]))
        new = old.__class__(version=old.version + 1, upto=old.upto, slots=(*old.slots, copy))
        assert catalog.replace_segment_list(LANE, old, new)

    reread(path, edit)


def other_version(path: Path) -> None:
    """Let a list name another version than its row."""

    def edit(catalog: Catalog) -> None:
        version, blob = catalog.store.read_list(LANE) or (0, b"")
        listed = decode_segment_list(blob, "here")
        assert catalog.store.replace_list(LANE, version, version + 1, encode_segment_list(listed))

    reread(path, edit)


def sql(*statements: str) -> Callable[[Path], None]:
    return lambda path: change(path, *statements)


#: What is done to a catalog, and the kind of finding that must tell it.
DAMAGE = {
    "an entry is flipped": (
        sql("UPDATE entry SET entry = flipped(entry, 40) WHERE lane = :second AND seq = 3"),
        "UNREADABLE",
    ),
    "an entry is torn": (
        sql("UPDATE entry SET entry = substr(entry, 1, 30) WHERE lane = :second AND seq = 2"),
        "UNREADABLE",
    ),
    "an entry is gone": (
        sql("DELETE FROM entry WHERE lane = :second AND seq = 3"),
        "ENTRY_GAP",
    ),
    "the last entry is gone": (
        sql("DELETE FROM entry WHERE lane = :second AND seq = 6"),
        "ENTRY_GAP",
    ),
    "an entry stands in another's place": (
        sql(
            "DELETE FROM entry WHERE lane = :second AND seq = 3",
            "UPDATE entry SET seq = 3 WHERE lane = :second AND seq = 4",
        ),
        "COLUMNS",
    ),
    "a head is flipped": (
        sql("UPDATE lane SET head = flipped(head, 20) WHERE lane = :second"),
        "UNREADABLE",
    ),
    "a head's columns name another seal": (
        sql("UPDATE lane SET seq = seq - 1 WHERE lane = :second"),
        "COLUMNS",
    ),
    "an acknowledgement is beyond the head": (
        sql("UPDATE lane SET ack_seq = 99 WHERE lane = :second"),
        "COLUMNS",
    ),
    "more is collected than was acknowledged": (
        sql("UPDATE lane SET collected = 99 WHERE lane = :second"),
        "COLLECTED",
    ),
    "ids of a seal are gone": (
        sql(
            "DELETE FROM chunk WHERE "
            "rowid = (SELECT rowid FROM chunk WHERE kind = 'segment' AND lane = :second LIMIT 1)"
        ),
        "SEGMENT_GONE",
    ),
    "ids of a seal are torn": (
        sql(
            "UPDATE chunk SET bytes = substr(bytes, 1, 50) WHERE "
            "rowid = (SELECT rowid FROM chunk WHERE kind = 'segment' AND lane = :second LIMIT 1)"
        ),
        "UNREADABLE",
    ),
    "ids of a seal are another's": (
        sql(
            "UPDATE chunk SET bytes = (SELECT bytes FROM chunk WHERE kind = 'segment' AND "
            "lane = :second ORDER BY seq DESC LIMIT 1) WHERE "
            "rowid = (SELECT rowid FROM chunk WHERE kind = 'segment' AND lane = :second LIMIT 1)"
        ),
        "DIGEST",
    ),
    "listed ids are gone": (
        sql(
            "DELETE FROM chunk WHERE "
            "rowid = (SELECT rowid FROM chunk WHERE kind = 'segment' AND lane = :first LIMIT 1)"
        ),
        "SEGMENT_GONE",
    ),
    "listed ids are flipped": (
        sql(
            "UPDATE chunk SET bytes = flipped(bytes, 40) WHERE "
            "rowid = (SELECT rowid FROM chunk WHERE kind = 'segment' AND lane = :first LIMIT 1)"
        ),
        "UNREADABLE",
    ),
    "listed ids are held twice": (listed_twice, "DECIDED_TWICE"),
    "a list names another version": (other_version, "COLUMNS"),
    "a list is torn": (
        sql("UPDATE segment_list SET list = substr(list, 1, 20) WHERE lane = :first"),
        "UNREADABLE",
    ),
    "outputs are gone": (
        sql(
            "DELETE FROM chunk WHERE "
            "rowid = (SELECT rowid FROM chunk WHERE kind = 'outputs' AND lane = :second LIMIT 1)"
        ),
        "OUTPUTS_GONE",
    ),
    "outputs are flipped": (
        sql(
            "UPDATE chunk SET bytes = flipped(bytes, 90) WHERE "
            "rowid = (SELECT rowid FROM chunk WHERE kind = 'outputs' AND lane = :second LIMIT 1)"
        ),
        "UNREADABLE",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_verify_finds_damage(path: Path, what: str) -> None:
    damage, kind = DAMAGE[what]
    damage(path)
    found = document("catalog", "verify", f"sqlite:{path}", code=1)
    assert not found["whole"]
    assert kind in {finding["kind"] for finding in found["findings"]}
    said = called("catalog", "verify", f"sqlite:{path}", code=1)
    assert "delivery catalog restore" in said.stdout


def test_verify_finds_nothing_in_what_is_whole(path: Path) -> None:
    found = document("catalog", "verify", f"sqlite:{path}")
    assert found["findings"] == []
    assert (found["whole"], found["lanes"], found["ids"]) == (True, 2, 54)
    assert found["entries"] == 7, "the first lane's are gone"
    assert found["chunks"] > 12
    assert "nothing is wrong" in called("catalog", "verify", f"sqlite:{path}", "ship").stdout


def test_verify_beside_writers_and_collectors_finds_nothing(tmp_path: Path) -> None:
    """A lane goes on, and is collected, between any two reads of its rows."""
    with housed(tmp_path / "shop.db", furnish) as house:
        store, real = house.store, house.store.get
        busy: list[int] = []

        def get(kind, slot):
            if len(busy) < 3:
                busy.append(len(busy))
                house.write(f"later {len(busy)}")
                house.done(house.runner(store=plain))
                rules = Rules(entries_ms=0)
                tidy(Catalog(plain), slot.lane, rules, NOW_MS, perform=True)
            return real(kind, slot)

        plain = open_catalog(f"sqlite:{tmp_path / 'shop.db'}").store
        store.get = get
        found = verify(store, [LANE, SECOND])
        assert len(busy) == 3
        assert found.findings == ()
        plain.close()


# backup and restore -------------------------------------------------------------------------------


def test_what_is_restored_is_what_was_backed_up(path: Path, tmp_path: Path) -> None:
    before = {
        lane["lane"]: lane for lane in document("catalog", "inspect", f"sqlite:{path}")["lanes"]
    }
    file, url = tmp_path / "monday.backup", f"sqlite:{tmp_path / 'new.db'}"
    made = document("catalog", "backup", f"sqlite:{path}", str(file))
    assert made["lanes"] == {LANE: 6, SECOND: 6}
    assert made["size"] == file.stat().st_size
    assert sorted(each.name for each in tmp_path.iterdir() if "backup" in each.name) == [file.name]

    checked = document("catalog", "restore", str(file), url)
    assert (checked["done"], checked["lanes"]) == (False, made["lanes"])
    assert not (tmp_path / "new.db").exists()
    assert document("catalog", "restore", str(file), url, "--yes")["done"]
    for lane in document("catalog", "inspect", url)["lanes"]:
        old = before[lane["lane"]]
        for same in ("seq", "acknowledged", "frontier", "ids"):
            assert lane[same] == old[same]
        assert lane["incarnation"] != old["incarnation"]
        assert lane["incarnations"] == 2
    assert document("catalog", "verify", url)["whole"]
    refused = called("catalog", "restore", str(file), url, "--yes", code=2)
    assert "it holds lanes already" in refused.stderr


def test_a_backup_writes_nothing_over(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "there.backup"
    file.write_bytes(b"mine")
    assert (
        "it is there already"
        in called("catalog", "backup", f"sqlite:{path}", str(file), code=2).stderr
    )
    assert file.read_bytes() == b"mine"
    nowhere = tmp_path / "nowhere" / "a.backup"
    said = called("catalog", "backup", f"sqlite:{path}", str(nowhere), code=2).stderr
    assert "create it first" in said


def test_a_backup_that_was_killed_is_told_from_a_whole_one(path: Path, tmp_path: Path) -> None:
    partial = tmp_path / ("monday.backup" + keeping.PARTIAL_SUFFIX)
    partial.write_bytes(b"half")
    file = tmp_path / "monday.backup"
    said = called("catalog", "backup", f"sqlite:{path}", str(file), code=2).stderr
    assert "if none runs, delete it" in said
    assert partial.exists()
    assert not file.exists()


def test_a_name_that_was_taken_meanwhile_is_left_alone(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "monday.backup"
    monkeypatch.setattr(keeping, "_refuse_existing", lambda _: file.write_bytes(b"mine"))
    called("catalog", "backup", f"sqlite:{path}", str(file), code=2)
    assert file.read_bytes() == b"mine"
    assert [each.name for each in tmp_path.glob("*.partial")] == []


def test_what_is_no_backup_is_named_and_not_to_be_restored_from_one(
    path: Path, tmp_path: Path
) -> None:
    said = called("catalog", "restore", str(path), f"sqlite:{tmp_path}/new.db", code=6).stderr
    assert said.startswith(f"delivery: restore a catalog: {path}: ")
    assert "or no backup at all; nothing was written" in said


@pytest.mark.parametrize("keep", [10, 200, -1])
def test_a_torn_file_restores_nothing(path: Path, tmp_path: Path, keep: int) -> None:
    file = tmp_path / "monday.backup"
    document("catalog", "backup", f"sqlite:{path}", str(file))
    file.write_bytes(file.read_bytes()[:keep])
    url = f"sqlite:{tmp_path / 'new.db'}"
    said = called("catalog", "restore", str(file), url, code=6).stderr
    assert said.startswith(f"delivery: restore a catalog: {file}: ")
    assert said.endswith("nothing was written: take another backup, or the one before it\n")
    assert "restore this catalog from a backup" not in said
    called("catalog", "restore", str(file), url, "--yes", code=6)
    assert not (tmp_path / "new.db").exists(), "an empty one would let stages begin anew"


@pytest.mark.parametrize(
    ("file", "url", "said"),
    [
        ("absent.backup", "sqlite:new.db", "there is no such file"),
        ("monday.backup", "postgres:new", "a catalog's URL is one of"),
        ("monday.backup", "memory:", "no other can look at it"),
    ],
)
def test_what_cannot_be_restored_is_refused_in_the_dry_run(
    path: Path, tmp_path: Path, file: str, url: str, said: str
) -> None:
    document("catalog", "backup", f"sqlite:{path}", str(tmp_path / "monday.backup"))
    assert said in called("catalog", "restore", str(tmp_path / file), url, code=2).stderr
