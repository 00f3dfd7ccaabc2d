"""Lanes whose writes are under way at once: nobody waits for another's, each keeps its own order."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest

from connectors.memory import MemoryReader
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import RawAck
from dedup.errors import Fenced, Indeterminate
from dedup.model import Frontier, HeadRef, Source
from delivery.broker import MemoryBroker
from delivery.host import lane as lane_module
from delivery.host.clock import SystemClock
from delivery.host.ends import check
from delivery.host.errands import REST_SECONDS_MAX, Errands
from delivery.host.lane import RIDING_BYTES_MAX, LaneTask
from delivery.host.spec import StageSpec
from delivery.protocol import messages as m
from delivery.records import Output, Record
from sinks.memory import MemoryEmitter

#: Nothing here takes as long, unless it is stuck.
STUCK_SECONDS = 60.0


class Gated(MemoryStore):
    """A store that takes many writes at once, each for as long as the test says."""

    concurrent = True

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[str, threading.Event] = defaultdict(_opened)
        self.entered: dict[str, threading.Event] = defaultdict(threading.Event)
        #: Of lanes, what comes of their next appends, after or before they happened.
        self.lost_replies: dict[str, int] = defaultdict(int)
        self.broken: set[str] = set()
        self.writes: list[tuple[str, str]] = []
        self.under_way: dict[str, int] = defaultdict(int)

    def append(self, lane: str, expected: HeadRef, ref: HeadRef, head: bytes, entry: bytes) -> bool:
        with self._way(lane, "append"):
            if lane in self.broken:
                raise RuntimeError("a bug")
            won = super().append(lane, expected, ref, head, entry)
            if self.lost_replies[lane]:
                self.lost_replies[lane] -= 1
                raise Indeterminate("append a seal", lane, "no answer")
            return won

    def acknowledge(self, lane: str, expected: RawAck, ack: RawAck) -> bool:
        with self._way(lane, "acknowledge"):
            return super().acknowledge(lane, expected, ack)

    def _way(self, lane: str, what: str) -> Way:
        return Way(self, lane, what)


class Way:
    """One write under way."""

    def __init__(self, store: Gated, lane: str, what: str) -> None:
        self.store, self.lane, self.what = store, lane, what

    def __enter__(self) -> None:
        self.store.under_way[self.lane] += 1
        assert self.store.under_way[self.lane] == 1, "of one lane one after the other"
        self.store.entered[self.lane].set()
        assert self.store.open[self.lane].wait(STUCK_SECONDS), "stuck"

    def __exit__(self, *_: object) -> None:
        self.store.writes.append((self.lane, self.what))
        self.store.under_way[self.lane] -= 1


def _opened() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


class House:
    """Some lanes of a stage over lists, and their errands."""

    def __init__(self, lanes: int = 2) -> None:
        self.seconds = 100.0
        self.ran: list[bytes] = []
        self.store = Gated()
        self.broker = MemoryBroker()
        self.broker.create("in", lanes)
        self.broker.create("out", 1)
        self.errands = Errands(lambda: self.seconds)
        self.spec = StageSpec(pipeline="p", name="s", reads="in", writes=("out",), call=self._call)
        self.lanes = [self._lane(source) for source in self.broker.sources("in")]

    def _call(self, record: Record) -> Output:
        self.ran.append(record.value or b"")
        return record.replace()

    def _lane(self, source: Source) -> LaneTask:
        lane = LaneTask(
            self.spec,
            source,
            catalog=Catalog(self.store),
            home=None,
            clock=SystemClock(threading.Event()),
            reader=MemoryReader(self.broker, "in", [source]),
            emitter=MemoryEmitter(self.broker, ["out"]),
        )
        lane.open(0)
        return lane

    def write(self, lane: LaneTask, *values: bytes) -> None:
        first = self.broker.high([lane.source]).at(lane.source) or 0
        for value in values:
            self.broker.append(lane.source, Record(value=value))
        start, end = (Frontier.of([(lane.source, at)]) for at in (first, first + len(values)))
        (batch,) = lane._runner._reader.read(start, end)
        lane.take(batch, first + len(values))

    def emit(self) -> bool:
        moved = False
        for lane in self.lanes:
            lane.hand_over()
            moved |= lane.outbox.look() | lane.outbox.begin()
        return moved

    def turn(self) -> None:
        self.errands.turn(self.lanes, self.emit)
        self.emit()

    def wait(self) -> None:
        """Wait for an answer, if there is one to come."""
        if self.errands:
            self.errands.wait(STUCK_SECONDS)

    def rest(self) -> None:
        """Let so much time pass that every lane has rested."""
        self.seconds += REST_SECONDS_MAX

    def until_told(self, lane: LaneTask, seq: int) -> None:
        """Give turns until a lane has sealed so much."""
        for _ in range(20):
            self.turn()
            if lane.seq >= seq:
                return
            self.wait()
            self.rest()
        raise AssertionError(f"{lane.name} stands at {lane.seq}")

    @property
    def out(self) -> list[bytes | None]:
        (source,) = self.broker.sources("out")
        return [record.value for record in self.broker.partitions[source]]

    @property
    def slow(self) -> LaneTask:
        return self.lanes[0]

    @property
    def quick(self) -> LaneTask:
        return self.lanes[1]


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(lane_module, "ACK_SECONDS", 3600.0)  # nothing here happens by the clock
    house = House()
    yield house
    for event in house.store.open.values():
        event.set()
    house.errands.close()


def _hold(house: House, lane: LaneTask) -> None:
    """Let the next write of a lane take until it is let go."""
    house.store.open[lane.name].clear()
    house.store.entered[lane.name].clear()


def _stand_at_the_store(house: House) -> None:
    """Bring the slow lane's append under way."""
    _hold(house, house.slow)
    house.write(house.slow, b"slow")
    house.turn()
    assert house.store.entered[house.slow.name].wait(STUCK_SECONDS)


def test_a_lane_seals_and_emits_while_anothers_append_is_under_way(house):
    _stand_at_the_store(house)
    house.write(house.quick, b"quick")
    house.until_told(house.quick, 1)
    house.turn()
    assert house.out == [b"quick"]
    assert house.slow.seq == 0
    house.store.open[house.slow.name].set()
    house.until_told(house.slow, 1)
    assert house.out == [b"quick", b"slow"]


def test_nothing_is_emitted_before_its_seal_is_known(house):
    _stand_at_the_store(house)
    for _ in range(3):
        house.turn()
    assert house.out == []
    assert house.store.writes == []


def test_what_comes_while_an_append_is_under_way_is_one_bundle_behind_it(house):
    _stand_at_the_store(house)
    for value in (b"a", b"b", b"c"):
        house.write(house.slow, value)
        house.turn()
    assert house.ran == [b"slow"]
    house.store.open[house.slow.name].set()
    house.until_told(house.slow, 2)
    assert house.ran == [b"slow", b"a", b"b", b"c"]
    assert house.slow.seq == 2


def test_a_bundle_that_was_stored_apart_is_sealed_and_emitted_before_the_next_is_begun(house):
    large = b"large" * RIDING_BYTES_MAX
    _hold(house, house.slow)
    house.write(house.slow, large)
    house.turn()
    house.write(house.slow, b"next")
    if not house.slow.appending:
        house.wait()
    house.turn()
    assert house.store.entered[house.slow.name].wait(STUCK_SECONDS)
    house.seconds += REST_SECONDS_MAX
    house.store.open[house.slow.name].set()
    house.wait()
    house.turn()
    assert house.out == [large], "it waits neither for a rest nor for what comes behind it"
    house.rest()
    house.until_told(house.slow, 2)
    assert house.ran == [large, b"next"]


def test_a_lane_gathers_for_as_long_as_its_append_took(house):
    _stand_at_the_store(house)
    house.seconds += REST_SECONDS_MAX / 4
    house.store.open[house.slow.name].set()
    house.wait()
    house.turn()
    assert house.slow.seq == 1
    house.write(house.slow, b"next")
    house.turn()
    assert house.ran == [b"slow"]
    assert house.errands.pause(house.lanes) > 0
    house.write(house.quick, b"quick")
    assert house.errands.pause(house.lanes) == 0, "it has nothing to rest from"
    house.rest()
    house.turn()
    assert house.ran == [b"slow", b"next", b"quick"]


def test_records_are_read_as_long_as_one_lane_could_begin_something(house):
    assert house.errands.free([])
    _stand_at_the_store(house)
    assert house.errands.free(house.lanes)
    assert not house.errands.free([house.slow])
    assert 0 < house.errands.pause(house.lanes) < STUCK_SECONDS, "the other one is not forgotten"


def test_a_backlog_is_worked_off_without_a_rest(house, monkeypatch):
    monkeypatch.setattr("delivery.host.errands.FEW_ROWS_MAX", 2)
    _stand_at_the_store(house)
    house.seconds += REST_SECONDS_MAX
    house.store.open[house.slow.name].set()
    house.wait()
    house.write(house.slow, b"a", b"b")
    house.turn()
    assert house.ran == [b"slow", b"a", b"b"]


def test_an_outage_makes_nobody_rest_for_long(house):
    _stand_at_the_store(house)
    house.seconds += 1000.0
    house.store.open[house.slow.name].set()
    house.wait()
    house.turn()
    house.write(house.slow, b"next")
    house.rest()
    house.turn()
    assert house.ran == [b"slow", b"next"]


def test_an_append_without_an_answer_is_looked_into_and_holds_up_nobody(house):
    house.store.lost_replies[house.slow.name] = 1
    _stand_at_the_store(house)
    house.write(house.quick, b"quick")
    house.until_told(house.quick, 1)
    house.store.open[house.slow.name].set()
    house.until_told(house.slow, 1)
    house.turn()
    assert sorted(house.out) == [b"quick", b"slow"], "it had happened, and counts once"
    assert house.ran == [b"slow", b"quick"]


def test_a_lane_that_is_fenced_stops_and_leaves_the_others_as_they_are(house):
    _stand_at_the_store(house)
    row = house.store.tables.lanes.pop(house.slow.name)
    house.store.open[house.slow.name].set()
    for _ in range(10):
        house.turn()
        if house.slow.stopped:
            break
        house.wait()
    with pytest.raises(Fenced):
        check(house.slow)
    assert row.ref.seq == 0
    assert house.out == []
    house.write(house.quick, b"quick")
    house.until_told(house.quick, 1)
    house.turn()
    assert house.out == [b"quick"]


def test_a_bug_behind_a_write_is_raised_and_not_swallowed(house):
    house.store.broken.add(house.slow.name)
    house.write(house.slow, b"slow")
    with pytest.raises(RuntimeError, match="a bug"):
        house.until_told(house.slow, 1)


def test_an_acknowledgement_goes_before_or_behind_an_append_never_beside_it(house, monkeypatch):
    monkeypatch.setattr(lane_module, "ACK_SECONDS", 0.0)
    for number in range(5):
        house.write(house.slow, b"%d" % number)
        house.until_told(house.slow, number + 1)
    house.errands.settle(house.lanes)
    whats = [what for lane, what in house.store.writes if lane == house.slow.name]
    assert whats.count("append") == 5
    assert "acknowledge" in whats


def test_an_acknowledgement_under_way_keeps_no_lane_from_preparing(house, monkeypatch):
    house.write(house.slow, b"slow")
    house.until_told(house.slow, 1)
    house.turn()
    monkeypatch.setattr(lane_module, "ACK_SECONDS", 0.0)
    _hold(house, house.slow)
    house.rest()
    house.turn()
    assert house.store.entered[house.slow.name].wait(STUCK_SECONDS)
    house.write(house.slow, b"next")
    house.turn()
    assert house.ran == [b"slow", b"next"]


def test_settling_waits_for_all_that_a_lane_has_under_way(house):
    _stand_at_the_store(house)
    assert house.errands.writing(house.slow)
    house.store.open[house.slow.name].set()
    house.errands.settle([house.slow])
    assert not house.errands
    assert house.slow.seq == 1


def test_closing_performs_nothing_more(house):
    _stand_at_the_store(house)
    # What waits behind the append.
    append = m.Append(9, None, None, None)
    house.errands.give(house.slow, [append])
    closing = threading.Thread(target=house.errands.close)
    closing.start()
    house.store.open[house.slow.name].set()
    closing.join(STUCK_SECONDS)
    assert house.store.writes == [(house.slow.name, "append")]
