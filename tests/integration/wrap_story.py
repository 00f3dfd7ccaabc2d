"""What is refused and what is joined, in one Spark session: `python -m tests.integration.wrap_story SETTINGS`.

SETTINGS is JSON with kafka, catalog, home, directory and name. It prints a JSON document with what
each scene showed; tests/integration/test_wrap_story.py says what that must be.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamReader

from delivery import Delivery, DeliveryError
from delivery.kafka.opening import open_client
from delivery.microbatch.offsets import checkpoint_at
from delivery.spark import spark_session
from delivery.wrap import query as stopping
from tests.acceptance.kit import POLL_SECONDS, publish
from tests.acceptance.reading import logs_of
from tests.integration.wrap_job import values, waiting, windows
from tests.integration.wrap_kit import PARTITIONS, row

RECORDS = 40
#: How long a stop lets a batch come to its end.
PATIENCE_SECONDS = 2.0
#: Comes in both partitions.
REPEATED = 8


class Story:
    """The scenes, over topics NAME.left, NAME.right and an output for each."""

    def __init__(self, spark: SparkSession, settings: dict[str, Any]) -> None:
        self.spark = spark
        self.kafka, self.name = settings["kafka"], settings["name"]
        self.directory = Path(settings["directory"])
        self.d = Delivery(
            catalog=settings["catalog"],
            kafka=self.kafka,
            pipeline=self.name,
            home=settings["home"],
        )

    def reader(self, topic: str, **options: str) -> DataStreamReader:
        reader = self.spark.readStream.format("kafka").option("subscribe", f"{self.name}.{topic}")
        return reader.options(**options)

    def run(self, frame: DataFrame, topic: str, checkpoint: str | None = None) -> Any:
        """Run what is available now to its end, and return the query."""
        writer = frame.writeStream.outputMode("append").trigger(availableNow=True)
        wrapped = self.d.wrap_sink(writer, topic=f"{self.name}.{topic}")
        if checkpoint is not None:
            wrapped = wrapped.option("checkpointLocation", str(self.directory / checkpoint))
        query = wrapped.start()
        query.awaitTermination()
        return query

    def out(self, topic: str) -> list[Any]:
        with open_client(self.kafka) as client:
            logs = logs_of(client, f"{self.name}.{topic}")
        found = (record for log in logs.values() for record in log.records)
        return sorted(json.loads(record.value or b"") for record in found if record is not None)

    # Scenes -----------------------------------------------------------------------------------

    def join(self) -> Any:
        """Two topics, one lane: each pair once."""
        sides = [
            values(self.d.wrap_source(self.reader(topic), stage="join", id_from="header:id"))
            .withColumn("t", f.timestamp_seconds("at"))
            .withWatermark("t", "1 hour")
            .alias(topic)
            for topic in ("left", "right")
        ]
        pairs = sides[0].join(
            sides[1], f.expr("left.id = right.id AND right.t >= left.t AND right.t <= left.t")
        )
        query = self.run(
            pairs.select(f.col("left.id").cast("string").alias("value")), "join", "join"
        )
        known = checkpoint_at(str(self.directory / "join")).query_id()
        return {"pairs": self.out("join"), "same": query.id == known, "told": told(query)}

    def shared(self) -> Any:
        """The checkpoint of one stage is given to another by mistake."""
        rows = self.d.wrap_source(self.reader("left"), stage="mistaken", id_from="header:id")
        return refused(lambda: self.run(windows(rows), "other", "join"))

    def taken_over(self) -> Any:
        """A plain job ran before; the wrapped one goes on where it stood."""
        old = str(self.directory / "plain")
        plain = self.reader("left", **{"kafka.bootstrap.servers": self.kafka})
        query = (
            plain.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", old)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        with open_client(self.kafka) as client:
            publish(client, f"{self.name}.left", [row(n) for n in range(RECORDS, RECORDS + 10)])
        rows = self.d.wrap_source(
            self.reader("left"), stage="after", id_from="header:id", start_from=old
        )
        self.run(values(rows).selectExpr("CAST(id AS STRING) AS value"), "after")
        return self.out("after")

    def shuffled(self) -> Any:
        """A plan without state that shuffles, beside a table, over a repeat in another partition."""
        rows = self.d.wrap_source(self.reader("left"), stage="shuffled", id_from="header:id")
        names = self.spark.createDataFrame(
            [(n, f"{n}") for n in range(RECORDS)], "id long, n string"
        )
        spread = values(rows).repartition(3).join(f.broadcast(names), "id")
        query = self.run(spread.selectExpr("n AS value"), "shuffled")
        return {"out": self.out("shuffled"), "told": told(query)}

    def grown(self) -> Any:
        """A partition appears under a query that runs; the first of what is there is a repeat."""
        topic = f"{self.name}.growing"
        rows = self.d.wrap_source(self.reader("growing"), stage="grown", id_from="header:id")
        writer = values(rows).selectExpr("CAST(id AS STRING) AS value").writeStream
        query = self.d.wrap_sink(writer, topic=f"{self.name}.grown").start()
        with open_client(self.kafka) as client:
            publish(client, topic, [row(number) for number in range(RECORDS)])
            query.processAllAvailable()
        admin = AdminClient({"bootstrap.servers": self.kafka})
        admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result()
        # A producer of before does not know of the partition for minutes.
        with open_client(self.kafka) as client:
            while client.describe([topic])[topic].partitions == PARTITIONS:
                time.sleep(POLL_SECONDS)
            fresh = [row(number, PARTITIONS + 1) for number in range(RECORDS - 1, RECORDS + 10)]
            publish(client, topic, fresh)
            query.processAllAvailable()
        query.stop()
        return {"out": self.out("grown"), "told": told(query)}

    def stuck(self) -> Any:
        """A job is stopped while one of its tasks waits for longer than it is given; it is begun again."""
        gates = self.directory / "gates"
        gates.mkdir()

        def rows() -> DataFrame:
            found = self.d.wrap_source(self.reader("left"), stage="stuck", id_from="header:id")
            # Of a row of which nobody asks what it said, nobody would wait.
            said = "concat('[', key, ',', length(value), ']') AS value"
            return waiting(gates, found).selectExpr(said)

        query = self.d.wrap_sink(rows().writeStream, topic=f"{self.name}.stuck").start()
        while not (gates / "reached.1").exists():
            time.sleep(POLL_SECONDS)
        began = time.monotonic()
        query.stop()
        seconds = time.monotonic() - began
        ended = {"seconds": seconds, "active": query.isActive, "failed": str(query.exception())}
        before = self.out("stuck")
        (gates / "open").touch()
        self.run(rows(), "stuck")
        return ended | {"before": before, "out": [number for number, _ in self.out("stuck")]}

    def refusals(self) -> Any:
        """What is refused before anything is read."""
        d, spark = self.d, self.spark
        rows = d.wrap_source(self.reader("left"), stage="refused")
        value = rows.selectExpr("CAST(value AS STRING) AS value")
        rate = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
        split = self.reader("left", minPartitions="9")
        pattern = spark.readStream.format("kafka").option("subscribePattern", "x.*")
        missing = self.reader("nothing")
        return {
            "itself": refused(lambda: self.run(value.union(value), "other")),
            "unwrapped": refused(lambda: self.run(value.union(rate), "other")),
            "rate": refused(lambda: d.wrap_source(spark.readStream.format("rate"), stage="r")),
            "split": refused(lambda: d.wrap_source(split, stage="r")),
            "pattern": refused(lambda: d.wrap_source(pattern, stage="r")),
            "missing": refused(lambda: d.wrap_source(missing, stage="r")),
            "columns": refused(lambda: self.run(rows.select("offset"), "other")),
            "nowhere": refused(lambda: self.run(windows(rows), "other")),
            "twice": refused(lambda: d.wrap_source(self.reader("left"), stage="refused")),
            "outside": outside(value),
        }


def told(query: Any) -> int:
    """Return how many records the progresses say took effect."""
    found = [progress["delivery"] for progress in query.recentProgress]
    return sum(one["fresh"] for one in found if one is not None)


def outside(rows: DataFrame) -> str:
    """Return what a wrapped source says that does not end in a wrapped sink."""
    query = rows.writeStream.format("noop").trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return str(error)
    return ""


def refused(call: Callable[[], object]) -> str:
    """Return what a call is refused with."""
    try:
        call()
    except DeliveryError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(settings: dict[str, Any]) -> None:
    """Play every scene."""
    conf = {"spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"}
    stopping.DRAIN_SECONDS = PATIENCE_SECONDS
    story = Story(spark_session("story", conf=conf), settings)
    with open_client(story.kafka) as client:
        for topic, step in (("left", 1), ("right", 4)):
            sent = [row(number) for number in range(0, RECORDS, step)]
            publish(client, f"{story.name}.{topic}", [*sent, *sent[:5]])
        publish(client, f"{story.name}.left", [row(REPEATED, (REPEATED + 1) % PARTITIONS)])
    scenes = ("join", "shuffled", "shared", "taken_over", "grown", "stuck", "refusals")
    shown = {scene: getattr(story, scene)() for scene in scenes}
    sys.stdout.write("\n" + json.dumps(shown) + "\n")
    story.spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
