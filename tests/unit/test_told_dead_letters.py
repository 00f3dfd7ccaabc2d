"""Records that became dead letters are told of wherever people look, and nothing is said of none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delivery.operate.compaction import Rules, tidy
from delivery.records import Output, Record
from delivery.stage import ERROR, Policy
from tests.unit.documented import undocumented
from tests.unit.house import LANE, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import called, chained, document, housed
from tests.unit.watch_kit import Cluster

KAFKA = ("--kafka", "here:1")
#: Of six records in one bundle, those that user code fails on.
FAILING = (1, 4)


def price(record: Record) -> Output:
    """Fail on some, and pass all headers on."""
    if record.offset in FAILING:
        raise KeyError(record.offset)
    return Output(record.value, record.key, record.headers)


def failed(house: House) -> None:
    """Let one stage fail on some records; one comes with the header of another stage's dead letter."""
    house.broker.create("bad")
    house.write(*(f"r{at}" for at in range(5)))
    passed = Record(value=b"passed on", headers=((ERROR, b"ValueError: long ago"),))
    house.broker.append(house.source("in"), passed)
    policy = Policy(dead_letter_edge=1)
    house.done(house.runner(writes=("out", "bad"), call=price, policy=policy))


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with housed(tmp_path / "shop.db", failed) as house:
        client = Cluster(house.broker)
        monkeypatch.setattr("delivery.kafka.opening.open_client", lambda *_: client)
        yield house


def test_they_are_counted_where_stages_are_listed(house: House) -> None:
    (stage,) = document("stage", "list", house.store.url)["stages"]
    assert stage["dead_letters"] == len(FAILING)
    title, row = called("stage", "list", house.store.url).stdout.splitlines()
    assert (title.split()[-2:], row.split()[-1]) == (["dead", "letters"], "2")
    said = called("top", house.store.url, *KAFKA, "--times", "1").stdout
    assert "dead letters" in said
    look = document("top", house.store.url, *KAFKA, "--times", "1")
    assert look["stages"][0]["dead_letters"] == len(FAILING)


def test_they_are_on_the_report_and_one_is_named_for_explain(house: House, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    called("report", house.store.url, *KAFKA, "-o", str(file))
    page = file.read_text()
    assert '<b class="degraded">2</b><span>of them as dead letters</span>' in page
    assert "6 outputs, 2 of them dead letters." in page
    assert "2 of 6 records went to dead letters" in page
    (one,) = document("advice", house.store.url, *KAFKA)["advice"]
    assert one["topic"] == "dead-letters"
    assert "`delivery explain` --offset bad/0/1 says why" in one["change"]


@pytest.mark.parametrize("collected", [False, True])
def test_explain_says_why(house: House, *, collected: bool) -> None:
    """From what is stored, and from the topic where that is collected."""
    if collected:
        tidy(house.catalog(), LANE, Rules(entries_ms=10**13), house.now, perform=True)
    for copy, offset in enumerate(FAILING):
        asked = ("explain", house.store.url, *KAFKA, "--offset")
        why = f"user code failed: KeyError: {offset}"
        ((output,),) = [one["outputs"] for one in document(*asked, f"in/0/{offset}")["readings"]]
        assert (output["topic"], output["error"]) == ("bad", why)
        assert f"    a dead letter: {why}" in called(*asked, f"in/0/{offset}").stdout.splitlines()
        found = document(*asked, f"bad/0/{copy}")
        assert found["origin"]["error"] == why
        assert undocumented("explain", found) == set()
        said = called(*asked, f"bad/0/{copy}").stdout.splitlines()
        assert f"  it is a dead letter: {why}" in said
    looked = document("catalog", "lookup", house.store.url, "--offset", "in/0/1")
    assert undocumented("catalog lookup", looked) == set()


def test_what_only_passes_such_a_header_on_is_no_dead_letter(house: House) -> None:
    asked = ("explain", house.store.url, *KAFKA, "--offset")
    ((output,),) = [one["outputs"] for one in document(*asked, "in/0/5")["readings"]]
    assert (output["topic"], output["error"]) == ("out", None)
    assert "dead letter" not in called(*asked, "in/0/5").stdout
    assert document(*asked, "out/0/3")["origin"]["error"] is None


def test_what_was_put_aside_unseen_is_told_so(tmp_path: Path, monkeypatch) -> None:
    def unnamed(house: House) -> None:
        house.broker.create("bad")
        house.write("no JSON")

        def name(_: Record) -> bytes:
            raise ValueError("no name")

        policy = Policy(dead_letter_edge=1)
        house.done(house.runner(writes=("out", "bad"), id_from=name, policy=policy))

    with housed(tmp_path / "shop.db", unnamed) as house:
        monkeypatch.setattr(
            "delivery.kafka.opening.open_client", lambda *_: MemoryClient(house.broker)
        )
        said = called("explain", house.store.url, *KAFKA, "--offset", "in/0/0").stdout
    assert "a dead letter: put aside before user code saw it: InvalidUsage: take the id" in said


def test_nothing_is_said_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with housed(tmp_path / "shop.db", chained) as house:
        client = Cluster(house.broker)
        monkeypatch.setattr("delivery.kafka.opening.open_client", lambda *_: client)
        url, file = house.store.url, tmp_path / "report.html"
        called("report", url, *KAFKA, "-o", str(file))
        heard = [
            file.read_text(),
            called("stage", "list", url).stdout,
            called("top", url, *KAFKA, "--times", "1").stdout,
            called("advice", url, *KAFKA).stdout,
            called("explain", url, *KAFKA, "--offset", "in/0/0").stdout,
        ]
        assert {one["dead_letters"] for one in document("stage", "list", url)["stages"]} == {0}
    assert [said for said in heard if "dead letter" in said] == []
