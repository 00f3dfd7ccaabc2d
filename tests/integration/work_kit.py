"""A pipeline run to its end in this process, on a real broker, and what the checker says of it.

What it is: `Bench`: topics written and read, stages worked off, the evidence judged.
What it must not know: what any test is about.

Invariants:
    It is at the end when every lane has sealed and delivered all that its input topic holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from connectors.kafka import KafkaReader
from dedup.catalog.open import open_store
from dedup.model import Frontier, Source
from delivery import Delivery
from delivery.batch import Emissions
from delivery.checker import Evidence, Finding, LaneInput, Log, check
from delivery.host.starting import prepare
from delivery.host.worker import Worker
from delivery.kafka.port import Client, Topic, TopicSettings
from delivery.records import Record
from tests.integration.kafka_kit import Sent

#: How long a pipeline may take to work off what a test wrote.
WORK_SECONDS_MAX = 120.0
#: All of them.
_EVERY: Mapping[str, Iterable[int]] = MappingProxyType({})


@dataclass
class Bench:
    """One pipeline of one test."""

    client: Client
    delivery: Delivery

    def create(self, name: str, partitions: int = 1) -> Topic:
        return self.client.create(name, TopicSettings(partitions=partitions))

    def publish(self, topic: str, rows: Sequence[Sent]) -> None:
        """Write records as a publisher does."""
        found = self.client.describe([topic])[topic]
        with closing(self.client.producer()) as producer:
            producer.emit([found], _emissions(rows))

    def work(self, only: Mapping[str, Iterable[int]] = _EVERY) -> dict[str, int]:
        """Run every stage until everything written is delivered; return what was counted.

        Args:
            only: of some stages, which partitions are run.
        """
        topics = prepare(self.delivery.plan)
        with closing(Worker(self.delivery.plan)) as worker:
            for spec in self.delivery.stages:
                worker.open(spec, only.get(spec.name, range(topics[spec.reads].partitions)), {})
            deadline = time.monotonic() + WORK_SECONDS_MAX
            while worker.turn() or not self._done(worker):
                assert time.monotonic() < deadline, worker.progress()
            return worker.progress().counters

    def _done(self, worker: Worker) -> bool:
        lanes = worker.progress().lanes
        idle = all(lane.idle for lane in worker.lanes)
        return idle and all(lane.end is not None and lane.frontier >= lane.end for lane in lanes)

    def records(self, topic: str) -> list[Record]:
        """Return everything in a topic."""
        return [record for _, log in sorted(self.logs([topic]).items()) for record in log.records]

    def logs(self, topics: Iterable[str]) -> dict[Source, Log]:
        """Return whole topics."""
        logs: dict[Source, list[Record]] = {}
        ends: dict[Source, int] = {}
        for name in topics:
            reader = KafkaReader(self.client, name)
            bounds = reader.log()
            logs |= {source: [] for source, _ in bounds.high}
            ends |= dict(bounds.high)
            for fetched in reader.read(bounds.low, bounds.high):
                logs[fetched.source] += list(fetched.batch)
        return {source: Log(tuple(held), ends[source]) for source, held in logs.items()}

    def proved(self, **more: object) -> list[Finding]:
        """Return what the checker finds wrong with all lanes."""
        specs = self.delivery.stages
        names = dict.fromkeys(n for spec in specs for n in (spec.reads, *spec.topics))
        logs = self.logs(names)
        lanes = {}
        for spec in specs:
            topic = self.client.describe([spec.reads])[spec.reads]
            for source in topic.sources:
                due = Frontier.of([(source, logs[source].end)])
                window_ms = spec.window_ms if spec.time_from else None
                lanes[spec.lane(source)] = LaneInput(
                    id_from=spec.id_of(), due=due, window_ms=window_ms
                )
        with closing(open_store(self.delivery.catalog)) as store:
            return check(Evidence(store=store, logs=logs, lanes=lanes, finished=True, **more))


def named(partition: int, *names: str) -> list[Sent]:
    """Return one record for each name, without a key."""
    return [
        Sent(partition, None, b"value of " + name.encode(), (("id", name.encode()),))
        for name in names
    ]


def _emissions(rows: Sequence[Sent]) -> Emissions:
    return Emissions(
        edges=[0] * len(rows),
        partitions=[row.partition for row in rows],
        keys=[row.key for row in rows],
        values=[row.value for row in rows],
        headers=[row.headers for row in rows],
        ids=np.zeros((len(rows), 2), dtype=np.uint64),
    )
