"""The job, written twice: as stages of this library, and as plain Structured Streaming.

What it is: the program in the driver process. It prices orders and makes invoices of them, with
user code that never returns the same twice, over topics that it is told, until it is told that no
more orders come.
What it must not know: that it is killed, who repeats orders, what is expected of it.

Invariants:
    Both ways call the same two functions, in a session with the same settings.
    It ends by itself when whoever started it is gone.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from delivery import Delivery, Output, Record
from delivery.spark import spark_session

#: Three tasks at once, and four attempts at each.
MASTER = "local[3,4]"
#: How often a query is asked whether it still runs.
LOOK_SECONDS = 0.5

Json = dict[str, Any]


# User code ----------------------------------------------------------------------------------------


def price(order: Json) -> Json:
    """Ask for a price: another one each time, as services answer."""
    quote = round(random.normalvariate(20, 4), 2)
    return {**order, "price": quote, "quote": uuid.uuid4().hex, "priced_at": time.time()}


def invoice(order: Json) -> Json:
    """Make an invoice, with a number that nobody had before."""
    return {
        **order,
        "total": round(order["pieces"] * order["price"], 2),
        "invoice": uuid.uuid4().hex,
        "invoiced_at": time.time(),
    }


# As stages ----------------------------------------------------------------------------------------


class Stages:
    """With this library."""

    def __init__(self, spark: SparkSession, told: Json) -> None:
        shop = Delivery(
            catalog=told["catalog"], kafka=told["kafka"], pipeline="shop", home=told["home"]
        )
        orders, priced, invoices = told["topics"]

        @shop.stage(reads=orders, writes=priced, id_from="header:id")
        def pricing(record: Record) -> Output:
            return record.replace(value=price(record.json()))

        @shop.stage(reads=priced, writes=invoices)
        def invoicing(record: Record) -> Output:
            return record.replace(value=invoice(record.json()))

        self._query = shop.start(spark)

    def check(self) -> None:
        """Raise what it failed with."""
        self._query.awaitTermination(0)

    def finish(self) -> None:
        """Wait until everything is delivered, and stop."""
        self._query.processAllAvailable()
        self._query.stop()


# As a plain job -----------------------------------------------------------------------------------


class Plain:
    """With Structured Streaming alone: one query for each stage, each with its checkpoint."""

    def __init__(self, spark: SparkSession, told: Json) -> None:
        orders, priced, invoices = told["topics"]
        stages = ((price, orders, priced), (invoice, priced, invoices))
        self._queries: list[StreamingQuery] = []
        for call, reads, writes in stages:
            records = (
                spark.readStream.format("kafka")
                .option("kafka.bootstrap.servers", told["kafka"])
                .option("subscribe", reads)
                .option("startingOffsets", "earliest")
                .load()
            )
            done = records.select("key", "value").mapInArrow(
                for_each(call), "key binary, value binary"
            )
            query = (
                done.writeStream.format("kafka")
                .option("kafka.bootstrap.servers", told["kafka"])
                .option("topic", writes)
                .option("checkpointLocation", str(Path(told["home"]) / call.__name__))
                .start()
            )
            self._queries.append(query)

    def check(self) -> None:
        """Raise what one of them failed with."""
        for query in self._queries:
            if (error := query.exception()) is not None:
                raise error

    def finish(self) -> None:
        """Wait until everything is delivered, upstream first, and stop."""
        for query in self._queries:
            query.processAllAvailable()
        for query in self._queries:
            query.stop()


def for_each(
    call: Callable[[Json], Json],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function of a record as `mapInArrow` wants it."""

    def all_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = [
                json.dumps(call(json.loads(value))).encode()
                for value in batch.column("value").to_pylist()
            ]
            columns = [batch.column("key"), pa.array(values, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["key", "value"])

    return all_of


# The program --------------------------------------------------------------------------------------


class Running(Protocol):
    """The job, whichever way."""

    def check(self) -> None:
        """Raise what it failed with."""

    def finish(self) -> None:
        """Wait until everything is delivered, and stop."""


def main(told: Json) -> None:
    """Run the job until the word `finish` comes; say `running`, and `finished` at the end."""
    # Spark's JVM inherits descriptor 1; what we say has one of its own.
    words = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    spark = spark_session("orders", MASTER, conf={"spark.log.level": "ERROR"})
    way = Stages if told["way"] == "stages" else Plain
    running: Running = way(spark, told)
    words.write("running\n")
    heard: list[str] = []
    over = threading.Event()

    def listen() -> None:
        heard.append(sys.stdin.readline().strip())
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    while not over.wait(LOOK_SECONDS):
        running.check()
    if heard == ["finish"]:
        running.finish()
        words.write("finished\n")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
