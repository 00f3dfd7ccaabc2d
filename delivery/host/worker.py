"""A process that runs lanes: reads their partitions, gives each its turns, and says how it goes.

What it is: `Worker`, the one loop of resident tasks and of receivers: one consumer for all lanes of
all stages, one emitter a stage, one catalog.
What it must not know: who started the process, Spark, which lanes other processes run.

Invariants:
    A lane reads on from its own frontier, never from where a consumer happens to stand.
    What is read ahead is bounded for each lane; a lane that is full holds its partition back alone.
    A lane that stopped for a reason of its own stops the worker, and the reason is raised: nothing
    goes on half.
    `close` leaves everything as a killed process would, only sooner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from dedup.catalog.open import open_catalog
from dedup.errors import DeliveryError, InvalidUsage
from dedup.local.home import home_of
from dedup.model import Frontier, Source
from delivery.host.adapters import open_emitter, open_reader
from delivery.host.clock import SystemClock
from delivery.host.company import Company
from delivery.host.counters import Counters
from delivery.host.ends import check
from delivery.host.errands import Errands
from delivery.host.horizon import Horizon
from delivery.host.lane import LaneTask
from delivery.host.outbox import Road
from delivery.host.outdated import refuse_outdated
from delivery.host.progress import LaneProgress, Progress
from delivery.host.reading import read
from delivery.host.senders import Senders, Writers, logs_of
from delivery.host.spec import Plan, StageSpec
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, Consumer, Topic
from delivery.points import At, nowhere
from delivery.ports import Emitter
from delivery.protocol import messages as m
from delivery.sinks import close_sink

LOG = logging.getLogger(__name__)

#: How long a poll waits when nothing is there.
POLL_SECONDS = 0.05
#: The same while records are on their way out, or an acknowledgement waits.
SETTLING_SECONDS = 0.01
#: The same while something is under way at a store.
BUSY_SECONDS = 0.002
#: In a turn that takes longer, what has come is taken meanwhile, so that brokers get the next ready.
LONG_SECONDS = 0.005
#: How long an answer takes to what is asked on then, if there is anything.
FRESH_SECONDS = 0.0015
#: How often monitors of consumer groups are told where we stand.
HINT_SECONDS = 5.0
#: How often a fenced lane is tried again under its new incarnation.
FENCED_SECONDS = 1.0


class Worker:
    """Runs some lanes of a pipeline in this process.

    Args:
        plan: the pipeline.
        stop: set when the worker is to end.
        at: is told each place at which a test may let the process die.
    """

    def __init__(self, plan: Plan, stop: threading.Event | None = None, at: At = nowhere) -> None:
        self.plan = plan
        self.stop = stop or threading.Event()
        self._at = at
        self._clock = SystemClock(self.stop)
        self._catalog = open_catalog(plan.catalog)
        self._writers = Writers(self._catalog)
        self._home = home_of(plan.home)
        self._client: Client = open_client(plan.kafka, plan.options, plan.client)
        self._horizon = Horizon(self._client)
        self._consumers: dict[str, Consumer] = {}
        self._emitters: dict[str, Emitter] = {}
        self._roads: dict[str, Road] = {}
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._lanes: dict[Source, dict[str, LaneTask]] = {}
        self._errands = Errands() if self._catalog.store.concurrent else None
        self._gone = Counters()
        self._held: set[tuple[str, Source]] = set()
        self._hinted = self._looked = time.monotonic()
        self._company = Company()
        self._closed = False

    # Lanes ------------------------------------------------------------------------------------

    @property
    def lanes(self) -> list[LaneTask]:
        """Every lane that runs here."""
        return [lane for lanes in self._lanes.values() for lane in lanes.values()]

    def topic(self, name: str) -> Topic:
        """Return a topic as it is now.

        Raises:
            InvalidUsage: there is none.
        """
        found = self._client.describe([name]).get(name)
        if found is None:
            raise InvalidUsage(
                "read a topic",
                name,
                "there is no such topic; nothing was read: create it, or mend the name",
            )
        return found

    def open(self, spec: StageSpec, partitions: Iterable[int], starts: Mapping[int, int]) -> None:
        """Begin to run lanes of a stage.

        Args:
            spec: the stage.
            partitions: of its input topic.
            starts: where lanes that never were begin, if not at the log's first offset.

        Raises:
            DeliveryError: a lane cannot run here; nothing was skipped.
        """
        topic = self.topic(spec.reads)
        sources = [Source(topic.id, number) for number in partitions]
        sources = [at for at in sources if spec.name not in self._lanes.get(at, {})]
        if not sources:
            return
        refuse_outdated(self._catalog, self._client, map(spec.lane, sources), spec.kafka_topics)
        low = self._client.bounds(spec.reads, sources).low
        for source in sources:
            self._begin(spec, source, starts.get(source.partition, low.at(source) or 0))

    def begin(self, spec: StageSpec, starts: Mapping[Source, int]) -> None:
        """Append where lanes begin that never were, in this order, and run none of them.

        Raises:
            DeliveryError: a lane cannot begin there.
        """
        for source, start in starts.items():
            lane = self._lane(spec, source)
            lane.open(start)
            lane.close()
            check(lane)

    def _begin(self, spec: StageSpec, source: Source, begin: int) -> None:
        lane = self._lane(spec, source)
        self._lanes.setdefault(source, {})[spec.name] = lane
        lane.open(begin)
        check(lane)
        self._consumer(spec).add(spec.reads, {source: lane.planned})

    def _lane(self, spec: StageSpec, source: Source) -> LaneTask:
        return LaneTask(
            spec,
            source,
            catalog=self._catalog,
            home=self._home,
            filters=self.plan.filters,
            clock=self._clock,
            reader=open_reader(self._client, spec.reads, source.partition),
            emitter=self._emitter(spec),
            pool=self._pool(spec),
            senders=Senders(self._writers, source.topic, logs_of(self._client)),
            at=self._at,
        )

    def close_lanes(self, spec: StageSpec, partitions: Iterable[int]) -> None:
        """Stop running lanes of a stage; what they have sealed and not delivered is the next's."""
        chosen = set(partitions)
        for source, lanes in list(self._lanes.items()):
            if source.partition in chosen and spec.name in lanes:
                self._end(lanes[spec.name])

    def _end(self, lane: LaneTask) -> None:
        if self._errands is not None:
            self._errands.settle([lane])
        self._consumer(lane.spec).remove([lane.source])
        lane.close()
        self._gone.add(lane.counters)
        del self._lanes[lane.source][lane.spec.name]

    # The loop ---------------------------------------------------------------------------------

    def turn(self, *, linger: float = 0.0) -> bool:
        """Read what is there and give every lane its turn; False if there was nothing to do.

        Raises:
            DeliveryError, StoppedByRecordError: a lane cannot go on; nothing was skipped.
        """
        lanes = self.lanes
        if self._errands is None:
            moved = self._in_groups(lanes, linger)
        else:
            moved = self._beside(self._errands, lanes, linger)
        moved |= self._emit(lanes)
        for lane in lanes:
            if lane.stopped:
                check(lane)
        self._hold_back()
        self._hint()
        return moved or self._busy(lanes)

    def _in_groups(self, lanes: Sequence[LaneTask], linger: float) -> bool:
        """Let lanes share commits, where that spares them waits for the disk."""
        moved = self._read(self._patience(lanes))
        for lane in lanes:
            began = time.monotonic()
            if lane.prepare(linger=linger):
                moved = True
                self._company.prepared(time.monotonic() - began)
            if lane.appending and self._company.enough():
                self._commit(lanes, idle=False)
                self._emit(lanes)
                if time.monotonic() - self._looked > LONG_SECONDS:
                    self._read(0.0)
        return moved | self._commit(lanes, idle=not moved)

    def _beside(self, errands: Errands, lanes: Sequence[LaneTask], linger: float) -> bool:
        """Have what lanes write done while other lanes go on, where the store can."""
        # Looking at each record as it comes would cost more than it gains.
        errands.wait(pause := errands.pause(lanes))
        stale = time.monotonic() - self._looked > LONG_SECONDS
        moved = errands.free(lanes) and self._read(0.0 if pause else self._patience(lanes))
        if moved and stale:
            # A broker answers as soon as it has one record, and then is not asked on until it is taken.
            self._read(FRESH_SECONDS)
        return moved | errands.turn(lanes, lambda: self._emit(lanes), linger=linger)

    def _busy(self, lanes: Sequence[LaneTask]) -> bool:
        return bool(self._errands) or any(lane.unsettled for lane in lanes)

    def _patience(self, lanes: Sequence[LaneTask]) -> float:
        """Return how long to wait for records where there are none."""
        # What stores do in threads wakes nobody who waits for sockets.
        busy = BUSY_SECONDS if self._errands is not None else SETTLING_SECONDS
        return busy if self._busy(lanes) else POLL_SECONDS

    def _emit(self, lanes: Sequence[LaneTask]) -> bool:
        """Look at what is on its way, and begin more where there is room."""
        moved = False
        waiting = {name for name, road in self._roads.items() if road.crowded}
        for lane in lanes:
            lane.hand_over()
            if lane.outbox:
                moved |= lane.outbox.look()
                waiting.add(lane.spec.name)
        for name in waiting:
            road = self._roads.setdefault(name, Road())
            moved |= road.begin([lane.outbox for lane in lanes if lane.spec.name == name])
        return moved

    def _commit(self, lanes: Sequence[LaneTask], *, idle: bool) -> bool:
        """Append what is stored, and acknowledge, with one wait for the disk where that is enough."""
        appends = [(lane, lane.appends()) for lane in lanes]
        # Of one lane one after the other: both are comparisons on its one row.
        writes = [(lane, [*todo, *lane.acknowledges(now=idle)]) for lane, todo in appends]
        writes = [(lane, todo) for lane, todo in writes if todo]
        if not writes:
            return False
        try:
            with self._company.commit(), self._catalog.group():
                done = [(lane, lane.perform(todo)) for lane, todo in writes]
        except DeliveryError:
            # Each may have happened, and none may be taken for granted: the lanes find out.
            done = [(lane, [_unknown(one) for one in todo]) for lane, todo in writes]
        for lane, answers in done:
            lane.tell(answers)
        return True

    def finish(self) -> None:
        """Seal, deliver and acknowledge what is under way; what was only read is the next's.

        Raises:
            DeliveryError, StoppedByRecordError: a lane could not; nothing was skipped.
        """
        if self._errands:
            self._errands.settle(self.lanes)
        for lane in self.lanes:
            lane.finish()
            check(lane)

    def _read(self, seconds: float) -> bool:
        """Give lanes what there is; wait so long if there is nothing anywhere and nothing lands."""
        got, self._looked = False, time.monotonic()
        for name, fetched in read(self._consumers, self._emitters.values(), seconds):
            got = True
            lane = self._lanes.get(fetched.source, {}).get(name)
            if lane is not None:
                lane.take(fetched.batch, fetched.position)
        return got

    def _hold_back(self) -> None:
        """Pause the partitions of full lanes, and resume those that are full no more."""
        for lane in self.lanes:
            key = (lane.spec.name, lane.source)
            if lane.full and key not in self._held:
                self._consumer(lane.spec).pause([lane.source])
                self._held.add(key)
            elif not lane.full and key in self._held:
                self._consumer(lane.spec).resume([lane.source])
                self._held.discard(key)

    # Looking ----------------------------------------------------------------------------------

    def progress(self, *, at_once: bool = False) -> Progress:
        """Return how every lane stands.

        Args:
            at_once: where the topics end may be as it was when last asked; nobody waits for it.
        """
        counters = Counters()
        counters.add(self._gone)
        lanes: list[LaneProgress] = []
        for lane in self.lanes:
            counters.add(lane.counters)
        for lanes_of in self._by_stage().values():
            high = self._end_of(lanes_of, at_once=at_once)
            ends = [high.at(lane.source) if high else None for lane in lanes_of]
            lanes += map(LaneProgress.of, lanes_of, ends)
        return Progress(lanes=tuple(lanes), counters=counters.document())

    def _end_of(self, lanes: Sequence[LaneTask], *, at_once: bool) -> Frontier | None:
        """Return where the partitions of a stage's lanes end; None: unknown just now."""
        topic, sources = lanes[0].spec.reads, [lane.source for lane in lanes]
        if at_once:
            return self._horizon.of(topic, sources)
        try:
            return self._client.bounds(topic, sources).high
        except DeliveryError:
            return None

    def _by_stage(self) -> dict[str, list[LaneTask]]:
        stages: dict[str, list[LaneTask]] = {}
        for lane in self.lanes:
            stages.setdefault(lane.spec.name, []).append(lane)
        return stages

    def _hint(self) -> None:
        if time.monotonic() - self._hinted >= HINT_SECONDS:
            self._hinted = time.monotonic()
            for name, lanes in self._by_stage().items():
                self._consumers[name].commit_hint({lane.source: lane.frontier for lane in lanes})

    # Ports ------------------------------------------------------------------------------------

    def _consumer(self, spec: StageSpec) -> Consumer:
        if spec.name not in self._consumers:
            self._consumers[spec.name] = self._client.consumer(group=spec.group)
        return self._consumers[spec.name]

    def _emitter(self, spec: StageSpec) -> Emitter:
        if spec.name not in self._emitters:
            self._emitters[spec.name] = open_emitter(self._client, spec)
        return self._emitters[spec.name]

    def _pool(self, spec: StageSpec) -> ThreadPoolExecutor | None:
        if spec.threads > 1 and spec.name not in self._pools:
            self._pools[spec.name] = ThreadPoolExecutor(spec.threads, f"delivery-{spec.name}")
        return self._pools.get(spec.name)

    # The end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of everything. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._errands is not None:
            self._errands.close()
        for lane in self.lanes:
            with suppress(DeliveryError):
                lane.close()
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)
        self._horizon.close()
        for consumer in self._consumers.values():
            consumer.close()
        for emitter in self._emitters.values():
            close_sink(emitter)
        self._client.close()
        self._catalog.store.close()


def _unknown(instruction: m.Instruction) -> m.Event:
    """Return the answer to a write that may have happened."""
    if isinstance(instruction, m.Append):
        return m.Appended(instruction.ticket, m.Outcome.UNKNOWN)
    assert isinstance(instruction, m.Acknowledge), "only writes of one row share a commit"
    return m.Acknowledged(instruction.ack, m.Outcome.UNKNOWN)
