"""What verbs print with --json is what the pages say, key by key."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dedup.errors import Unavailable
from delivery.checker import Kind
from delivery.header import NAME, decode_header
from delivery.operate.repair import found
from tests.unit.documented import checked, section, undocumented
from tests.unit.house import LANE, House
from tests.unit.operate_kit import billed, called, chained, document, housed
from tests.unit.test_audit_repeats import silenced
from tests.unit.test_auditing import DAMAGE
from tests.unit.test_cli import LEAVES
from tests.unit.watch_kit import shop


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with housed(tmp_path / "shop.db", chained):
        yield f"sqlite:{tmp_path / 'shop.db'}"


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("stage list", ()),
        ("catalog inspect", ()),
        ("catalog compact", ("--keep-entries", "0")),
        ("catalog verify", ()),
        ("catalog accept", ()),
        ("catalog lookup", ("--offset", "in/0/3")),
        ("catalog lookup", ("--name", "r0-0")),
    ],
)
def test_every_key_of_a_document_is_documented(url: str, verb: str, more: tuple[str, ...]) -> None:
    assert undocumented(verb, document(*verb.split(), url, *more)) == set()


def test_every_verb_is_held_to_what_is_said_of_it() -> None:
    assert {" ".join(words) for words in LEAVES} == checked()


def test_every_key_of_a_finding_is_documented(url: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("DELETE FROM entry WHERE seq = 3")
        database.commit()
    found = document("catalog", "verify", url, code=1)
    assert found["findings"]
    assert undocumented("catalog verify", found) == set()


def test_every_key_of_a_backup_and_a_restore_is_documented(url: str, tmp_path: Path) -> None:
    file = str(tmp_path / "monday.backup")
    assert undocumented("catalog backup", document("catalog", "backup", url, file)) == set()
    found = document("catalog", "restore", file, f"sqlite:{tmp_path / 'new.db'}")
    assert undocumented("catalog restore", found) == set()


def test_every_key_of_a_migration_is_documented(url: str, tmp_path: Path) -> None:
    found = document("catalog", "migrate", url, f"sqlite:{tmp_path / 'moved.db'}")
    assert found["lanes"]
    assert undocumented("catalog migrate", found) == set()


def test_every_key_of_a_repair_is_documented(url: str, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    verb = ("catalog", "repair", url, "--home", str(tmp_path / "index"))
    assert undocumented("catalog repair", document(*verb)) == set()
    told = {one.name for one in fields(found.Lane)} - {"row", "segments"}
    told |= {one.name for one in fields(found.Lost)}
    assert told - set(re.findall(r"`(\w+)`", section("catalog repair"))) == set()


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[House]:
    with shop(tmp_path / "shop.db", monkeypatch) as house:
        yield house


def test_every_key_of_an_audit_is_documented(kafka: House) -> None:
    found = document("audit", kafka.store.url, "--kafka", "here:1")
    assert found["verdict"] == "exact"
    assert undocumented("audit", found) == set()
    kafka.broker.append(kafka.source("out"), kafka.sent()[0]._replace(headers=()))
    found = document("audit", kafka.store.url, "--kafka", "here:1", code=1)
    assert [finding["kind"] for finding in found["findings"]] == ["STRANGER"]
    assert undocumented("audit", found) == set()


def test_every_kind_of_finding_is_documented_and_planted() -> None:
    told = set(re.findall(r"^\| `([A-Z_]+)` \|", section("audit"), re.MULTILINE))
    planted: set[str] = set()
    for case in DAMAGE:
        planted.update(kind.name for kind in case.values[1])
    assert told == {kind.name for kind in Kind}
    assert planted == told - {"LATE_REPEAT"}, "which may be right"
    assert f"{len(DAMAGE)} in all" in section("audit")


def test_every_key_of_a_replay_is_documented(kafka: House) -> None:
    verb = ("replay", kafka.store.url, "price", "--kafka", "here:1")
    assert document(*verb, "--since", "1d")["lanes"][0]["records"] == 0
    found = document(*verb, "--until", "1d")
    assert found["lanes"][0]["records"] > 0
    assert not found["done"]
    assert undocumented("replay", found) == set()
    called(*verb, "--seqs", "1..2", code=2)


def test_every_key_of_differences_is_documented(kafka: House) -> None:
    found = document("differences", kafka.store.url)
    found["stages"][0]["fields"] = [{"field": "key", "count": 1}]
    found["stages"][0]["examples"] = [{"lane": "", "seq": 1, "input": [0, 1], "differ": []}]
    assert undocumented("differences", found) == set()


def test_every_key_of_a_plan_is_documented(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(
        "from delivery import Delivery\n"
        "d = Delivery(catalog='sqlite:never.db', kafka='localhost:1')\n"
        "d.stage(reads='orders', writes='priced', name='price')(lambda record: record)\n"
    )
    found = document("plan", str(file))
    assert undocumented("plan", found) == set()
    said = called("plan", str(file), "--rate", "20000", "--partitions", "8").stdout
    assert "at 20,000 records a second (--rate) of 200 B (--bytes), in topics of 8 part" in said
    abouts = {one["about"] for one in found["warnings"]}
    assert abouts - set(re.findall(r"`(\w+)`", section("plan"))) == set()


def test_an_audit_goes_on_in_a_file_and_follows(kafka: House, tmp_path: Path) -> None:
    state = str(tmp_path / "shop.proved")
    verb = ("audit", kafka.store.url, "--kafka", "here:1", "--state", state)
    first = document(*verb)
    assert first["inputs"] > document(*verb)["inputs"] == 0
    kafka.broker.append(kafka.source("out"), kafka.sent()[0]._replace(headers=()))
    said = called(*verb, "--follow", code=1).stdout
    assert said.startswith("broken: ")
    assert "STRANGER" in said
    called(*verb, "--since", "1h", code=2)


def test_an_audit_that_cannot_prove_all_exits_with_another_code(kafka: House) -> None:
    kafka.broker.create("end")
    called("audit", kafka.store.url, "--kafka", "here:1", code=3)
    said = called("audit", kafka.store.url, "--kafka", "here:1", code=3).stdout
    assert "not proved: shop/ship/0: there is no topic" in said


def test_an_audit_after_a_compaction_that_forgot_asks_for_a_window_that_no_seal_says(
    kafka: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.write("a day later", timestamp_ms=3 * 86_400_000)
    kafka.done()
    document("catalog", "compact", kafka.store.url, "price", "--keep-entries", "0", "--yes")
    asked = ("audit", kafka.store.url, "--kafka", "here:1", "--stage", "price")
    assert document(*asked)["verdict"] == "exact"
    silenced(monkeypatch)
    assert "say no window" in called(*asked, code=1).stdout
    assert document(*asked, "--window", "24h")["verdict"] == "exact"


@pytest.mark.parametrize(
    ("windows", "verdict", "code"),
    [
        (("24h",), "exact", 0),
        (("ship=1h", "price=24h"), "exact", 0),
        (("shop/price=24h",), "exact", 0),
        ((), "exact", 0),
        (("ship=24h",), "exact", 0),
        (("24h", "price=20d"), "broken", 1),
        (("20d", "price=24h"), "exact", 0),
    ],
)
def test_a_stage_is_held_to_its_own_window(
    kafka: House, windows: tuple[str, ...], verdict: str, code: int
) -> None:
    """A record of price comes again after ten days, and takes effect again."""
    for name in ("often", "moves on", "moves on further", "often"):
        kafka.now += 5 * 86_400_000
        kafka.write(name, timestamp_ms=kafka.now)
        kafka.done()
    asked = [word for window in windows for word in ("--window", window)]
    found = document("audit", kafka.store.url, "--kafka", "here:1", *asked, code=code)
    assert found["verdict"] == verdict
    whole = document("catalog", "verify", kafka.store.url, *asked, code=code)
    assert (whole["whole"], whole["notes"]) == (not code, [])


def test_what_neither_seals_nor_options_say_of_a_window_is_noted(
    kafka: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("often", "moves on", "moves on further", "often"):
        kafka.now += 5 * 86_400_000
        kafka.write(name, timestamp_ms=kafka.now)
        kafka.done()
    silenced(monkeypatch)
    asked = ("audit", kafka.store.url, "--kafka", "here:1")
    assert document(*asked, "--window", "ship=24h", code=3)["verdict"] == "unproved"
    assert document(*asked, "--window", "price=24h")["verdict"] == "exact"
    (note,) = document("catalog", "verify", kafka.store.url)["notes"]
    assert "say --window" in note["text"]
    assert document("catalog", "verify", kafka.store.url, "--window", "price=24h")["notes"] == []


@pytest.mark.parametrize("window", ["prise=24h", "price=long", "price="])
def test_a_window_of_nobody_is_refused(kafka: House, window: str) -> None:
    called("audit", kafka.store.url, "--kafka", "here:1", "--window", window, code=2)
    called("catalog", "verify", kafka.store.url, "--window", window, code=2)


def test_every_key_of_a_story_is_documented(kafka: House) -> None:
    for offset in ("in/0/0", "in/0/9", "out/0/3"):
        found = document("explain", kafka.store.url, "--kafka", "here:1", "--offset", offset)
        assert undocumented("explain", found) == set()
        assert called("explain", kafka.store.url, "--kafka", "here:1", "--offset", offset).stdout


def test_every_key_of_what_a_database_keeps_is_documented(kafka: House, tmp_path: Path) -> None:
    billed(kafka, tmp_path / "billing.db")
    url, place = kafka.store.url, ("--offset", "out/0/3")
    for verb, more in (("catalog lookup", ()), ("explain", ("--kafka", "here:1"))):
        found = document(*verb.split(), url, *more, *place)
        assert found["databases"]
        assert undocumented(verb, found) == set()
        said = called(*verb.split(), url, *more, *place).stdout
        assert "is kept in its user's database" in said
        assert "was read there" in said


def test_a_story_is_told_by_place_id_and_name(kafka: House) -> None:
    asked = ("explain", kafka.store.url, "--kafka", "here:1")
    told = document(*asked, "--offset", "in/0/0")
    assert document(*asked, "--name", "r0-0") == document(*asked, "--key", "r0-0") == told
    assert told["readings"][0]["repeats"]
    assert "repeated by partition 0 offset 9" in called(*asked, "--name", "r0-0").stdout
    made = document(*asked, "--offset", "out/0/0")
    assert document(*asked, "--id", made["id"]) == document(*asked, made["id"]) == made
    for wrong in (
        (),
        (made["id"], "--name", "a"),
        (made["id"], "--id", made["id"]),
        ("r0-0",),
        ("--name", "a", "--id", "b"),
        ("--name", "nobody"),
        ("--id", "zz"),
    ):
        called(*asked, *wrong, code=2)


def test_a_following_audit_says_why_and_asks_again(
    kafka: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    from delivery.operate import auditing  # noqa: PLC0415

    real, calls = auditing.audit, []

    def audit(*given: Any, **more: Any) -> Any:
        calls.append(None)
        if len(calls) in {2, 3, 4, 5} or len(calls) > 6:
            raise Unavailable("read a topic", "in", "nothing came")
        return real(*given, **more)

    monkeypatch.setattr(auditing, "audit", audit)
    kafka.broker.create("end")
    said = called(
        *("audit", kafka.store.url, "--kafka", "here:1", "--follow", "--every", "1ms"), code=3
    )
    assert len(calls) == 6 + 5, "it begins to count anew when one was answered"
    assert said.stdout.count("not proved: shop/ship/0: there is no topic") == 2


def test_every_key_of_a_maker_is_documented(tmp_path: Path) -> None:
    with housed(tmp_path / "shop.db", chained) as house:
        header = decode_header(house.sent()[0].header(NAME) or b"")
        assert header is not None
        found = document("catalog", "lookup", house.store.url, "--id", header.id.hex())
        assert found["makers"]
        assert undocumented("catalog lookup", found) == set()
        plain = document("catalog", "lookup", house.store.url, header.id.hex())
        assert plain == found
        called("catalog", "lookup", house.store.url, "r0-0", code=2)


def test_every_key_of_an_audit_of_a_range_is_documented(kafka: House) -> None:
    asked = ("audit", kafka.store.url, "--kafka", "here:1")
    found = document(*asked, "--offsets", "in/0/10..19")
    assert (found["verdict"], found["inputs"], list(found["proved"])) == ("exact", 10, [LANE])
    assert found["ranges"] == [
        {
            "lane": LANE,
            "first": 3,
            "last": 4,
            "offsets": [{"topic": "in", "partition": 0, "start": 10, "end": 20}],
        }
    ]
    assert undocumented("audit", found) == set()
    assert document(*asked)["ranges"] == []
    said = called(*asked, "--offsets", "in/0/10..19").stdout
    assert f"{LANE}: seals 3..4, in/0 from 10 to below 20\n" in said
    assert "exact: in this range every input has one effect" in said


def test_an_audit_of_a_time_has_two_ends(kafka: House) -> None:
    """All of the house was sealed in 2023."""
    asked = ("audit", kafka.store.url, "--kafka", "here:1")
    found = document(*asked, "--until", "1d")
    assert (found["verdict"], found["ranges"][0]["last"]) == ("exact", 6)
    found = document(*asked, "--since", "2d", "--until", "1d")
    assert (found["verdict"], found["inputs"]) == ("exact", 0)
    assert {one["last"] for one in found["ranges"]} == {None}
    assert f"{LANE}: no seals\n" in called(*asked, "--since", "1d").stdout


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--state", "x", "--until", "1h"), "--state --until"),
        (("--state", "x", "--offsets", "in/0/1..2"), "--state --offsets"),
        (("--follow", "--until", "1h"), "leave its end or --follow out"),
        (("--follow", "--offsets", "in/0/1..2"), "leave its end or --follow out"),
        (("--since", "1h", "--until", "2h"), "begins when it has ended"),
        (("--since", "1h", "--offsets", "in/0/1..2"), "of time and of offsets"),
        (("--until", "1h", "--finished"), "leave the end out"),
        (("--offsets", "in/0/2..1"), "orders/0/17..42"),
        (("--offsets", "out/3/1..2"), "no lane in question reads it"),
    ],
)
def test_ranges_that_mean_nothing_are_refused(
    kafka: House, more: tuple[str, ...], said: str
) -> None:
    error = called("audit", kafka.store.url, "--kafka", "here:1", *more, code=2).stderr
    assert said in error
    assert "nothing was" in error
