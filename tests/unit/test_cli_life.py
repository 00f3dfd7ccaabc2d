"""The verbs of a stage's life on the command line: what they say, what they refuse, what they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sinks.memory import MemoryEmitter
from tests.unit.documented import undocumented
from tests.unit.house import LANE, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import called, chained, document, housed

KAFKA = ("--kafka", "here:1")


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[House]:
    """A house whose log is what every verb takes for Kafka."""
    with housed(tmp_path / "shop.db", chained) as found:
        client = MemoryClient(found.broker)

        def topics(_client: MemoryClient, names: Sequence[str]) -> MemoryEmitter:
            return MemoryEmitter(found.broker, names)

        monkeypatch.setattr("delivery.life.stages.open_client", lambda *_: client)
        monkeypatch.setattr("delivery.life.stages.open_topics", topics)
        yield found


def test_a_dry_run_and_the_deed_say_the_same(house: House) -> None:
    url = house.store.url
    said = document("stage", "rename", url, "price", "cost", *KAFKA)
    assert not said["done"]
    assert said["lanes"][0]["before"] == {"in/0": 30}
    did = document("stage", "rename", url, "price", "cost", *KAFKA, "--yes")
    assert did == said | {"done": True}
    names = {(one["stage"], one["lanes"]) for one in document("stage", "list", url)["stages"]}
    assert names == {("cost", 1), ("price", 1), ("ship", 1)}


def test_what_people_read_says_what_it_means(house: House) -> None:
    shown = called("stage", "retire", house.store.url, "price", *KAFKA).stdout
    assert "nothing was done; --yes does it" in shown
    assert "concerned: shop/ship reads what it writes" in shown
    assert "its storage is free" in shown


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("earliest", 0),
        ("latest", 30),
        ("here", 30),
        ("0:17", 17),
        ("time:1970-01-01T00:00:00Z", 0),
    ],
)
def test_every_way_to_say_a_position(house: House, to: str, after: int) -> None:
    found = document("stage", "reset", house.store.url, "price", *KAFKA, "--to", to)
    assert found["lanes"][0]["after"] == {"in/0": after}


@pytest.mark.parametrize(
    "to", ["sometime", "time:2026-11-18T20:00:00", "time:x", "0", "a:b", "1:2:3"]
)
def test_what_is_no_position_is_refused(house: House, to: str) -> None:
    with house.untouched():
        line = ("stage", "reset", house.store.url, "price", *KAFKA, "--to", to, "--yes")
        found = document(*line, code=2)
    assert "nothing was done" in found["error"]["hint"]


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("stage rename", ("price", "cost")),
        ("stage reset", ("price", "--to", "earliest")),
        ("stage retire", ("price",)),
        ("stage accept-topic", ("in",)),
        ("stage change-dedup", ("price", "topic")),
        ("stage leave", ("price",)),
    ],
)
def test_every_key_of_a_change_is_documented(
    house: House, verb: str, said: tuple[str, ...]
) -> None:
    if verb == "stage accept-topic":
        house.broker.create("in")
    found = document(*verb.split(), house.store.url, *said, *KAFKA)
    assert found["lanes"]
    assert undocumented(verb, found) == set()


def test_leaving_says_where_the_other_job_begins(house: House) -> None:
    found = document("stage", "leave", house.store.url, "price", *KAFKA)
    assert found["offsets"] == {"in": {"0": 30}}
    assert found["lanes"][0]["lane"] == LANE


def test_what_cannot_be_has_its_exit_code(house: House) -> None:
    url = house.store.url
    assert "there is none" in called("stage", "retire", url, "nobody", *KAFKA, code=2).stderr
    shown = called("stage", "accept-topic", url, "in", *KAFKA, code=2).stderr
    assert "nothing to accept" in shown
    shown = called("stage", "change-dedup", url, "price", "partition", *KAFKA).stdout
    assert "deduplicates so already" in shown
