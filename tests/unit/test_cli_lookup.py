"""`delivery catalog lookup`: every id and every offset of a run is told as it was planted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dedup import compact
from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_catalog
from dedup.formats.segment import Bucket, Origin, Part
from dedup.ids import named, positional
from dedup.model import RecordId
from delivery.header import NAME, decode_header
from delivery.operate.compaction import Rules, tidy
from delivery.operate.lookup import _at, look_up_id
from delivery.operate.places import readable
from tests.unit.collect_kit import raced
from tests.unit.house import LANE, House
from tests.unit.operate_kit import (
    BILLING,
    SECOND,
    begun_elsewhere,
    billed,
    called,
    chained,
    document,
    housed,
)

NOW_MS = 1_800_000_000_000


@pytest.fixture(params=["inline", "apart", "listed", "merged"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """Two stages whose ids lie in all the places where they can."""

    def furnish(house: House) -> None:
        if request.param != "inline":
            house.inline_bytes_max = 0
        chained(house)
        if request.param in ("listed", "merged"):
            # Of the second one nothing would be left: all that its sender emitted was read.
            tidy(house.catalog(), LANE, Rules(entries_ms=0), NOW_MS, perform=True)
        if request.param == "merged":
            compact.compact(house.catalog(), LANE, 10**9, plain_min=2)

    with housed(tmp_path / "shop.db", furnish) as house:
        yield house


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'shop.db'}"


def seq_of(round_: int, at: int) -> int:
    """The seal of a record: five a bundle, two bundles a round."""
    return 1 + round_ * 2 + at // 5


def test_every_name_is_found_in_its_seal(shop: House, url: str) -> None:
    assert shop.store
    for round_ in range(3):
        for at in (0, 4, 5, 8):
            found = document("catalog", "lookup", url, "--name", f"r{round_}-{at}")
            (decision,) = found["decisions"]
            assert (decision["lane"], decision["seq"]) == (LANE, seq_of(round_, at))
            assert decision["origin"] == "external"
            assert found["makers"] == []
    none = document("catalog", "lookup", url, "--name", "nobody")
    assert (none["decisions"], none["makers"]) == ([], [])
    assert "no lane has decided it" in called("catalog", "lookup", url, "--name", "nobody").stdout


def test_the_id_of_an_output_is_found_where_it_was_made_and_where_it_was_read(
    shop: House, url: str
) -> None:
    entries_there = shop.catalog().history(LANE, shop.catalog().load(LANE).head)
    for record in shop.sent()[::5]:
        header = decode_header(record.header(NAME) or b"")
        assert header is not None
        found = document("catalog", "lookup", url, "--id", header.id.hex())
        (decision,) = found["decisions"]
        assert (decision["lane"], decision["origin"]) == (SECOND, "internal")
        assert [maker["seq"] for maker in found["makers"]] == (
            [header.mark.seq] if entries_there else []
        )
        for maker in found["makers"]:
            assert (maker["lane"], maker["topic"], maker["edge"]) == (LANE, "out", 0)


def test_a_record_that_its_place_names_is_found_at_its_place(tmp_path: Path, url: str) -> None:
    def furnish(house: House) -> None:
        house.write(*"abcdef")
        house.done(house.runner(id_from=lambda _: None), cut=4)

    with housed(tmp_path / "shop.db", furnish) as house:
        record_id = positional(house.source(), 4)
        (decision,) = document("catalog", "lookup", url, "--id", record_id.hex())["decisions"]
        assert (decision["seq"], decision["offset"]) == (2, [0, 4])
        assert (decision["start"], decision["end"]) == ({"0": 4}, {"0": 6})
        said = called("catalog", "lookup", url, "--id", record_id.hex()).stdout
        assert "partition 0 offset 4" in said


def test_what_a_loser_stored_is_nobodys_decision(tmp_path: Path, url: str) -> None:
    """The loser of a race has stored the ids of its bundle too."""

    def furnish(house: House) -> None:
        house.inline_bytes_max = 0
        raced(house)

    with housed(tmp_path / "shop.db", furnish) as house:
        assert list(house.store.losers(LANE))
        for name in "abcef":
            found = document("catalog", "lookup", url, "--name", name)["decisions"]
            assert len(found) == 1
            seal = house.catalog().seal(
                LANE, house.catalog().load(LANE).head.ref.incarnation, found[0]["seq"]
            )
            assert seal is not None
            assert found[0]["attempt"] == seal.ref.attempt.hex()


def test_ids_that_move_meanwhile_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the reads of entries and of segments, a collector takes the entries away."""
    with housed(tmp_path / "shop.db", chained) as house:
        catalog = house.catalog()
        real, moves = catalog.store.slots, []

        def slots(*args: Any, **more: Any) -> Any:
            if not moves:
                moves.append(1)
                other = open_catalog(house.store.url)
                tidy(other, LANE, Rules(entries_ms=0), NOW_MS, perform=True)
                compact.compact(other, LANE, 10**9, plain_min=2)
                other.store.close()
            return real(*args, **more)

        monkeypatch.setattr(catalog.store, "slots", slots)
        for name in ("r0-0", "r2-8"):
            moves.clear()
            decisions, _ = look_up_id(Catalog(catalog.store), named(name.encode()), [LANE])
            assert [decision.lane for decision in decisions] == [LANE]


@pytest.mark.parametrize("shop", ["inline", "apart"], indirect=True)
def test_every_offset_is_told_as_it_was_planted(shop: House, url: str) -> None:
    sent = {
        header.parent[1]: (header, record)
        for record in shop.sent()
        if (header := decode_header(record.header(NAME) or b"")) is not None
    }
    for offset in range(30):
        (read,) = document("catalog", "lookup", url, "--offset", f"in/0/{offset}")["reads"]
        assert (read["lane"], read["seq"]) == (LANE, 1 + offset // 5)
        assert read["fate"] == ("duplicate" if offset % 10 == 9 else "fresh")
        made = [(one["id"], one["topic"], one["partition"], one["size"]) for one in read["outputs"]]
        if offset % 10 == 9:
            assert made == []
        else:
            header, record = sent[offset]
            assert made == [(header.id.hex(), "out", 0, len(record.value))]


@pytest.mark.parametrize("shop", ["listed"], indirect=True)
def test_what_was_collected_is_said_to_be(shop: House, url: str) -> None:
    assert shop.store
    (read,) = document("catalog", "lookup", url, "--offset", "in/0/7")["reads"]
    assert (read["fate"], read["seq"], read["outputs"]) == ("collected", None, None)


@pytest.mark.parametrize("shop", ["apart"], indirect=True)
def test_outputs_that_were_collected_are_said_to_be(shop: House, url: str) -> None:
    rules = Rules(entries_ms=10**13)
    tidy(shop.catalog(), LANE, rules, NOW_MS, perform=True)
    (read,) = document("catalog", "lookup", url, "--offset", "in/0/7")["reads"]
    assert (read["fate"], read["seq"], read["outputs"]) == ("fresh", 2, None)
    assert "were collected here" in called("catalog", "lookup", url, "--offset", "in/0/7").stdout


def test_what_is_not_sealed_yet_is_pending(tmp_path: Path, url: str) -> None:
    def furnish(house: House) -> None:
        house.write(*"abcd")
        runner = house.runner()
        assert house.run(runner, start=2) is not None

    with housed(tmp_path / "shop.db", furnish):
        fates = {
            offset: document("catalog", "lookup", url, "--offset", f"in/0/{offset}")["reads"][0][
                "fate"
            ]
            for offset in (0, 2, 3, 4, 99)
        }
    assert fates == {
        0: "before the lane began",
        2: "fresh",
        3: "fresh",
        4: "pending",
        99: "pending",
    }


@pytest.mark.parametrize("shop", ["inline", "apart"], indirect=True)
def test_what_a_receiver_keeps_in_its_database_is_looked_up_there(
    shop: House, url: str, tmp_path: Path
) -> None:
    database, moved = tmp_path / "billing.db", tmp_path / "moved.db"
    billed(shop, database)
    record = shop.sent()[7]
    header = decode_header(record.header(NAME) or b"")
    assert header is not None
    place = ("catalog", "lookup", url, "--offset", f"out/0/{record.offset}")
    by_id = ("catalog", "lookup", url, "--id", header.id.hex())

    found = document(*place)
    fates = {read["lane"]: (read["fate"], read["seq"]) for read in found["reads"]}
    assert fates == {BILLING: ("fresh", 2), SECOND: ("fresh", 2)}
    read = {"lane": BILLING, "database": str(database), "unread": None}
    assert found["databases"] == [read]
    said = called(*place).stdout
    assert f"{BILLING}: fresh, sealed by seq 2" in said
    assert f"whatever effect it had is in {database}" in said
    found = document(*by_id)
    assert {one["lane"]: one["seq"] for one in found["decisions"]} == {BILLING: 2, SECOND: 2}
    assert found["databases"] == [read]

    # It is not here: neither is the record pending, nor has nobody decided its id.
    database.rename(moved)
    found = document(*place)
    fates = {read["lane"]: (read["fate"], read["seq"]) for read in found["reads"]}
    assert fates == {BILLING: ("elsewhere", None), SECOND: ("fresh", 2)}
    (kept,) = found["databases"]
    assert "no such file here" in kept["unread"]
    assert (
        f"{BILLING} is kept in its user's database {database}: there is no" in called(*place).stdout
    )
    found = document(*by_id)
    assert [one["lane"] for one in found["decisions"]] == [SECOND]
    assert found["databases"] == [kept]
    said = called(*by_id).stdout
    assert "whether these have is not known" in said
    assert str(database) in said

    # Said where it is.
    found = document(*place, "--database", str(moved))
    assert {one["fate"] for one in found["reads"]} == {"fresh"}
    assert found["databases"] == [read | {"database": str(moved)}]


@pytest.mark.parametrize("shop", ["inline"], indirect=True)
def test_a_lane_in_a_database_of_which_the_catalog_has_its_beginning_alone(
    shop: House, url: str
) -> None:
    begun_elsewhere(shop, 2)
    for offset, fate in ((1, "before the lane began"), (2, "elsewhere"), (99, "elsewhere")):
        found = document(
            "catalog", "lookup", url, "--offset", f"out/0/{offset}", "--stage", "billing"
        )
        assert [one["fate"] for one in found["reads"]] == [fate]
        assert [one["database"] for one in found["databases"]] == ["/gone/billing.db"]


@pytest.mark.parametrize("shop", ["inline"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say one of ID, --name and --offset"),
        (("--id", "00", "--name", "a"), "say one of"),
        (("--id", "xyz"), "32 hexadecimal digits"),
        (("--id", "00"), "32 hexadecimal digits"),
        (("--offset", "in/0"), "write topic/partition/offset"),
        (("--offset", "in/0/-1"), "write topic/partition/offset"),
        (("--offset", "inn/0/1"), "no lane reads it; nothing was looked up: they read in/0, out/0"),
        (("--name", "a", "--stage", "prise"), "name one of shop/price"),
    ],
)
def test_what_cannot_be_looked_up_is_refused(
    shop: House, url: str, arguments: tuple[str, ...], said: str
) -> None:
    with shop.untouched():
        assert said in called("catalog", "lookup", url, *arguments, code=2).stderr


def test_keys_are_text_where_they_are_text() -> None:
    assert [readable(key) for key in (None, b"", b"a/1", b"\xff\x00", b"a\n")] == [
        *(None, "", "a/1", "0xff00", "0x610a"),
    ]


def test_an_id_is_found_only_where_one_begins() -> None:
    one, two = bytes(range(16)), bytes(range(16, 32))
    part = Part(Bucket(Origin.EXTERNAL, 1), one + two)
    assert [_at(part, RecordId(found)) for found in (one, two, (one + two)[8:24])] == [0, 1, None]
