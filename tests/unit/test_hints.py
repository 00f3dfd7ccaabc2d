"""What monitors are told of a stage: nothing depends on it, so it fails nothing and holds nobody up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import closing

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
        self.gate = threading.Event()
        self.gate.set()
        self._heard = threading.Condition()

    def asks(self, times: int) -> None:
        """Wait until it was asked so often."""
        with self._heard:
            assert self._heard.wait_for(lambda: self.asked >= times, timeout=30)

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
        self.gate.wait()
        with self._heard:
            self.asked += 1
            self._heard.notify_all()
        if self.error is not None:
            raise self.error
        if self.answers:
            self.kept |= {(group, topic, number): at for number, at in offsets.items()}
        return self.answers


def test_offsets_stand_under_the_group() -> None:
    client = Groups()
    with closing(Hints(client, "shop.price")) as told:
        told.tell("orders", {0: 7, 1: 3})
        told.tell("orders", {0: 9})
        told.tell("orders", {})
    assert client.kept == {("shop.price", "orders", 0): 9, ("shop.price", "orders", 1): 3}
    told.tell("orders", {0: 11})
    told.close()
    assert client.kept["shop.price", "orders", 0] == 9, "it is closed"


def test_nobody_waits_for_it_and_what_was_told_last_stands() -> None:
    client = Groups()
    with closing(Hints(client, "shop.price")) as told:
        client.gate.clear()
        for offset in range(1, 100):
            told.tell("orders", {0: offset})
            told.tell("others", {0: offset + 1})
        client.gate.set()
    assert client.kept == {("shop.price", "orders", 0): 99, ("shop.price", "others", 0): 100}
    assert client.asked < 8, "what was overtaken is not told"


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
    with caplog.at_level(logging.DEBUG):
        with closing(Hints(client, "shop.price")) as told:
            told.tell("orders", {0: 7})
            told.tell("others", {0: 8})
            client.asks(1)
            told.tell("orders", {0: 8})
        assert client.asked == 1, "a cluster that does not answer is left alone"
        monkeypatch.setattr(hints, "QUIET_SECONDS", 0.0)
        monkeypatch.setattr(hints, "TELL_SECONDS", 0.0)
        with closing(Hints(client, "shop.price")) as again:
            again.tell("orders", {0: 8})
            client.asks(2)
            again.tell("orders", {0: 9})
            client.asks(3)
            client.answers, client.error = True, None
            again.tell("orders", {0: 9})
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "secret" not in caplog.text
    assert client.kept == {("shop.price", "orders", 0): 9}
