"""The acceptance suite's judge of stories can tell: of a sound chain it says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from dedup.catalog.catalog import Catalog
from dedup.model import Source
from delivery.checker import Log
from tests.acceptance.telling import untrue
from tests.unit.house import House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import again, chained, read_on


@pytest.fixture
def shop(house: House) -> House:
    chained(house)
    return house


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


def test_stories_of_a_chain_are_what_its_topics_show(
    shop: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the judge of the trials on real servers, of every record; and it can tell."""
    monkeypatch.setattr("tests.acceptance.telling.SAMPLE", 1_000)
    shop.write("more")
    shop.done()
    again(shop, -1)
    again(shop, 0)
    read_on(shop)

    def told(unseen: int = 0) -> list[str]:
        parts = shop.broker.partitions
        topics = {
            name: {shop.source(name): Log(log[: len(log) - unseen], len(log))}
            for name in ("in", "out", "end")
            for log in [parts[shop.source(name)]]
        }
        client: Any = MemoryClient(shop.broker)
        pipeline: Any = Shop()
        return untrue(client, Catalog(shop.store), pipeline, topics, 1)

    assert told() == []
    # One copy fewer, as the judge is shown it, and the story of its parent is another one.
    assert len(told(unseen=1)) == 1 + 1, "one in each topic that stages write"
