"""A job of a user's on Spark: one stage over a topic, until it is told to end. `delivery chaos` kills it.

What it is: a program; its arguments are the master, the brokers, the catalog's URL and the two topics.
What it must not know: that it is killed.
"""

from __future__ import annotations

import sys
import uuid

from delivery import Delivery, Output, Record, stop_on_signal
from delivery.spark import spark_session


def price(record: Record) -> Output:
    """Draw a number: another one each time."""
    return record.replace(value={**record.json(), "nonce": uuid.uuid4().hex})


def main(master: str, kafka: str, url: str, source: str, target: str) -> None:
    """Run the stage until SIGTERM."""
    d = Delivery(catalog=url, kafka=kafka, pipeline="shop")
    d.stage(reads=source, writes=target, id_from="header:id")(price)
    query = d.start(spark_session("chaos", master), live=False)
    stop_on_signal(query)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
