"""A job of a user's: one stage over a topic, until it is told to end. `delivery chaos` kills it.

What it is: a program; its arguments are the brokers, the catalog's URL and the two topics.
What it must not know: that it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import uuid

from delivery import Delivery
from delivery.host.starting import prepare
from delivery.host.worker import Worker
from delivery.points import At, nowhere
from delivery.records import Output, Record

BUNDLE_ROWS = 20


def price(record: Record) -> Output:
    return record.replace(value={**record.json(), "nonce": uuid.uuid4().hex})


def main(kafka: str, url: str, source: str, target: str) -> None:
    """Run the stage until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    at: At = nowhere
    if "DELIVERY_KILL_AT" in os.environ:
        from delivery.host.killing import killer  # noqa: PLC0415 - as hosts do it

        at = killer()
    d = Delivery(catalog=url, kafka=kafka, pipeline="shop")
    d.stage(reads=source, writes=target, id_from="header:id")(price)
    topics = prepare(d.plan)
    worker = Worker(d.plan, stop, at)
    for spec in d.stages:
        worker.open(spec, range(topics[spec.reads].partitions), {})
    while not stop.is_set():
        worker.turn()
    worker.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
