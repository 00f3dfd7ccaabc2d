"""The `py` blocks of the pages, run as they stand: what a reader adds to a program of his own.

One shop, in the order in which its owner reads: an old job has done some orders; the stage of the
README is switched on beside it, prices what came since, and receivers, a wrapped job and another
catalog follow. Of what a page shows only addresses are others, and what runs for ever is told to end.
"""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from delivery import Delivery
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.services.cassandra import Cassandra
from delivery.services.kafka import Kafka
from tests.integration.test_spark_session import environment, run
from tests.pages import HOW_TO, blocks
from tests.servers import connected

OLD, NEW = 20, 30
SECONDS_MAX = 120.0


class Shop(NamedTuple):
    """Where everything of the pages is here."""

    kafka: str
    orders: str
    directory: Path

    def make(self) -> None:
        """Create topics, tables, and the column with what was done before."""
        with open_client(self.kafka) as client:
            for name in ("", ".clicks", ".priced", ".report"):
                client.create(self.orders + name, TopicSettings(partitions=2))
        for database in ("billing.db", "bills.db"):
            with closing(sqlite3.connect(self.directory / database)) as connection:
                connection.execute("CREATE TABLE bill (value BLOB)")
        seen = self.directory / "clicks-seen"
        seen.mkdir()
        pq.write_table(pa.table({"click_id": ["a", "b", "c"]}), seen / "part-0.parquet")

    def here(
        self,
        code: str,
        *,
        catalog: str = "sqlite:shop.db",
        database: str = "billing.db",
        reading: str = "bounded=True",
    ) -> str:
        """Return a page's code with our addresses in it, and ends of what would run for ever."""
        changes = {
            "localhost:9092": self.kafka,
            '"orders': f'"{self.orders}',
            '"/checkpoints/': f'"{self.directory}/checkpoints/',
            "s3://lake": str(self.directory),
            "cassandra://localhost:9042/shop": catalog,
            "sqlite:shop.db": catalog,
            "billing.db": database,
            'group="billing")': f'group="billing", {reading})',
            'group="mail")': f'group="mail", {reading})',
            "query.awaitTermination()": "ending(query)\nquery.awaitTermination()",
        }
        for theirs, ours in changes.items():
            code = code.replace(theirs, ours)
        return code


#: What a reader has before typing in any of it; ORDERS and KAFKA stand above it.
BEFORE = """
import sqlite3
import threading

from confluent_kafka import Producer
from pyspark.sql.functions import window

from dedup.catalog.open import open_catalog
from delivery.spark import spark_session

spark = spark_session("shop", conf={"spark.sql.shuffle.partitions": "2"})


def publish(first, last):
    producer = Producer({"bootstrap.servers": KAFKA})
    for number in range(first, last):
        value, name = json.dumps({"count": number}), str(number)
        producer.produce(ORDERS, value, name, number % 2, headers=[("id", name)])
    producer.flush()


def ending(query):
    def end():
        query.processAllAvailable()
        query.stop()

    threading.Thread(target=end).start()


class Service:
    def __init__(self):
        self.sent = {}

    def send(self, order, idempotency_key):
        assert idempotency_key not in self.sent
        self.sent[idempotency_key] = order


service = Service()


def begun(url, stage):
    catalog = open_catalog(url, create=False)
    heads = [catalog.load(lane).head for lane in catalog.lanes("main/" + stage + "/")]
    catalog.store.close()
    return sum(offset for head in heads for _, offset in head.frontier)


def bills(database):
    return [json.loads(value) for (value,) in sqlite3.connect(database).execute("SELECT * FROM bill")]
"""
OLD_JOB = """
old = spark.readStream.format("kafka").option("kafka.bootstrap.servers", KAFKA)
old = old.option("subscribe", ORDERS).option("startingOffsets", "earliest").load()
old = old.writeStream.format("noop").option("checkpointLocation", "checkpoints/price")
old.trigger(availableNow=True).start().awaitTermination()
"""
CLICKS = """
@d.stage(reads=ORDERS + ".clicks", id_from="header:id")
def count(record):
    return []
"""
SAID = """
query.processAllAvailable()
said["wrapped"] = sum(one["delivery"]["fresh"] for one in query.recentProgress if one["delivery"])
query.stop()
said |= {"billed": bills("billing.db"), "received": bills("bills.db")}
said["mailed"] = list(service.sent.values())
spark.stop()
print(json.dumps(said))
"""


def program(shop: Shop) -> str:
    """Return the pages as one program."""
    (pipeline,) = blocks("README.md", "python")
    start, bill = blocks("README.md", "py")
    begin, seed = blocks("docs/switching-on.md", "py")
    receive, mail = blocks(f"{HOW_TO}/add-a-receiver.md", "py")
    (wrap,) = blocks(f"{HOW_TO}/wrap-an-existing-job.md", "py")
    # As the page's last part says it of receivers with another catalog.
    apart = {
        "catalog": "sqlite:receivers.db",
        "database": "bills.db",
        "reading": 'id_from="delivery", bounded=True',
    }
    return "\n".join(
        [
            f"ORDERS, KAFKA = {shop.orders!r}, {shop.kafka!r}",
            *(BEFORE, f"publish(0, {OLD})", OLD_JOB),
            shop.here(pipeline, catalog="sqlite:begun.db"),
            shop.here(begin),
            "said = {'begun': begun('sqlite:begun.db', 'price')}",
            *(shop.here(pipeline), CLICKS, shop.here(seed)),
            "said['seeded'] = begun('sqlite:shop.db', 'price')",
            f"publish({OLD // 2}, {OLD + NEW})  # what the old job did comes again",
            *(shop.here(start), shop.here(bill)),
            *(shop.here(receive, **apart), shop.here(mail, **apart)),
            *(shop.here(wrap), SAID),
        ]
    )


def by_count(orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return orders in an order of their own: partitions come as they come."""
    return sorted(orders, key=lambda order: order["count"])


def test_the_pages_typed_in(
    kafka: Kafka, cassandra: Cassandra, unique: Callable[[str], str], tmp_path: Path
) -> None:
    shop = Shop(kafka.bootstrap, unique("orders"), tmp_path)
    shop.make()
    said: dict[str, Any] = run(tmp_path, program(shop))
    assert (said["begun"], said["seeded"]) == (OLD, OLD)
    # What the old job did takes no effect again, whoever looks.
    billed = by_count(said["billed"])
    assert [order["count"] for order in billed] == list(range(OLD, OLD + NEW))
    assert billed == by_count(said["received"]) == by_count(said["mailed"])
    assert said["wrapped"] == NEW

    # The catalog moves, by the page's own commands, and the pipeline goes on with it.
    page = f"{HOW_TO}/from-sqlite-to-cassandra.md"
    (statement,), (commands,), (declared,) = (blocks(page, kind) for kind in ("sql", "sh", "py"))
    keyspace = unique("shop")
    assert "KEYSPACE shop " in statement
    # One node is all that this keyspace has.
    here = statement.replace(" shop ", f" {keyspace} ").replace(
        "'datacenter1': 3", "'datacenter1': 1"
    )
    with connected(cassandra.contact_points, cassandra.port) as session:
        session.execute(here)
    moved = f"cassandra://{cassandra.contact_points[0]}:{cassandra.port}/{keyspace}"
    old = commands.replace("cassandra://localhost:9042/shop", moved)
    subprocess.run(
        ["bash", "-euc", old], cwd=tmp_path, env=environment(), timeout=SECONDS_MAX, check=True
    )
    known: dict[str, Any] = {"Delivery": Delivery}
    exec(shop.here(declared, catalog=moved), known)  # noqa: S102 - our own document
    receiver = known["d"].receiver(topic=f"{shop.orders}.priced", group="late", bounded=True)
    read = []
    for bundle in receiver:
        read += [record.json() for record in bundle.records()]
        bundle.done()
    assert by_count(read) == billed
