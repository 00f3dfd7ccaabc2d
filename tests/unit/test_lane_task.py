"""A lane in a host that runs several: what may be late, what presses, what holds it back."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from connectors.memory import MemoryReader
from dedup.catalog.open import open_catalog
from dedup.formats.segment import BUCKET_MS
from dedup.model import Frontier
from delivery.broker import MemoryBroker
from delivery.host import lane as lane_module
from delivery.host import reminding
from delivery.host.clock import SystemClock
from delivery.host.lane import LaneTask
from delivery.host.spec import StageSpec
from delivery.protocol import messages as m
from delivery.protocol.state import Limits
from delivery.records import Record
from sinks.memory import MemoryEmitter

OWED_MAX = 12


class Slow(MemoryEmitter):
    """Lands what was begun when the test says so."""

    def __init__(self, broker: MemoryBroker, topics: list[str]) -> None:
        super().__init__(broker, topics)
        self.begun: list[Frontier] = []
        self.landed = 0

    def begin(self, emissions):
        self.begun.append(self.emit(emissions))
        return Landing(self, len(self.begun))


class Landing:
    def __init__(self, emitter: Slow, number: int) -> None:
        self.emitter, self.number = emitter, number

    def done(self, _seconds: float = 0.0) -> Frontier | None:
        landed = self.number <= self.emitter.landed
        return self.emitter.begun[self.number - 1] if landed else None


class Desk:
    """One lane over lists, with a record a bundle."""

    def __init__(self, **declared: Any) -> None:
        self.broker = MemoryBroker()
        for topic in ("in", "out", "dead"):
            self.broker.create(topic, 1)
        (self.source,) = self.broker.sources("in")
        self.catalog = open_catalog("memory:")
        spec = StageSpec(
            pipeline="p",
            name="s",
            reads="in",
            writes=("out",),
            call=lambda record: record.replace(),
            limits=Limits(owed_max=OWED_MAX),
            **({"bundle_rows": 1} | declared),
        )
        self.emitter = Slow(self.broker, list(spec.topics))
        self.lane = LaneTask(
            spec,
            self.source,
            catalog=self.catalog,
            home=None,
            clock=SystemClock(threading.Event()),
            reader=MemoryReader(self.broker, "in", [self.source]),
            emitter=self.emitter,
        )
        self.lane.open(0)

    def write(self, count: int, value: bytes = b"v", **more: Any) -> None:
        first = self.broker.high([self.source]).at(self.source)
        for _ in range(count):
            self.broker.append(self.source, Record(value=value, **more))
        start, end = (Frontier.of([(self.source, at)]) for at in (first, first + count))
        (batch,) = self.lane._runner._reader.read(start, end)
        self.lane.take(batch, first + count)

    def turn(self) -> list[m.Instruction]:
        """Let the lane do what it can; return the acknowledgements it asked for at once."""
        self.lane.prepare()
        self.lane.tell(self.lane.perform(self.lane.appends()))
        self.lane.hand_over()
        self.lane.outbox.look()
        self.lane.outbox.begin()
        self.lane.hand_over()
        taken = self.lane.acknowledges(now=False)
        self.lane.tell(self.lane.perform(taken))
        return taken

    @property
    def acknowledged(self) -> int:
        return self.catalog.load(self.lane.name).ack.seq


@pytest.fixture
def desk(monkeypatch) -> Desk:
    monkeypatch.setattr(lane_module, "ACK_SECONDS", 3600.0)  # nothing here happens by the clock
    return Desk()


def test_a_lane_goes_on_sealing_while_nothing_has_landed(desk):
    desk.write(3)
    for _ in range(3):
        assert desk.turn() == []
    assert desk.lane.seq == 3
    assert desk.acknowledged == 0


@pytest.mark.parametrize(
    ("named", "unnamed", "said"),
    [
        ("header:order_id", 3, ["header:order_id"]),
        ("header:id", 0, []),
        (None, 0, []),
        (lambda _: None, 0, []),
    ],
)
def test_a_name_that_no_record_has_is_said_once(caplog, monkeypatch, named, unnamed, said):
    monkeypatch.setattr(reminding, "_told", {})
    desk = Desk(named=named)
    desk.write(1, headers=(("id", b"a"),))
    desk.write(1, headers=(("id", b"b"),))
    desk.write(1, headers=(("id", b"c"),))
    desk.emitter.landed = OWED_MAX
    for _ in range(4):
        desk.turn()
    assert desk.lane.counters.read == 3
    assert desk.lane.counters.unnamed == unnamed
    assert [text for text in said if text in caplog.text] == said
    assert caplog.text.count("takes effect twice") == len(said)


def test_some_records_without_a_name_are_counted(caplog):
    desk = Desk(named="header:id", bundle_rows=2)
    desk.write(1, headers=(("id", b"a"),))
    desk.write(1)
    desk.emitter.landed = OWED_MAX
    for _ in range(2):
        desk.turn()
    assert (desk.lane.counters.read, desk.lane.counters.unnamed) == (2, 1)
    assert caplog.text == ""


def test_an_acknowledgement_that_waits_is_pressed_when_half_of_what_may_be_owed_is(desk):
    desk.write(OWED_MAX)
    desk.turn()
    desk.emitter.landed = OWED_MAX
    desk.turn()
    assert desk.acknowledged == 0, "a single one has time"
    for _ in range(OWED_MAX - 1):
        desk.turn()
    assert desk.acknowledged > 0, "the lane would stand still, and wait for the clock"
    assert desk.lane.seq == OWED_MAX


def test_a_lane_takes_nothing_new_while_too_much_of_it_has_not_landed(desk, monkeypatch):
    monkeypatch.setattr("delivery.host.outbox.OUTBOX_BYTES_MAX", 2 * 10_000)
    desk.write(10, b"x" * 10_000)
    for _ in range(10):
        desk.turn()
    most = 2 + Limits().pending_max + 1
    assert desk.lane.seq == most, "two are too much; by then others were under way, and one offered"
    desk.emitter.landed = most
    desk.turn()
    desk.turn()
    assert desk.lane.seq > most


def test_finishing_sends_and_acknowledges_everything_at_once(desk):
    desk.write(2)
    desk.turn()
    desk.emitter.landed = 2
    began = time.monotonic()
    desk.lane.finish()
    assert time.monotonic() - began < 60, "no acknowledgement waits for company at the end"
    assert desk.acknowledged == desk.lane.seq > 0
    assert not desk.lane.unsettled


def test_a_lane_trusts_the_time_that_its_stage_names(monkeypatch):
    monkeypatch.setattr(lane_module, "ACK_SECONDS", 3600.0)
    desk = Desk(time_from="json:at", dead_letters="dead", window_ms=BUCKET_MS, named="value")
    for at in (0, 2 * BUCKET_MS, 0, 1):
        desk.write(1, b'{"at": %d}' % at)
        desk.turn()
    out, dead = (
        [record.value for record in desk.broker.partitions[desk.broker.sources(topic)[0]]]
        for topic in ("out", "dead")
    )
    assert out == [b'{"at": 0}', b'{"at": %d}' % (2 * BUCKET_MS)]
    assert dead == [b'{"at": 0}', b'{"at": 1}']
    assert desk.catalog.load(desk.lane.name).head.lane_time_ms == 2 * BUCKET_MS
