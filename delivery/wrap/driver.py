"""The driver of a wrapped stream: each micro-batch becomes one seal of the stage's lane.

What it is: `StageDriver`, which opens the lane, runs what `foreachBatch` hands it, and delivers.
What it must not know: how Spark's query is started, stopped and shown.

Invariants:
    A micro-batch counts once: sealed before Spark notes it as done, entered again only so that
    Spark's own state advances, and then its outputs are thrown away.
    A stateful job goes on only on the checkpoint whose batches are sealed in the lane, and only
    where that one stands: the number of its next batch is a position in the lane's frontier.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dedup.catalog.store import Blob
from dedup.errors import Corrupt, InvalidUsage, Unavailable
from dedup.formats.dropped import Run, decode_dropped
from dedup.model import Frontier, Seal, Source
from delivery.host.counters import Counters
from delivery.microbatch.offsets import Checkpoint, Offsets
from delivery.protocol import messages as m
from delivery.wrap.lane import StageLane, difference
from delivery.wrap.outputs import selected
from delivery.wrap.plans import forget_shuffles
from delivery.wrap.positions import state_source
from delivery.wrap.runner import RUNS_MAX
from delivery.wrap.source import Wrapped
from delivery.wrap.token import Token

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["StageDriver"]

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Batch:
    """One micro-batch as Spark planned it."""

    number: int
    start: Frontier
    end: Frontier


class StageDriver(StageLane):
    """Runs the lane of a wrapped stream.

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
        self._state = None if query_id is None else state_source(query_id)
        self._checkpoint = checkpoint
        self._frame: DataFrame | None = None
        #: Whether the plan of the batch under way has run.
        self._asked = False
        super().__init__(wrapped, outputs, state=self._state, code=code)

    # Beginning --------------------------------------------------------------------------------

    def open(self) -> None:
        """Load the lane, or let it begin where its source does; deliver what is owed.

        Raises:
            DeliveryError: the job cannot go on here; nothing was read or written.
        """
        row, state = self._looked_up(), self._state
        start = self._wrapped.frontier()
        if state is None:
            self._refuse_kept(row)
        else:
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
        self._begin(start)

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
        self._told(planned.end)
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

    def _rows(self) -> DataFrame:
        frame = self._frame
        assert frame is not None, "a plan is run inside a batch"
        if self._asked:
            forget_shuffles(frame)
        self._asked = True
        return selected(frame)

    def _refused(self, why: str) -> InvalidUsage:
        return InvalidUsage(
            "go on with a stateful job",
            self.lane,
            f"{why}; nothing was read, and its state would not be that of what is sealed: give the "
            f"checkpoint it had. If that is lost, say d.forget_state(stage={self._wrapped.spec.name!r}, "
            "checkpoint=...) with an empty directory, once, and give that one: it goes on where the "
            "lane stands, without what was open in its state",
        )
