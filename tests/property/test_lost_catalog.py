"""Whenever a catalog is lost: what had an effect has no other one, and what had none gets one."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given, settings

from dedup.catalog.memory import MemoryStore
from delivery.header import NAME, decode_header
from delivery.host.spec import StageSpec
from delivery.operate.logs import Cluster
from delivery.operate.repair.found import Lost, Terms
from delivery.operate.repair.lost import perform, survey
from delivery.protocol import messages as m
from delivery.records import Output, Record
from delivery.stage import Policy
from tests.unit.house import House
from tests.unit.memory_kafka import MemoryClient

PRICE, SHIP = "shop/price/in-0", "shop/ship/out-0"
#: So many turns take a process through a few bundles.
TURNS_MAX = 60


@dataclass
class Shop:
    """Two stages in memory; some records are made nothing of, the choice drawn anew each time."""

    house: House = field(default_factory=lambda: House(MemoryStore(), inline_bytes_max=0))
    stages: tuple[StageSpec, StageSpec] = (
        StageSpec(
            pipeline="shop",
            name="price",
            reads="in",
            writes=("out",),
            call=lambda record: record,
            named="header:id",
            duplicates="again",
        ),
        StageSpec(
            pipeline="shop", name="ship", reads="out", writes=("end",), call=lambda record: record
        ),
    )
    written: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.house.broker.create("end")
        self.house.broker.create("again")

    def price(self, record: Record) -> list[Output]:
        """None, one or two outputs, each new."""
        number = int((record.value or b"0").split()[0])
        made = 0 if number % 5 == 0 else 1
        return [
            Output(value=b"%d %s" % (number, self.house.random.randbytes(8).hex().encode()))
        ] * made

    def write(self, numbers: list[int]) -> None:
        for number in numbers:
            record = Record(value=b"%d" % number, headers=(("id", b"order-%d" % number),))
            self.house.broker.append(self.house.source(), record)
        self.written.update(numbers)

    def processes(self) -> list[tuple[str, object]]:
        house = self.house
        return [
            (
                "in",
                house.runner(
                    PRICE,
                    call=self.price,
                    writes=("out", "again"),
                    policy=Policy(duplicate_edge=1),
                ),
            ),
            (
                "out",
                house.runner(SHIP, reads="out", writes=("end",), senders=(PRICE,), call=self.price),
            ),
        ]

    def run_some(self, turns: tuple[int, int], cut: int) -> None:
        """Let processes go a few steps, and die."""
        for (topic, runner), count in zip(self.processes(), turns, strict=True):
            self.house.begin(runner, topic=topic)
            for _ in range(count):
                if runner.state.stopped is not None or not self.house.turn(runner, cut, topic):
                    break

    def run_all(self, cut: int) -> None:
        for topic, runner in self.processes():
            stop = self.house.run(runner, cut, topic=topic)
            assert stop.end is m.End.DONE, stop.why

    def lose(self, lanes: frozenset[str]) -> None:
        """Forget lanes, with all that is stored of them."""
        old, new = self.house.store, MemoryStore()
        for lane in set(old.lanes()) - lanes:
            row = old.read(lane)
            assert new.create(lane, row, None)
            new.import_entries(
                lane, row.ref.incarnation, old.entries(lane, row.ref.incarnation, 0, 1 << 40)
            )
            for kind in ("outputs", "segment", "dropped"):
                for slot in old.slots(kind, lane):
                    new.put(kind, slot, old.get(kind, slot))
            listed = old.read_list(lane)
            if listed is not None:
                assert new.replace_list(lane, None, *listed)
        self.house.store = new

    def rebuild(self, low: int, terms: Terms) -> Lost:
        end = self.house.source("end")
        client = MemoryClient(self.house.broker, {end: low})
        lost = survey(self.house.catalog(), Cluster(client), self.stages, terms)
        perform(self.house.catalog(), lost)
        assert survey(self.house.catalog(), Cluster(client), self.stages, terms).lanes == ()
        return lost

    def effects(self, topic: str) -> dict[int, set[bytes]]:
        found: dict[int, set[bytes]] = defaultdict(set)
        for record in self.house.sent(topic):
            header = decode_header(record.header(NAME) or b"")
            found[int(record.value.split()[0])].add(header.id)
        return dict(found)


numbers = st.lists(st.integers(1, 30), max_size=40)


@dataclass(frozen=True)
class Loss:
    """How far everything was, what is lost, and how much of the last topic retention has left."""

    turns: tuple[int, int]
    cut: int
    gone: frozenset[str]
    retained: float
    skip: bool


losses = st.builds(
    Loss,
    turns=st.tuples(st.integers(0, TURNS_MAX), st.integers(0, TURNS_MAX)),
    cut=st.integers(1, 9),
    gone=st.sampled_from([frozenset({PRICE, SHIP}), frozenset({PRICE}), frozenset({SHIP})]),
    retained=st.just(0.0) | st.floats(0, 1),
    skip=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(rounds=st.lists(st.tuples(numbers, losses), min_size=1, max_size=3), last=numbers)
def test_nothing_is_doubled_and_nothing_lost_that_can_be_known(rounds, last):
    shop, before, known = Shop(), {}, True
    for written, loss in rounds:
        shop.write(written)
        shop.run_some(loss.turns, loss.cut)
        before = {topic: shop.effects(topic) for topic in ("out", "end")}
        shop.lose(loss.gone)
        low = int(len(shop.house.sent("end")) * loss.retained)
        terms = Terms(skip=frozenset({"price", "ship"} if loss.skip else ()))
        lost = shop.rebuild(low, terms)
        assert {lane.lane for lane in lost.lanes} | {
            *lost.silent,
            *lost.present,
            *lost.unknown,
        } >= loss.gone
        known = known and not loss.skip and not low
        if lost.unknown:
            # Of a lane none of whose outputs is left in a log that was cut nothing can be known.
            assert low
            return
    for written, _ in rounds:
        shop.write(written)
    shop.write(last)
    shop.run_all(5)
    for topic in ("out", "end"):
        after = shop.effects(topic)
        assert {n: ids for n, ids in after.items() if len(ids) > 1} == {}
        assert all(after[n] == ids for n, ids in before[topic].items())
    if known:
        assert shop.effects("end").keys() == {n for n in shop.written if n % 5}
        assert shop.house.proved() == []


def test_a_repeat_that_was_told_does_not_stand_for_an_output_that_was_not_sent():
    """Both are of one seal; its process died between the two, and then the catalog was lost."""
    shop = Shop()
    shop.write([1, 1, 2])
    shop.run_all(3)
    assert len(shop.house.sent("again")) == 1
    for topic in ("out", "end"):
        shop.house.broker.partitions[shop.house.source(topic)] = ()
    shop.lose(frozenset({PRICE, SHIP}))
    shop.rebuild(0, Terms())
    shop.run_all(3)
    assert {n: len(ids) for n, ids in shop.effects("end").items()} == {1: 1, 2: 1}


def test_the_kit_makes_effects_at_all():
    shop = Shop()
    shop.write([1, 2, 5, 2])
    shop.run_all(2)
    assert {n: len(ids) for n, ids in shop.effects("end").items()} == {1: 1, 2: 1}
    assert json.dumps(sorted(shop.written)) == "[1, 2, 5]"
