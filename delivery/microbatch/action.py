"""The one action of a micro-batch: rows to the lanes in its tasks, and their reports back.

What it is: `Action`, made once for all batches of a run.
What it must not know: what is planned, what a report says.

Invariants:
    Spark sends the same function with every batch; what differs goes along as a local property of the
    thread that asks, which every task and attempt of the job gets.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from delivery.microbatch.columns import COLUMNS
from delivery.microbatch.task import PROPERTY, REPORT, Job, Order, run_lanes
from delivery.microbatch.telling import telling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Action"]


class Action:
    """The action of a run.

    Args:
        spark: the session.
        job: what all its tasks get.
    """

    def __init__(self, spark: SparkSession, job: Job) -> None:
        self._context = spark.sparkContext
        self._job = job
        self._lanes: Column | None = None

    def run(self, rows: DataFrame, order: Order) -> list[dict[str, Any]]:
        """Have rows worked off, and return what tasks report."""
        with telling(self._context, PROPERTY, order.encode()):
            found = self._mapped(rows).collect()
        return [json.loads(row["report"]) for row in found]

    def _mapped(self, rows: DataFrame) -> DataFrame:
        """Do what `rows.mapInArrow` does, without making the function anew: 8 ms of each batch."""
        from pyspark.sql.classic.dataframe import DataFrame as Classic  # noqa: PLC0415 - Spark's own

        if self._lanes is None:
            self._lanes = _column(self._job)
        mapped: Any = rows._jdf.mapInArrow(self._lanes._jc, False, None)  # noqa: SLF001 - see above
        return Classic(mapped, rows.sparkSession)


def _column(job: Job) -> Column:
    from pyspark.sql.functions import col  # noqa: PLC0415 - Spark is not needed before
    from pyspark.sql.pandas.functions import pandas_udf  # noqa: PLC0415 - see above
    from pyspark.util import PythonEvalType  # noqa: PLC0415 - see above

    made: Any = pandas_udf  # whose stubs know what users make with it
    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    lanes = made(partial(run_lanes, job), returnType=REPORT, functionType=kind)
    column: Column = lanes(*map(col, COLUMNS))
    return column
