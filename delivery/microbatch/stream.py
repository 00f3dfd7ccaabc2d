"""One stage as a streaming query of Spark's: begun from the catalog, begun anew when it has to be.

What it is: `StageStream`, the driver's side of a stage with partition lanes.
What it must not know: other stages, how progress is shown.

Invariants:
    The lanes' frontiers decide where reading begins, at each start, and nothing else does. Spark's
    checkpoint is scratch: each start has one of its own, so a lost, old or shared one cannot be.
    Every lane is walked at each start, and at the end of a bounded run: what others sealed and did
    not deliver is delivered, and a lane that cannot go on is refused before a record is read.
    A batch is one action. Its ranges come from the offset log's entry, which Spark writes before.
    A batch is done when each of its ranges is acknowledged to its end, the empty ones included.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dedup.errors import DeliveryError, Fenced, Indeterminate, InvalidUsage, Unavailable
from delivery.host.ends import check
from delivery.host.hints import Hints
from delivery.host.horizon import Horizon
from delivery.host.reminding import warn_grown
from delivery.host.spec import Plan, StageSpec
from delivery.kafka.port import Topic
from delivery.microbatch import options as bounds
from delivery.microbatch.action import Action
from delivery.microbatch.columns import COLUMNS
from delivery.microbatch.offsets import Checkpoint, checkpoint_at
from delivery.microbatch.options import Options
from delivery.microbatch.scratch import cheaply, root_of
from delivery.microbatch.source import frame, kafka_options
from delivery.microbatch.task import Job, Order, Ports, finish_lanes
from delivery.resident.cluster import session_gone, stopped
from delivery.resident.failures import TaskFailedError, error_of
from delivery.stage import StoppedByRecordError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["News", "StageStream", "alone"]

LOG = logging.getLogger(__name__)

#: So many records a slot are soon done: then a task reads several partitions, if there are as many.
GROUPED_ROWS_MAX = 5_000
#: How much of what Spark says of a failure is repeated.
SAID_CHARS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a stage tells: a batch is done, or, where nothing is said of one, the stage waits.

    Attributes:
        query, number: as a StreamingQueryListener sees them: Spark's query by its name, and which of
            its batches.
        reports: what the lanes of the batch have done.
        ends: of the logs, as they were when last heard of.
    """

    query: str | None = None
    number: int | None = None
    reports: Sequence[dict[str, Any]] = ()
    ends: Mapping[int, int] = field(default_factory=dict)


Told = Callable[[StageSpec, News], None]


class _BatchFailedError(Exception):
    """What Spark is told of a batch that failed."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One start of a stage: Spark's name of it, the action, scratch, ports, where it began."""

    query: str
    action: Action
    checkpoint: Checkpoint
    ports: Ports
    hints: Hints
    horizon: Horizon
    start: dict[int, int]


class StageStream:
    """One stage.

    Args:
        plan: the pipeline, of this stage alone, with a home.
        spark: the session.
        options: the engine's.
        told: is told of each batch, and whenever it begins to wait.
    """

    def __init__(self, plan: Plan, spark: SparkSession, options: Options, told: Told) -> None:
        self.plan = plan
        self.spec = plan.stages[0]
        self._spark = spark
        self._options = options
        self._told = told
        self._stopping = threading.Event()
        #: Held while a batch runs.
        self._turn = threading.Lock()
        #: What the latest batch failed with, which Spark tells only as text.
        self._error: Exception | None = None
        self._failures = 0
        #: Of these, what Spark ended a query with that says nothing to us.
        self._unexplained = 0
        #: Partitions that were read.
        self._seen: set[int] = set()
        self.message = "beginning"
        #: What it waits for, in words; empty while all is well.
        self.trouble = ""
        #: Spark's query while there is one.
        self.query: StreamingQuery | None = None

    def run(self) -> None:
        """Run until it is stopped, or a bounded run is done.

        Raises:
            Exception: what will not mend itself.
        """
        while not self._stopping.is_set():
            try:
                self._run_once()
            except Exception as error:
                if stopped(self._spark):
                    # Spark's own thread may call once more, and must find nothing to do.
                    self._stopping.set()
                    raise session_gone(str(self._options.name)) from error
                if not isinstance(error, Unavailable | Indeterminate | Fenced):
                    raise
                self._pause(error)
            else:
                break
        self.message = "done"

    def stop(self) -> None:
        """Let the batch under way come to its end, and begin no other; `run` returns then."""
        self._stopping.set()

    def _pause(self, error: Exception) -> None:
        pause = min(bounds.PAUSE_SECONDS_MAX, bounds.PAUSE_SECONDS * 2 ** min(self._failures, 10))
        self._failures += 1
        self.trouble = f"{self.spec.name}: {type(error).__name__}: {error}"
        LOG.warning("%s; again in %.1f s", self.trouble, pause)
        self._told(self.spec, News())
        self._stopping.wait(pause)

    # One start --------------------------------------------------------------------------------

    def _run_once(self) -> None:
        name = f"{self.spec.name}-{uuid.uuid4()}"
        checkpoint = checkpoint_at(f"{root_of(self._options.checkpoint)}/{name}", self._spark)
        with (
            closing(Ports(self.plan)) as ports,
            closing(Hints(ports.client, self.spec.group)) as hints,
            closing(Horizon(ports.client)) as horizon,
        ):
            topic = self._topic(ports)
            query = f"{self.spec.pipeline}.{name}"
            start = self._walk(ports, topic)
            job = Job(plan=_packed(self.plan), stage=self.spec.name, run=name)
            run = _Run(query, Action(self._spark, job), checkpoint, ports, hints, horizon, start)
            try:
                self._stream(run)
            finally:
                self.query = None
                checkpoint.delete()
            if self._options.bounded and not self._stopping.is_set():
                self._walk(ports, topic)

    def _topic(self, ports: Ports) -> Topic:
        found = ports.client.describe([self.spec.reads]).get(self.spec.reads)
        if found is None:
            raise InvalidUsage(
                "read a topic",
                self.spec.reads,
                "there is no such topic; nothing was read: create it, or mend the name",
            )
        return found

    def _walk(self, ports: Ports, topic: Topic) -> dict[int, int]:
        """Open every lane, deliver what is owed, and return where each goes on."""
        self.message = "walking the lanes"
        low = ports.client.bounds(topic.name, topic.sources).low
        start = {}
        for source in topic.sources:
            lane = ports.lane(source)
            lane.open(low.at(source) or 0)
            check(lane)
            start[source.partition] = lane.planned
        return start

    def _stream(self, run: _Run) -> None:
        options = {name: str(value) for name, value in self._options.source.items()}
        begun = {self.spec.reads: run.start}
        rows = frame(self._spark, self.spec.reads, begun, kafka_options(self.plan) | options)
        writer = rows.select(*COLUMNS).writeStream.foreachBatch(partial(self._batch, run))
        if self._options.trigger:
            writer = writer.trigger(**self._options.trigger)
        self._error = None
        writer = writer.queryName(run.query).option("checkpointLocation", run.checkpoint.root)
        with cheaply(self._spark):
            self.query = writer.start()
        self.message, self.trouble = "running", ""
        self._wait(self.query)

    def _wait(self, query: StreamingQuery) -> None:
        """Wait for the end of Spark's query, and raise what it ended with."""
        try:
            self._watch(query)
        except Exception as ended:  # noqa: BLE001 - Py4J and Spark raise what they like; it is told
            error = self._error or ended
            if isinstance(error, DeliveryError | StoppedByRecordError | TaskFailedError):
                raise error from None
            if self._stopping.is_set():
                return
            self._unexplained += 1
            if self._unexplained >= bounds.FAILURES_MAX:
                raise error from None
            raise Unavailable(
                "run a stage's query",
                self.spec.name,
                f"Spark ended it ({str(error)[:SAID_CHARS_MAX]}); nothing was skipped: it begins "
                "again from the lanes' frontiers",
            ) from error

    def _watch(self, query: StreamingQuery) -> None:
        while not query.awaitTermination(bounds.LOOK_SECONDS):
            if stopped(self._spark):
                # Spark's query goes on as if nothing were, until there is something to read.
                raise session_gone(str(self._options.name))
            if self._stopping.is_set():
                # SUBTLE: not held on: Spark's thread may wait for it, and could not end then.
                if self._turn.acquire(timeout=self._options.drain_seconds):
                    self._turn.release()
                query.stop()

    # One batch --------------------------------------------------------------------------------

    def _batch(self, run: _Run, rows: DataFrame, batch: int) -> None:
        with self._turn:
            if self._stopping.is_set():
                return  # Spark notes it as done, in a checkpoint that nobody will read
            try:
                self._run_batch(run, rows, batch)
            except Exception as error:  # noqa: BLE001 - it is kept, and raised where it is waited for
                self._error = error
                # SUBTLE: Spark takes the text apart with a regular expression that overflows the
                # stack of its thread where the text is long. What happened is kept here.
                raise _BatchFailedError(type(error).__name__) from None
            self._failures = self._unexplained = 0

    def _run_batch(self, run: _Run, rows: DataFrame, batch: int) -> None:
        name = self.spec.reads
        planned = run.checkpoint.planned(batch, {name: run.start})
        ranges = {
            partition: (planned.start[name][partition], end)
            for partition, end in planned.end.get(name, {}).items()
        }
        appeared = ranges.keys() - run.start.keys() - self._seen
        self._seen = warn_grown(self.spec, self._seen, ranges)
        topic = self._topic(run.ports)
        order = Order(topic=topic.id, ranges=ranges)
        if not batch:
            _refuse_split(rows, ranges)
        reports = run.action.run(self._grouped(rows, ranges), order)
        for report in reports:
            if "failed" in report:
                raise error_of(report["failed"])
        done = {report["partition"] for report in reports}
        # Ranges without a record: markers of transactions, or what compaction left of them. A partition
        # that appeared has its lane at once, for whoever waits until all lanes are at their ends.
        there = {p for p, (begin, end) in ranges.items() if begin < end or p in appeared}
        silent = sorted(there - done)
        reports += finish_lanes(run.ports, order, silent)
        # They only show the lag: nobody waits for what they are by now.
        high = run.horizon.of(name, topic.sources) or ()
        ends = {source.partition: offset for source, offset in high}
        self._told(self.spec, News(query=run.query, number=batch, reports=reports, ends=ends))
        planned_ends = {partition: end for partition, (_, end) in ranges.items()}
        # Another driver may have gone further.
        further = {one["partition"]: one["done"]["frontier"] for one in reports}
        run.hints.tell(name, planned_ends | further)

    def _grouped(self, rows: DataFrame, ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
        """Let a task that would soon be done read more than one partition.

        Each task costs tens of milliseconds before its first record and behind its last, and those for
        which no slot is free wait for others. Where there is much to read, whoever is done first takes
        the next partition instead.
        """
        slots = self._spark.sparkContext.defaultParallelism
        read = [end - begin for begin, end in ranges.values() if begin < end]
        few = len(read) > slots and sum(read) <= slots * GROUPED_ROWS_MAX
        return rows.coalesce(slots) if few else rows


def _refuse_split(rows: DataFrame, ranges: Mapping[int, tuple[int, int]]) -> None:
    """Refuse a plan in which two tasks would read one partition: each would take it for whole."""
    tasks = int(rows._jdf.queryExecution().toRdd().getNumPartitions())  # noqa: SLF001 - no other way
    partitions = sum(begin < end for begin, end in ranges.values())
    if tasks > partitions:
        raise InvalidUsage(
            "run a micro-batch",
            f"{tasks} tasks for {partitions} partitions with records",
            "Spark would split a partition, and its records must come to one lane in order; nothing "
            "was read: report it with the session's settings",
        )


def _packed(plan: Plan) -> bytes:
    """Return a plan with its function as Spark would send them; once, where Spark would each time."""
    from pyspark import cloudpickle  # noqa: PLC0415 - Spark is not needed before

    pickler: Any = cloudpickle
    packed: bytes = pickler.dumps(plan)
    return packed


def alone(plan: Plan, spec: StageSpec, home: str) -> Plan:
    """Return the plan of one stage alone, which is all that its tasks need."""
    return replace(plan, stages=(spec,), home=home)
