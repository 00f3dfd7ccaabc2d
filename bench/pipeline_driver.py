"""The driver of one contestant of the pipeline benchmark, in a process of its own.

What it is: `python -m bench.pipeline_driver '{"way": ...}'` starts Spark and one job from a topic to
another, says "started" on its output, and ends when its input is closed.
What it must not know: what is measured.

Invariants:
    Every way runs the same user code, `bench.user_code`, once for each record, in as many tasks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.job import ID
from bench.user_code import fingerprint, nonce
from delivery import Delivery, Record
from delivery.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLAIN, DEDUPLICATED, RESIDENT, MICRO_BATCH = "plain", "plain-dedup", "resident", "micro-batch"
#: Tasks at once, as there are cores; resident tasks leave a slot free.
TASKS = 2
#: How long Spark remembers ids, in the plain job that deduplicates.
REMEMBERED = "10 minutes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a driver is told.

    Attributes:
        way: how the job is done.
        kafka: where.
        source, target: topics.
        catalog: URL, for ours.
        scratch: a directory of this turn.
        at_once: records of one micro-batch, for ways that work in them; "" leaves it to them.
        stages: how many, one behind the other; the topics between them are there, numbered.
        deterministic: not empty if the stage is declared deterministic.
    """

    way: str
    kafka: str
    source: str
    target: str
    catalog: str
    scratch: str
    at_once: str = ""
    stages: str = "1"
    deterministic: str = ""

    @property
    def reading(self) -> dict[str, str]:
        """How much Spark's source takes at once."""
        return {"maxOffsetsPerTrigger": self.at_once} if self.at_once else {}


def main(order: Order) -> None:
    """Run the job until nobody wants it any more."""
    master = f"local[{TASKS + (order.way == RESIDENT)},4]"
    spark = spark_session("bench", master, conf={"spark.log.level": "ERROR"}, report=_quiet)
    begin = _plain if order.way in (PLAIN, DEDUPLICATED) else _ours
    query = begin(spark, order)
    print("started", flush=True)
    sys.stdin.read()
    query.stop()
    spark.stop()


def _ours(spark: SparkSession, order: Order) -> Any:
    d = Delivery(catalog=order.catalog, kafka=order.kafka, home=f"{order.scratch}/home")
    between = [f"{order.target}-{number}" for number in range(1, int(order.stages))]
    edges = [order.source, *between, order.target]
    declared: dict[str, Any] = {"deterministic": True} if order.deterministic else {}
    call = with_fingerprint if order.deterministic else with_nonce
    for number, (source, target) in enumerate(pairwise(edges)):
        # Only the first stage's input has strangers for publishers.
        named = None if number else f"header:{ID}"
        d.stage(reads=source, writes=target, name=f"nonce-{number}", id_from=named, **declared)(
            call
        )
    options: dict[str, Any] = (
        {"tasks": TASKS} if order.way == RESIDENT else {"source": order.reading}
    )
    return d.start(spark, engine=order.way, **options)  # type: ignore[arg-type]


def with_nonce(record: Record) -> object:
    """Do the job for one record, as a user of stages would."""
    return record.replace(value=nonce(record.value or b""))


def with_fingerprint(record: Record) -> object:
    """Do the job that is the same every time."""
    return record.replace(value=fingerprint(record.value or b""))


def _plain(spark: SparkSession, order: Order) -> Any:
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", order.kafka)
        .option("subscribe", order.source)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .options(**order.reading)
        .load()
    )
    if order.way == DEDUPLICATED:
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        rows = (
            rows.selectExpr("value", "timestamp", "headers[0].value as id")
            .withWatermark("timestamp", REMEMBERED)
            .dropDuplicatesWithinWatermark(["id"])
        )
    done: DataFrame = rows.select("value").mapInArrow(_each, "value binary")
    return (
        done.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", order.kafka)
        .option("topic", order.target)
        .option("checkpointLocation", f"{order.scratch}/checkpoint")
        .start()
    )


def _each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the job for each record, as a user of plain PySpark would."""
    for batch in batches:
        values = [nonce(value) for value in batch.column("value").to_pylist()]
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])


def _quiet(_line: str) -> None:
    """Progress is the benchmark's own."""


if __name__ == "__main__":
    main(Order(**json.loads(sys.argv[1])))
