"""The runner of a stage lane: a bundle is a micro-batch or a bounded run, user code is Spark's plan.

What it is: `StageLaneRunner`, the lane runner with two instructions performed otherwise: verdicts and
user code come together, in one run of the plan.
What it must not know: how a plan is run and watched; that is `run_plan`'s.

Invariants:
    A run counts only if every stage of it ran once, every verdict in it is the same wherever it was
    made twice, and no repeat was let through; otherwise all of it is thrown away and made again.
    The tasks judge against the very head that the append compares with.
    A stateful job never follows a winner: the state on its disk is of its own run, so whoever wins
    against it is a second driver, and it stops.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dedup.errors import DeliveryError, InvalidUsage, Unavailable
from dedup.formats.dropped import Run
from dedup.model import Attempt, Frontier, Source, TopicId
from delivery.protocol import messages as m
from delivery.resident.failures import error_of
from delivery.runner import LaneRunner
from delivery.work import Work
from delivery.wrap.outputs import placing, rows_of
from delivery.wrap.pieces import Merged, Piece, merged
from delivery.wrap.token import Token

__all__ = ["Result", "StageLaneRunner"]

LOG = logging.getLogger(__name__)

#: Times a plan is run for one bundle before the job fails.
RUNS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run of the plan gave.

    Attributes:
        table: the rows it ended in; None if it did not come to its end.
        pieces: what its tasks reported, by source.
        trouble: why it cannot count; empty if it can.
    """

    table: pa.Table | None
    pieces: Mapping[Source, Piece]
    trouble: str = ""


class StageLaneRunner(LaneRunner):
    """Runs a stage lane; see `LaneRunner` for what is not here.

    Args:
        topics: of the input, by name.
        outputs: names of the topics behind the edges.
        run_plan: runs the plan of the batch under way with a token.
        judge_range: gives the verdicts on a range that no task reported.
        state: identity of the stateful job's checkpoint; empty for a job without state.
        more: everything else that a lane runner takes.
    """

    def __init__(
        self,
        name: str,
        *,
        topics: Mapping[str, TopicId],
        outputs: tuple[str, ...],
        run_plan: Callable[[Token], Result],
        judge_range: Callable[[Token, Source], Piece],
        state: bytes = b"",
        **more: Any,
    ) -> None:
        super().__init__(name, **more)
        self._topics = dict(topics)
        self._outputs = outputs
        self._run_plan = run_plan
        self._judge_range = judge_range
        self._state = state

    def perform(self, instruction: m.Instruction) -> m.Event | None:
        """Do what the core asks and return the answer; None where it wants none."""
        try:
            if isinstance(instruction, m.Classify):
                return self._classify_by_plan(instruction)
            if isinstance(instruction, m.Run):
                return self._ran(instruction)
            if isinstance(instruction, m.Load) and instruction.losses and self._state:
                raise self._second_driver()
        except DeliveryError as error:
            self.state.error = self.state.error or error
            return m.Broke(str(error))
        if isinstance(instruction, m.Append) and self._state:
            head = replace(instruction.head, state=self._state)
            instruction = replace(instruction, head=head)
        return super().perform(instruction)

    def ranges(self, start: Frontier, end: Frontier) -> dict[Source, tuple[int, int]]:
        """Return the ranges of topics in a span; a state's position is none."""
        ends = dict(end)
        known = set(self._topics.values())
        return {source: (offset, ends[source]) for source, offset in start if source.topic in known}

    # Instructions -----------------------------------------------------------------------------

    def _classify_by_plan(self, classify: m.Classify) -> m.Event | None:
        if classify.ticket <= self.state.dead:
            return None
        found, table = self._counting_run(classify)
        learned = self._judge.judge([], classify.end, classify.head, []).learned
        found.verdicts.learned = learned
        self._conflicts.tell(found.verdicts, self._clock.now_ms())
        rows, chosen = rows_of(table, self._outputs)
        placed = self._emitter.place(placing(rows)) if rows else []
        rows.partitions = [
            given if want is None else want for want, given in zip(chosen, placed, strict=True)
        ]
        attempt = Attempt(self._clock.fresh())
        work = Work(attempt=attempt, verdicts=found.verdicts, rows=rows)
        self.state.work = {classify.ticket: work}
        return m.Classified(classify.ticket, attempt, self._clock.now_ms(), found.newest)

    def _ran(self, run: m.Run) -> m.Event | None:
        return m.Ran(run.ticket) if run.ticket in self.state.work else None

    def _counting_run(self, classify: m.Classify) -> tuple[Merged, pa.Table]:
        """Run the plan until a run counts."""
        drops: tuple[Run, ...] = ()
        trouble = unread = ""
        for _ in range(RUNS_MAX):
            token = Token(
                run=uuid.uuid4().hex,
                lane=self.name,
                head=classify.head,
                topics=self._topics,
                ranges=self.ranges(classify.start, classify.end),
                drops=drops,
            )
            result = self._run_plan(token)
            for piece in result.pieces.values():
                if piece.failed is not None:
                    raise error_of(dict(piece.failed))
            mixed = any(piece.mixed for piece in result.pieces.values())
            trouble = result.trouble or ("a task gave other verdicts when it ran again" * mixed)
            if not trouble:
                before, unread = unread, self._unread(token, result.pieces)
                if unread and unread == before:
                    raise self._never_asked(unread)
                trouble = unread
            if trouble:
                LOG.warning("%s: a run of its plan does not count: %s", self.name, trouble)
                continue
            found = merged(result.pieces)
            if found.drops == drops:
                return found, result.table
            drops, trouble = found.drops, "a repeat came in two partitions"
        raise Unavailable(
            "run a plan",
            self.name,
            f"{RUNS_MAX} runs of its plan did not count, the last because {trouble}; nothing was "
            "sealed: start it again once executors stay",
        )

    def _unread(self, token: Token, pieces: Mapping[Source, Piece]) -> str:
        """Say which range has records that no task of this run judged; nothing if there is none.

        A range may hold none at all: markers of transactions, or what compaction left of it.
        """
        for source, (start, end) in token.ranges.items():
            if start < end and source not in pieces and self._judge_range(token, source).read:
                return f"its plan did not ask for all records of partition {source.partition}"
        return ""

    def _never_asked(self, unread: str) -> InvalidUsage:
        return InvalidUsage(
            "run a plan",
            self.name,
            f"{unread}, and did not when it ran again; nothing was sealed, or what it left out would "
            "never come again: let it read all that it is given, without limit() or cached rows before "
            "its end",
        )

    def _second_driver(self) -> InvalidUsage:
        return InvalidUsage(
            "seal a micro-batch",
            self.name,
            "another driver sealed it first, and this job has state of its own on disk; nothing of "
            "this batch takes effect: stop one of the two, and start the other again",
        )
