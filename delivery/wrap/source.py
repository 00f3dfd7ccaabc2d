"""`d.wrap_source(...)`: a stream of Spark's own Kafka columns in which every record comes once.

What it is: `wrap_source`, and `Wrapped`, what is known of a stage between its ends.
What it must not know: how a batch is sealed.

Invariants:
    Column names, types and options stay Spark's, but for those that the guarantee rests on.
    Reading begins at the stage's frontier; where there is none, where the old job stood, or where
    the reader was told to begin.
    Whatever the user's plan does, it sees a row only after its verdict.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dedup.catalog.open import open_catalog
from dedup.errors import InvalidUsage
from dedup.model import Frontier, Source
from delivery.host.spec import Plan, StageSpec
from delivery.kafka.opening import open_client
from delivery.kafka.port import Bounds, Client, Topic
from delivery.microbatch.offsets import Offsets
from delivery.microbatch.source import LOOSE, frame, kafka_options, refuse_ours
from delivery.resident.starting import placed
from delivery.seeding.checkpoint import Uncommitted, positions
from delivery.spark import refuse_connect
from delivery.wrap.judging import Setup, judged
from delivery.wrap.pieces import Pieces
from delivery.wrap.plans import Stream, look
from delivery.wrap.positions import lane_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

__all__ = ["STAGE_OPTION", "Wrapped", "wrap_source"]

LOG = logging.getLogger(__name__)

#: How a plan says which stage its source belongs to. Spark's Kafka source has no such option.
STAGE_OPTION = "deliveryStage"
#: Of the options that were given, these are said anew.
_SAID = ("subscribe", "startingoffsets", "includeheaders", STAGE_OPTION.lower())


@dataclass(slots=True, kw_only=True)
class Wrapped:
    """A stage of one's own plan.

    Attributes:
        plan: where catalog and cluster are.
        spec: the stage, as far as its lane goes.
        spark: the session.
        reports: where tasks report their verdicts.
        topics: what it reads, by name.
        start: where it begins, by topic: its frontier, if it has one.
        begun: whether it has one.
        ended: whether its query has come to an end, so that the stage may be wrapped anew.
    """

    plan: Plan
    spec: StageSpec
    spark: SparkSession
    reports: Any
    query: str = field(default_factory=lambda: uuid.uuid4().hex)
    topics: dict[str, Topic] = field(default_factory=dict)
    start: Offsets = field(default_factory=dict)
    begun: bool = False
    ended: bool = False

    @property
    def lane(self) -> str:
        """The name of its lane."""
        return lane_of(self.spec.pipeline, self.spec.name)

    def frontier(self) -> Frontier:
        """Return where it begins."""
        return Frontier.of(
            (Source(self.topics[name].id, partition), offset)
            for name, found in self.start.items()
            for partition, offset in found.items()
        )


def wrap_source(
    plan: Plan,
    known: dict[str, Wrapped],
    reader: DataStreamReader,
    spec: StageSpec,
    *,
    start_from: str | None = None,
    uncommitted: Uncommitted = "refuse",
) -> DataFrame:
    """Return a stream of what the reader would read, each record once.

    Args:
        plan: the pipeline.
        known: the stages wrapped so far, by name; this one is added.
        reader: of Spark's, for Kafka.
        spec: the stage.
        start_from: checkpoint of the job that this one replaces.
        uncommitted: what becomes of a batch that the old job planned and did not commit.

    Raises:
        InvalidUsage: it is no stream of Kafka's, or an option cannot be kept.
        Unavailable: Kafka or the catalog does not answer.
    """
    refuse_connect(reader)
    stream = _stream(reader, plan)
    refuse_ours(stream.options, *LOOSE, STAGE_OPTION.lower())
    names = [name.strip() for name in (stream.option("subscribe") or "").split(",")]
    spark: SparkSession = reader._spark  # noqa: SLF001 - its session is nowhere else
    plan = placed(replace(plan, stages=()), spark)
    wrapped = known.get(spec.name)
    if wrapped is None or wrapped.ended:
        reports = spark.sparkContext.accumulator({}, Pieces())
        wrapped = Wrapped(plan=plan, spec=spec, spark=spark, reports=reports)
    twice = [name for name in names if name in wrapped.topics]
    if twice:
        raise InvalidUsage(
            "wrap a source",
            f"{spec.name}: topic {', '.join(twice)}",
            "the stage reads it already; nothing was started: wrap it once",
        )
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
        wrapped.topics |= found
        start = _starts(wrapped, client, [found[name] for name in names], begins)
    if start_from is not None and not wrapped.begun:
        start |= _taken_over(start_from, uncommitted, start)
    wrapped.start |= start
    known[spec.name] = wrapped
    return _rows(wrapped, stream, names)


def _rows(wrapped: Wrapped, stream: Stream, names: Sequence[str]) -> DataFrame:
    """Return Spark's rows, judged."""
    options = {k: v for k, v in stream.options.items() if k.lower() not in _SAID}
    options |= kafka_options(wrapped.plan)
    options[STAGE_OPTION] = wrapped.spec.prefix
    start = {name: wrapped.start[name] for name in names}
    rows = frame(wrapped.spark, ",".join(names), start, options)
    setup = Setup(
        plan=wrapped.plan, spec=wrapped.spec, query=wrapped.query, reports=wrapped.reports
    )
    passed = rows.mapInArrow(partial(judged, setup), rows.schema)
    wanted = (stream.option("includeHeaders") or "false").lower() == "true"
    return passed if wanted else passed.drop("headers")


def _stream(reader: DataStreamReader, plan: Plan) -> Stream:
    """Return what a reader was told, by making its DataFrame, which reads nothing yet."""
    from pyspark.errors import AnalysisException, IllegalArgumentException  # noqa: PLC0415 - not needed before

    try:
        rows = reader.load()
    except (AnalysisException, IllegalArgumentException) as error:
        if "kafka.bootstrap.servers" not in str(error):
            raise
        rows = reader.option("kafka.bootstrap.servers", plan.kafka).load()
    seen = look(rows)
    if len(seen.streams) != 1 or seen.streams[0].source != "kafka":
        kinds = ", ".join(stream.source for stream in seen.streams) or "no stream"
        raise InvalidUsage(
            "wrap a source",
            kinds,
            'nothing was read: give spark.readStream.format("kafka") with its options; for what is '
            "there now and no more, end the query with trigger(availableNow=True)",
        )
    stream = seen.streams[0]
    address = stream.option("kafka.bootstrap.servers")
    if set(str(address).split(",")) != set(plan.kafka.split(",")):
        raise InvalidUsage(
            "wrap a source",
            f"kafka.bootstrap.servers {address}",
            f"the pipeline's cluster is {plan.kafka}; nothing was read: leave the option out, or say "
            "the same",
        )
    return stream


def _starts(wrapped: Wrapped, client: Client, topics: Sequence[Topic], begins: str) -> Offsets:
    """Return where reading begins: at the frontier, or where the reader was told to."""
    with closing(open_catalog(wrapped.plan.catalog).store) as store:
        from dedup.catalog.catalog import Catalog  # noqa: PLC0415 - beside its store

        row = Catalog(store).load(wrapped.lane)
        others = [
            lane
            for lane in store.lanes()
            if lane.startswith(wrapped.spec.prefix) and lane != wrapped.lane
        ]
    if others:
        raise InvalidUsage(
            "wrap a source",
            f"stage {wrapped.spec.name}",
            f"it has lanes of another kind ({others[0]}), which are frozen with their first seal; "
            "nothing was read: give the job another stage name",
        )
    wrapped.begun = row is not None
    start: Offsets = {}
    for topic in topics:
        bounds = client.bounds(topic.name, topic.sources)
        told = _told(topic, bounds, begins)
        start[topic.name] = {
            source.partition: (
                told[source.partition]
                if row is None
                # A partition that appeared since begins at its first offset, whatever was said.
                else row.head.frontier.at(source) or bounds.low.at(source) or 0
            )
            for source in topic.sources
        }
    return start


def _told(topic: Topic, bounds: Bounds, begins: str) -> dict[int, int]:
    """Return what Spark's option startingOffsets means, by partition."""
    low = {source.partition: bounds.low.at(source) or 0 for source in topic.sources}
    high = {source.partition: bounds.high.at(source) or 0 for source in topic.sources}
    if begins in {"earliest", "latest"}:
        return low if begins == "earliest" else high
    try:
        said: Mapping[str, int] = json.loads(begins).get(topic.name, {})
        # As Spark has it: -2 is the earliest, -1 the latest.
        found = {int(partition): int(offset) for partition, offset in said.items()}
    except (ValueError, AttributeError) as error:
        raise InvalidUsage(
            "wrap a source",
            f"startingOffsets {begins[:200]}",
            f"it cannot be read ({error}); nothing was read: mend it",
        ) from error
    known = {p: low[p] if o == -2 else high[p] if o == -1 else o for p, o in found.items()}  # noqa: PLR2004 - Spark's numbers
    return low | {p: offset for p, offset in known.items() if p in low}


def _taken_over(checkpoint: str, uncommitted: Uncommitted, start: Offsets) -> Offsets:
    """Return where an old job stood in these topics."""
    found = positions(checkpoint, uncommitted)
    missing = [name for name in start if name not in found]
    if missing:
        raise InvalidUsage(
            "take over from a checkpoint",
            checkpoint,
            f"it says nothing of topic {', '.join(missing)}; nothing was read: give the checkpoint of "
            "the job that read them",
        )
    return {name: start[name] | dict(found[name].offsets) for name in start}
