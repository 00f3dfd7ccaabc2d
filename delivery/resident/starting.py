"""Starts a pipeline on resident tasks: refusals first, then topics and lanes, then the job.

What it is: `start`.
What it must not know: what happens after.

Invariants:
    What cannot work is refused before anything is read, written or submitted.
    What goes to executors means the same there: relative paths are made absolute here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dedup.catalog.open import without_user
from dedup.errors import InvalidUsage
from delivery.blame import culprits
from delivery.host.spec import Plan, rooted
from delivery.host.starting import prepare
from delivery.resident import cluster
from delivery.resident.line import Line, begun
from delivery.resident.options import Options, refuse_unknown
from delivery.resident.query import ResidentQuery
from delivery.spark import refuse_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["placed", "refuse_what_does_not_travel", "start"]

_SQLITE = "sqlite:"


def start(plan: Plan, spark: SparkSession, **options: Any) -> ResidentQuery:
    """Start every stage of a pipeline in long-lived tasks; returns at once.

    Args:
        plan: the pipeline.
        spark: the session its tasks run in.
        options: those of `Options`.

    Raises:
        InvalidUsage: it cannot run there; nothing was started.
        Unavailable: Kafka or the catalog does not answer.
    """
    refuse_connect(spark)
    chosen = _options(plan, options)
    plan = placed(plan, spark)
    refuse_what_does_not_travel(plan)
    topics = prepare(plan, create_topics=chosen.create_topics)
    cluster.ship(spark)
    partitions = {spec.name: topics[spec.reads].partitions for spec in plan.stages}
    Line(str(chosen.name), wanted=chosen.live).say(begun(plan, sum(partitions.values())))
    return ResidentQuery(plan, spark, chosen, partitions)


def _options(plan: Plan, options: dict[str, Any]) -> Options:
    refuse_unknown("resident", options, list(Options.__dataclass_fields__))
    chosen = Options(**options)
    return chosen if chosen.name else replace(chosen, name=plan.stages[0].pipeline)


def placed(plan: Plan, spark: SparkSession) -> Plan:
    """Return the plan as executors can use it.

    Raises:
        InvalidUsage: its catalog is one that they cannot reach.
    """
    if plan.catalog.startswith("memory:"):
        raise InvalidUsage(
            "start a pipeline",
            plan.catalog,
            "each task would have a catalog of its own, and they must share one; nothing was "
            "started: use sqlite:PATH on one machine, cassandra://... on several",
        )
    if plan.catalog.startswith(_SQLITE) and cluster.spans_machines(str(spark.sparkContext.master)):
        raise InvalidUsage(
            "start a pipeline",
            f"{without_user(plan.catalog)} on {spark.sparkContext.master}",
            "SQLite serves one machine, and executors may run on others, each with a file of its "
            "own; nothing was started: use cassandra://..., or a local master",
        )
    return rooted(plan)


def refuse_what_does_not_travel(plan: Plan) -> None:
    """Find out here, by name, what Spark would say of a whole closure.

    Raises:
        InvalidUsage: the function of a stage cannot be sent to executors.
    """
    for spec in plan.stages:
        failed = _failure(spec)
        if not failed:
            continue
        held = culprits(spec.call, lambda value: bool(_failure(value)))
        which = f", because of {', '.join(held)}, which it takes along" if held else ""
        # What the pickler raised is quoted, and its traceback is none of the user's code.
        raise InvalidUsage(
            "start a pipeline",
            f"stage {spec.name}",
            f"its function cannot be sent to executors{which} ({failed}); nothing was started: open "
            "connections and files inside the function, where it is first called in each process",
        )


def _failure(value: object) -> str:
    """Return why something cannot be sent to another process; nothing if it can."""
    from pyspark import cloudpickle  # noqa: PLC0415 - not needed before

    pickler: Any = cloudpickle
    try:
        pickler.dumps(value)
    except Exception as error:  # noqa: BLE001 - whatever a user's object raises when it is pickled
        return f"{type(error).__name__}: {error}"
    return ""
