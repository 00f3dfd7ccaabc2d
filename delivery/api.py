"""The pipeline as users declare it: stages over topics, and what runs them.

What it is: `Delivery`: where a catalog and a Kafka cluster meet, stages are declared, and an engine,
a receiver or a wrapped job is asked for.
What it must not know: how any engine works; each is imported when it is asked for.

Invariants:
    Declaring connects to nothing and starts nothing; what cannot work is refused where it is said.
    A function that is declared a stage stays the function it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import xxhash

from dedup.catalog.open import refuse_malformed
from dedup.errors import InvalidUsage
from dedup.filters import Filters
from delivery.declared import declare_outputs
from delivery.declaring import refuse_mute, refuse_no_text, said_right
from delivery.host.spec import Conflicts, Plan, StageSpec, window_ms
from delivery.life.lives import Lives
from delivery.naming import IdFrom
from delivery.timing import TimeFrom
from delivery.watch.serving import Serving
from delivery.wrap.ends import Ends

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from delivery.query import Query
    from delivery.receiver import Receiver
    from delivery.seeding.checkpoint import Uncommitted
    from delivery.seeding.report import Progress, Report
    from delivery.seeding.request import Start
    from delivery.wrap.source import Wrapped

_Call = TypeVar("_Call", bound=Callable[..., Any])

Engine = Literal["resident", "micro-batch"]
Dedup = Literal["partition", "topic"]


class Delivery(Ends, Lives):
    """A pipeline.

    Args:
        catalog: URL of the catalog: "sqlite:shop.db", "cassandra://host:9042/shop", "memory:".
        kafka: "host:port,host:port".
        pipeline: its name; pipelines that share a catalog have different ones.
        options: any option of Kafka's, by Java's or librdkafka's name: TLS, SASL, …
        client: "wire", "confluent" or "kafka-python"; None: what serves best; see docs/kafka.md.
        home: directory of each host for the indexes of its lanes, so that a process that is started
            again need not make them anew; None: `$DELIVERY_HOME`, or one below the directory for
            temporary files; "": each process has its own.
        filters: how the filters in front of those indexes are made; None: as `Filters()` does.
        metrics: where Prometheus finds metrics of this process and of the catalog, once something
            runs: a port of this machine (9464), or "host:port"; 0: a free one. None: nowhere.
    """

    @said_right("declare a pipeline")
    def __init__(
        self,
        *,
        catalog: str,
        kafka: str,
        pipeline: str = "main",
        options: Mapping[str, Any] | None = None,
        client: str | None = None,
        home: str | None = None,
        filters: Filters | None = None,
        metrics: int | str | None = None,
    ) -> None:
        refuse_no_text("declare a pipeline", catalog=catalog, kafka=kafka)
        refuse_malformed(catalog)
        self.catalog = catalog
        self.kafka = kafka
        self.pipeline = pipeline
        self.options = dict(options or {})
        self.client = client
        self.home = home
        if not isinstance(filters, Filters | None):
            raise InvalidUsage(
                "declare a pipeline",
                f"filters of type {type(filters).__name__}",
                "nothing was started: say filters=Filters(engine=..., rate=..., key=...)",
            )
        self.filters = filters or Filters()
        self._stages: dict[str, StageSpec] = {}
        self.wrapped: dict[str, Wrapped] = {}
        self.metrics = None if metrics is None else Serving(metrics)

    def __repr__(self) -> str:
        # Options and the catalog's URL may hold a password.
        return f"Delivery(pipeline={self.pipeline!r}, stages={list(self._stages)})"

    @property
    def stages(self) -> tuple[StageSpec, ...]:
        """The stages declared so far."""
        return tuple(self._stages.values())

    @property
    def plan(self) -> Plan:
        """All that a process needs to run lanes of this pipeline."""
        return Plan(
            catalog=self.catalog,
            kafka=self.kafka,
            options=self.options,
            client=self.client,
            stages=self.stages,
            home=self.home,
            filters=self.filters,
        )

    # Stages -----------------------------------------------------------------------------------

    @said_right("declare a stage", dedup=Dedup)
    def stage(
        self,
        *,
        reads: str,
        writes: str | tuple[str, ...] | list[str] = (),
        name: str | None = None,
        id_from: str | IdFrom | None = None,
        time_from: str | TimeFrom | None = None,
        dedup: Dedup = "partition",
        dead_letters: str | None = None,
        duplicates: str | None = None,
        batch: bool = False,
        threads: int = 1,
        window: str | timedelta | None = None,
        conflicts: Conflicts = "count",
        start: Literal["earliest", "latest"] = "earliest",
        code: str | None = None,
        deterministic: bool = False,
    ) -> Callable[[_Call], _Call]:
        """Declare a function a stage: a record in; None, an output, or an iterable of outputs out.

        Args:
            reads: topic of the input edge.
            writes: topic, or topics, of the output edges; `output.to(1)` goes to the second.
                Other sinks by their URLs: "files:PATH", "files:PATH?format=jsonl",
                "cassandra://host:9042/keyspace/table".
            name: of the stage; by default the function's.
            id_from: how publishers name their records: "header:NAME", "key", "value",
                "json:FIELD", a function, or None: by their place.
            time_from: when records were made, where a repeat says the same: "header:NAME",
                "json:FIELD", "timestamp", a function. What is too late to tell is a dead letter then.
            dedup: "topic" if a publisher may repeat a record in another partition: records are
                re-keyed by their ids first. It costs a hop and gives up the order of the input.
            dead_letters: topic of records that the function cannot process, that cannot be named, or
                that `time_from` puts aside; None: the stage stops.
            duplicates: topic of records that take no effect because they were seen before, each with
                why and where in a header; None: they are counted, and that is all.
            batch: the function takes and returns `pyarrow.RecordBatch`; see `delivery.batches`.
            threads: how many calls may run at once, for code that waits; order is kept.
            window: how long a publisher may repeat itself: "24h", "7d", a timedelta.
            conflicts: what becomes of a repeat with another payload: "count", "ignore", "error".
            start: where a stage that never ran begins.
            code: version of the code, kept in every seal; by default a digest of its source.
            deterministic: it makes the same of the same record, ever and anywhere: its outputs are
                not stored, but made again by whoever must send them again.
        """

        def declare(call: _Call) -> _Call:
            spec = StageSpec(
                pipeline=self.pipeline,
                name=name or call.__name__,
                reads=reads,
                writes=(writes,) if isinstance(writes, str) else tuple(writes),
                call=call,
                batch=batch,
                code=code if code is not None else code_of(call),
                named=id_from,
                time_from=time_from,
                dead_letters=dead_letters,
                duplicates=duplicates,
                conflicts=conflicts,
                window_ms=window_ms(window),
                start=start,
                threads=threads,
                deterministic=deterministic,
            )
            self._add(self._rekeyed(spec) if dedup == "topic" else spec)
            return call

        return declare

    def _rekeyed(self, spec: StageSpec) -> StageSpec:
        """Declare the pass-through stage in front of one that deduplicates a whole topic."""
        topic = f"{self.pipeline}.{spec.name}.by-id"
        front = StageSpec(
            pipeline=self.pipeline,
            name=f"{spec.name}.by-id",
            reads=spec.reads,
            writes=(topic,),
            call=passed_on,
            code="rekey-1",
            named=spec.named,
            time_from=spec.time_from,
            dead_letters=spec.dead_letters,
            duplicates=spec.duplicates,
            keep_ids=True,
            by_id=True,
            conflicts=spec.conflicts,
            window_ms=spec.window_ms,
        )
        self._add(front)
        return replace(spec, reads=topic, named=None, rekeyed=True, start="earliest")

    def _add(self, spec: StageSpec) -> None:
        if spec.name in self._stages:
            raise InvalidUsage(
                "declare a stage",
                spec.name,
                f"pipeline {self.pipeline} has a stage of that name already; nothing was started: "
                "say name=... for one of them",
            )
        refuse_mute(spec.name, spec.call, spec.writes)
        self._stages[spec.name] = spec
        declare_outputs(spec.call, len(spec.writes))

    # Receivers --------------------------------------------------------------------------------

    @said_right("consume a topic")
    def receiver(
        self,
        *,
        topic: str,
        group: str,
        id_from: str | IdFrom | None = None,
        window: str | timedelta | None = None,
        conflicts: Conflicts = "count",
        start: Literal["earliest", "latest"] = "earliest",
        bounded: bool = False,
        database: str | None = None,
    ) -> Receiver:
        """Consume a topic in plain Python; iterate over what is returned.

        Args:
            topic: what is read.
            group: processes that share a name share the topic's partitions, and take over from
                each other. It also is the consumer group that lag monitors see.
            id_from: how records are named that no stage of this catalog wrote; see `stage`.
                "delivery": by the header of stages of another catalog.
            window: how long a publisher may repeat itself; see `stage`.
            conflicts: what becomes of a repeat with another payload; see `stage`.
            start: where a group that never ran begins.
            bounded: end once everything is sealed that was in the topic when the loop began.
            database: where the database of `bundle.once(...)` is now, if it was moved.
        """
        from delivery.receiver import Receiver  # noqa: PLC0415 - a pipeline may have none

        spec = StageSpec(
            pipeline=self.pipeline,
            name=group,
            reads=topic,
            call=passed_on,
            named=id_from,
            conflicts=conflicts,
            window_ms=window_ms(window),
            start=start,
        )
        if group in self._stages:
            raise InvalidUsage(
                "consume a topic",
                group,
                f"a stage of pipeline {self.pipeline} has this name, and so its lanes; nothing was "
                "read: name the group otherwise",
            )
        return Receiver(self.plan, spec, database=database, bounded=bounded, metrics=self.metrics)

    # Switching on -----------------------------------------------------------------------------

    def seed(
        self,
        stage: str,
        *,
        topic: str | None = None,
        parquet: Any = None,
        column: str | None = None,
        id_from: str | IdFrom | None = None,
        offsets: Mapping[int, tuple[int, int]] | None = None,
        start: Start = None,
        checkpoint: str | None = None,
        uncommitted: Uncommitted = "refuse",
        progress: Callable[[Progress], None] | None = None,
    ) -> Report:
        """Let a stage that never ran know ids from before: records of them count as repeats.

        It returns when the stage's lanes are begun; run it to its end before the stage is started.
        Killed, it has done nothing that counts, or part of the lanes: run it again.

        Args:
            stage: its name.
            topic: the records of a topic name the ids; of the stage's own input only those below
                where the stage begins.
            parquet: or a column does: path of a Parquet file, or anything that Arrow can read.
            column: its name.
            id_from: how the topic's records name themselves; by default as the stage's input does.
            offsets: which part of the topic, by partition: the first offset and the one behind the
                last.
            start: where the stage begins: "earliest", "latest", or offsets by partition.
            checkpoint: or where a Spark query stands; see `start_from`.
            uncommitted: see `start_from`.
            progress: is told after each batch.
        """
        from delivery.seeding.request import Request  # noqa: PLC0415 - asked for once
        from delivery.seeding.seed import seed  # noqa: PLC0415 - asked for once

        request = Request(
            topic=topic,
            data=parquet,
            column=column,
            named=id_from,
            offsets=offsets,
            start=start,
            checkpoint=checkpoint,
            uncommitted=uncommitted,
        )
        return seed(self.plan, stage, request, progress)

    def start_from(
        self, checkpoint: str, *, stage: str | None = None, uncommitted: Uncommitted = "refuse"
    ) -> Report:
        """Let stages that never ran begin where a Structured Streaming query stands.

        Args:
            checkpoint: directory of the query's checkpoint. The query is stopped, and stays so.
            stage: which stage; None: every stage that reads a topic the query reads.
            uncommitted: what becomes of a batch that the query planned and did not commit: "refuse",
                "again" (its records are read again) or "done" (they are not).
        """
        from delivery.seeding.seed import start_from  # noqa: PLC0415 - asked for once

        return start_from(self.plan, checkpoint, stage, uncommitted)

    # Running ----------------------------------------------------------------------------------

    def start(self, spark: SparkSession, *, engine: Engine = "resident", **options: Any) -> Query:
        """Start every stage of the pipeline on Spark; returns at once.

        Args:
            spark: the session; see `delivery.spark.spark_session`.
            engine: "resident" (the default) or "micro-batch".
            options: of the engine.
        """
        from delivery.spark import refuse_connect, refuse_no_session  # noqa: PLC0415 - needed here alone

        refuse_connect(spark)
        refuse_no_session(spark)
        if not self._stages:
            raise InvalidUsage(
                "start a pipeline",
                self.pipeline,
                "it has no stages; nothing was started: declare one with @d.stage(...)",
            )
        if self.metrics is not None:
            self.metrics.begin(self.plan)
        query: Query
        if engine == "resident":
            from delivery import resident  # noqa: PLC0415 - one engine is enough

            query = resident.start(self.plan, spark, **options)
        elif engine == "micro-batch":
            from delivery import microbatch  # noqa: PLC0415 - one engine is enough

            query = microbatch.start(self.plan, spark, **options)
        else:
            raise InvalidUsage(
                "start a pipeline",
                f"engine={engine!r}",
                'nothing was started: say "resident" or "micro-batch"',
            )
        if self.metrics is not None:
            self.metrics.follow_query(self.pipeline, query)
        return query


def passed_on(record: Any) -> Any:
    """Return the record as it came: what a re-keying stage does."""
    return record


def code_of(call: Callable[..., Any]) -> str:
    """Return a digest of a function's source, or of its bytecode where there is no source."""
    try:
        text = inspect.getsource(call).encode()
    except (OSError, TypeError, SyntaxError, TokenError):  # no file, or no longer the one it was
        text = getattr(getattr(call, "__code__", None), "co_code", b"")
    return xxhash.xxh3_64_hexdigest(text)
