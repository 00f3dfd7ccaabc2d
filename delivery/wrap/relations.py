"""What a plan over Spark's batches reads, and the same plan anew for each run of it.

What it is: `reads`, which finds the batches of Kafka's in a plan; `refuse_kept`, which refuses rows that
Spark would not make anew; `anew`; and `told`, what a writer was told. Beside `delivery.wrap.plans` the
only module here that reaches into the JVM.
What it must not know: lanes, verdicts.

Invariants:
    Every place that reads is found: in subqueries, views and common table expressions too.
    Nothing that an earlier run made is taken for a later one: no shuffle, no broadcast, no cached row.
    A wrapped batch is read whole, also where Spark finds on the way that it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dedup.errors import InvalidUsage
from delivery.wrap.plans import Stream, lineage, nodes, options_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

__all__ = ["anew", "reads", "refuse_kept", "told"]

#: What leaves a side of a plan out once another one is found to be empty.
_STATIC = "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
_RUNNING = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
_EXCLUDED = {
    "spark.sql.optimizer.excludedRules": _STATIC,
    "spark.sql.adaptive.optimizer.excludedRules": _RUNNING,
}


def reads(frame: DataFrame) -> tuple[Stream, ...]:
    """Return the batches of Kafka's that a plan reads, once for each place that reads one."""
    return tuple(_batches(frame, frame._jdf.queryExecution().analyzed()))  # noqa: SLF001 - no other way


def refuse_kept(frame: DataFrame, stage: str, mark: str) -> None:
    """Refuse a plan over rows that were judged before it runs.

    Args:
        frame: which Spark has not run.
        stage: its name.
        mark: the option that what is judged has. What is not may be cached.

    Raises:
        InvalidUsage: some of what it reads is cached, or came by way of an RDD.
    """
    execution = frame._jdf.queryExecution()  # noqa: SLF001 - no other way
    plans = (execution.analyzed(), execution.withCachedData())
    whole, left = (
        sum(one.option(mark) is not None for one in _batches(frame, plan)) for plan in plans
    )
    if left < whole:
        raise _kept(stage, "wrapped rows that are cached", "say unpersist() first")
    for node in nodes(execution.analyzed()):
        if node.getClass().getSimpleName() == "LogicalRDD" and any(
            rdd.getClass().getSimpleName() == "KafkaSourceRDD" for rdd in lineage(node.rdd(), set())
        ):
            raise _kept(
                stage, "rows of Kafka's by way of an RDD", "go on from the DataFrame itself"
            )


def anew(frame: DataFrame) -> DataFrame:
    """Return the rows of a plan that Spark has never run, whatever was run of it before.

    SUBTLE: a DataFrame stands on one execution of its plan, and what its map tasks wrote is kept for
    whoever asks again: the tasks that judge would be skipped. And where one side of a join is empty,
    Spark leaves the other one out, whose records would be sealed unjudged or not at all. The settings
    are those of a copy of the session: what its user does meanwhile has its own.
    """
    from pyspark.sql import DataFrame  # noqa: PLC0415 - Spark is not needed before

    spark: Any = frame.sparkSession
    session = spark._jsparkSession.cloneSession()  # noqa: SLF001 - PySpark has no other way
    for key, rule in _EXCLUDED.items():
        before = session.conf().get(key, "")
        session.conf().set(key, ",".join(filter(None, [before, rule])))
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - see above
    made = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan)  # noqa: SLF001 - see above
    return DataFrame(made, spark)


def told(writer: DataFrameWriter) -> dict[str, str]:
    """Return what a writer of Spark's was told, by the names of its methods."""
    java: Any = writer._jwrite  # noqa: SLF001 - Spark shows it nowhere
    kind = java.getClass().getSuperclass()

    def field(name: str) -> Any:
        found = kind.getDeclaredField(name)
        found.setAccessible(True)
        return found.get(java)

    said = {
        "format": str(field("source") or ""),
        "mode": str(field("curmode")),
        **{f"option {name}": name for name in _keys(writer, field("extraOptions"))},
    }
    lists = {
        "partitionBy": "partitioningColumns",
        "bucketBy": "bucketColumnNames",
        "sortBy": "sortColumnNames",
        "clusterBy": "clusteringColumns",
    }
    for method, name in lists.items():
        columns = field(name)
        if columns is not None and not columns.isEmpty():
            said[method] = str(columns.get().mkString(", "))
    return said


def _keys(writer: DataFrameWriter, options: Any) -> list[str]:
    java: Any = writer._df.sparkSession._jvm  # noqa: SLF001 - see above
    return sorted(java.scala.jdk.javaapi.CollectionConverters.asJava(options.originalMap()))


def _batches(frame: DataFrame, plan: Any) -> Iterator[Stream]:
    for node in nodes(plan):
        name = node.getClass().getSimpleName()
        if name == "LogicalRelation" and _is(node.relation(), "KafkaRelation"):
            yield Stream("kafka", _given(frame, node.relation()))
        elif name == "DataSourceV2Relation" and _is(node.table(), "KafkaTable"):
            yield Stream("kafka", options_of(node.options()))


def _is(thing: Any, kind: str) -> bool:
    return str(thing.getClass().getSimpleName()) == kind


def _given(frame: DataFrame, relation: Any) -> dict[str, str]:
    """Return the options of a relation, which it keeps to itself."""
    field = relation.getClass().getDeclaredField("sourceOptions")
    field.setAccessible(True)
    java: Any = frame.sparkSession._jvm  # noqa: SLF001 - see above
    found = java.scala.jdk.javaapi.CollectionConverters.asJava(field.get(relation).originalMap())
    return {str(key): str(value) for key, value in found.items()}


def _kept(stage: str, what: str, instead: str) -> InvalidUsage:
    return InvalidUsage(
        "wrap a sink",
        f"stage {stage}: {what}",
        "a run may have to be made again, and these would still be those of a run that did not count; "
        f"nothing was read: {instead}",
    )
