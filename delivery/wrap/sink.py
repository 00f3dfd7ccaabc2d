"""`d.wrap_sink(...)`: what a user's plan ends in becomes sealed outputs, sent by us.

What it is: `wrap_sink`, and `WrappedWriter`, which takes what Spark's writer takes and starts the
query.
What it must not know: how a batch is sealed.

Invariants:
    Every stream of the plan comes from this stage's wrapped sources, once each: what is not in the
    lane's frontier would be lost or doubled by a restart.
    A plan that keeps state keeps it in the user's checkpoint; any other gets a directory of its own
    at each start, and forgets it.
"""

from __future__ import annotations

import logging
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dedup.errors import InvalidUsage
from delivery.microbatch.offsets import Checkpoint, checkpoint_at
from delivery.resident.cluster import ship
from delivery.spark import refuse_connect
from delivery.wrap.driver import StageDriver
from delivery.wrap.outputs import refuse
from delivery.wrap.plans import Look, keeps_first, look, refuse_unwatched, whole_batches
from delivery.wrap.query import Batches, WrappedQuery
from delivery.wrap.relations import reads
from delivery.wrap.source import STAGE_OPTION, Wrapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["WrappedWriter", "wrap_sink"]

LOG = logging.getLogger(__name__)

_LOCATION = "checkpointLocation"


class WrappedWriter:
    """Spark's stream writer, that ends in a stage's outputs.

    Args:
        writer: Spark's.
        wrapped: the stage.
        outputs: names of the topics.
        seen: what the plan does.
        code: version of the job's code, kept in every seal.
    """

    def __init__(
        self,
        writer: DataStreamWriter,
        wrapped: Wrapped,
        outputs: tuple[str, ...],
        seen: Look,
        code: str,
    ) -> None:
        self._writer = writer
        self._wrapped = wrapped
        self._outputs = outputs
        self._seen = seen
        self._code = code
        self._location: str | None = None

    def option(self, key: str, value: Any) -> Self:
        """Set an option of Spark's writer."""
        if key.lower() == _LOCATION.lower():
            self._location = str(value)
        self._writer = self._writer.option(key, value)
        return self

    def options(self, **options: Any) -> Self:
        """Set options of Spark's writer."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, mode: str) -> Self:  # noqa: N802 - as PySpark spells it
        """Say which rows of an aggregation are emitted."""
        self._writer = self._writer.outputMode(mode)
        return self

    def queryName(self, name: str) -> Self:  # noqa: N802 - as PySpark spells it
        """Name the query."""
        self._writer = self._writer.queryName(name)
        return self

    def trigger(self, **trigger: Any) -> Self:
        """Say when batches begin."""
        self._writer = self._writer.trigger(**trigger)
        return self

    def start(self) -> WrappedQuery:
        """Start the query; returns at once.

        Raises:
            InvalidUsage: it cannot go on here; nothing was read or written.
            Unavailable: Kafka or the catalog does not answer.
        """
        spark, wrapped = self._wrapped.spark, self._wrapped
        refuse_unwatched(spark)
        stateful = bool(self._seen.stateful)
        checkpoint = self._checkpoint(stateful=stateful)
        query_id = checkpoint.identify() if stateful else None
        driver = StageDriver(wrapped, self._outputs, checkpoint, query_id=query_id, code=self._code)

        def ended() -> None:
            wrapped.ended = True
            if not stateful:
                checkpoint.delete()

        try:
            driver.open()
            ship(spark)
            batches = Batches(driver, ended)
            writer = self._writer.option(_LOCATION, checkpoint.root).foreachBatch(batches)
            with whole_batches(spark, stateful=stateful):
                query = writer.start()
        except BaseException:
            driver.close()
            raise
        return WrappedQuery(query, batches)

    def _checkpoint(self, *, stateful: bool) -> Checkpoint:
        given = self._location or _given(self._writer)
        spark = self._wrapped.spark
        if stateful:
            given = given or spark.conf.get("spark.sql.streaming.checkpointLocation", None)
            if not given:
                raise InvalidUsage(
                    "start a wrapped job",
                    f"{self._wrapped.spec.name}: {', '.join(self._seen.stateful)}",
                    "it keeps state from one batch to the next, and has nowhere to keep it; nothing "
                    'was started: say .option("checkpointLocation", ...)',
                )
            if keeps_first(spark, given):
                raise InvalidUsage(
                    "start a wrapped job",
                    given,
                    "files that are written twice stay there as they were first written, and a batch "
                    "that had to run again would leave the state of the run that does not count; "
                    "nothing was started: keep the checkpoint where Hadoop has a FileContext, as for "
                    "file:, hdfs:, s3a: and abfs:, or name in spark.sql.streaming."
                    "checkpointFileManagerClass a manager that replaces files",
                )
            return checkpoint_at(given, spark)
        if given:
            LOG.info("the job keeps no state: the lane's frontier serves for %s", given)
        scratch = Path(tempfile.gettempdir(), "delivery-checkpoints", uuid.uuid4().hex)
        return checkpoint_at(scratch.as_uri(), spark)


def wrap_sink(
    known: dict[str, Wrapped],
    writer: DataStreamWriter,
    topics: tuple[str, ...],
    *,
    code: str = "",
) -> WrappedWriter:
    """Return a writer that ends a plan over wrapped sources in a stage's outputs.

    Args:
        known: the stages wrapped so far, by name.
        writer: of Spark's.
        topics: names of the output topics; with several, the column `topic` says which.
        code: version of the job's code, kept in every seal.

    Raises:
        InvalidUsage: the plan reads something else, or does not end in records.
    """
    refuse_connect(writer)
    frame: DataFrame = writer._df  # noqa: SLF001 - its DataFrame is nowhere else
    refuse(frame, topics)
    seen = look(frame)
    _refuse_bounded(frame)
    wrapped = _stage(known, seen)
    wrapped.refuse_circle(topics)
    for node in seen.stateful:
        LOG.info("stage %s keeps state: %s", wrapped.spec.name, node)
    return WrappedWriter(writer, wrapped, topics, seen, code)


def _refuse_bounded(frame: DataFrame) -> None:
    """Refuse a plan that reads a wrapped batch beside its streams."""
    if any(one.option(STAGE_OPTION) is not None for one in reads(frame)):
        raise InvalidUsage(
            "wrap a sink",
            "a stream beside a wrapped source that ends",
            "that one is sealed by a run of its own, and is none of what a micro-batch reads; nothing was "
            "started: wrap spark.readStream there too, or read that topic unwrapped as a table",
        )


def _stage(known: dict[str, Wrapped], seen: Look) -> Wrapped:
    """Return the stage whose sources a plan reads."""
    prefixes = {stream.option(STAGE_OPTION) for stream in seen.streams}
    strange = [stream.source for stream in seen.streams if stream.option(STAGE_OPTION) is None]
    stages = [wrapped for wrapped in known.values() if wrapped.spec.prefix in prefixes]
    if strange or len(stages) != 1 or len(prefixes) != 1:
        raise InvalidUsage(
            "wrap a sink",
            f"a plan over {', '.join(strange or sorted(map(str, prefixes))) or 'no stream'}",
            "all its streams have to be wrapped sources of one stage, or a restart would lose or "
            "double what comes from the others; nothing was started: wrap each with "
            "d.wrap_source(..., stage=...) of the same stage",
        )
    wrapped = stages[0]
    read = sorted(
        name.strip() for s in seen.streams for name in (s.option("subscribe") or "").split(",")
    )
    if read != sorted(wrapped.topics):
        raise InvalidUsage(
            "wrap a sink",
            f"stage {wrapped.spec.name} reads {', '.join(read)}",
            f"its wrapped sources are {', '.join(sorted(wrapped.topics))}, and each has to be read "
            "once: Spark would read a stream that a plan joins or unites with itself twice, to "
            "different ends; nothing was started",
        )
    return wrapped


def _given(writer: DataStreamWriter) -> str | None:
    """Return the checkpoint that was said before the writer was wrapped."""
    writer_of_java: Any = writer._jwrite  # noqa: SLF001 - Spark shows its options nowhere
    field = writer_of_java.getClass().getDeclaredField("extraOptions")
    field.setAccessible(True)
    found = field.get(writer_of_java).get(_LOCATION)
    return None if found.isEmpty() else str(found.get())
