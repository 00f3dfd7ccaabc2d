"""A wrapped job in a process of its own: `python -m tests.integration.wrap_job SETTINGS`.

SETTINGS is JSON: kafka, catalog, home, name (of pipeline and topics), kind ("plain" or "windows"),
checkpoint, filters, conflicts, doomed. It runs what is available now, and ends. With `doomed`, whoever
dies at a point takes this process and its JVM along.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from delivery import Delivery, Filters
from delivery.host.killing import VARIABLE, VICTIM_SUFFIX
from delivery.spark import spark_session

#: What a batch holds at most: a run has several.
BATCH_ROWS = 60
DELAY = "60 seconds"
WINDOW = "20 seconds"


def main(settings: dict[str, Any]) -> None:
    """Run the job over what is there."""
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("delivery.wrap").setLevel(logging.DEBUG)
    conf = {"spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"}
    spark = spark_session("job", conf=conf)
    if settings["doomed"]:
        jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
        marker = Path(os.environ[VARIABLE].partition(":")[2])
        marker.with_name(marker.name + VICTIM_SUFFIX).write_text(str(jvm))
    name = settings["name"]
    told = settings["filters"]
    d = Delivery(
        catalog=settings["catalog"],
        kafka=settings["kafka"],
        pipeline=name,
        home=settings["home"],
        filters=told and Filters(**{**told, "key": bytes.fromhex(told["key"]) or None}),
    )
    reader = spark.readStream.format("kafka").option("subscribe", f"{name}.in")
    reader = reader.option("maxOffsetsPerTrigger", BATCH_ROWS)
    records = d.wrap_source(
        reader,
        stage=settings["stage"],
        id_from="header:id",
        conflicts=settings["conflicts"],
    )
    report = {"plain": plain, "windows": windows}[settings["kind"]](records)
    writer = report.writeStream.outputMode("append").trigger(availableNow=True)
    query = d.wrap_sink(writer, topic=f"{name}.out")
    running = query.option("checkpointLocation", settings["checkpoint"]).start()
    running.awaitTermination()
    counted: Counter[str] = Counter()
    for progress in running.recentProgress:
        counted.update(progress["delivery"] or {})
    print(f"counted: {json.dumps(counted)}", flush=True)  # noqa: T201 - this is a program
    spark.stop()


def values(records: DataFrame) -> DataFrame:
    """Return what the records say."""
    parsed = f.from_json(f.col("value").cast("string"), "id long, at long")
    return records.select(parsed.alias("v")).select("v.*")


def plain(records: DataFrame) -> DataFrame:
    """Say of each record something that nobody would say twice."""
    nonce = f.udf(lambda: uuid.uuid4().hex).asNondeterministic()
    said = values(records).withColumn("nonce", nonce())
    return said.selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")


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
