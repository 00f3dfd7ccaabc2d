"""What `Delivery` offers to jobs that are written in PySpark already: to wrap their two ends.

What it is: `Ends`, the part of `Delivery` that wraps; each word is explained here.
What it must not know: how a job is run. PySpark is imported when something is wrapped.

Invariants:
    Wrapping reads positions, and neither reads nor writes a record.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from dedup.errors import InvalidUsage
from delivery.host.spec import Conflicts, Plan, StageSpec, window_ms
from delivery.naming import IdFrom

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    from delivery.seeding.checkpoint import Uncommitted
    from delivery.watch.serving import Serving
    from delivery.wrap.bounded import BoundedWriter
    from delivery.wrap.sink import WrappedWriter
    from delivery.wrap.source import Wrapped

__all__ = ["Ends"]


class Pipeline(Protocol):
    """What a pipeline has that wraps."""

    pipeline: str
    #: The stages wrapped so far, by name.
    wrapped: dict[str, Wrapped]
    metrics: Serving | None

    @property
    def plan(self) -> Plan:
        """All that a process needs of it."""


class Ends:
    """Wraps the ends of jobs, of streams or of batches."""

    def wrap_source(
        self: Pipeline,
        reader: DataStreamReader | DataFrameReader,
        *,
        stage: str,
        id_from: str | IdFrom | None = None,
        window: str | timedelta | None = None,
        conflicts: Conflicts = "count",
        start: Literal["earliest", "latest"] = "earliest",
        start_from: str | None = None,
        uncommitted: Uncommitted = "refuse",
    ) -> DataFrame:
        """Return the DataFrame that a reader of Spark's would return, with each record once.

        Columns and options stay Spark's. A job that reads several topics wraps each with the same
        stage.

        Args:
            reader: `spark.readStream.format("kafka").option(...)`, not loaded; or `spark.read`, for a
                run over what is new since the last one, up to endingOffsets.
            stage: name of the job as a stage of this pipeline.
            id_from: how publishers name their records; see `stage`.
            window: how long a publisher may repeat itself; see `stage`.
            conflicts: what becomes of a repeat with another payload; see `stage`.
            start: where a job that never ran begins, unless startingOffsets says so.
            start_from: or where the job stood before it was wrapped: its checkpoint. That job is
                stopped, and stays so.
            uncommitted: what becomes of a batch that it planned and did not commit: "refuse",
                "again" (its records are read again) or "done" (they are not).
        """
        from delivery.wrap.source import wrap_source  # noqa: PLC0415 - Spark is not needed before

        if stage in {spec.name for spec in self.plan.stages}:
            raise InvalidUsage(
                "wrap a source",
                stage,
                "the pipeline has a stage of that name already; nothing was read: name the job "
                "otherwise",
            )
        spec = StageSpec(
            pipeline=self.pipeline,
            name=stage,
            reads="",
            call=_nothing,
            named=id_from,
            conflicts=conflicts,
            window_ms=window_ms(window),
            start=start,
        )
        return wrap_source(
            self.plan, self.wrapped, reader, spec, start_from=start_from, uncommitted=uncommitted
        )

    @overload
    def wrap_sink(
        self: Pipeline,
        writer: DataStreamWriter,
        *,
        topic: str | tuple[str, ...] | list[str],
        code: str = "",
    ) -> WrappedWriter: ...

    @overload
    def wrap_sink(
        self: Pipeline,
        writer: DataFrameWriter,
        *,
        topic: str | tuple[str, ...] | list[str],
        code: str = "",
    ) -> BoundedWriter: ...

    def wrap_sink(
        self: Pipeline,
        writer: Any,
        *,
        topic: str | tuple[str, ...] | list[str],
        code: str = "",
    ) -> WrappedWriter | BoundedWriter:
        """Return a writer that runs the job as a stage: `start()` of a stream, `save()` of a batch.

        Args:
            writer: `df.writeStream`, with an output mode and a trigger if wanted, or `df.write`. The
                DataFrame has the columns of Spark's Kafka sink: value, and key, headers, partition,
                topic.
            topic: where its rows go; with several, the column `topic` says which.
            code: version of the job's code, kept in every seal.
        """
        from pyspark.sql import DataFrameWriter  # noqa: PLC0415 - Spark is not needed before

        from delivery.wrap.bounded import wrap_bounded  # noqa: PLC0415 - see above
        from delivery.wrap.sink import wrap_sink  # noqa: PLC0415 - see above

        topics = (topic,) if isinstance(topic, str) else tuple(topic)
        if self.metrics is not None:
            self.metrics.begin(self.plan)
        if isinstance(writer, DataFrameWriter):
            return wrap_bounded(self.wrapped, writer, topics, code=code)
        return wrap_sink(self.wrapped, writer, topics, code=code)

    def forget_state(self: Pipeline, *, stage: str, checkpoint: str) -> None:
        """Let a stateful job whose checkpoint is lost, or no longer right, go on without it.

        What was open in its state (windows, joins, sets of seen keys) is lost with it; what is
        sealed stays. The job goes on from where its lane stands, in a directory that is empty now.

        Args:
            stage: its name.
            checkpoint: the new directory.

        Raises:
            InvalidUsage: there is no such job, or the directory is not empty; nothing changed.
        """
        from delivery.wrap.state import forget_state  # noqa: PLC0415 - asked for once

        forget_state(self.plan, self.pipeline, stage, checkpoint)


def _nothing(_record: object) -> None:
    """Stand in for user code, which is Spark's plan."""
