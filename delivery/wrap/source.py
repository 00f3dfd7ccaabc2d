"""`d.wrap_source(...)`: rows of Spark's own Kafka columns in which every record comes once.

What it is: `wrap_source`, for a stream or for a batch that ends, and `Wrapped`, what is known of a stage
between its ends.
What it must not know: how a batch is sealed.

Invariants:
    Column names, types and options stay Spark's, but for those that the guarantee rests on.
    What a bounded source reads is fixed when it is wrapped, whatever comes meanwhile.
    Whatever the user's plan does, it sees a row only after its verdict.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dedup.errors import InvalidUsage
from dedup.model import Frontier, Source
from delivery.host.spec import Plan, StageSpec
from delivery.kafka.opening import open_client
from delivery.kafka.port import Topic
from delivery.microbatch.offsets import Offsets
from delivery.microbatch.source import LOOSE, bounded, frame, kafka_options, refuse_ours
from delivery.resident.starting import placed
from delivery.seeding.checkpoint import Uncommitted
from delivery.spark import refuse_connect
from delivery.wrap.judging import Setup, judged
from delivery.wrap.pieces import Pieces
from delivery.wrap.plans import Stream, look
from delivery.wrap.positions import lane_of
from delivery.wrap.ranges import ends, starts, taken_over
from delivery.wrap.relations import reads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

__all__ = ["MAKING_OPTION", "STAGE_OPTION", "Wrapped", "wrap_source"]

LOG = logging.getLogger(__name__)

#: How a plan says which stage its source belongs to. Spark's Kafka source has no such option.
STAGE_OPTION = "deliveryStage"
#: How a batch's plan says which call of `wrap_source` made it.
MAKING_OPTION = "deliveryMaking"
_OURS = (STAGE_OPTION.lower(), MAKING_OPTION.lower())
#: Of the options that were given, these are said anew.
_SAID = ("subscribe", "startingoffsets", "endingoffsets", "includeheaders", *_OURS)


@dataclass(slots=True, kw_only=True)
class Wrapped:
    """A stage of one's own plan.

    Attributes:
        plan: where catalog and cluster are.
        spec: the stage, as far as its lane goes.
        spark: the session.
        reports: where tasks report their verdicts.
        topics: what it reads, by name.
        bounded: whether it reads batches that end, rather than streams.
        query: which making of the stage it is.
        start: where it begins, by topic: its frontier, if it has one.
        ends: where it ends, if it is bounded.
        begun: whether it has one.
        ended: whether its query has come to an end, so that the stage may be wrapped anew.
        turn: held by whoever runs it, if it is bounded.
    """

    plan: Plan
    spec: StageSpec
    spark: SparkSession
    reports: Any
    bounded: bool = False
    query: str = field(default_factory=lambda: uuid.uuid4().hex)
    topics: dict[str, Topic] = field(default_factory=dict)
    start: Offsets = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)
    begun: bool = False
    ended: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def lane(self) -> str:
        """The name of its lane."""
        return lane_of(self.spec.pipeline, self.spec.name)

    def frontier(self) -> Frontier:
        """Return where it begins."""
        return self._positions(self.start)

    def goal(self) -> Frontier:
        """Return where it ends, if it is bounded."""
        return self._positions(self.ends)

    def refuse_circle(self, outputs: Sequence[str]) -> None:
        """Refuse outputs that the stage reads.

        Raises:
            InvalidUsage: with their names.
        """
        again = [name for name in outputs if name in self.topics]
        if again:
            raise InvalidUsage(
                "wrap a sink",
                f"stage {self.spec.name} reads and writes {', '.join(again)}",
                "it would read what it makes, and make of one record more without end; nothing was "
                "started: name another output",
            )

    def _positions(self, offsets: Offsets) -> Frontier:
        return Frontier.of(
            (Source(self.topics[name].id, partition), offset)
            for name, found in offsets.items()
            for partition, offset in found.items()
        )


def wrap_source(
    plan: Plan,
    known: dict[str, Wrapped],
    reader: DataStreamReader | DataFrameReader,
    spec: StageSpec,
    *,
    start_from: str | None = None,
    uncommitted: Uncommitted = "refuse",
) -> DataFrame:
    """Return what the reader would read, each record once.

    Args:
        plan: the pipeline.
        known: the stages wrapped so far, by name; this one is added.
        reader: of Spark's, for Kafka.
        spec: the stage.
        start_from: checkpoint of the job that this one replaces.
        uncommitted: what becomes of a batch that the old job planned and did not commit.

    Raises:
        InvalidUsage: it reads something else than Kafka, or an option cannot be kept.
        Unavailable: Kafka or the catalog does not answer.
    """
    refuse_connect(reader)
    stream = _stream(reader, plan)
    refuse_ours(stream.options, *LOOSE, *_OURS)
    names = [name.strip() for name in (stream.option("subscribe") or "").split(",")]
    spark: SparkSession = reader._spark  # noqa: SLF001 - its session is nowhere else
    plan = placed(replace(plan, stages=()), spark)
    wrapped = _wrapped(plan, known, spec, spark, names, ends_itself=_ends_itself(reader))
    begins = stream.option("startingOffsets") or spec.start
    with open_client(plan.kafka, plan.options, plan.client, LOG.warning) as client:
        found = client.describe(names)
        missing = [name for name in names if name not in found]
        if missing:
            raise InvalidUsage(
                "wrap a source",
                f"topics {', '.join(missing)}",
                "there are none of these names; nothing was read: create them, or mend the names",
            )
        topics = [found[name] for name in names]
        start = starts(wrapped, client, topics, begins)
        if start_from is not None and not wrapped.begun:
            start |= taken_over(start_from, uncommitted, start)
        if wrapped.bounded:
            wrapped.ends |= ends(client, topics, stream.option("endingOffsets"), start)
    wrapped.topics |= found
    wrapped.start |= start
    known[spec.name] = wrapped
    return _rows(wrapped, stream, names)


def _wrapped(
    plan: Plan,
    known: dict[str, Wrapped],
    spec: StageSpec,
    spark: SparkSession,
    names: Sequence[str],
    *,
    ends_itself: bool,
) -> Wrapped:
    """Return the stage that more topics are wrapped for: the one that is being made, or a new one."""
    wrapped = known.get(spec.name)
    twice = [] if wrapped is None else [name for name in names if name in wrapped.topics]
    # A batch whose cell of a notebook is run again is made anew: it stands nowhere until it is saved.
    if wrapped is None or wrapped.ended or (twice and wrapped.bounded and ends_itself):
        reports = spark.sparkContext.accumulator({}, Pieces())
        return Wrapped(plan=plan, spec=spec, spark=spark, reports=reports, bounded=ends_itself)
    if wrapped.bounded != ends_itself:
        raise InvalidUsage(
            "wrap a source",
            f"stage {spec.name}",
            "it is wrapped over a stream and over a batch that ends, and each run of it is one or the "
            "other; nothing was started: let the one come to its end first, or name the other otherwise",
        )
    if twice:
        raise InvalidUsage(
            "wrap a source",
            f"{spec.name}: topic {', '.join(twice)}",
            "the stage reads it already; nothing was started: wrap it once",
        )
    return wrapped


def _rows(wrapped: Wrapped, stream: Stream, names: Sequence[str]) -> DataFrame:
    """Return Spark's rows, judged."""
    options = {k: v for k, v in stream.options.items() if k.lower() not in _SAID}
    options |= kafka_options(wrapped.plan)
    options[STAGE_OPTION] = wrapped.spec.prefix
    start = {name: wrapped.start[name] for name in names}
    if wrapped.bounded:
        options[MAKING_OPTION] = wrapped.query
        end = {name: wrapped.ends[name] for name in names}
        rows = bounded(wrapped.spark, start, end, options)
    else:
        rows = frame(wrapped.spark, ",".join(names), start, options)
    setup = Setup(
        plan=wrapped.plan, spec=wrapped.spec, query=wrapped.query, reports=wrapped.reports
    )
    passed = rows.mapInArrow(partial(judged, setup), rows.schema)
    wanted = (stream.option("includeHeaders") or "false").lower() == "true"
    return passed if wanted else passed.drop("headers")


def _ends_itself(reader: object) -> bool:
    """Tell whether a reader is one of batches."""
    from pyspark.sql import DataFrameReader  # noqa: PLC0415 - not needed before

    return isinstance(reader, DataFrameReader)


def _stream(reader: DataStreamReader | DataFrameReader, plan: Plan) -> Stream:
    """Return what a reader was told, by making its DataFrame, which reads nothing yet."""
    from pyspark.errors import AnalysisException, IllegalArgumentException  # noqa: PLC0415 - not needed before

    try:
        rows = reader.load()
    except (AnalysisException, IllegalArgumentException) as error:
        if "kafka.bootstrap.servers" not in str(error):
            raise
        rows = reader.option("kafka.bootstrap.servers", plan.kafka).load()
    streams = reads(rows) if _ends_itself(reader) else look(rows).streams
    if len(streams) != 1 or streams[0].source != "kafka":
        kinds = ", ".join(stream.source for stream in streams) or "no topic"
        raise InvalidUsage(
            "wrap a source",
            kinds,
            'nothing was read: give spark.readStream.format("kafka") with its options, or '
            'spark.read.format("kafka") for what is there now and no more',
        )
    stream = streams[0]
    address = stream.option("kafka.bootstrap.servers")
    if set(str(address).split(",")) != set(plan.kafka.split(",")):
        raise InvalidUsage(
            "wrap a source",
            f"kafka.bootstrap.servers {address}",
            f"the pipeline's cluster is {plan.kafka}; nothing was read: leave the option out, or say "
            "the same",
        )
    return stream
