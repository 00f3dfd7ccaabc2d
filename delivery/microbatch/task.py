"""What runs in a task of a micro-batch: the lanes of the partitions whose rows come to it.

What it is: `run_lanes`, which Spark calls with Arrow batches and which yields a report for each lane
once everything planned for it is acknowledged; and `Ports`, what a worker process keeps between
tasks.
What it must not know: the number of the batch, the task or the attempt.

Invariants:
    A lane ends where the driver's plan ends, not at its last row; a task succeeds only when every
    lane it ran is acknowledged up to there, by whomever.
    A lane whose frontier lies before the planned start is refused before a row of it is taken.
    What is kept between tasks is a cache: a process may be gone at any moment.
    What goes wrong in a lane is told in a report, so that Spark does not try again what will fail
    again; only what kills the process is left to Spark.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from dedup.catalog.open import open_catalog
from dedup.errors import DeliveryError, Unavailable
from dedup.local.home import home_of
from dedup.local.index import LaneIndex
from dedup.model import Source, TopicId
from delivery.buffers import blobs
from delivery.host.adapters import open_emitter, open_reader
from delivery.host.clock import SystemClock
from delivery.host.ends import check
from delivery.host.lane import LaneTask
from delivery.host.memory import calm_collector, let_go
from delivery.host.outbox import Road
from delivery.host.progress import LaneProgress
from delivery.host.senders import Senders, Writers, logs_of
from delivery.host.spec import Plan
from delivery.kafka.opening import open_client
from delivery.kafka.port import empty
from delivery.microbatch.columns import batch_of, split
from delivery.microbatch.telling import told
from delivery.points import At, nowhere
from delivery.ports import Emitter
from delivery.resident.failures import document_of
from delivery.sinks import close_sink

__all__ = ["PROPERTY", "REPORT", "Job", "Order", "Ports", "finish_lanes", "run_lanes"]

#: The local property in which an order travels.
PROPERTY = "delivery.order"
#: What a task yields: a JSON document for each lane.
REPORT = "report string"
#: Rows wait for the end of the task or a full bundle, whichever is first.
_FOR_A_BUNDLE = float("inf")
#: Runs of queries whose ports a worker process keeps; the oldest goes.
RUNS_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the driver gives the tasks of all batches of a run.

    Attributes:
        plan: the pipeline, of this stage alone, pickled: a process takes it apart for its first batch.
        stage: its name.
        run: which start of the query it is; what a process keeps is kept under it.
    """

    plan: bytes
    stage: str
    run: str

    def __repr__(self) -> str:
        # Spark prints closures; Kafka's options are secrets.
        return f"Job({self.stage!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the driver tells the tasks of one batch, as a local property of Spark's.

    Attributes:
        topic: identity of the topic that the stage reads.
        ranges: partition → the planned range.
    """

    topic: TopicId
    ranges: Mapping[int, tuple[int, int]]

    def encode(self) -> str:
        """Return it as the text of a property."""
        ranges = [[partition, *found] for partition, found in self.ranges.items()]
        return json.dumps([self.topic.hex(), ranges])

    @staticmethod
    def decode(text: str) -> Order:
        """Return what `encode` wrote."""
        topic, ranges = json.loads(text)
        return Order(
            topic=TopicId(bytes.fromhex(topic)),
            ranges={partition: (start, end) for partition, start, end in ranges},
        )


class Ports:
    """What lanes of one stage need in this process.

    Args:
        plan: the pipeline, of this stage alone.
        at: is told each named step.
    """

    def __init__(self, plan: Plan, at: At = nowhere) -> None:
        self.plan = plan
        self.spec = plan.stages[0]
        # What may be away comes first: nothing is held yet that would be left behind.
        self.catalog = open_catalog(plan.catalog)
        self.client = open_client(plan.kafka, plan.options, plan.client)
        self._home = home_of(plan.home)
        self._at = at
        self._clock = SystemClock(threading.Event())
        self._emitter: Emitter | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._writers = Writers(self.catalog)
        self._kept: dict[str, tuple[LaneIndex, Senders]] = {}

    def lane(self, source: Source) -> LaneTask:
        """Return a lane that is not open yet."""
        name, spec = self.spec.lane(source), self.spec
        if name not in self._kept:
            senders = Senders(self._writers, source.topic, logs_of(self.client))
            index = LaneIndex(
                self.catalog,
                name,
                window_ms=spec.window_ms,
                home=self._home,
                filters=self.plan.filters,
                at=self._at,
            )
            self._kept[name] = index, senders
        if spec.threads > 1 and self._pool is None:
            self._pool = ThreadPoolExecutor(spec.threads, f"delivery-{spec.name}")
        if self._emitter is None:
            self._emitter = open_emitter(self.client, spec)
        index, senders = self._kept[name]
        return LaneTask(
            spec,
            source,
            catalog=self.catalog,
            home=self._home,
            clock=self._clock,
            reader=open_reader(self.client, spec.reads, source.partition),
            emitter=self._emitter,
            pool=self._pool,
            index=index,
            senders=senders,
            at=self._at,
        )

    def close(self) -> None:
        """Let go of everything. May be called twice."""
        for index, _ in self._kept.values():
            with suppress(DeliveryError):
                index.close()
        self._kept.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        close_sink(self._emitter)
        self.client.close()
        self.catalog.store.close()


#: What this process keeps, by the run of the query; the newest is last.
_PORTS: dict[str, Ports] = {}


def run_lanes(job: Job, tables: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the lanes of the rows that come, each to the end of its planned range; yield reports."""
    begins = job.run not in _PORTS
    try:
        reports = _Lanes(_ports(job), _order()).run(tables)
    except Exception as error:  # noqa: BLE001 - user code may raise anything; it is told
        _forget(job.run)
        reports = [{"failed": document_of(error, job.stage)}]
    lines = [json.dumps(report).encode() for report in reports]
    yield pa.RecordBatch.from_arrays([blobs(lines, pa.string())], names=["report"])
    if begins:
        # PySpark looks for cycles behind every task, and all that the first one loaded is there to stay.
        calm_collector()


def finish_lanes(ports: Ports, order: Order, partitions: Iterable[int]) -> list[dict[str, Any]]:
    """Bring lanes to the end of their planned ranges, of which there are no rows.

    Raises:
        DeliveryError: a lane cannot go on; nothing was skipped.
    """
    lanes = _Lanes(ports, order)
    for partition in partitions:
        lanes.open(Source(order.topic, partition))
    return lanes.run(())


class _Lanes:
    """The lanes of one task."""

    def __init__(self, ports: Ports, order: Order) -> None:
        self._ports = ports
        self._order = order
        self._lanes: dict[Source, LaneTask] = {}
        self._road = Road()

    def run(self, tables: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
        for table in tables:
            for piece, source in split(table, self._source):
                lane = self._lanes.get(source) or self.open(source)
                batch = batch_of(piece, source)
                lane.take(batch, int(batch.offsets[-1]) + 1)
                self._turn(lane, _FOR_A_BUNDLE)
        # All are on their way before one is waited for.
        for source, lane in self._lanes.items():
            self._end(source, lane)
        return [self._finish(source, lane) for source, lane in self._lanes.items()]

    def _source(self, _topic: str, partition: int) -> Source:
        return Source(self._order.topic, partition)

    def open(self, source: Source) -> LaneTask:
        start, _ = self._order.ranges[source.partition]
        lane = self._lanes[source] = self._ports.lane(source)
        lane.open(start)
        check(lane)
        if lane.planned < start:
            raise Unavailable(
                "run a lane",
                lane.name,
                f"its frontier is {lane.planned}, and Spark planned from {start}: somebody put the "
                "catalog back; nothing was skipped: the query begins again from the frontier",
            )
        return lane

    def _turn(self, lane: LaneTask, linger: float) -> None:
        while lane.turn(linger=linger):
            check(lane)
        while lane.full:
            # It lost a race, and waits: nobody else needs this task meanwhile.
            lane.finish()
            lane.turn(linger=linger)
            check(lane)

    def _end(self, source: Source, lane: LaneTask) -> None:
        """Seal what waits, and begin to send it where there is room beside the others."""
        _, end = self._order.ranges[source.partition]
        lane.take(empty(source), end)
        lane.end_at(end)
        if lane.stopped is None:
            lane.prepare()
            lane.tell(lane.perform(lane.appends()))
            lane.hand_over()
            self._road.begin([one.outbox for one in self._lanes.values()])
        check(lane)

    def _finish(self, source: Source, lane: LaneTask) -> dict[str, Any]:
        _, end = self._order.ranges[source.partition]
        moved = True
        while moved and lane.stopped is None:
            stood = lane.seq
            moved = lane.turn()
            lane.finish()
            moved |= lane.seq != stood
        check(lane)
        if lane.stopped is None:
            raise Unavailable(
                "finish a lane",
                lane.name,
                f"it stands at {lane.frontier}, not at {end}, with nothing left to do; nothing was "
                "skipped: the query begins again from the frontier",
            )
        return {"partition": source.partition, "done": asdict(LaneProgress.of(lane, None))}


def _order() -> Order:
    text = told(PROPERTY)
    assert text is not None, "the driver tells every task what is planned"
    return Order.decode(text)


def _ports(job: Job) -> Ports:
    if job.run not in _PORTS:
        while len(_PORTS) >= RUNS_MAX:
            _forget(next(iter(_PORTS)))
        let_go()
        _PORTS[job.run] = Ports(pickle.loads(job.plan), at_of_environment())  # noqa: S301 - the driver's own
    return _PORTS[job.run]


def _forget(run: str) -> None:
    ports = _PORTS.pop(run, None)
    if ports is not None:
        with suppress(DeliveryError):
            ports.close()
        gc.unfreeze()


def at_of_environment() -> At:
    """Return what is told each named step: nothing but in tests."""
    if "DELIVERY_KILL_AT" not in os.environ:
        return nowhere
    from delivery.host.killing import killer  # noqa: PLC0415 - only tests of crashes load it

    return killer()
