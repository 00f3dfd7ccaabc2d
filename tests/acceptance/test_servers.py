"""Brokers and nodes of the catalog are killed and stand still under a pipeline that runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from delivery import Indeterminate, Unavailable
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.services.ephemeral import Server, ephemeral

MIB = 1024 * 1024
RECORDS = 600
#: Parts in which records come, so that something is under way whenever a server dies.
PARTS = 12
PAUSE_SECONDS = 30.0
#: How long a pipeline may take to come back once its servers are back; measured: seconds.
RECOVERY_SECONDS_MAX = 180.0
#: What a worker may grow by while it cannot write: its buffers, and what clients hold.
GROWTH_BYTES_MAX = 256 * MIB
#: How long bounds are asked for under a broker that comes back.
ASKED_SECONDS_MAX = 120.0
ANSWERS = 40


def test_regression_bounds_of_a_broker_that_just_came_back() -> None:
    """It says -1 for a log whose end it does not know yet, without an error."""
    with ephemeral(kafka=1) as services:
        broker = services.servers["kafka-1"]
        with open_client(services.kafka.bootstrap) as client:
            topics = [
                client.create(f"bounds-{number}", TopicSettings(partitions=8))
                for number in range(4)
            ]
            with comes_back(broker):
                answered = 0
                deadline = time.monotonic() + ASKED_SECONDS_MAX
                while answered < ANSWERS and time.monotonic() < deadline:
                    for topic in topics:
                        with suppress(Unavailable, Indeterminate):
                            client.bounds(topic.name, topic.sources)
                            answered += 1
            assert answered >= ANSWERS, "it came back"


@contextmanager
def comes_back(broker: Server) -> Iterator[None]:
    """Kill a broker, and let it come back while the block runs."""
    broker.kill()
    back = threading.Thread(target=broker.restart)
    back.start()
    try:
        yield
    finally:
        back.join()
