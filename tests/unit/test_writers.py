"""Who writes what, looked up by the lanes of a process together, however many they are."""

from __future__ import annotations

from collections import Counter

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore, Tables
from dedup.model import Attempt, Frontier, Head, HeadRef, Incarnation, Seal, TopicId
from delivery.host import senders
from delivery.host.senders import LEARN_SECONDS, LOOKED_AGAIN_MAX, SCAN_SECONDS, Senders, Writers

ONE, TWO = TopicId(b"1" * 16), TopicId(b"2" * 16)


class Counted(Catalog):
    """A catalog that counts how often each lane is read."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(Tables()))
        self.loads: Counter[str] = Counter()

    def load(self, lane):
        self.loads[lane] += 1
        return super().load(lane)

    def add(self, lane: str, *writes: TopicId) -> None:
        ref = HeadRef(Incarnation(b"i" * 16), 0, Attempt(b"a" * 16))
        seal = Seal(ref=ref, start=Frontier(), end=Frontier(), minted_at_ms=0, lane_time_ms=0)
        assert self.create(lane, Head(ref=ref, frontier=Frontier(), writes=writes), seal)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands until it is moved."""
    now = [1000.0]
    monkeypatch.setattr(senders.time, "monotonic", lambda: now[0])
    return now


def test_senders_are_named_now_and_then(clock):
    catalog = Counted()
    catalog.add("shop/a/0", ONE, TWO)
    catalog.add("shop/b/0", TWO)
    writers = Writers(catalog)
    one, two = Senders(writers, ONE), Senders(writers, TWO)
    assert set(one()) == {"shop/a/0"}
    assert set(two()) == {"shop/a/0", "shop/b/0"}
    assert not tuple(one()), "it was asked just now"
    clock[0] += LEARN_SECONDS
    assert set(one()) == {"shop/a/0"}
    assert catalog.loads == {"shop/a/0": 1, "shop/b/0": 1}, "one look for all lanes"


def test_new_writers_are_found_and_those_that_are_gone_forgotten(clock):
    catalog = Counted()
    catalog.add("shop/a/0", ONE)
    writers = Writers(catalog)
    assert writers.of(ONE) == ("shop/a/0",)
    catalog.add("shop/b/0", ONE)
    assert writers.of(ONE) == ("shop/a/0",), "nobody looks that often"
    clock[0] += SCAN_SECONDS + 1
    assert set(writers.of(ONE)) == {"shop/a/0", "shop/b/0"}
    del catalog.store.tables.lanes["shop/a/0"]
    clock[0] += SCAN_SECONDS + 1
    assert writers.of(ONE) == ("shop/b/0",)


def test_many_lanes_are_looked_at_once_and_then_a_few_at_a_time(clock):
    catalog = Counted()
    names = [f"shop/a/{number}" for number in range(5 * LOOKED_AGAIN_MAX)]
    for name in names:
        catalog.add(name, ONE)
    writers = Writers(catalog)
    writers.of(ONE)
    assert catalog.loads == Counter(names)
    for _ in range(5):
        before = catalog.loads.total()
        clock[0] += SCAN_SECONDS + 1
        writers.of(ONE)
        assert catalog.loads.total() - before == LOOKED_AGAIN_MAX
    assert set(catalog.loads.values()) == {2}, "each had its turn"


def test_many_lanes_ask_many_senders_less_often(clock):
    catalog = Counted()
    for number in range(100):
        catalog.add(f"shop/a/{number}", ONE)
    writers = Writers(catalog)
    lanes = [Senders(writers, ONE) for _ in range(100)]
    seconds = 0
    reads = sum(len(tuple(lane())) for lane in lanes)
    while reads < 2 * 100 * 100:
        clock[0] += 1
        seconds += 1
        reads += sum(len(tuple(lane())) for lane in lanes)
    assert 100 * 100 / seconds <= senders.LEARN_READS_PER_SECOND
    del lanes[1:]
    assert writers.seconds(100) == LEARN_SECONDS
