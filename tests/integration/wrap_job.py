"""A wrapped job in a process of its own: `python -m tests.integration.wrap_job SETTINGS`.

SETTINGS is JSON: what `Job.settings` says, and doomed. It runs what is available now, and ends. With
`doomed`, whoever dies at a point takes this process and its JVM along. A driver program that has a
session already calls `run`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState

from delivery import Delivery, Filters
from delivery.host.killing import VARIABLE, VICTIM_SUFFIX
from delivery.spark import spark_session

if TYPE_CHECKING:
    import pandas as pd

#: What a batch holds at most: a run has several.
BATCH_ROWS = 60
#: Behind a shuffle: one more than an executor of two has slots for.
TASKS = 3
#: Files of a straggler: who it is, and that it may go on.
STRAGGLER, GO_ON = "straggler", "go-on"
DELAY = "60 seconds"
WINDOW = "20 seconds"


#: Executors are all there before the first task runs, so that none runs all tasks of a stage.
CONF = {
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
}


def main(settings: dict[str, Any]) -> None:
    """Run the job over what is there."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    spark = spark_session("job", settings["master"], conf=CONF | settings["conf"])
    if settings["doomed"]:
        jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
        marker = Path(os.environ[VARIABLE].partition(":")[2])
        marker.with_name(marker.name + VICTIM_SUFFIX).write_text(str(jvm))
    print(f"counted: {json.dumps(run(spark, settings))}", flush=True)  # noqa: T201 - this is a program
    spark.stop()


def run(spark: SparkSession, settings: dict[str, Any]) -> Counter[str]:
    """Run the job to its end; return what became of the records."""
    name = settings["name"]
    if settings["kind"] == "unwrapped":
        unwrapped(spark, settings)
        return Counter()
    filters = settings["filters"]
    d = Delivery(
        catalog=settings["catalog"],
        kafka=settings["kafka"],
        pipeline=name,
        home=settings["home"],
        filters=filters and Filters(**{**filters, "key": bytes.fromhex(filters["key"]) or None}),
    )
    records = reduce(
        DataFrame.union,
        [
            d.wrap_source(
                reader(spark, topic, bounded=settings["bounded"]),
                stage=settings["stage"],
                id_from="header:id",
                conflicts=settings["conflicts"],
            )
            for topic in settings["reads"]
        ],
    )
    kinds = {
        "plain": plain,
        "windows": windows,
        "places": places,
        "spread": partial(spread, Path(settings["gates"])),
        "mixed": partial(mixed, Path(settings["gates"])),
        "gated": partial(waiting, Path(settings["gates"])),
        "straggling": partial(straggling, Path(settings["gates"])),
        "pairs": pairs,
        "counted": counted_on,
        "summed": summed,
    }
    report = kinds[settings["kind"]](records)
    if settings["bounded"]:
        return Counter(d.wrap_sink(report.write, topic=f"{name}.out").save())
    writer = report.writeStream.outputMode("append").trigger(availableNow=True)
    query = d.wrap_sink(writer, topic=f"{name}.out")
    running = query.option("checkpointLocation", settings["checkpoint"]).start()
    running.awaitTermination()
    counted: Counter[str] = Counter()
    for progress in running.recentProgress:
        counted.update(progress["delivery"] or {})
    return counted


def unwrapped(spark: SparkSession, settings: dict[str, Any]) -> None:
    """Run the job of windows as it was before it was wrapped."""
    cluster = {"kafka.bootstrap.servers": settings["kafka"]}
    (topic,) = settings["reads"]
    rows = reader(spark, topic).options(**cluster).option("startingOffsets", "earliest").load()
    writer = windows(rows).writeStream.format("kafka").options(**cluster).outputMode("append")
    writer = writer.option("topic", settings["unwrapped"]).trigger(availableNow=True)
    writer.option("checkpointLocation", settings["checkpoint"]).start().awaitTermination()


def reader(spark: SparkSession, topic: str, *, bounded: bool = False) -> Any:
    """Read a topic: in batches of which a run has several, or what is there now and no more."""
    if bounded:
        return spark.read.format("kafka").option("subscribe", topic)
    found = spark.readStream.format("kafka").option("subscribe", topic)
    return found.option("maxOffsetsPerTrigger", BATCH_ROWS)


def values(records: DataFrame) -> DataFrame:
    """Return what the records say."""
    parsed = f.from_json(f.col("value").cast("string"), "id long, at long")
    return records.select(parsed.alias("v")).select("v.*")


def plain(records: DataFrame) -> DataFrame:
    """Say of each record something that nobody would say twice."""
    return told(said(values(records)))


def said(rows: DataFrame) -> DataFrame:
    nonce = f.udf(lambda: uuid.uuid4().hex).asNondeterministic()
    return rows.withColumn("nonce", nonce())


def told(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")


def spread(gates: Path, records: DataFrame) -> DataFrame:
    """Shuffle; a map task that runs again sends each row where it went before."""
    return told(said(gated(gates, values(records).repartition(TASKS))))


def mixed(gates: Path, records: DataFrame) -> DataFrame:
    """Shuffle what nobody would say twice; a map task that runs again sends its rows elsewhere."""
    return told(gated(gates, said(values(records)).repartition(TASKS)))


def gated(gates: Path, rows: DataFrame) -> DataFrame:
    """Let every task but the first wait at a gate."""

    def pass_gate() -> int:
        context = TaskContext.get()
        assert context is not None, "in a task"
        number = context.partitionId()
        (gates / f"reached.{number}").touch()
        pause = threading.Event()
        while number and not (gates / "open").exists():
            pause.wait(0.05)
        return number

    return rows.withColumn("gate", f.udf(pass_gate, "int").asNondeterministic()())


def waiting(gates: Path, records: DataFrame) -> DataFrame:
    """Say of each record something that nobody would say twice, behind a gate in the tasks that read."""
    return told(gated(gates, said(values(records))))


def straggling(gates: Path, records: DataFrame) -> DataFrame:
    """Shuffle; of all attempts behind it the first one waits, until it is told to go on.

    Each writes down that it was here.
    """

    def straggle() -> int:
        context = TaskContext.get()
        assert context is not None, "in a task"
        name = f"{context.stageId()}.{context.partitionId()}.{context.taskAttemptId()}"
        (gates / f"attempt.{name}").touch()
        pause = threading.Event()
        with suppress(FileExistsError):
            with (gates / STRAGGLER).open("x") as file:
                file.write(name)
            while not (gates / GO_ON).exists():
                pause.wait(0.05)
        return context.partitionId()

    spread = values(records).repartition(TASKS)
    return told(said(spread.withColumn("gate", f.udf(straggle, "int").asNondeterministic()())))


def pairs(records: DataFrame) -> DataFrame:
    """Name each pair of numbers once, whichever of both comes first."""
    paired = values(records).selectExpr("id DIV 2 AS id", "timestamp_seconds(at) AS t")
    once = paired.withWatermark("t", DELAY).dropDuplicatesWithinWatermark(["id"])
    return told(said(once.select("id")))


def counted_on(records: DataFrame) -> DataFrame:
    """Count on in Python, digit by digit: each record is told which of its last digit's it is."""
    tens = values(records).selectExpr("id", "id % 10 AS digit")
    found = tens.groupBy("digit").applyInPandasWithState(
        count_on, "id long, digit long, nth long, nonce string", "n long", "append", "NoTimeout"
    )
    return told(found)


def count_on(key: tuple[int], tables: Iterator[pd.DataFrame], state: GroupState) -> Any:
    """Number the records of one digit from where the last batch stopped."""
    import pandas as pd  # noqa: PLC0415 - in the task

    (count,) = state.get if state.exists else (0,)
    ids = [number for table in tables for number in table["id"]]
    state.update((count + len(ids),))
    made = pd.DataFrame({"id": ids, "digit": key[0], "nth": range(count, count + len(ids))})
    # Spark 4.2 takes no row of this operator into another function of Python's.
    made["nonce"] = [uuid.uuid4().hex for _ in ids]
    yield made


def summed(records: DataFrame) -> DataFrame:
    """Count and add up what is read, digit by digit."""
    tens = values(records).selectExpr("id", "id % 10 AS digit")
    return told(said(tens.groupBy("digit").agg(f.count("*").alias("n"), f.sum("id").alias("id"))))


def places(records: DataFrame) -> DataFrame:
    """Say of each record where it is, whatever it holds."""
    return records.selectExpr("to_json(struct(topic, partition, offset)) AS value")


def windows(records: DataFrame) -> DataFrame:
    """Count and add up by time."""
    timed = values(records).withColumn("t", f.timestamp_seconds("at")).withWatermark("t", DELAY)
    found = timed.groupBy(f.window("t", WINDOW)).agg(
        f.count("*").alias("n"), f.sum("id").alias("s")
    )
    start = f.unix_timestamp("window.start").alias("start")
    return found.select(start, "n", "s").selectExpr(
        "CAST(start AS STRING) AS key", "to_json(struct(*)) AS value"
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
