"""Windows behind re-keying: what a publisher repeats in another partition, however far that lags."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from connectors.memory import MemoryReader
from dedup.formats.segment import BUCKET_MS
from dedup.model import Frontier
from delivery import Delivery
from delivery.api import passed_on
from delivery.batch import batches_of
from delivery.broker import MemoryBroker
from delivery.host import senders
from delivery.host.clock import SystemClock
from delivery.host.ends import check
from delivery.host.lane import LaneTask
from delivery.host.senders import Senders, Writers, logs_of
from delivery.host.spec import StageSpec
from delivery.protocol import messages as m
from delivery.records import Record
from delivery.stage import Policy
from sinks.memory import MemoryEmitter
from tests.unit.house import House
from tests.unit.memory_kafka import MemoryClient

WINDOW_MS = 6 * BUCKET_MS
#: When the story begins; the house's clock is set well behind it.
FRIDAY = 1_600_000_200_000 // BUCKET_MS * BUCKET_MS
MONDAY = FRIDAY + 100 * WINDOW_MS
#: The lanes that re-key, by the topic that each reads, and the one behind them.
RE_KEYING = {"in": "shop/count.by-id/in-0", "in2": "shop/count.by-id/in2-0"}
COUNTING = "shop/count/0"


class Sent(MemoryEmitter):
    """Stamps what is sent with the time it is sent at, as Kafka does."""

    def __init__(self, house: House, topics: tuple[str, ...]) -> None:
        broker: MemoryBroker = house.broker

        def append(source, record):
            return broker.append(source, record._replace(timestamp_ms=house.now))

        super().__init__(broker, topics, append)


@pytest.fixture
def shop(house: House) -> House:
    house.broker.create("in2")
    house.broker.create("mid")
    house.now = MONDAY
    return house


def rekey(house: House, topic: str = "in", edges: tuple[str, ...] = ("mid",), **more: Any) -> None:
    """Send on what is in a topic."""
    runner = house.runner(
        RE_KEYING[topic],
        reads=topic,
        writes=edges,
        call=lambda record: record,
        window_ms=WINDOW_MS,
        emitter=Sent(house, edges),
        policy=Policy(keep_ids=True, dead_letter_edge=1 if edges[1:] else None),
        **more,
    )
    house.done(runner, topic=topic)


def count(house: House, cut: int = 100, **more: Any) -> int:
    """Work off what was sent on; return how many records took effect."""
    before = len(house.sent())
    runner = house.runner(
        COUNTING, reads="mid", senders=tuple(RE_KEYING.values()), window_ms=WINDOW_MS, **more
    )
    house.done(runner, cut=cut, topic="mid")
    return len(house.sent()) - before


def lane_time(house: House) -> int:
    return house.catalog().load(COUNTING).head.lane_time_ms


def both(house: House, *names: str, at_ms: int) -> int:
    """Let records come in the first topic and be worked off, and nothing in the other one."""
    house.write(*names, timestamp_ms=at_ms)
    rekey(house)
    rekey(house, "in2")
    return count(house)


def test_a_retry_that_waited_in_another_partition_while_all_stood_still_takes_no_effect(shop):
    rekey(shop, "in2")
    shop.write("x", timestamp_ms=FRIDAY)
    rekey(shop)
    assert count(shop) == 1
    shop.write("x", topic="in2", timestamp_ms=FRIDAY + 1)
    shop.write("backlog", timestamp_ms=FRIDAY + 2)
    shop.now += 100 * WINDOW_MS
    rekey(shop)
    assert count(shop) == 1
    rekey(shop, "in2")
    assert count(shop) == 0
    assert shop.proved() == []


def test_a_partition_that_lags_by_many_windows_holds_what_the_others_counted(shop):
    rekey(shop, "in2")
    shop.write("x", topic="in2", timestamp_ms=FRIDAY - 1)
    for window in range(10):
        shop.write(str(window), timestamp_ms=FRIDAY + window * WINDOW_MS)
        rekey(shop)
        assert count(shop) == 1
    # They come again in the other one, each within the window.
    for window in range(10):
        shop.write(str(window), topic="in2", timestamp_ms=FRIDAY + window * WINDOW_MS + 1)
    rekey(shop, "in2")
    assert count(shop, cut=1) == 1, "x alone is new"
    assert shop.proved() == []


def test_a_publishers_window_begins_when_it_published_wherever_the_others_are(shop):
    """The other partition is behind when it counts, and passes it before the retry comes there."""
    shop.write("before", topic="in2", timestamp_ms=FRIDAY - 2 * WINDOW_MS)
    rekey(shop, "in2")
    shop.write("behind", topic="in2", timestamp_ms=FRIDAY - 1)
    shop.write("x", timestamp_ms=FRIDAY)
    rekey(shop)
    assert count(shop) == 2
    assert lane_time(shop) == FRIDAY - 2 * WINDOW_MS
    rekey(shop, "in2")
    assert count(shop) == 1
    assert lane_time(shop) == FRIDAY
    shop.write("x", topic="in2", timestamp_ms=FRIDAY + WINDOW_MS)
    rekey(shop, "in2")
    assert count(shop) == 0
    assert shop.proved() == []


@pytest.mark.parametrize("idle", ["empty", "read to its end", "without a lane"])
def test_lane_time_goes_on_while_a_partition_has_nothing_and_forgets(shop, idle):
    if idle == "read to its end":
        shop.write("once", topic="in2", timestamp_ms=FRIDAY)
    for turn in range(4):
        shop.write(f"{turn}", timestamp_ms=FRIDAY + turn * 2 * WINDOW_MS)
        rekey(shop)
        if idle != "without a lane":
            rekey(shop, "in2")
        count(shop)
        assert lane_time(shop) == FRIDAY + turn * 2 * WINDOW_MS, "what the other one has come to"
    shop.write("0", timestamp_ms=FRIDAY + 8 * WINDOW_MS)
    rekey(shop)
    assert count(shop) == 1, "its window is long past"


def test_a_partition_that_appears_later_is_waited_for(shop):
    assert both(shop, "x", at_ms=FRIDAY) == 1
    shop.broker.partitions |= {shop.source("in", 1): ()}
    assert both(shop, "y", at_ms=FRIDAY + 1) == 1
    assert lane_time(shop) == FRIDAY + 1, "it is empty"
    shop.write("x", partition=1, timestamp_ms=FRIDAY + 2)
    assert both(shop, "z", at_ms=MONDAY) == 1
    assert lane_time(shop) == FRIDAY + 1, "it has a record, and no lane"


def test_lane_time_is_that_of_what_was_read_also_while_more_is_on_its_way(shop):
    """Whoever re-keys is always ahead: what a look has seen is proven by what is read later."""
    runner = shop.runner(COUNTING, reads="mid", senders=tuple(RE_KEYING.values()))
    rekey(shop, "in2")
    shop.write(*"abc", timestamp_ms=FRIDAY)
    rekey(shop)
    runner.tell(m.Opened(Frontier.of([(shop.source("mid"), 0)])))
    for turn in range(8):
        shop.write(str(turn), timestamp_ms=FRIDAY + turn)
        rekey(shop)
        runner.drain()
        assert shop.turn(runner, cut=1, topic="mid"), "it is three records behind"
    runner.drain()
    assert FRIDAY < lane_time(shop) < FRIDAY + 7


def test_a_log_that_does_not_answer_holds_lane_time_back_and_nothing_else(shop):
    for turn in range(3):
        shop.write(f"{turn}", timestamp_ms=FRIDAY + turn)
        rekey(shop)
        rekey(shop, "in2")
        runner = shop.runner(COUNTING, reads="mid", senders=tuple(RE_KEYING.values()))
        runner._judge._logs = lambda _topics: None
        shop.done(runner, topic="mid")
    assert len(shop.sent()) == 3
    assert lane_time(shop) == 0


def test_records_of_ordinary_stages_move_lane_time_as_ever(shop):
    shop.done(shop.runner(writes=("mid",), emitter=Sent(shop, ("mid",))))
    shop.write("x", timestamp_ms=FRIDAY)
    shop.done(shop.runner(writes=("mid",), emitter=Sent(shop, ("mid",))))
    sent: Record = shop.sent("mid")[-1]
    shop.done(shop.runner(COUNTING, reads="mid", senders=("shop/price/0",)), topic="mid")
    assert lane_time(shop) == sent.timestamp_ms


def test_what_a_stranger_writes_into_the_internal_topic_moves_no_lane_time(shop):
    """Not even the first record that a process sees, where the stage was declared."""
    runner = shop.runner(COUNTING, reads="mid", senders=tuple(RE_KEYING.values()))
    runner._judge._memory.rekeyed = True
    shop.write("x", topic="mid", timestamp_ms=MONDAY - 1)
    shop.done(runner, topic="mid")
    assert lane_time(shop) == 0


def test_a_stage_that_deduplicates_a_topic_is_declared_to_be_behind_re_keying():
    d = Delivery(catalog="memory:", kafka="nowhere:9092")
    d.stage(reads="clicks", name="count", id_from="key", dedup="topic")(passed_on)
    d.stage(reads="clicks", name="plain", id_from="key")(passed_on)
    found = {spec.name: spec.rekeyed for spec in d.stages}
    assert found == {"count.by-id": False, "count": True, "plain": False}


def test_what_becomes_of_another_payload_is_the_same_in_front_of_re_keying_and_behind_it():
    """Repeats in one partition are dropped in front, and never seen behind."""
    d = Delivery(catalog="memory:", kafka="nowhere:9092")
    d.stage(reads="clicks", name="count", id_from="key", dedup="topic", conflicts="error")(
        passed_on
    )
    assert [spec.conflicts for spec in d.stages] == ["error", "error"]


class Host:
    """What a process keeps from one micro-batch to the next, and how it runs each."""

    def __init__(self, house: House, senders: Senders) -> None:
        self.house, self.senders = house, senders
        self.spec = StageSpec(
            pipeline="shop", name="count", reads="mid", call=passed_on, window_ms=WINDOW_MS
        )
        self.source = house.source("mid")

    def lane(self) -> LaneTask:
        broker = self.house.broker
        return LaneTask(
            self.spec,
            self.source,
            catalog=self.house.catalog(),
            home=None,
            clock=SystemClock(threading.Event()),
            reader=MemoryReader(broker, "mid", [self.source]),
            emitter=MemoryEmitter(broker, ("out",)),
            senders=self.senders,
        )

    def batch(self) -> int:
        """Work off what is there; return the lane time after it."""
        lane = self.lane()
        lane.open(0)
        log = self.house.broker.partitions[self.source]
        for batch in batches_of(self.house.broker.read(self.source, lane.planned, len(log))):
            lane.take(batch, len(log))
        while lane.turn():
            pass
        lane.finish()
        check(lane)
        lane.close()
        return self.house.catalog().load(lane.name).head.lane_time_ms


def test_hosts_find_out_how_far_time_has_come_and_remember_it_between_tasks(shop, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(senders.time, "monotonic", lambda: now[0])
    shop.broker.partitions |= {shop.source("in", 1): ()}
    client = MemoryClient(shop.broker)
    writers = Writers(shop.catalog())
    host = Host(shop, Senders(writers, shop.broker.names["mid"], logs_of(client)))
    times = []
    for turn in range(4):
        shop.write(str(turn), timestamp_ms=FRIDAY + turn * WINDOW_MS)
        rekey(shop)
        now[0] += senders.LEARN_SECONDS * (turn != 2)
        times.append(host.batch() - FRIDAY)
    assert times == [0, WINDOW_MS, WINDOW_MS, 3 * WINDOW_MS], "between two looks it stands"
    del shop.broker.names["in"]
    shop.broker.append(shop.source("mid"), shop.sent("mid")[-1])
    now[0] += senders.LEARN_SECONDS
    assert host.batch() - FRIDAY == 3 * WINDOW_MS, "a topic that is gone stops nothing"


# Where a time is trusted ----------------------------------------------------------------------


def publish(house: House, name: str, made_ms: int, topic: str = "in") -> None:
    headers = (("id", name.encode()), ("at", b"%d" % made_ms))
    house.broker.append(house.source(topic), Record(value=name.encode(), headers=headers))


def trusting(house: House, *, behind: bool = True) -> tuple[int, list[bytes | None]]:
    """Work everything off, a time trusted in front and behind; return what took effect, and letters."""
    before = len(house.sent("dead"))
    for topic in RE_KEYING:
        rekey(house, topic, ("mid", "dead"), time_from="header:at")
    given = {"writes": ("out", "dead"), "policy": Policy(dead_letter_edge=1)}
    effects = count(house, **given, time_from="header:at" if behind else None)
    return effects, [letter.value for letter in house.sent("dead")[before:]]


@pytest.mark.parametrize("behind", [True, False])
def test_a_retry_in_another_partition_is_put_aside_once_what_it_repeats_is_forgotten(shop, behind):
    """The lane that sends it on never came so far in time: only the one behind can tell."""
    shop.broker.create("dead")
    publish(shop, "x", FRIDAY)
    assert trusting(shop, behind=behind) == (1, [])
    for number in range(3):
        publish(shop, str(number), FRIDAY + WINDOW_MS + BUCKET_MS)
        assert trusting(shop, behind=behind) == (1, [])
    assert lane_time(shop) == FRIDAY + WINDOW_MS + BUCKET_MS
    publish(shop, "x", FRIDAY, "in2")
    publish(shop, "y", FRIDAY + BUCKET_MS, "in2")
    assert trusting(shop, behind=behind) == ((1, [b"x"]) if behind else (2, []))
    assert shop.proved() == []
