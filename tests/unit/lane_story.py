"""A lane of the pure core, told one event after the other, and the values its tests are made of.

What it is: `Story` and builders of rows, heads and ranges over one topic.
What it must not know: stores, runners, any single test.
"""

from __future__ import annotations

from typing import Any

from dedup.model import (
    Ack,
    Attempt,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    LaneRow,
    Seal,
    Source,
    TopicId,
)
from delivery.protocol import messages as m
from delivery.protocol.lane import handle
from delivery.protocol.state import Lane, Limits, Phase

TOPIC = TopicId(b"t" * 16)
OUT = TopicId(b"o" * 16)
OWNER = Incarnation(b"i" * 16)
OTHER = Incarnation(b"j" * 16)
TOPICS = (("in", TOPIC),)


def at(*offsets: int) -> Frontier:
    """A frontier over partitions 0, 1, … of the topic."""
    return Frontier.of((Source(TOPIC, number), offset) for number, offset in enumerate(offsets))


def out(offset: int) -> Frontier:
    """Delivered offsets of one output partition."""
    return Frontier.of([(Source(OUT, 0), offset)])


def named(name: str) -> Attempt:
    return Attempt(name.encode().ljust(16, b"."))


def ref(seq: int, name: str = "somebody", owner: Incarnation = OWNER) -> HeadRef:
    return HeadRef(owner, seq, named(name))


def head(seq: int, frontier: Frontier, name: str = "somebody", **more: Any) -> Head:
    return Head(ref=ref(seq, name), frontier=frontier, topics=TOPICS, **more)


def row(seq: int, frontier: Frontier, acked: int | None = None, **more: Any) -> LaneRow:
    """A lane at `seq`; everything is acknowledged unless it is said how far."""
    collected = more.pop("collected", 0)
    ack = Ack(OWNER, seq if acked is None else acked, more.pop("delivered", Frontier()))
    return LaneRow(head=head(seq, frontier, **more), ack=ack, collected=collected)


class Story:
    """A lane, and everything that was asked for so far."""

    def __init__(self, **limits: int) -> None:
        self.lane = Lane(limits=Limits(**limits))
        self.asked: list[m.Instruction] = []

    def tell(self, event: m.Event) -> list[m.Instruction]:
        """Tell an event and return what it makes the lane ask for."""
        self.lane, asked = handle(self.lane, event)
        self.asked += asked
        return asked

    def open(self, found: LaneRow, **source: Any) -> list[m.Instruction]:
        """Begin on a lane that somebody has left like this."""
        assert self.tell(m.Opened(at(0))) == [m.Load()]
        return self.tell(m.Loaded(found, TOPICS, **source))

    def poll(self, start: int, end: int) -> list[m.Instruction]:
        """Offer a range of partition 0."""
        return self.tell(m.Polled(at(start), at(end)))

    def store(self, ticket: int, name: str | None = None, now_ms: int = 0) -> m.Store:
        """Let a bundle be classified and run; return what it asks to be stored."""
        self.tell(m.Classified(ticket, named(name or f"mine {ticket}"), now_ms))
        asked = self.tell(m.Ran(ticket))
        return next(it for it in asked if isinstance(it, m.Store))

    def stored(self, store: m.Store) -> list[m.Instruction]:
        """Say that a bundle is stored."""
        return self.tell(m.Stored(store.ticket, sealed(store)))

    def append(self, ticket: int, name: str | None = None) -> m.Append:
        """Bring a bundle up to its append."""
        asked = self.stored(self.store(ticket, name))
        return next(it for it in asked if isinstance(it, m.Append))

    def seal(self, ticket: int, name: str | None = None) -> list[m.Instruction]:
        """Bring a bundle up to its seal, and win it."""
        self.append(ticket, name)
        return self.tell(m.Appended(ticket, m.Outcome.WON))

    @property
    def ended(self) -> m.End | None:
        """How it ended; the last instruction says so too, and nothing is left under way."""
        if self.lane.phase is not Phase.CLOSED:
            assert self.lane.end is None
            return None
        stops = [it for it in self.asked if isinstance(it, m.Stop)]
        assert [stop.end for stop in stops] == [self.lane.end]
        assert (self.lane.held, self.lane.pending, self.lane.owed) == ((), (), ())
        return self.lane.end

    @property
    def why(self) -> str:
        """What the lane said when it ended."""
        return next(it.why for it in self.asked if isinstance(it, m.Stop))


def sealed(store: m.Store) -> Seal:
    """The seal that a runner makes of what it was asked to store."""
    return Seal(
        ref=store.ref,
        start=store.start,
        end=store.end,
        minted_at_ms=store.minted_at_ms,
        lane_time_ms=store.lane_time_ms,
    )


def of(asked: list[m.Instruction], *kinds: type) -> list[Any]:
    """Those of some instructions that are of these kinds."""
    return [it for it in asked if isinstance(it, kinds)]


def in_resolution() -> Story:
    """A lane at seq 5 that was told nothing of its append."""
    story = Story()
    story.open(row(5, at(10)))
    story.poll(10, 12)
    story.append(0)
    story.tell(m.Appended(0, m.Outcome.UNKNOWN))
    return story


def in_reload() -> Story:
    """The same lane, after it was told that it lost."""
    story = in_resolution()
    story.tell(m.Resolved(0, row(6, at(11)), named("winner")))
    return story
