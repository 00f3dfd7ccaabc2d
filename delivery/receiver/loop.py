"""The loop of a receiver: one process of a group, its share of a topic's partitions and their lanes.

What it is: `Running`, everything a receiver holds while it runs: reads the partitions of this
process's share, keeps their lanes, and looks now and then whether the share is still right.
What it must not know: what the effect is, how a database keeps lanes, what a fair share is.

Invariants:
    A lane reads on from its own frontier, never from where a consumer happens to stand.
    One bundle at a time is in the hands of the user; while it is, nothing is read or looked at.
    A lane that another process took over is let go; one that cannot go on ends the loop with the
    reason.
    Offsets are committed under the group's name for lag monitors, and nothing reads them.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dedup.catalog.open import open_catalog
from dedup.collect import Keep, collect
from dedup.errors import Fenced, InvalidUsage, Unavailable
from dedup.local.home import home_of
from dedup.model import LaneRow, Source
from delivery.host.adapters import open_reader
from delivery.host.clock import SystemClock
from delivery.host.counters import Counters
from delivery.host.ends import ended
from delivery.host.reading import POLL_BYTES_MAX, POLL_RECORDS_MAX
from delivery.host.reminding import remind_of_lanes
from delivery.host.senders import Senders, Writers, logs_of
from delivery.host.spec import Plan, StageSpec
from delivery.host.worker import POLL_SECONDS
from delivery.kafka.opening import open_client
from delivery.kafka.port import Bounds, Client, Consumer, Topic
from delivery.life.guard import refuse_at_rest
from delivery.points import At
from delivery.protocol import messages as m
from delivery.receiver.bundle import Bundle
from delivery.receiver.keeping import Keeping, Place
from delivery.receiver.lane import LIMITS, NoOutputs, NoUserCode, ReceiverLane, claim
from delivery.receiver.share import (
    PATIENCE_SECONDS,
    PATIENCE_SECONDS_MAX,
    Seen,
    choose,
    is_gone,
    member,
)

__all__ = ["Running", "Setup"]

LOG = logging.getLogger(__name__)

#: How often a process looks who works on which lane.
LOOK_SECONDS = 1.0
#: How often it looks whether the topic has more partitions.
TOPIC_SECONDS = 30.0
#: How often monitors of consumer groups are told where we stand.
HINT_SECONDS = 5.0
#: Times a bundle is handed out that is neither sealed nor given up by an exception.
BUNDLE_TRIES = 3
#: A bundle may take this many times as long as the longest one seen before others take it over.
PATIENCE_BUNDLES = 4


@dataclass(slots=True)
class _Other:
    """What was seen of a lane that somebody else works on."""

    row: LaneRow | None = None
    owner: str | None = None
    #: Since when it has something to read and did not move.
    since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a receiver is; see `delivery.receiver.Receiver`."""

    plan: Plan
    spec: StageSpec
    database: str | None
    bounded: bool
    stop: threading.Event
    at: At
    member: str = field(default_factory=member)


class Running:
    """A receiver while it runs."""

    def __init__(self, setup: Setup) -> None:
        plan, spec = setup.plan, replace(setup.spec, limits=LIMITS)
        self._spec = spec
        self._member = setup.member
        self._stop = setup.stop
        self._bounded = setup.bounded
        self._at = setup.at
        self.clock = SystemClock(setup.stop)
        self._dice = random.SystemRandom()
        self._home, self._filters = home_of(plan.home), plan.filters
        self._client: Client = open_client(plan.kafka, plan.options, plan.client, LOG.warning)
        self._main = open_catalog(plan.catalog)
        self.keeping = Keeping(self._main, spec.prefix, setup.database, self._at)
        refuse_at_rest(self._main, spec.prefix, [spec.reads])
        self._topic: Topic = self._described()
        self._consumer: Consumer = self._client.consumer(group=spec.name)
        self._lanes: dict[Source, ReceiverLane] = {}
        self._others: dict[Source, _Other] = {}
        self._goal = self._bounds().high
        self._patience = PATIENCE_SECONDS
        self._looked = self._described_at = self._hinted = time.monotonic()
        self._held: set[Source] = set()
        self._gone = Counters()

    def counters(self) -> dict[str, int]:
        """Return what this process has done, in lanes it let go of too; any thread may ask."""
        total = Counters()
        for one in (self._gone, *(lane.counters for lane in list(self._lanes.values()))):
            total.add(one)
        return total.document()

    @property
    def names(self) -> list[str]:
        """The lanes of the group."""
        return [self._spec.lane(source) for source in self._topic.sources]

    def close(self) -> None:
        """Let go of everything. May be called twice."""
        self._hint(now=True)
        for lane in self._lanes.values():
            self._gone.add(lane.counters)
            lane.close()
        self._lanes.clear()
        self._consumer.close()
        self._client.close()
        self.keeping.close()
        self._main.store.close()

    # An operator's ----------------------------------------------------------------------------

    def accept(self, database: str) -> None:
        """Take a database as it is; see `Receiver.accept`."""
        self.keeping.accept(database, self.names, self.clock)

    def collect(self, keep: Keep | None) -> list[str]:
        """Take away what nobody needs; see `Receiver.collect`."""
        if not self.keeping.find(self.names):
            return []
        kept = keep or Keep(window_ms=self._spec.window_ms)
        done = []
        for lane in self.names:
            self.keeping.check(lane)
            done += [f"{lane}: {what}" for what in collect(self.keeping.catalog, lane, kept)]
        return done

    # The loop ---------------------------------------------------------------------------------

    def bundles(self) -> Iterator[Bundle]:
        """Yield bundles; see `Receiver`."""
        self._look()
        remind_of_lanes(self.keeping.catalog, self._spec, dict.fromkeys(self.names))
        while not self._stop.is_set():
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._look()
            ready = self._ready()
            for lane in ready:
                yield from self._handed(lane)
                if self._stop.is_set():
                    return
            if not ready and self._finished():
                return
            self._hint()

    def _ready(self) -> list[ReceiverLane]:
        """Read what is there, and return the lanes that have a bundle."""
        for fetched in self._consumer.poll(
            max_records=POLL_RECORDS_MAX, max_bytes=POLL_BYTES_MAX, timeout=self._pause()
        ):
            lane = self._lanes.get(fetched.source)
            if lane is not None:
                lane.take(fetched.batch, fetched.position)
        for lane in list(self._lanes.values()):
            while lane.turn():
                pass
            self._check(lane)
        self._hold_back()
        return [lane for lane in self._lanes.values() if lane.waiting is not None]

    def _pause(self) -> float:
        waiting = any(lane.waiting is not None for lane in self._lanes.values())
        return 0.0 if waiting else POLL_SECONDS

    def _handed(self, lane: ReceiverLane) -> Iterator[Bundle]:
        """Hand a bundle out, again if nothing was said about it."""
        for _ in range(BUNDLE_TRIES):
            began = time.monotonic()
            bundle = Bundle(lane, self.keeping, self._at)
            yield bundle
            self._drop_stale()
            if bundle.settled:
                self._settled(lane, bundle, time.monotonic() - began)
                return
            if self._stop.is_set():
                return
        raise InvalidUsage(
            "consume a topic",
            f"{lane.name}: {bundle!r}",
            f"it was handed out {BUNDLE_TRIES} times and never sealed; nothing was skipped: seal it "
            "with bundle.once(...) or bundle.done(), or let the exception end the loop",
        )

    def _drop_stale(self) -> None:
        """Let go of lanes that somebody else had begun before this process knew where they are."""
        for lane in list(self._lanes.values()):
            if lane.name in self.keeping.stale:
                self._let_go(lane)
        self.keeping.stale.clear()

    def _settled(self, lane: ReceiverLane, bundle: Bundle, seconds: float) -> None:
        """Learn how long bundles take; let go of a lane that somebody else took over."""
        longest = max(PATIENCE_SECONDS, PATIENCE_BUNDLES * seconds)
        if bundle.won:
            self._patience = min(PATIENCE_SECONDS_MAX, longest)
            return
        # Whoever took over was impatient; if that was for nothing, all are to be more patient.
        self._patience = min(PATIENCE_SECONDS_MAX, max(longest, 2 * self._patience))
        if lane.source not in self._lanes or lane.waiting is bundle.offered:
            return
        owner = self._owner(lane.name, self.keeping.catalog.load(lane.name))
        if owner != self._member:
            LOG.info("%s is read by another process now", lane.name)
            self._let_go(lane)

    def _finished(self) -> bool:
        """Tell whether all that was there at the beginning is sealed, by whomever."""
        if not self._bounded:
            return False
        for source, goal in self._goal:
            lane, other = self._lanes.get(source), self._others.get(source)
            at: int | None = None
            if lane is not None:
                at = lane.frontier
            elif other is not None and other.row is not None:
                at = other.row.head.frontier.at(source)
            if at is None or at < goal:
                return False
        return True

    def _check(self, lane: ReceiverLane) -> None:
        """Let go of a lane that was fenced; raise what stopped one otherwise."""
        stop = lane.stopped
        if stop is None:
            return
        self._let_go(lane)
        if isinstance(lane.error, Exception):
            raise lane.error
        error = ended(lane.name, stop)
        if stop.end is not m.End.FENCED or self.keeping.place is Place.UNDECIDED:
            raise error
        assert isinstance(error, Fenced), "a fenced lane says so"
        self.keeping.check(lane.name)
        LOG.info("%s", error)

    def _hold_back(self) -> None:
        for source, lane in self._lanes.items():
            if lane.full and source not in self._held:
                self._consumer.pause([source])
                self._held.add(source)
            elif not lane.full and source in self._held:
                self._consumer.resume([source])
                self._held.discard(source)

    def _hint(self, *, now: bool = False) -> None:
        if now or time.monotonic() - self._hinted >= HINT_SECONDS:
            self._hinted = time.monotonic()
            self._consumer.commit_hint({s: lane.frontier for s, lane in self._lanes.items()})

    # The share --------------------------------------------------------------------------------

    def _look(self) -> None:
        """See who works on which lane, and take over what this process should."""
        self._looked = time.monotonic()
        if self._looked - self._described_at >= TOPIC_SECONDS:
            self._described_at, self._topic = self._looked, self._described()
        was = self.keeping.place
        self.keeping.find(self.names)
        if was is Place.UNDECIDED and self.keeping.place is not Place.UNDECIDED:
            for lane in list(self._lanes.values()):
                self._let_go(lane)  # they began in memory, and somebody else's count
        foreign = [source for source in self._topic.sources if source not in self._lanes]
        if not foreign:
            return
        bounds = self._client.bounds(self._topic.name, foreign)
        seen = [self._seen(source, bounds) for source in self._topic.sources]
        chosen = set(choose(self._member, seen, self._patience, self._dice))
        for source in foreign:
            if source.partition in chosen:
                self._take_over(source, bounds)

    def _seen(self, source: Source, bounds: Bounds) -> Seen:
        if source in self._lanes:
            return Seen(partition=source.partition, owner=self._member)
        other = self._others.setdefault(source, _Other())
        row = self.keeping.catalog.load(self._spec.lane(source))
        now = time.monotonic()
        if row is not None and (other.row is None or row.head.ref != other.row.head.ref):
            other.row, other.since = row, None
            other.owner = self._owner(self._spec.lane(source), row)
        frontier = (row.head.frontier.at(source) if row else None) or 0
        lag = max(0, (bounds.high.at(source) or 0) - frontier)
        if not lag:
            other.since = None
        elif other.since is None:
            other.since = now
        return Seen(
            partition=source.partition,
            owner=other.owner if row else None,
            gone=other.owner is not None and is_gone(other.owner),
            lag=lag,
            still_seconds=now - other.since if other.since is not None else 0.0,
        )

    def _owner(self, lane: str, row: LaneRow | None) -> str | None:
        """Return who sealed last; the empty name if that cannot be known any more."""
        if row is None:
            return None
        ref = row.head.ref
        seal = self.keeping.catalog.seal(lane, ref.incarnation, ref.seq)
        return seal.code if seal else ""

    def _take_over(self, source: Source, bounds: Bounds) -> None:
        name = self._spec.lane(source)
        other = self._others[source]
        try:
            self.keeping.check(name)
            if other.row is not None and not claim(
                self.keeping.catalog, name, other.row.head, self._member, self.clock
            ):
                return
        except Unavailable as error:
            LOG.info("%s is not taken over just now: %s", name, error)
            return
        self._begin(source, bounds)

    def _begin(self, source: Source, bounds: Bounds) -> None:
        place, catalog = self.keeping.place, self.keeping.catalog
        spec = self._spec
        lane = ReceiverLane(
            spec,
            source,
            catalog=catalog,
            # Nothing is kept on this host of a lane that may never be.
            home=None if place is Place.UNDECIDED else self._home,
            filters=self._filters,
            clock=self.clock,
            reader=open_reader(self._client, spec.reads, source.partition),
            emitter=NoOutputs(),
            stage=NoUserCode(self._member),
            senders=Senders(Writers(catalog), source.topic, logs_of(self._client)),
            at=self._at,
        )
        lane.undecided = lambda: self.keeping.place is Place.UNDECIDED
        ends = bounds.low if spec.start == "earliest" else bounds.high
        self._lanes[source] = lane
        lane.open(ends.at(source) or 0)
        self._check(lane)
        if source in self._lanes:
            self._others.pop(source, None)
            self._consumer.add(spec.reads, {source: lane.planned})

    def _let_go(self, lane: ReceiverLane) -> None:
        self._gone.add(lane.counters)
        del self._lanes[lane.source]
        self._held.discard(lane.source)
        self._others[lane.source] = _Other()
        self._consumer.remove([lane.source])
        lane.close()

    # Kafka ------------------------------------------------------------------------------------

    def _described(self) -> Topic:
        found = self._client.describe([self._spec.reads]).get(self._spec.reads)
        if found is None:
            raise InvalidUsage(
                "read a topic",
                self._spec.reads,
                "there is no such topic; nothing was read: create it, or mend the name",
            )
        return found

    def _bounds(self) -> Bounds:
        return self._client.bounds(self._topic.name, self._topic.sources)
