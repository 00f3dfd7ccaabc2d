"""The lane of a wrapped job in the driver: opened, given ranges with a plan for each, and closed.

What it is: `StageLane`, which delivers what is owed, runs a plan over a range to its acknowledgement,
and lets go.
What it must not know: where ranges come from, and what a job keeps beside its lane.

Invariants:
    A job without state needs no memory of Spark's: the lane's frontier is where it stands.
    Whatever was opened is closed, in the middle of opening too.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from dedup.errors import DeliveryError, InvalidUsage, Unavailable
from dedup.model import Counts, Frontier, LaneRow, Source
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
from delivery.microbatch.task import at_of_environment
from delivery.microbatch.telling import telling
from delivery.naming import said_of
from delivery.ports import Log
from delivery.protocol import messages as m
from delivery.protocol.state import Limits
from delivery.stage import Policy, stage_of
from delivery.wrap.judging import Bench, judge_range
from delivery.wrap.pieces import Piece
from delivery.wrap.plans import watched
from delivery.wrap.runner import Result, StageLaneRunner
from delivery.wrap.source import Wrapped
from delivery.wrap.token import PROPERTY, Token

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from delivery.kafka.port import Client, Topic

__all__ = ["StageLane", "difference"]

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


class StageLane(ABC):
    """The lane of a wrapped job.

    Args:
        wrapped: the stage.
        outputs: names of the topics behind its edges.
        state: what stands in its frontier for the state that the job keeps; None if it keeps none.
        code: version of the job's code, kept in every seal.
    """

    def __init__(
        self,
        wrapped: Wrapped,
        outputs: tuple[str, ...],
        *,
        state: Source | None = None,
        code: str = "",
    ) -> None:
        plan, spec = wrapped.plan, wrapped.spec
        self._wrapped = wrapped
        self.lane = wrapped.lane
        self.counters = Counters()
        self._outputs = outputs
        with ExitStack() as opened:
            self._client = open_client(plan.kafka, plan.options, plan.client)
            opened.callback(self._client.close)
            self._hints = Hints(self._client, spec.group)
            opened.callback(self._hints.close)
            self._bench = Bench(plan, spec, self.lane)
            opened.callback(self._close_bench)
            self._emitter = open_topics(self._client, outputs)
            opened.callback(self._emitter.close)
            self._opened = opened.pop_all()
        self._catalog = self._bench.catalog
        topics = {name: topic.id for name, topic in wrapped.topics.items()}
        writers = Writers(self._catalog)
        senders = [Senders(writers, topic) for topic in topics.values()]
        self._runner = StageLaneRunner(
            self.lane,
            topics=topics,
            outputs=outputs,
            run_plan=self._run_plan,
            judge_range=self._judge_range,
            state=b"" if state is None else state.topic,
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
        self._refuse_kept(self._looked_up())
        self._begin(self._wrapped.frontier())

    def _looked_up(self) -> LaneRow | None:
        """Refuse what no job may go on with; return the lane's row, if it ever was."""
        refuse_at_rest(self._catalog, self._wrapped.spec.prefix, list(self._wrapped.topics))
        refuse_renamed(self._catalog, [self._declared()])
        refuse_outdated(self._catalog, self._client, [self.lane], self._outputs)
        remind([self._wrapped.spec], list(self._wrapped.topics))
        remind_of_lanes(self._catalog, self._wrapped.spec, {self.lane: None})
        return self._catalog.load(self.lane)

    def _refuse_kept(self, row: LaneRow | None) -> None:
        """Refuse a lane that kept state, to a job that keeps none."""
        if row is not None and row.head.state:
            raise InvalidUsage(
                "start a wrapped job",
                self.lane,
                "it kept state before, and its plan has none now: that is another job; nothing was "
                "read: end this one with `delivery stage retire`, and give the other a stage name of "
                "its own, with the old checkpoint as start_from=",
            )

    def _begin(self, start: Frontier) -> None:
        """Let the lane begin, if it never was, and deliver what is owed."""
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

    def close(self) -> None:
        """Let go of everything. May be called twice."""
        self._opened.close()

    def _close_bench(self) -> None:
        with suppress(DeliveryError):
            self._bench.close()

    # Ranges -----------------------------------------------------------------------------------

    def _told(self, frontier: Frontier) -> None:
        """Let monitors know how far the job is."""
        for name, topic in self._wrapped.topics.items():
            self._hints.tell(name, {s.partition: o for s, o in frontier if s.topic == topic.id})

    @abstractmethod
    def _rows(self) -> DataFrame:
        """Return what the plan under way ends in, so that asking for it runs all of it."""

    def _run_plan(self, token: Token) -> Result:
        """Run the plan under way."""
        spark, rows = self._wrapped.spark, self._rows()
        reports = self._wrapped.reports
        reports.value = {}
        with telling(spark.sparkContext, PROPERTY, token.encode()):
            table, trouble = watched(spark, rows.toArrow)
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
                "finish a run of a wrapped job",
                self.lane,
                "something sealed is not acknowledged; nothing is lost: start it again",
            )


def difference(after: Counters, before: Counters) -> Counters:
    """Return what was counted in between."""
    had = before.document()
    return Counters(**{name: number - had[name] for name, number in after.document().items()})
