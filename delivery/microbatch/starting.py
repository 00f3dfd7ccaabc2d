"""Starts a pipeline as streaming queries: refusals first, then topics, then the queries.

What it is: `start`.
What it must not know: what happens after.

Invariants:
    What cannot work is refused before anything is read, written or submitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from delivery.host.spec import Plan
from delivery.host.starting import prepare
from delivery.microbatch.options import Options
from delivery.microbatch.query import MicroBatchQuery
from delivery.microbatch.source import kafka_options
from delivery.resident.cluster import ship
from delivery.resident.line import Line, begun
from delivery.resident.options import refuse_unknown
from delivery.resident.starting import placed, refuse_what_does_not_travel
from delivery.spark import refuse_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["start"]


def start(
    plan: Plan,
    spark: SparkSession,
    *,
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    **options: Any,
) -> MicroBatchQuery:
    """Start every stage of a pipeline as a streaming query; returns at once.

    Args:
        plan: the pipeline.
        spark: the session.
        checkpoint: directory for what Spark keeps of each run; see `Options`.
        trigger: as PySpark's `trigger(...)`; see `Options`.
        **options: the others of `Options`.

    Raises:
        InvalidUsage: it cannot run there; nothing was started.
        Unavailable: Kafka or the catalog does not answer.
    """
    refuse_connect(spark)
    refuse_unknown("micro-batch", options, list(Options.__dataclass_fields__))
    chosen = Options(checkpoint=checkpoint, trigger=trigger, **options)
    chosen = replace(chosen, name=chosen.name or plan.stages[0].pipeline)
    plan = placed(plan, spark)
    refuse_what_does_not_travel(plan)
    kafka_options(plan)  # what Spark cannot be told is refused here
    topics = prepare(plan, create_topics=chosen.create_topics)
    ship(spark)
    lanes = sum(topics[spec.reads].partitions for spec in plan.stages)
    Line(str(chosen.name), wanted=chosen.live).say(begun(plan, lanes))
    return MicroBatchQuery(plan, spark, chosen)
