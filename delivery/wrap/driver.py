"""The driver of a wrapped job: each micro-batch becomes one seal of the stage's lane.

What it is: `StageDriver`, which opens the lane, runs what `foreachBatch` hands it, and delivers.
What it must not know: how Spark's query is started, stopped and shown.

Invariants:
    A micro-batch counts once: sealed before Spark notes it as done, entered again only so that
    Spark's own state advances, and then its outputs are thrown away.
    A stateful job goes on only on the checkpoint whose batches are sealed in the lane, and only
    where that one stands: the number of its next batch is a position in the lane's frontier.
    A job without state needs no memory of Spark's: the lane's frontier is where it stands.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dedup.catalog.store import Blob
from dedup.errors import Corrupt, DeliveryError, InvalidUsage, Unavailable
from dedup.formats.dropped import Run, decode_dropped
from dedup.model import Counts, Frontier, Seal, Source
from delivery.host.adapters import open_reader, open_topics
from delivery.host.clock import SystemClock
from delivery.host.counters import Counters
from delivery.host.ends import ended
from delivery.host.hints import Hints
from delivery.host.outdated import refuse_outdated
from delivery.host.reminding import remind, remind_of_lanes, warn_unnamed
from delivery.host.renamed import Declared, refuse_renamed
from delivery.host.senders import Senders, Writers
from delivery.kafka.opening import open_client
from delivery.life.guard import refuse_at_rest
from delivery.microbatch.offsets import Checkpoint, Offsets
from delivery.microbatch.task import at_of_environment
from delivery.naming import said_of
from delivery.ports import Log
from delivery.protocol import messages as m
from delivery.protocol.state import Limits
from delivery.stage import Policy, stage_of
from delivery.wrap.judging import Bench, judge_range
from delivery.wrap.outputs import selected
from delivery.wrap.pieces import Piece
from delivery.wrap.plans import forget_shuffles, watched
from delivery.wrap.positions import state_source
from delivery.wrap.runner import RUNS_MAX, Result, StageLaneRunner
from delivery.wrap.source import Wrapped
from delivery.wrap.token import PROPERTY, Token

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from delivery.kafka.port import Client, Topic

__all__ = ["StageDriver"]

LOG = logging.getLogger(__name__)


class _Logs:
    """The topics of a stage, as its lane asks for them."""

    def __init__(self, client: Client, topics: Iterable[Topic]) -> None:
        self._readers = [open_reader(client, topic.name) for topic in topics]

    def log(self) -> Log:
        """Return topics and bounds, read now."""
        logs = [reader.log() for reader in self._readers]
        return Log(
            topics=tuple(topic for log in logs for topic in log.topics),
            low=Frontier.of(position for log in logs for position in log.low),
            high=Frontier.of(position for log in logs for position in log.high),
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    """One micro-batch as Spark planned it."""

    number: int
    start: Frontier
    end: Frontier


class StageDriver:
    """Runs the lane of a wrapped job.

    Args:
        wrapped: the stage.
        outputs: names of the topics behind its edges.
        checkpoint: Spark's memory of the query.
        query_id: the identity of that, of a stateful job; None of one without state.
        code: version of the job's code, kept in every seal.
    """

    def __init__(
        self,
        wrapped: Wrapped,
        outputs: tuple[str, ...],
        checkpoint: Checkpoint,
        *,
        query_id: str | None,
        code: str = "",
    ) -> None:
        plan, spec = wrapped.plan, wrapped.spec
        self._wrapped = wrapped
        self._checkpoint = checkpoint
        self.lane = wrapped.lane
        self.counters = Counters()
        self._state = None if query_id is None else state_source(query_id)
        self._frame: DataFrame | None = None
        #: Whether the plan of the batch under way has run.
        self._asked = False
        self._client = open_client(plan.kafka, plan.options, plan.client)
        self._hints = Hints(self._client, spec.group)
        self._bench = Bench(plan, spec, self.lane)
        self._catalog = self._bench.catalog
        self._outputs = outputs
        self._emitter = open_topics(self._client, outputs)
        topics = {name: topic.id for name, topic in wrapped.topics.items()}
        writers = Writers(self._catalog)
        senders = [Senders(writers, topic) for topic in topics.values()]
        self._runner = StageLaneRunner(
            self.lane,
            topics=topics,
            outputs=outputs,
            run_plan=self._run_plan,
            judge_range=self._judge_range,
            state=b"" if self._state is None else self._state.topic,
            catalog=self._catalog,
            judge=self._bench.judge(lambda: [name for one in senders for name in one()]),
            reader=_Logs(self._client, wrapped.topics.values()),
            stage=stage_of(lambda _: None, code),
            emitter=self._emitter,
            clock=SystemClock(threading.Event()),
            policy=Policy(
                conflict_stops=spec.conflicts == "error",
                window_ms=spec.window_ms,
                named=said_of(spec.named, by_topic=True),
            ),
            limits=Limits(pending_max=1),
            sealed=self._sealed,
            at=at_of_environment(),
        )

    # Beginning and ending ---------------------------------------------------------------------

    def open(self) -> None:
        """Load the lane, or let it begin where its source does; deliver what is owed.

        Raises:
            DeliveryError: the job cannot go on here; nothing was read or written.
        """
        start = self._wrapped.frontier()
        refuse_at_rest(self._catalog, self._wrapped.spec.prefix, list(self._wrapped.topics))
        refuse_renamed(self._catalog, [self._declared()])
        refuse_outdated(self._catalog, self._client, [self.lane], self._outputs)
        remind([self._wrapped.spec], list(self._wrapped.topics))
        remind_of_lanes(self._catalog, self._wrapped.spec, {self.lane: None})
        row = self._catalog.load(self.lane)
        state = self._state
        if state is not None:
            committed = self._checkpoint.committed()
            upcoming = 0 if committed is None else committed + 1
            if row is not None:
                self._check_state(row.head.frontier, upcoming)
            elif (other := self._other_lane(state)) is not None:
                raise self._refused(f"the checkpoint is that of {other}")
            elif committed is not None:
                # The checkpoint of the job as it was before it was wrapped: state and offsets.
                start = self._frontier(self._checkpoint.ends(committed))
            start = start.merged(Frontier.of([(state, upcoming)]))
        elif row is not None and row.head.state:
            raise InvalidUsage(
                "start a wrapped job",
                self.lane,
                "it kept state before, and its plan has none now: that is another job; nothing was "
                "read: end this one with `delivery stage retire`, and give the other a stage name of "
                "its own, with the old checkpoint as start_from=",
            )
        self._runner.tell(m.Opened(start))
        self._drain()

    def _declared(self) -> Declared:
        spec, made = self._wrapped.spec, self._client.describe(self._outputs)
        return Declared(
            pipeline=spec.pipeline,
            stage=spec.name,
            reads={topic.id: name for name, topic in self._wrapped.topics.items()},
            writes={topic.id: name for name, topic in made.items()},
        )

    def _sealed(self, counts: Counts) -> None:
        self.counters.count(counts)
        warn_unnamed(self._wrapped.spec, self.lane, counts)

    def _check_state(self, frontier: Frontier, upcoming: int) -> None:
        """Refuse a checkpoint that is not the lane's, or stands elsewhere."""
        assert self._state is not None, "of a stateful job"
        sealed = frontier.at(self._state)
        if sealed is None:
            raise self._refused("its state was kept in another checkpoint, or it had none")
        if sealed not in (upcoming, upcoming + 1):
            raise self._refused(
                f"batches below {sealed} are sealed, and the checkpoint goes on with {upcoming}: it "
                "was put back from a copy"
            )

    def _other_lane(self, state: Source) -> str | None:
        """Return the lane whose state is in this checkpoint, if it is another's."""
        for name in self._catalog.lanes():
            row = None if name == self.lane else self._catalog.load(name)
            if row is not None and row.head.frontier.at(state) is not None:
                return name
        return None

    def close(self) -> None:
        """Let go of everything. May be called twice."""
        with suppress(DeliveryError):
            self._bench.close()
        self._emitter.close()
        self._hints.close()
        self._client.close()

    # Batches ----------------------------------------------------------------------------------

    def batch(self, frame: DataFrame, number: int) -> Counters:
        """Run one micro-batch to its acknowledgement; return what became of its records.

        Raises:
            Exception: it was not sealed, or not delivered yet: Spark must not note it as done.
        """
        before = Counters(**self.counters.document())
        self._frame, self._asked = frame, False
        planned = self._planned(number)
        if self._state is None or self._is_new(planned):
            first = Frontier.of((s, at) for s, at in planned.start if s != self._state)
            self._runner.offer(m.Polled(planned.start, planned.end, first), [])
        else:
            self._enter_again(planned)
        self._drain()
        for name, topic in self._wrapped.topics.items():
            self._hints.tell(name, {s.partition: o for s, o in planned.end if s.topic == topic.id})
        done = difference(self.counters, before)
        seq = self._runner.state.lane.known.ref.seq
        LOG.debug(
            "%s seq %d: batch %d, %d fresh of %d", self.lane, seq, number, done.fresh, done.read
        )
        return done

    def _planned(self, number: int) -> _Batch:
        begun = self._wrapped.start if self._state is None else None
        planned = self._checkpoint.planned(number, begun)
        start, end = self._frontier(planned.start), self._frontier(planned.end)
        if self._state is not None:
            start = start.merged(Frontier.of([(self._state, number)]))
            end = end.merged(Frontier.of([(self._state, number + 1)]))
        return _Batch(number, start, end)

    def _frontier(self, offsets: Offsets | Mapping[str, Mapping[int, int]]) -> Frontier:
        topics = self._wrapped.topics
        if set(offsets) != set(topics):
            raise self._refused(
                f"its checkpoint is of a query that reads {', '.join(sorted(offsets)) or 'nothing'}"
            )
        return Frontier.of(
            (Source(topics[name].id, partition), offset)
            for name, found in offsets.items()
            for partition, offset in found.items()
        )

    def _is_new(self, planned: _Batch) -> bool:
        """Tell whether a stateful batch is the next one; False if it is the last one again."""
        state = self._state
        assert state is not None, "of a stateful job"
        frontier = self._runner.state.lane.known.frontier
        sealed = frontier.at(state)
        if sealed == planned.number:
            moved = [s for s, at in planned.start if frontier.at(s) not in (None, at)]
            if moved:
                raise self._refused(
                    f"batch {planned.number} of its checkpoint begins elsewhere than the lane stands "
                    f"(partition {moved[0].partition})"
                )
            return True
        if sealed == planned.number + 1:
            return False
        raise self._refused(
            f"batches below {sealed} are sealed, and Spark runs batch {planned.number}: the "
            "checkpoint was put back from a copy, or it is another one"
        )

    def _enter_again(self, planned: _Batch) -> None:
        """Run a sealed batch's plan with its verdicts, for the state alone."""
        head = self._runner.state.lane.known
        seal = self._catalog.seal(self.lane, head.ref.incarnation, head.ref.seq)
        if seal is None or (seal.start, seal.end) != (planned.start, planned.end):
            raise self._refused(
                f"batch {planned.number} is sealed, and Spark runs it again over another range"
            )
        token = Token(
            run=uuid.uuid4().hex,
            lane=self.lane,
            head=head,
            topics={name: topic.id for name, topic in self._wrapped.topics.items()},
            ranges=self._runner.ranges(planned.start, planned.end),
            judged=False,
            drops=tuple(self._dropped(seal)),
        )
        trouble = ""
        for _ in range(RUNS_MAX):
            trouble = self._run_plan(token).trouble
            if not trouble:
                return
        raise Unavailable(
            "enter a micro-batch again",
            self.lane,
            f"{RUNS_MAX} runs of its plan did not count, the last because {trouble}; its outputs are "
            "sealed: start the query again once executors stay",
        )

    def _dropped(self, seal: Seal) -> list[Run]:
        chunks = self._catalog.get(Blob.DROPPED, self.lane, seal)
        place = f"dropped offsets of {self.lane} seq {seal.ref.seq}"
        if chunks is None:
            raise Corrupt(
                "enter a micro-batch again",
                place,
                "the seal names them, and they are gone; nothing was written: keep a copy of the "
                "catalog, and restore it from a backup",
            )
        return [run for chunk in chunks for run in decode_dropped(chunk, place)]

    # What the runner asks for -----------------------------------------------------------------

    def _run_plan(self, token: Token) -> Result:
        """Run the plan of the batch under way."""
        frame, spark = self._frame, self._wrapped.spark
        assert frame is not None, "a plan is run inside a batch"
        if self._asked:
            forget_shuffles(frame)
        self._asked = True
        reports = self._wrapped.reports
        reports.value = {}
        context = spark.sparkContext
        context.setLocalProperty(PROPERTY, token.encode())
        try:
            table, trouble = watched(spark, lambda: selected(frame).toArrow())
        finally:
            context.setLocalProperty(PROPERTY, "")
        pieces = {
            source: piece for (run, source), piece in reports.value.items() if run == token.run
        }
        reports.value = {}
        for piece in pieces.values():
            # Of runs that do not count, too: filters were asked.
            self.counters.add(Counters(**asdict(piece.asked), saturated=piece.saturated))
        return Result(table=table, pieces=pieces, trouble=trouble)

    def _judge_range(self, token: Token, source: Source) -> Piece:
        name = next(name for name, topic in token.topics.items() if topic == source.topic)
        start, end = token.ranges[source]
        reader = open_reader(self._client, name, source.partition)
        rows = reader.read(Frontier.of([(source, start)]), Frontier.of([(source, end)]))
        return judge_range(token, self._bench, source, rows)

    def _drain(self) -> None:
        runner = self._runner
        runner.drain()
        if runner.state.stopped is not None:
            if isinstance(runner.state.error, Exception):
                raise runner.state.error
            raise ended(self.lane, runner.state.stopped)
        if not runner.state.lane.idle:
            raise Unavailable(
                "finish a micro-batch",
                self.lane,
                "something sealed is not acknowledged; nothing is lost: start the query again",
            )

    def _refused(self, why: str) -> InvalidUsage:
        return InvalidUsage(
            "go on with a stateful job",
            self.lane,
            f"{why}; nothing was read, and its state would not be that of what is sealed: give the "
            f"checkpoint it had. If that is lost, say d.forget_state(stage={self._wrapped.spec.name!r}, "
            "checkpoint=...) with an empty directory, once, and give that one: it goes on where the "
            "lane stands, without what was open in its state",
        )


def difference(after: Counters, before: Counters) -> Counters:
    """Return what was counted in between."""
    had = before.document()
    return Counters(**{name: number - had[name] for name, number in after.document().items()})
