"""What one process knows of a lane, as frozen values, and the ranges it plans with.

What it is: `Lane` and its parts. `delivery.protocol.lane` is the only module that makes new ones.
What it must not know: what follows from an event.

Invariants:
    Every value is hashable and compares by what it means; the story is told, not compared.
    `held`, `pending` and the head's frontier are contiguous, source by source.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from dedup.model import Ack, Frontier, Head, HeadRef, Seal, TopicId
from delivery.protocol import messages as m
from delivery.protocol.rest import rest_of

#: How many of a lane's last events an error tells.
STORY_LENGTH = 24


class Phase(Enum):
    """Where the lane stands in this process."""

    NEW = "new"
    LOADING = "loading"
    STARTING = "starting"
    OPEN = "open"
    RELOADING = "reloading"
    CLOSED = "closed"


class Step(Enum):
    """Where a pending bundle stands."""

    CLASSIFYING = "classifying"
    RUNNING = "running"
    STORING = "storing"
    STORED = "stored"
    APPENDING = "appending"
    RESOLVING = "resolving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a lane; each number is a promise about memory or about time."""

    #: Bundles under way before their seal: one in user code beside one being stored.
    pending_max: int = 2
    #: Sealed bundles not yet acknowledged; behind it the lane takes nothing new.
    owed_max: int = 64
    #: Times the same unknown outcome is looked into before the task fails.
    unknown_max: int = 5


class Span(NamedTuple):
    """A range of the source, offered and not yet sealed."""

    start: Frontier
    end: Frontier


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A span under way, as one attempt."""

    ticket: int
    span: Span
    step: Step = Step.CLASSIFYING
    #: Where it will stand if it wins; known once it is classified.
    ref: HeadRef | None = None
    minted_at_ms: int = 0
    lane_time_ms: int = 0
    seal: Seal | None = None


@dataclass(frozen=True, slots=True)
class Owed:
    """A sealed bundle that this process has not seen acknowledged."""

    seq: int
    #: The offsets behind its last record once this process flushed it; None before.
    delivered: Frontier | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """All that one process knows of a lane."""

    limits: Limits = field(default_factory=Limits)
    phase: Phase = Phase.NEW
    #: The last head known to be won, by whomever.
    head: Head | None = None
    ack: Ack | None = None
    held: tuple[Span, ...] = ()
    pending: tuple[Bundle, ...] = ()
    owed: tuple[Owed, ...] = ()
    acking: Ack | None = None
    unknown: int = 0
    losses: int = 0
    tickets: int = 0
    start: Frontier = field(default_factory=Frontier)
    goal: Frontier | None = None
    end: m.End | None = None
    story: tuple[m.Event, ...] = field(default=(), compare=False)

    @property
    def known(self) -> Head:
        """The head, of a lane that was loaded."""
        assert self.head is not None, "only a loaded lane comes here"
        return self.head

    @property
    def acked(self) -> Ack:
        """The acknowledgement, of a lane that was loaded."""
        assert self.ack is not None, "only a loaded lane comes here"
        return self.ack

    @property
    def planned(self) -> Frontier:
        """Where the next offered range must begin or lie below."""
        planned = self.known.frontier
        for span in (*(bundle.span for bundle in self.pending), *self.held):
            planned = planned.merged(span.end)
        return planned

    @property
    def hungry(self) -> bool:
        """Whether the host should offer more: the bound on rows held in memory."""
        return self.phase is Phase.OPEN and not self.held and len(self.owed) < self.limits.owed_max

    @property
    def idle(self) -> bool:
        """Whether everything offered is sealed and everything sealed is acknowledged."""
        return self.phase is Phase.OPEN and not (self.held or self.pending or self.owed)


class IllegalTransitionError(AssertionError):
    """An event that cannot come now: a bug in the runner or in the core. Stop; nothing is lost."""

    def __init__(self, lane: Lane, event: m.Event) -> None:
        story = "\n".join(f"  {told}" for told in lane.story)
        super().__init__(f"{event} cannot come in {lane.phase}; the lane's story:\n{story}")


def refusal(start: Frontier, event: m.Loaded) -> str:
    """Say why the lane cannot go on here, or begin at `start` if it never was; nothing is skipped."""
    head = event.row.head if event.row else None
    rest = rest_of(head.state) if head else None
    if rest is not None:
        return rest.why()
    now = dict(event.topics)
    for name, topic in head.topics if head else ():
        if now.get(name, topic) != topic:
            return (
                f"topic {name} was deleted and created again since the last seal; if that is meant, "
                f"say `delivery stage accept-topic` with {name}"
            )
    if head and head.writes != event.writes:
        # Receivers know the lane as a writer of those topics alone: in another one they would take
        # every copy of a record for a new record.
        had, has = len(head.writes), len(event.writes)
        return (
            f"the lane was begun with {had} outputs, and its stage has {has} now (writes=, duplicates= "
            "and dead_letters= together): declare it with those that it had"
            if had != has
            else "an output topic was deleted and created again, or the stage has other outputs now; "
            "in the first case `delivery stage accept-topic` says that it is meant, in the second "
            "declare it with those that it had"
        )
    for source, offset in head.frontier if head else start:
        low, high = event.low.at(source), event.high.at(source)
        if low is not None and offset < low:
            return (
                f"offsets {offset} to {low} of partition {source.partition} are gone unread; "
                "`delivery stage reset` goes on behind them"
            )
        if high is not None and offset > high:
            return f"partition {source.partition} ends at {high}, below {offset} where the lane is"
    return ""


def unsealed(spans: tuple[Span, ...], frontier: Frontier) -> list[Span]:
    """Trim spans to what the frontier does not cover yet."""
    rest = []
    for span in spans:
        begin = Frontier.of(
            (source, max(offset, frontier.at(source) or 0)) for source, offset in span.start
        )
        if not begin.covers(span.end):
            rest.append(Span(begin, begin.merged(span.end)))
    return rest


def span_of(
    planned: Frontier, topics: tuple[tuple[str, TopicId], ...], event: m.Polled
) -> Span | str:
    """Return the part of a polled range that is new, or why it may not be read.

    A partition that the lane does not know yet begins at its log's first offset, wherever the
    reader would like to begin.
    """
    begin = {}
    for source, offset in event.start:
        expected = planned.at(source)
        if expected is None:
            if all(source.topic != topic for _, topic in topics):
                return "a topic that the lane never read: was it deleted and created again?"
            expected = event.first.at(source)
        if expected is None or offset > expected:
            return (
                f"a gap: partition {source.partition} continues at {expected}, "
                f"the reader planned from {offset}"
            )
        begin[source] = expected
    start = Frontier.of(begin.items())
    end = start.merged(event.end)
    if len(end.positions) != len(begin):
        return "a range has an end for each of its starts, and no other"
    return Span(start, end)
