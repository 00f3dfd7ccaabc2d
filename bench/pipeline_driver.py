"""The driver of one contestant of the pipeline benchmark, in a process of its own.

What it is: `python -m bench.pipeline_driver '{"way": ...}'` starts Spark and one job from a topic to
another, says "started" on its output, and ends when its input is closed.
What it must not know: what is measured.

Invariants:
    Every way runs the same user code, once for each record, in as many tasks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.job import ID, with_nonce
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
    """

    way: str
    kafka: str
    source: str
    target: str
    catalog: str
    scratch: str


def main(order: Order) -> None:
    """Run the job until nobody wants it any more."""
    master = f"local[{TASKS + (order.way == RESIDENT)},4]"
    spark = spark_session("bench", master, conf={"spark.log.level": "ERROR"}, report=_quiet)
    query: Any
    if order.way in (PLAIN, DEDUPLICATED):
        query = _plain(spark, order)
    else:
        d = Delivery(catalog=order.catalog, kafka=order.kafka, home=f"{order.scratch}/home")
        d.stage(reads=order.source, writes=order.target, name="nonce", id_from=f"header:{ID}")(
            nonce
        )
        options: dict[str, Any] = {"tasks": TASKS} if order.way == RESIDENT else {}
        query = d.start(spark, engine=order.way, **options)  # type: ignore[arg-type]
    print("started", flush=True)
    sys.stdin.read()
    query.stop()
    spark.stop()


def nonce(record: Record) -> object:
    """Do the job for one record."""
    return with_nonce(record)


def _plain(spark: SparkSession, order: Order) -> Any:
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", order.kafka)
        .option("subscribe", order.source)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
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
        values = [
            output.value
            for value in batch.column("value").to_pylist()
            for output in with_nonce(Record(value=value))
        ]
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])


def _quiet(_line: str) -> None:
    """Progress is the benchmark's own."""


if __name__ == "__main__":
    main(Order(**json.loads(sys.argv[1])))
