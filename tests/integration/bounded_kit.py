"""What the scenes of bounded runs share: topics, readers, runs that are watched, and what came out.

What it is: `Stage`, a pipeline in one Spark session with topics below its name.
What it must not know: any single scene.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from delivery import Delivery
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.wrap.bounded import BoundedRun
from delivery.wrap.positions import lane_of
from delivery.wrap.runner import Result
from delivery.wrap.token import Token
from tests.acceptance.kit import publish
from tests.acceptance.reading import logs_of
from tests.acceptance.traffic import Row
from tests.integration.wrap_job import values
from tests.integration.wrap_kit import PARTITIONS


class Stage:
    """A pipeline, and its topics."""

    def __init__(self, spark: SparkSession, settings: dict[str, Any]) -> None:
        self.spark = spark
        self.settings = settings
        self.kafka, self.name = settings["kafka"], settings["name"]
        self.d = self.delivery(settings["catalog"])
        #: Of each run of a plan: how many offsets it was told to drop, and what it executed.
        self.runs: list[tuple[int, str]] = []
        watch(self.runs)

    def delivery(self, catalog: str) -> Delivery:
        home = self.settings["home"]
        return Delivery(catalog=catalog, kafka=self.kafka, pipeline=self.name, home=home)

    def topic(self, name: str, rows: list[Row] | None = None) -> str:
        """Return a topic's name, made if it is not there, with these records behind what it holds."""
        topic = f"{self.name}.{name}"
        with open_client(self.kafka) as client:
            client.create(topic, TopicSettings(partitions=PARTITIONS))
            publish(client, topic, rows or [])
        return topic

    def reader(self, topic: str, **options: str) -> DataFrameReader:
        named = f"{self.name}.{topic}"
        return self.spark.read.format("kafka").option("subscribe", named).options(**options)

    def rows(self, topic: str, stage: str, **options: str) -> DataFrame:
        return self.d.wrap_source(self.reader(topic, **options), stage=stage, id_from="header:id")

    def save(self, frame: DataFrame, stage: str) -> dict[str, int]:
        """Run a plan into the topic NAME.STAGE.out, and return what it is told to have done."""
        out = self.topic(f"{stage}.out")
        self.runs.clear()
        return some(self.d.wrap_sink(frame.write, topic=out).save())

    def out(self, stage: str) -> list[Any]:
        with open_client(self.kafka) as client:
            logs = logs_of(client, f"{self.name}.{stage}.out")
        found = (record for log in logs.values() for record in log.records)
        return sorted(json.loads(one.value or b"") for one in found if one is not None)

    def seq(self, stage: str) -> int:
        store = open_store(self.d.catalog)
        try:
            found = Catalog(store).load(lane_of(self.name, stage))
        finally:
            store.close()
        return found.head.ref.seq if found else -1


def ids(rows: DataFrame) -> DataFrame:
    """Say of each record its number."""
    return texts(values(rows).select("id"))


def texts(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("CAST(id AS STRING) AS value")


def some(did: dict[str, int]) -> dict[str, int]:
    return {name: did[name] for name in ("fresh", "duplicate", "seals")}


def watch(runs: list[tuple[int, str]]) -> None:
    """Note of each run of a plan what it was told, and what Spark made of it."""
    rows, run_plan = BoundedRun._rows, BoundedRun._run_plan
    made: list[DataFrame] = []

    def noted(self: BoundedRun) -> DataFrame:
        made.append(rows(self))
        return made[-1]

    def ran(self: BoundedRun, token: Token) -> Result:
        result = run_plan(self, token)
        plan = made[-1]._jdf.queryExecution().executedPlan().toString()
        runs.append((sum(one.count for one in token.drops), plan))
        return result

    BoundedRun._rows, BoundedRun._run_plan = noted, ran
