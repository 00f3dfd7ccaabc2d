"""What monitors are told of a stage: nothing depends on it, so it fails nothing and holds nobody up."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from dedup.errors import Unavailable
from delivery.broker import MemoryBroker
from delivery.host import hints
from delivery.host.hints import Hints
from tests.unit.memory_kafka import MemoryClient


class Groups(MemoryClient):
    """A cluster that keeps offsets of groups, as long as it is well."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.kept: dict[tuple[str, str, int], int] = {}
        self.asked = 0
        self.answers = True
        self.error: Exception | None = None

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if self.answers:
            self.kept |= {(group, topic, number): at for number, at in offsets.items()}
        return self.answers


def test_offsets_stand_under_the_group() -> None:
    client = Groups()
    told = Hints(client, "shop.price")
    told.tell("orders", {0: 7, 1: 3})
    told.tell("orders", {0: 9})
    told.tell("orders", {})
    assert client.kept == {("shop.price", "orders", 0): 9, ("shop.price", "orders", 1): 3}
    assert client.asked == 2


@pytest.mark.parametrize(
    "error",
    [None, Unavailable("ask", "it", "later"), ValueError("password=secret")],
    ids=["refused", "away", "unforeseen"],
)
def test_where_it_fails_nobody_hears_of_it_but_once(
    error: Exception | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = Groups()
    client.answers, client.error = False, error
    told = Hints(client, "shop.price")
    with caplog.at_level(logging.DEBUG):
        told.tell("orders", {0: 7})
        told.tell("orders", {0: 8})
    assert client.asked == 1, "a broker that does not answer would hold each batch up"
    monkeypatch.setattr(hints, "QUIET_SECONDS", 0.0)
    again = Hints(client, "shop.price")
    with caplog.at_level(logging.DEBUG):
        again.tell("orders", {0: 8})
        again.tell("orders", {0: 9})
    assert client.asked == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "secret" not in caplog.text
    client.answers, client.error = True, None
    again.tell("orders", {0: 9})
    assert client.kept == {("shop.price", "orders", 0): 9}
