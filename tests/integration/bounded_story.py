"""Bounded runs of wrapped jobs, in one Spark session: `python -m tests.integration.bounded_story SETTINGS`.

SETTINGS is JSON with kafka, catalog, home, directory and name. It prints a JSON document with what
each scene showed; tests/integration/test_wrap_bounded.py says what that must be.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from delivery.kafka.opening import open_client
from delivery.spark import spark_session
from delivery.wrap.plans import forget_shuffles, watched
from tests.acceptance.kit import until
from tests.acceptance.reading import logs_of
from tests.integration.bounded_kit import Stage, ids, some, texts
from tests.integration.wrap_job import values
from tests.integration.wrap_kit import PARTITIONS, row
from tests.integration.wrap_story import refused
from tests.pages import blocks

RECORDS = 40
#: Comes in both partitions.
REPEATED = 8


class Story(Stage):
    """The scenes; each has topics of its own below the story's name."""

    # Scenes -----------------------------------------------------------------------------------

    def daily(self) -> Any:
        """Runs one after the other, each over what came since; one of them over nothing."""
        said = []
        sent = [row(number) for number in range(RECORDS)]
        again = [*sent[:10], row(REPEATED, (REPEATED + 1) % PARTITIONS)]
        more = [row(number) for number in range(RECORDS, RECORDS + 10)]
        for part in ([*sent, *again], [*again, *more], []):
            self.topic("daily", part)
            did = self.save(ids(self.rows("daily", "daily")), "daily")
            said.append(did | {"runs": [drops for drops, _ in self.runs], "seq": self.seq("daily")})
        return {"said": said, "out": self.out("daily")}

    def page(self) -> Any:
        """What the page shows, typed in."""
        keyed = [row(number)._replace(key=b"%d" % (number % 3)) for number in range(9)]
        self.topic("orders.priced", keyed)
        self.topic("orders.hourly")
        (code,) = blocks("docs/wrapping.md", "py")
        known: dict[str, Any] = {"spark": self.spark, "d": self.d, "print": str}
        exec(code.replace('"orders.', f'"{self.name}.orders.'), known)  # noqa: S102 - our own document
        with open_client(self.kafka) as client:
            logs = logs_of(client, f"{self.name}.orders.hourly")
        found = [one for log in logs.values() for one in log.records if one]
        out = {(one.key or b"").decode(): (one.value or b"").decode() for one in found}
        return {"fresh": known["done"]["fresh"], "out": out}

    def plans(self) -> Any:
        """Any plan, each over records of which one is repeated in the other partition: it runs twice."""
        sent = [row(number) for number in range(RECORDS)]
        self.topic("left", [*sent, row(REPEATED, (REPEATED + 1) % PARTITIONS)])
        self.topic("right", [row(number) for number in range(0, RECORDS, 4)])
        cluster = {"kafka.bootstrap.servers": self.kafka}
        names = self.spark.createDataFrame(
            [(n, f"n{n}") for n in range(RECORDS)], "id long, n string"
        )
        # What is not wrapped may be cached.
        right = values(self.reader("right", **cluster).load()).cache()
        plans: dict[str, Callable[[DataFrame], DataFrame]] = {
            "summed": lambda rows: (
                values(rows).groupBy(f.expr("id % 10")).agg(f.sum("id").alias("id"))
            ),
            "broadcast": lambda rows: names.join(f.broadcast(values(rows)), "id").select("id"),
            "beside": lambda rows: values(rows).repartition(3).join(right, "id").select("id"),
            "itself": itself,
            "sorted": lambda rows: values(rows).orderBy(f.desc("id")).limit(3).select("id"),
            "subquery": self.subquery,
        }
        shown = {}
        for stage, plan in plans.items():
            did = self.save(texts(plan(self.rows("left", stage))), stage)
            kinds = {"AdaptiveSparkPlan isFinalPlan=true", "BroadcastHashJoin"}
            seen = sorted(kind for kind in kinds if all(kind in ran for _, ran in self.runs))
            drops = [drops for drops, _ in self.runs]
            shown[stage] = {"did": did, "runs": drops, "seen": seen, "out": self.out(stage)}
        return shown

    def subquery(self, rows: DataFrame) -> DataFrame:
        """Read rows in a subquery and twice in a common table expression."""
        values(rows).createOrReplaceTempView("orders")
        return self.spark.sql(
            "WITH some AS (SELECT id FROM orders WHERE id < 20) "
            "SELECT a.id FROM some a JOIN some b ON a.id = b.id "
            "WHERE a.id > (SELECT avg(id) FROM some) AND a.id IN (SELECT id FROM orders)"
        )

    def joined(self) -> Any:
        """Two topics, one seal; then one of them has nothing new, and the other is sealed all the same."""
        said = []
        self.topic("one", [row(number) for number in range(RECORDS)])
        self.topic("two", [row(number) for number in range(0, RECORDS, 4)])
        for fresh in ([], [row(RECORDS), row(RECORDS + 1)]):
            self.topic("one", fresh)
            one, two = (values(self.rows(topic, "joined")) for topic in ("one", "two"))
            did = self.save(texts(two.join(one, "id").select("id")), "joined")
            said.append(did | {"seq": self.seq("joined")})
        return {"said": said, "out": self.out("joined")}

    def quiet(self) -> Any:
        """One of two topics has repeats alone, and Spark sees that while it reads the other one."""
        self.topic("loud", [row(0)])
        self.topic("quiet", [row(0)])
        one, two = (values(self.rows(topic, "quiet")) for topic in ("loud", "quiet"))
        self.save(texts(two.union(one)), "quiet")
        self.topic("loud", [row(number, 0) for number in range(1, 9)])
        self.topic("quiet", [row(0)])
        gate = Path(self.settings["directory"]) / "gate"
        gate.mkdir()

        def wait(number: int) -> int:
            (gate / "reached").touch()
            pause = threading.Event()
            while not (gate / "open").exists():
                pause.wait(0.05)
            return number

        one, two = (values(self.rows(topic, "quiet")) for topic in ("loud", "quiet"))
        one = one.select(f.udf(wait, "long").asNondeterministic()("id").alias("id"))
        tracker = self.spark.sparkContext.statusTracker()

        def only_one() -> bool:
            return (gate / "reached").exists() and len(tracker.getActiveStageIds()) == 1

        def open_gate() -> None:
            until("the other one is read", only_one)
            (gate / "open").touch()

        opener = threading.Thread(target=open_gate)
        opener.start()
        did = self.save(texts(two.join(one.groupBy("id").count(), "id").select("id")), "quiet")
        opener.join()
        return did

    def ending(self) -> Any:
        """A range that ends before the log does; the next run has the rest."""
        topic = self.topic("ending", [row(number) for number in range(RECORDS)])
        said = []
        for last in ({"0": 5, "1": -1}, {"0": 3, "1": 3}, None):
            told = {} if last is None else {"endingOffsets": json.dumps({topic: last})}
            said.append(self.save(ids(self.rows("ending", "ending", **told)), "ending"))
        return {"said": said, "out": self.out("ending")}

    def alternating(self) -> Any:
        """A stream to its end, a run, a stream: one lane."""
        said = []
        for first in (0, 10, 20):
            self.topic(
                "alternating", [row(number) for number in range(max(0, first - 2), first + 10)]
            )
            if first == 10:
                said.append(self.save(ids(self.rows("alternating", "alternating")), "alternating"))
                continue
            reader = self.spark.readStream.format("kafka")
            reader = reader.option("subscribe", f"{self.name}.alternating")
            rows = ids(self.d.wrap_source(reader, stage="alternating", id_from="header:id"))
            writer = rows.writeStream.trigger(availableNow=True)
            query = self.d.wrap_sink(writer, topic=self.topic("alternating.out")).start()
            query.awaitTermination()
            found = (one["delivery"] for one in query.recentProgress if one["delivery"])
            said.append({"fresh": sum(one["fresh"] for one in found)})
        return {"said": said, "out": self.out("alternating")}

    def late(self) -> Any:
        """The lane has gone on under a DataFrame; and it is saved twice."""
        topic = self.topic("late", [row(number) for number in range(RECORDS)])
        early = ids(self.rows("late", "late"))
        writer = self.d.wrap_sink(early.write, topic=self.topic("late.out"))
        other = self.delivery(self.settings["catalog"])
        part = {"endingOffsets": json.dumps({topic: {"0": 5, "1": 0}})}
        rows = other.wrap_source(self.reader("late", **part), stage="late", id_from="header:id")
        said = [other.wrap_sink(ids(rows).write, topic=f"{topic}.out").save()]
        admin = AdminClient({"bootstrap.servers": self.kafka})
        admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result()
        with open_client(self.kafka) as client:
            grown = PARTITIONS + 1
            until("it has grown", lambda: client.describe([topic])[topic].partitions == grown)
        # What came behind the DataFrame's ends, and where it knows of no partition, is of the next run.
        self.topic("late", [row(number, number % grown) for number in range(RECORDS, RECORDS + 10)])
        said += [writer.save(), writer.save()]
        said.append(self.save(ids(self.rows("late", "late")), "late"))
        return {"said": [some(one) for one in said], "out": self.out("late")}

    def failing(self) -> Any:
        """Code that raises ends the run; nothing is sealed, and the stage is wrapped again."""
        self.topic("failing", [row(number) for number in range(RECORDS)])

        def stumble(number: int) -> int:
            if number == REPEATED:
                raise ValueError("unlucky")
            return number

        rows = values(self.rows("failing", "failing"))
        said = ""
        try:
            self.save(texts(rows.select(f.udf(stumble, "long")("id").alias("id"))), "failing")
        except PySparkException as error:
            said = str(error)
        before = (self.seq("failing"), self.out("failing"))
        did = self.save(ids(self.rows("failing", "failing")), "failing")
        return {"said": "unlucky" in said, "before": before, "did": did, "out": self.out("failing")}

    def headers(self) -> Any:
        """Headers come in, and go out."""
        self.topic("headers", [row(number) for number in range(4)])
        rows = self.rows("headers", "headers", includeHeaders="true")
        bytes_of = f.expr("filter(headers, h -> h.key = 'id')[0].value")
        self.save(
            rows.select(
                bytes_of.alias("value"),
                f.expr("array(struct('seen' AS key, value AS value)) AS headers"),
                f.lit(1).alias("partition"),
            ),
            "headers",
        )
        with open_client(self.kafka) as client:
            logs = logs_of(client, f"{self.name}.headers.out")
        found = [(at.partition, one) for at, log in logs.items() for one in log.records if one]
        return sorted(
            [at, json.loads(one.value), json.loads(one.header("seen"))["id"]] for at, one in found
        )

    def unread(self) -> Any:
        """Plans that would not judge what they seal, or not each time that they run."""
        self.topic("unread", [row(number) for number in range(RECORDS)])

        def rows() -> DataFrame:
            return ids(self.rows("unread", "unread"))

        said = {"limited": refused(lambda: self.save(rows().limit(1), "unread"))}
        cached = rows().cache()
        said["cached"] = refused(lambda: self.save(cached.union(cached), "unread"))
        cached.unpersist()
        said["rdd"] = refused(lambda: self.save(again(rows()), "unread"))
        sealed = self.seq("unread")
        did = self.save(rows(), "unread")
        return said | {"sealed": sealed, "did": did, "out": self.out("unread")}

    def gap(self) -> Any:
        """A DataFrame that was made with another catalog than the one that is there when it is saved."""
        self.topic("gap", [row(number) for number in range(RECORDS)])
        self.save(ids(self.rows("gap", "gap")), "gap")
        rows = ids(self.rows("gap", "gap"))
        other = f"sqlite:{Path(self.settings['directory']) / 'other.db'}"
        apart = self.delivery(other)
        begun = apart.wrap_source(
            self.reader("gap", endingOffsets=json.dumps({f"{self.name}.gap": {"0": 1, "1": 1}})),
            stage="gap",
            id_from="header:id",
        )
        apart.wrap_sink(ids(begun).write, topic=self.topic("gap.apart")).save()
        wrapped = self.d.wrapped["gap"]
        wrapped.plan = replace(wrapped.plan, catalog=other)
        writer = self.d.wrap_sink(rows.write, topic=self.topic("gap.apart"))
        return refused(writer.save)

    def refusals(self) -> Any:
        """What is refused before anything is read."""
        d, spark = self.d, self.spark
        topic = self.topic("refused", [row(0)])
        out = self.topic("refused.out")
        cluster = {"kafka.bootstrap.servers": self.kafka}

        (Path(self.settings["home"]) / "some.txt").write_text("some")

        def source(**options: str) -> DataFrame:
            return d.wrap_source(self.reader("refused", **options), stage="refused")

        def ends(last: Any) -> Callable[[], object]:
            return lambda: source(
                endingOffsets=last if isinstance(last, str) else json.dumps({topic: last})
            )

        first = ids(source())
        rows = ids(source())
        streamed = d.wrap_source(
            spark.readStream.format("kafka").option("subscribe", topic), stage="streamed"
        )
        self.topic("beside")
        other = ids(d.wrap_source(self.reader("beside"), stage="beside"))
        beside = ids(self.reader("refused", **cluster).load())
        sink = lambda frame: d.wrap_sink(frame.write, topic=out)  # noqa: E731 - asked of every scene
        return {
            "text": refused(
                lambda: d.wrap_source(
                    spark.read.format("text").option("path", self.settings["home"]), stage="r"
                )
            ),
            "split": refused(lambda: source(minPartitions="9")),
            "timestamp": refused(lambda: source(endingTimestamp="1")),
            "pattern": refused(
                lambda: d.wrap_source(
                    spark.read.format("kafka").option("subscribePattern", "x.*"), stage="r"
                )
            ),
            "ahead": refused(ends({"0": 999, "1": 0})),
            "partly": refused(ends({"0": 0})),
            "elsewhere": refused(ends('{"other": {"0": 1}}')),
            "mixed": refused(lambda: d.wrap_source(self.reader("refused"), stage="streamed")),
            "stream": refused(
                lambda: d.wrap_sink(ids(streamed).join(rows, "value").writeStream, topic=out)
            ),
            "nothing": refused(lambda: sink(beside)),
            "stages": refused(lambda: sink(rows.union(other))),
            "made twice": refused(lambda: sink(first.union(rows))),
            "mode": refused(lambda: d.wrap_sink(rows.write.mode("overwrite"), topic=out)),
            "partitioned": refused(lambda: d.wrap_sink(rows.write.partitionBy("value"), topic=out)),
            "format": refused(lambda: sink(rows).format("json")),
            "option": refused(lambda: sink(rows).option("topic", "x")),
            "circle": refused(lambda: d.wrap_sink(rows.write, topic=topic)),
            "columns": refused(lambda: sink(rows.selectExpr("1 AS offset"))),
            "outside": outside(rows),
            "taken": refused(lambda: sink(rows).mode("append").format("kafka").save()),
        }

    def rewritten(self) -> Any:
        """A shuffle that is read by two jobs of one run, and one that is lost between them."""

        def asked_twice(meanwhile: Callable[[DataFrame], object]) -> str:
            frame = self.spark.range(10).repartition(3)

            def ask() -> None:
                frame._jdf.queryExecution().toRdd().toJavaRDD().glom().count()

            def job() -> None:
                ask()
                meanwhile(frame)
                ask()

            return watched(self.spark, job)[1]

        return [asked_twice(lambda _: None), asked_twice(forget_shuffles)]

    def unasked(self) -> Any:
        """Of two topics that are wrapped, a plan reads one."""
        for topic in ("asked", "unasked"):
            self.topic(topic)
        rows = ids(self.rows("asked", "half"))
        self.rows("unasked", "half")
        return refused(lambda: self.save(rows, "half"))


def itself(rows: DataFrame) -> DataFrame:
    """Join each record with what is said of its digit: the same rows, twice."""
    found = values(rows).selectExpr("id", "id % 10 AS digit")
    return found.join(found.groupBy("digit").count(), "digit").where("count = 4").select("id")


def again(rows: DataFrame) -> DataFrame:
    """Return rows and the same rows by way of an RDD."""
    return rows.union(rows.sparkSession.createDataFrame(rows.rdd, rows.schema))


def outside(rows: DataFrame) -> str:
    """Return what a wrapped source says that does not end in a wrapped sink."""
    try:
        rows.collect()
    except PySparkException as error:
        return str(error)
    return ""


def main(settings: dict[str, Any]) -> None:
    """Play every scene."""
    conf = {"spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"}
    story = Story(spark_session("bounded", conf=conf), settings)
    scenes = (
        *("daily", "page", "plans", "joined", "quiet", "ending", "alternating", "late", "failing"),
        *("headers", "unread", "gap", "rewritten", "refusals", "unasked"),
    )
    shown = {scene: getattr(story, scene)() for scene in scenes}
    sys.stdout.write("\n" + json.dumps(shown) + "\n")
    story.spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
