"""Kafka is stopped while a pipeline runs, and started again: two lines a process, and nothing lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from delivery.services.ephemeral import Services, ephemeral
from tests.integration.resident_kit import Pipeline, driven, until

#: So often librdkafka says of one client that it cannot connect before the broker comes back.
TRIES = 60


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    """A broker of this module's own."""
    with ephemeral(kafka=1, report=print) as services:
        yield services


class Tries:
    """A client that nobody keeps from saying each of its tries."""

    def __init__(self, bootstrap: str) -> None:
        self.count = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "tries",
                "logger": self,
                "reconnect.backoff.max.ms": 200,
            }
        )

    def log(self, _level: int, _form: str, about: str, *_: str) -> None:
        self.count += about == "FAIL"

    def many(self) -> bool:
        self._consumer.poll(0.1)
        return self.count >= TRIES

    def close(self) -> None:
        self._consumer.close()


def test_an_outage_is_two_lines_a_process_while_everybody_tries_on(
    services: Services, tmp_path: Path
) -> None:
    broker, at = services.servers["kafka-1"], services.kafka.bootstrap
    pipeline, log = Pipeline("shop", at, tmp_path), tmp_path / "driver.log"
    pipeline.send(range(200))
    with driven("local[3]", log) as driver:
        driver.well("start", **pipeline.given)
        driver.well("deliver", name=pipeline.name)
        before = len(log.read_text())
        broker.kill()
        tries = Tries(at)
        until(tries.many)
        until(lambda: "does not answer" in log.read_text()[before:])
        broker.restart()
        tries.close()
        pipeline.send(range(200, 400))
        driver.well("deliver", name=pipeline.name)
        lines = log.read_text()[before:].splitlines()
        processes = 1 + len(driver.workers())
    pipeline.check()
    pipeline.close()
    gone = [line for line in lines if re.search(rf"Kafka at {at} does not answer", line)]
    back = [line for line in lines if re.search(rf"Kafka at {at} is back", line)]
    assert 1 <= len(gone) == len(back) <= processes, lines
    others = [line for line in lines if line not in (*gone, *back)]
    assert not [line for line in others if "rdkafka#" in line], others
    assert len(others) <= 3 * processes, others
