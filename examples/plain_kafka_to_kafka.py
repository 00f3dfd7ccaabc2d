"""A plain PySpark job from one Kafka topic to another: what `make demo` runs.

What it is: the job that the promise will be kept for, without it. It prices orders one by one in
Python, with a random number in each, as jobs do that call services. Plain Structured Streaming is
at-least-once: run to its end without a crash, as here, every order comes out once; after a crash
some come out again, with another nonce.
What it must not know: stages. It uses the session and the servers of this project, nothing else.

Invariants:
    It fails (exit code 1) unless exactly the orders that went in come out.
    It leaves nothing behind: no topics, and no servers unless `delivery up` started them here.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from pyspark.sql import DataFrame, SparkSession

from dedup.errors import Unavailable
from delivery.services.ephemeral import ephemeral
from delivery.services.instance import Instance, Request
from delivery.spark import spark_session

ORDERS = 5_000
PARTITIONS = 4
#: The job takes seconds; a machine that needs longer than this is not going to finish it.
JOB_SECONDS_MAX = 300.0
#: Silence for longer than this looks like a hang.
REPORT_SECONDS = 2
#: How long one poll waits for records that are known to be there.
POLL_MILLISECONDS = 1_000


def main() -> int:
    """Run the job on this directory's Kafka, or on one that lives as long as this process."""
    began_at = time.monotonic()
    with broker() as kafka, topics(kafka) as (source, target):
        say(f"publishing {ORDERS:,} orders")
        sent = publish(kafka, source)
        say("starting Spark")
        spark = spark_session("plain-demo", conf={"spark.log.level": "ERROR"})
        try:
            say("Spark is up; running the job")
            seconds = run(spark, kafka, source, target)
        finally:
            spark.stop()
        say("reading the output back")
        came = Counter(read(kafka, target))
    missing = sum((sent - came).values())
    extra = sum((came - sent).values())
    say("")
    say(f"  orders in    {sent.total():>7,}")
    say(f"  orders out   {came.total():>7,}   ({missing} missing, {extra} too many)")
    say(f"  the job took {seconds:>7.1f} s of {time.monotonic() - began_at:.1f} s in all")
    say("")
    say("  This was plain Structured Streaming, which is at-least-once: nothing crashed, so every")
    say("  order came out once; after a crash some come out again, priced differently.")
    return 1 if missing or extra else 0


def price(value: bytes) -> bytes:
    """Price one order: any Python code, and not the same twice."""
    order = json.loads(value)
    order["total"] = order["pieces"] * 199
    order["nonce"] = random.getrandbits(64)
    return json.dumps(order).encode()


def price_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Price orders one by one, as Spark hands them to Python: many at a time."""
    for batch in batches:
        values = [price(value) for value in batch.column("value").to_pylist()]
        columns = [batch.column("key"), pa.array(values, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, ["key", "value"])


def job(spark: SparkSession, kafka: str, source: str) -> DataFrame:
    """Price every order of a topic."""
    orders = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    return orders.select("key", "value").mapInArrow(price_all, "key binary, value binary")


def run(spark: SparkSession, kafka: str, source: str, target: str) -> float:
    """Run the job over what the topic holds now; return its seconds."""
    began_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as checkpoint:
        query = (
            job(spark, kafka, source)
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", kafka)
            .option("topic", target)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        while not query.awaitTermination(REPORT_SECONDS):
            seconds = time.monotonic() - began_at
            if seconds > JOB_SECONDS_MAX:
                query.stop()
                raise Unavailable(
                    "run the job", source, f"not done after {seconds:.0f} s; run it again"
                )
            say(f"running for {seconds:.0f} s: {query.status['message']}")
    return time.monotonic() - began_at


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """Give the address of this directory's Kafka if `delivery up` started one, else of a new one."""
    here = Instance(Path.cwd())
    known = here.state()
    if known is not None and known.up and known.kafka is not None:
        here.up(Request(), say)  # heals what has died; what runs is left alone
        say(f"using this directory's Kafka at {known.kafka.bootstrap}")
        yield known.kafka.bootstrap
    else:
        say("starting a Kafka broker for the time of this demonstration")
        with ephemeral(kafka=1, report=say) as services:
            yield services.kafka.bootstrap


@contextlib.contextmanager
def topics(kafka: str) -> Iterator[tuple[str, str]]:
    """Make two topics that nobody else uses, and remove them afterwards."""
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    run_id = uuid.uuid4().hex[:8]
    names = (f"orders-{run_id}", f"orders-priced-{run_id}")
    try:
        admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
        yield names
        admin.delete_topics(list(names))
    finally:
        admin.close()


def publish(kafka: str, topic: str) -> Counter[str]:
    """Publish the orders; return their ids."""
    producer = KafkaProducer(bootstrap_servers=kafka)
    sent: Counter[str] = Counter()
    reports = []
    for number in range(ORDERS):
        order_id, user = str(uuid.uuid4()), f"user-{number % 97}"
        order = {"id": order_id, "user": user, "pieces": number % 7 + 1}
        reports.append(producer.send(topic, json.dumps(order).encode(), user.encode()))
        sent[order_id] += 1
    producer.flush()
    for report in reports:
        report.get()  # raises if the broker has not taken it
    producer.close()
    return sent


def read(kafka: str, topic: str) -> Iterator[str]:
    """Yield the id of every order in a topic, up to its end."""
    consumer = KafkaConsumer(bootstrap_servers=kafka, enable_auto_commit=False)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(partitions)
    while any(consumer.position(partition) < ends[partition] for partition in partitions):
        for records in consumer.poll(POLL_MILLISECONDS).values():
            for record in records:
                yield json.loads(record.value)["id"]
    consumer.close()


def say(line: str) -> None:
    """Tell whoever watches."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
