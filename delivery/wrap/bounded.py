"""A bounded run of a wrapped job: what is new since the last one, as one seal of the stage's lane.

What it is: `wrap_bounded`, and `BoundedWriter`, which takes what makes sense of Spark's writer and runs
the plan; `BoundedRun`, the lane in the driver.
What it must not know: streams, checkpoints.

Invariants:
    A run is over the range that was fixed when its sources were wrapped, less what is sealed of it by
    now. What lies between the lane and that range is a gap, and refused.
    Every run of the plan is of a plan that Spark never ran: its tasks judge each time.
    Whatever comes of it, everything is let go of, and the stage may be wrapped again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

from dedup.errors import InvalidUsage
from dedup.model import Frontier
from delivery.protocol import messages as m
from delivery.resident.cluster import ship
from delivery.spark import refuse_connect
from delivery.wrap.lane import StageLane
from delivery.wrap.outputs import refuse, selected
from delivery.wrap.plans import Stream, refuse_unwatched
from delivery.wrap.relations import anew, reads, refuse_kept, told
from delivery.wrap.source import MAKING_OPTION, STAGE_OPTION, Wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, DataFrameWriter

__all__ = ["BoundedRun", "BoundedWriter", "picked", "wrap_bounded"]

LOG = logging.getLogger(__name__)

_FORMAT, _DEFAULT_FORMAT = "kafka", "spark.sql.sources.default"
#: What Spark's writer says of itself if nobody said anything, and what adds to a topic.
_MODES = ("append", "error", "errorifexists", "default")


class BoundedRun(StageLane):
    """Runs the lane of a wrapped job over one range.

    Args:
        wrapped: the stage.
        outputs: names of the topics behind its edges.
        frame: what the plan ends in.
        code: version of the job's code, kept in every seal.
    """

    def __init__(
        self, wrapped: Wrapped, outputs: tuple[str, ...], frame: DataFrame, *, code: str = ""
    ) -> None:
        self._frame = frame
        super().__init__(wrapped, outputs, code=code)

    def run(self) -> dict[str, int]:
        """Run the plan over what is left of the range; return what became of the records.

        Raises:
            Exception: nothing was sealed, or not delivered yet.
        """
        start, end = self._wrapped.frontier(), self._wrapped.goal()
        self._refuse_gap(start)
        # Where a partition begins that the lane does not know, it was told when it was wrapped.
        self._runner.offer(m.Polled(start, end, start), [])
        self._drain()
        known = self._runner.state.lane.known
        self._told(known.frontier)
        did = self.counters
        LOG.debug("%s seq %d: %d fresh of %d", self.lane, known.ref.seq, did.fresh, did.read)
        return did.document()

    def _refuse_gap(self, start: Frontier) -> None:
        frontier = self._runner.state.lane.known.frontier
        for source, offset in start:
            sealed = frontier.at(source)
            if sealed is not None and sealed < offset:
                raise InvalidUsage(
                    "run a bounded plan",
                    self.lane,
                    f"its lane stands at offset {sealed} of partition {source.partition}, and the "
                    f"DataFrame begins at {offset}: the catalog is not the one that it was made with, or "
                    "was put back; nothing was read, or what lies between would be lost: make the "
                    "DataFrame anew with d.wrap_source(...), and it begins where the lane stands",
                )

    def _rows(self) -> DataFrame:
        rows = anew(selected(self._frame))
        refuse_kept(rows, self._wrapped.spec.name, STAGE_OPTION)
        return rows


class BoundedWriter:
    """Spark's writer, that ends in a stage's outputs.

    Args:
        frame: what the plan ends in.
        wrapped: the stage.
        outputs: names of the topics.
        code: version of the job's code, kept in every seal.
    """

    def __init__(
        self, frame: DataFrame, wrapped: Wrapped, outputs: tuple[str, ...], code: str
    ) -> None:
        self._frame = frame
        self._wrapped = wrapped
        self._outputs = outputs
        self._code = code

    def format(self, source: str) -> Self:
        """Say that it is Kafka that is written to, as it is."""
        return self._taken({"format": source})

    def mode(self, saveMode: str | None) -> Self:  # noqa: N803 - as PySpark spells it
        """Say that rows are added to what the topics hold, as they are."""
        return self._taken({"mode": saveMode or "append"})

    def option(self, key: str, _value: Any) -> Self:
        """Refuse an option: all that there is to say of topics is said elsewhere."""
        return self._taken({f"option {key}": key})

    def options(self, **options: Any) -> Self:
        """Refuse options, as `option` does."""
        return self._taken({f"option {key}": key for key in options})

    def save(self) -> dict[str, int]:
        """Run the plan over what is new, and return when it is sealed and delivered.

        What was sealed before and is still owed is delivered first. If nothing is new, that is all.

        Returns:
            What became of the records, as `progress["delivery"]` of a stream says it: `read`, `fresh`,
            `duplicate` and so on.

        Raises:
            InvalidUsage: it cannot go on here; nothing was read or written.
            Unavailable: Kafka or the catalog does not answer.
            Exception: what the plan failed with; nothing of it was sealed.
        """
        wrapped = self._wrapped
        with wrapped.turn:
            try:
                refuse_unwatched(wrapped.spark)
                run = BoundedRun(wrapped, self._outputs, self._frame, code=self._code)
                try:
                    run.open()
                    ship(wrapped.spark)
                    return run.run()
                finally:
                    run.close()
            finally:
                wrapped.ended = True

    def _taken(self, said: Mapping[str, str]) -> Self:
        _refuse_said(said, self._wrapped.spec.name, (_FORMAT,))
        return self


def wrap_bounded(
    known: Mapping[str, Wrapped],
    writer: DataFrameWriter,
    topics: tuple[str, ...],
    *,
    code: str = "",
) -> BoundedWriter:
    """Return a writer that ends a plan over wrapped batches in a stage's outputs.

    Args:
        known: the stages wrapped so far, by name.
        writer: of Spark's.
        topics: names of the output topics; with several, the column `topic` says which.
        code: version of the job's code, kept in every seal.

    Raises:
        InvalidUsage: the plan reads no wrapped source, or one that is not to be read here; or it does
            not end in records.
    """
    refuse_connect(writer)
    frame: DataFrame = writer._df  # noqa: SLF001 - its DataFrame is nowhere else
    refuse(frame, topics)
    wrapped = picked(known, reads(frame))
    usual = str(wrapped.spark.conf.get(_DEFAULT_FORMAT))
    _refuse_said(told(writer), wrapped.spec.name, (_FORMAT, usual))
    wrapped.refuse_circle(topics)
    return BoundedWriter(frame, wrapped, topics, code)


def picked(known: Mapping[str, Wrapped], found: Sequence[Stream]) -> Wrapped:
    """Return the stage whose sources a plan reads; what is not wrapped stands beside it.

    Raises:
        InvalidUsage: it reads none, of two, of one made anew meanwhile, or not all of one.
    """
    ours = [one for one in found if one.option(STAGE_OPTION) is not None]
    prefixes = sorted({str(one.option(STAGE_OPTION)) for one in ours})
    stages = [wrapped for wrapped in known.values() if wrapped.spec.prefix in prefixes]
    if len(prefixes) != 1 or len(stages) != 1:
        raise InvalidUsage(
            "wrap a sink",
            f"a plan over {', '.join(prefixes) or 'no wrapped source'}",
            "a run seals what it read of one stage; nothing was started: wrap what it reads with "
            "d.wrap_source(..., stage=...), all of it for the same stage",
        )
    (wrapped,) = stages
    if {one.option(MAKING_OPTION) for one in ours} != {wrapped.query}:
        raise InvalidUsage(
            "wrap a sink",
            f"stage {wrapped.spec.name}",
            "part of what the plan reads was made by an earlier d.wrap_source(...) than the last one; "
            "nothing was started: wrap each topic once, and make the plan of these DataFrames. A plan "
            "may use one of them as often as it likes",
        )
    read = {topic for one in ours for topic in one.batches()}
    if missing := sorted(set(wrapped.topics) - read):
        raise InvalidUsage(
            "wrap a sink",
            f"stage {wrapped.spec.name} reads {', '.join(sorted(read))}",
            f"{', '.join(missing)} is wrapped for it too, and would be sealed unread; nothing was started: "
            "let the plan read it, or do not wrap it",
        )
    return wrapped


def _refuse_said(said: Mapping[str, str], stage: str, formats: Sequence[str]) -> None:
    """Refuse what a writer was told that nobody would do.

    Raises:
        InvalidUsage: with the first of them.
    """
    for what, value in said.items():
        if what == "format" and value.lower() in formats:
            continue
        if what == "mode" and value.lower() in _MODES:
            continue
        raise InvalidUsage(
            "wrap a sink",
            f"stage {stage}: {what}" + (f" {value}" if what in {"format", "mode"} else ""),
            "rows are added to topics, which wrap_sink(..., topic=...) names, of the cluster that "
            "Delivery(kafka=..., options=...) names; nothing was started: leave it out",
        )
