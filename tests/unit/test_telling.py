"""The acceptance suite's judge of stories: it says nothing of true ones, and each lie is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.model import Source
from delivery.checker import Log
from delivery.operate import copies, explaining
from delivery.operate.places import Fate
from tests.acceptance import telling
from tests.unit.collect_kit import raced
from tests.unit.house import LANE, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import again, chained, read_on

Lie = tuple[str, object, str, Callable[..., Any]]


@dataclass(frozen=True)
class Spec:
    """As much of a stage as the acceptance suite's judge of stories asks for."""

    name: str
    reads: str
    named: str | None

    def lane(self, source: Source) -> str:
        return f"shop/{self.name}/{source.partition}"


@dataclass(frozen=True)
class Shop:
    stages: tuple[Spec, ...] = (Spec("price", "in", "header:id"), Spec("ship", "out", None))


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> House:
    """Two stages with everything that a crash leaves behind: losers, repeats, remnants."""
    monkeypatch.setattr(telling, "SAMPLE", 1_000)
    monkeypatch.setattr(telling, "ASKED_AGAIN", 1_000)
    house = House(MemoryStore())
    chained(house, rounds=2)
    raced(house)
    assert list(house.store.losers(LANE))
    again(house, -1)
    again(house, 0)
    read_on(house)
    return house


def untrue(shop: House, unseen: int = 0) -> list[str]:
    """Judge all stories, as if so many records at the ends of the topics were not there."""
    parts = shop.broker.partitions
    topics = {
        name: {shop.source(name): Log(log[: len(log) - unseen], len(log))}
        for name in ("in", "out", "end")
        for log in [parts[shop.source(name)]]
    }
    client: Any = MemoryClient(shop.broker)
    pipeline: Any = Shop()
    return telling.untrue(client, Catalog(shop.store), pipeline, topics, 1)


def test_stories_of_a_chain_are_what_its_topics_show(shop: House) -> None:
    assert untrue(shop) == []
    # One copy fewer, as the judge is shown it, and the story of its parent is another one.
    wrong = untrue(shop, unseen=1)
    assert {said.split(": ")[1] for said in wrong} == {"outputs"}
    assert len(wrong) == 1 + 1, "one in each topic that stages write"


def as_remnants(real: Any, *asked: Any) -> Any:
    fate = real(*asked)
    return Fate.REMNANT if fate is Fate.DUPLICATE else fate


def later(real: Any, *asked: Any) -> Any:
    place = real(*asked)
    return replace(place, seal=replace(place.seal, minted_at_ms=1))


def nobody_won(real: Any, *asked: Any) -> Any:
    return tuple(replace(one, won=False) for one in real(*asked))


def without_losers(real: Any, *asked: Any) -> Any:
    return real(*asked)[:1]


def without_digests(real: Any, *asked: Any) -> Any:
    return tuple(replace(one, digest=None) for one in real(*asked))


def without_one(real: Any, *asked: Any, **more: Any) -> Any:
    told = real(*asked, **more)
    return replace(told, found=told.found[1:])


def further(real: Any, *asked: Any, **more: Any) -> Any:
    told = real(*asked, **more)
    return replace(told, upto={partition: at + 1 for partition, at in told.upto.items()})


def without_copies(real: Any, *asked: Any, **more: Any) -> Any:
    return real(*asked, **more)[:1]


def of_another(real: Any, *asked: Any) -> Any:
    return replace(real(*asked), parent=(0, 0))


def nothing(*_: Any) -> Any:
    return None


def read_by_nobody(real: Any, *asked: Any) -> Any:
    return replace(real(*asked), receivers={})


def nowhere(*_: Any) -> Any:
    return []


#: What is lied about, who tells it, and what is told in place of the truth.
LIES: list[Lie] = [
    ("fate", explaining, "verdict_of", as_remnants),
    ("seal", explaining, "place_of", later),
    ("winner", explaining, "attempts_at", nobody_won),
    ("attempts", explaining, "attempts_at", without_losers),
    ("attempts", explaining, "attempts_at", without_digests),
    ("original", explaining._Teller, "_first", nothing),
    ("repeats", explaining, "repeats", without_one),
    ("repeats_upto", explaining, "repeats", further),
    ("outputs", copies, "copies", without_copies),
    ("outputs", explaining._Teller, "_copy", read_by_nobody),
    ("origin", explaining._Teller, "origin", of_another),
    ("places", telling, "places_of_id", nowhere),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: f"{lie[0]}-{lie[3].__name__}")
def test_every_lie_is_found(shop: House, monkeypatch: pytest.MonkeyPatch, lie: Lie) -> None:
    about, where, name, told = lie
    real = getattr(where, name)
    monkeypatch.setattr(where, name, lambda *asked, **more: told(real, *asked, **more))
    assert any(said.split(": ")[1] == about for said in untrue(shop))
