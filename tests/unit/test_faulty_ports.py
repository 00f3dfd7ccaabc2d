"""Faulty sinks and sources, and the check for emitters that a sink's author calls."""

from __future__ import annotations

import pytest

from connectors.memory import MemoryReader
from dedup.arrays import pack
from dedup.errors import Indeterminate, Unavailable
from delivery.broker import MemoryBroker
from delivery.ports import Emissions, Frontier, Record, Source
from delivery.testing import (
    Crashed,
    Fault,
    FaultyEmitter,
    FaultyReader,
    Violation,
    Wire,
    check_emitter,
)
from sinks.memory import MemoryEmitter


def at(number: int, fault: Fault) -> Wire:
    """Let one call fail."""
    return Wire({}, lambda place, _: fault if place == number else None)


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.create("out")
    return broker


THREE = Emissions(
    [0] * 3,
    [0] * 3,
    [None] * 3,
    [b"0", b"1", b"2"],
    [()] * 3,
    pack([b"%016d" % n for n in range(3)]),
)


def sent(broker) -> list[bytes]:
    return [record.value for record in broker.partitions[broker.sources("out")[0]]]


@pytest.mark.parametrize(
    ("fault", "error", "there"),
    [
        (Fault.CRASH_BEFORE, Crashed, 1),
        (Fault.CRASH_AFTER, Crashed, 2),
        (Fault.LOST_REPLY, Indeterminate, 2),
        (Fault.LOST_REQUEST, Indeterminate, 1),
        (Fault.LATE, Indeterminate, 1),
        (Fault.REFUSED, Unavailable, 1),
    ],
)
def test_an_emission_fails_in_the_middle_of_a_bundle(broker, fault, error, there):
    wire = at(1, fault)
    emitter = FaultyEmitter(MemoryEmitter(broker, ["out"]), wire, one_by_one=True)
    with pytest.raises(error):
        emitter.emit(THREE)
    assert sent(broker) == [b"0", b"1", b"2"][:there]
    for request in wire.late:
        wire.carry_out(request)
    assert len(sent(broker)) == there + len(wire.late)


def test_a_bundle_is_one_call_unless_told_otherwise(broker):
    wire = at(0, Fault.REPEATED)
    behind = FaultyEmitter(MemoryEmitter(broker, ["out"]), wire).emit(THREE)
    assert sent(broker) == [b"0", b"1", b"2"] * 2
    assert dict(behind) == {broker.sources("out")[0]: 6}
    assert len(wire.calls) == 1


def test_a_source_fails_too(broker):
    (source,) = broker.sources("out")
    broker.append(source, Record(value=b"a"))
    wire = at(1, Fault.REFUSED)
    reader = FaultyReader(MemoryReader(broker, "out", [source]), wire)
    planned = Frontier.of([(source, 0)]), reader.log().high
    with pytest.raises(Unavailable):
        reader.read(*planned)
    assert [record.value for batch in reader.read(*planned) for record in batch] == [b"a"]


# The check for emitters -----------------------------------------------------------------------


def memory(kind=MemoryEmitter):
    """Give what `check_emitter` asks for."""

    def make():
        broker = MemoryBroker()
        broker.create("one", 2)
        broker.create("two")
        return kind(broker, ["one", "two"]), broker.partitions.__getitem__

    return make


def test_the_memory_sink_is_an_emitter():
    check_emitter(memory())


class Backwards(MemoryEmitter):
    def emit(self, emissions):
        return super().emit(list(emissions)[::-1])


class Forgetful(MemoryEmitter):
    def emit(self, emissions):
        return super().emit(emissions.cut(0, len(emissions) - 1))


class Eager(MemoryEmitter):
    """Returns the offset of the last record instead of the one behind it."""

    def emit(self, emissions):
        return Frontier.of((source, offset - 1) for source, offset in super().emit(emissions))


class Bare(MemoryEmitter):
    def emit(self, emissions):
        return super().emit([emission._replace(headers=()) for emission in emissions])


class Tidy(MemoryEmitter):
    """Thinks that one header of a name is enough."""

    def emit(self, emissions):
        return super().emit([e._replace(headers=tuple(dict(e.headers).items())) for e in emissions])


class Wandering(MemoryEmitter):
    """Chooses the partition by what it has seen before."""

    calls = 0

    def place(self, rows):
        self.calls += 1
        placed = zip(super().place(rows), rows.edges, strict=True)
        return [(place + self.calls) % 2 if edge == 0 else 0 for place, edge in placed]


class Talkative(MemoryEmitter):
    """Claims an offset for nothing."""

    def emit(self, emissions):
        return (
            super().emit(emissions) if emissions else Frontier.of([(Source(self.writes[0], 0), 0)])
        )


class Silent(MemoryEmitter):
    def __init__(self, broker, _topics) -> None:
        super().__init__(broker, [])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Backwards, "in other order"),
        (Forgetful, "read back"),
        (Eager, "take what is not yet delivered"),
        (Bare, "lost its headers"),
        (Tidy, "bytes"),
        (Wandering, "function of the output"),
        (Talkative, "emitting nothing"),
        (Silent, "names the topic"),
    ],
)
def test_an_emitter_that_breaks_its_promise_is_found(kind, said):
    with pytest.raises(Violation, match=said):
        check_emitter(memory(kind))


def test_a_repeat_with_other_bytes_is_found():
    class Restamped(MemoryEmitter):
        sent = 0

        def emit(self, emissions):
            self.sent += bool(emissions)
            key = b"again" if self.sent > 1 else None
            return super().emit([e._replace(key=key or e.key) for e in emissions])

    with pytest.raises(Violation, match="two copies"):
        check_emitter(memory(Restamped))
