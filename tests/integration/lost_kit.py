"""A shop of two stages on a real broker, whose catalog tests lose and rebuild.

What it is: `Shop`, its traffic, and what can be seen of it afterwards.
What it must not know: any single test.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from dedup.catalog.open import open_catalog, open_store
from dedup.model import Frontier
from delivery import Delivery
from delivery.checker import Evidence, Finding, LaneInput, check
from delivery.header import NAME, decode_header
from delivery.host.spec import Plan, StageSpec
from delivery.host.starting import prepare
from delivery.host.worker import Worker
from delivery.kafka.port import Client, TopicSettings
from delivery.operate.logs import Cluster
from delivery.operate.repair.found import Lost, Terms
from delivery.operate.repair.lost import perform, survey
from delivery.records import Output, Record
from tests.integration.kafka_kit import Sent, emissions
from tests.integration.work_kit import Bench

PARTITIONS = 2
REST_SECONDS_MAX = 120.0
#: Orders that user code makes nothing of.
FILTERED = 7


class Crash(Exception):
    """A process died here."""


def price(record: Record) -> Output | None:
    """Say something new of every order, and nothing of some."""
    order = record.json()
    if order["n"] % FILTERED == 0:
        return None
    return record.replace(value={**order, "nonce": uuid.uuid4().hex})


@dataclass
class Shop:
    """Two stages over a broker, each with a catalog of its own if told so."""

    client: Client
    kafka: str
    directory: Path
    name: str
    apart: bool = False
    #: Of a catalog that is in no file.
    url: str = ""
    sent: set[int] = field(default_factory=set)

    @property
    def orders(self) -> str:
        return f"{self.name}.orders"

    @property
    def priced(self) -> str:
        return f"{self.name}.priced"

    @property
    def shipped(self) -> str:
        return f"{self.name}.shipped"

    def specs(self) -> tuple[StageSpec, StageSpec]:
        first = StageSpec(
            pipeline=self.name,
            name="price",
            reads=self.orders,
            writes=(self.priced,),
            call=price,
            named="header:id",
            bundle_rows=20,
        )
        second = StageSpec(
            pipeline=self.name,
            name="ship",
            reads=self.priced,
            writes=(self.shipped,),
            call=price,
            named="delivery" if self.apart else None,
            bundle_rows=20,
        )
        return first, second

    def file(self, stage: int) -> Path:
        return self.directory / (f"stage-{stage}.db" if self.apart else "shop.db")

    def plan(self, *stages: int) -> Plan:
        return Plan(
            catalog=self.url or f"sqlite:{self.file(stages[0])}",
            kafka=self.kafka,
            stages=tuple(self.specs()[at] for at in stages),
            home=str(self.directory / "home"),
        )

    def plans(self) -> list[Plan]:
        return [self.plan(0), self.plan(1)] if self.apart else [self.plan(0, 1)]

    def create(self) -> None:
        for name in (self.orders, self.priced, self.shipped):
            self.client.create(name, TopicSettings(partitions=PARTITIONS))

    def publish(self, *numbers: int, key: bytes | None = None) -> None:
        """Write orders; an order always goes to the same partition, as a keyed publisher's does."""
        topic = self.client.describe([self.orders])[self.orders]
        rows = [
            Sent(n % PARTITIONS, key, json.dumps({"n": n}).encode(), (("id", b"order-%d" % n),))
            for n in numbers
        ]
        with closing(self.client.producer()) as producer:
            producer.emit([topic], emissions(rows))
        self.sent.update(numbers)

    def run(self, at: Callable[[str], None] = lambda _: None) -> None:
        """Run every stage to its end, senders first."""
        for plan in self.plans():
            topics = prepare(plan)
            with closing(Worker(plan, at=at)) as worker:
                for spec in plan.stages:
                    worker.open(spec, range(topics[spec.reads].partitions), {})
                deadline = time.monotonic() + REST_SECONDS_MAX
                while worker.turn() or any(lane.lag for lane in worker.progress().lanes):
                    assert time.monotonic() < deadline, worker.progress()

    def lose(self, stage: int) -> None:
        """Delete a catalog, and everything that SQLite keeps beside it."""
        path = self.file(stage)
        found = list(path.parent.glob(f"{path.name}*"))
        assert found
        for one in found:
            one.unlink()

    def rebuild(self, stages: Sequence[int], terms: Terms | None = None) -> Lost:
        """Survey, perform, and survey again: nothing must be left to do."""
        with closing(open_catalog(self.plan(*stages).catalog).store) as store:
            catalog = open_catalog(store.url)
            specs = self.plan(*stages).stages
            lost = survey(catalog, Cluster(self.client), specs, terms)
            perform(catalog, lost)
            again = survey(catalog, Cluster(self.client), specs, terms)
            assert again.lanes == ()
            catalog.store.close()
        return lost

    def effects(self, topic: str) -> dict[int, set[bytes]]:
        """Return by order the ids of what a receiver would take of it."""
        found: dict[int, set[bytes]] = defaultdict(set)
        for record in self.bench().records(topic):
            header = decode_header(record.header(NAME) or b"")
            assert header is not None
            found[record.json()["n"]].add(header.id)
        return found

    def bench(self) -> Bench:
        return Bench(self.client, Delivery(catalog="memory:", kafka=self.kafka))

    def doubled(self, topic: str) -> dict[int, int]:
        return {n: len(ids) for n, ids in self.effects(topic).items() if len(ids) > 1}

    def missing(self, topic: str) -> set[int]:
        due = {n for n in self.sent if n % FILTERED}
        return due - self.effects(topic).keys()

    def proved(self) -> list[Finding]:
        """Return what the checker finds wrong with all lanes."""
        logs = self.bench().logs([self.orders, self.priced, self.shipped])
        found: list[Finding] = []
        for plan in self.plans():
            lanes = {}
            for spec in plan.stages:
                for source in self.client.describe([spec.reads])[spec.reads].sources:
                    due = Frontier.of([(source, logs[source].end)])
                    lanes[spec.lane(source)] = LaneInput(id_from=spec.id_of(), due=due)
            mine = {
                source.topic
                for spec in plan.stages
                for name in (spec.reads, *spec.topics)
                for source in self.client.describe([name])[name].sources
            }
            held = {source: log for source, log in logs.items() if source.topic in mine}
            with closing(open_store(plan.catalog)) as store:
                found += check(Evidence(store=store, logs=held, lanes=lanes, finished=True))
        return found


def crashing(point: str, after: int) -> Callable[[str], None]:
    """Let the process die at the `after`th time that it passes a point."""
    passed: list[str] = []

    def at(name: str) -> None:
        if name == point:
            passed.append(name)
            if len(passed) == after:
                raise Crash

    return at


def traffic(shop: Shop, first: int, last: int) -> None:
    """Publish orders, some of them twice."""
    numbers = range(first, last)
    shop.publish(
        *(n for at in numbers for n in ((at, at - 4) if at % 5 == 0 and at > first + 4 else (at,)))
    )
