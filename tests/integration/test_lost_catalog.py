"""A catalog is lost, rebuilt from the topics of a real broker, and nothing is lost or doubled."""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from dedup.catalog.open import open_catalog, open_store
from dedup.model import Frontier
from delivery import Delivery
from delivery.checker import Evidence, Finding, Kind, LaneInput, check
from delivery.header import NAME, decode_header
from delivery.host.spec import Plan, StageSpec
from delivery.host.starting import prepare
from delivery.host.worker import Worker
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, TopicSettings
from delivery.operate.logs import Cluster
from delivery.operate.repair.found import Lost, Terms
from delivery.operate.repair.lost import perform, survey
from delivery.points import EMITTED_NOT_ACKNOWLEDGED, SEALED_NOT_EMITTED
from delivery.records import Output, Record
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import Sent, emissions
from tests.integration.work_kit import Bench
from tests.unit.operate_kit import called, document

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
            catalog=f"sqlite:{self.file(stages[0])}",
            kafka=self.kafka,
            stages=tuple(self.specs()[at] for at in stages),
            home=str(self.directory / "home"),
        )

    def plans(self) -> list[Plan]:
        return [self.plan(0), self.plan(1)] if self.apart else [self.plan(0, 1)]

    def create(self) -> None:
        for name in (self.orders, self.priced, self.shipped):
            self.client.create(name, TopicSettings(partitions=PARTITIONS))

    def publish(self, *numbers: int) -> None:
        """Write orders; an order always goes to the same partition, as a keyed publisher's does."""
        topic = self.client.describe([self.orders])[self.orders]
        rows = [
            Sent(n % PARTITIONS, None, json.dumps({"n": n}).encode(), (("id", b"order-%d" % n),))
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


@pytest.fixture
def client(kafka: Kafka):
    with open_client(kafka.bootstrap) as client:
        yield client


@pytest.fixture
def shop(client: Client, kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Shop:
    made = Shop(client, kafka.bootstrap, tmp_path, unique("shop"))
    made.create()
    return made


def traffic(shop: Shop, first: int, last: int) -> None:
    """Publish orders, some of them twice."""
    numbers = range(first, last)
    shop.publish(
        *(n for at in numbers for n in ((at, at - 4) if at % 5 == 0 and at > first + 4 else (at,)))
    )


@pytest.mark.parametrize("point", [SEALED_NOT_EMITTED, EMITTED_NOT_ACKNOWLEDGED])
def test_a_lost_catalog_of_two_stages(shop, point):
    traffic(shop, 1, 200)
    shop.run()
    traffic(shop, 200, 400)
    with pytest.raises(Crash):
        shop.run(crashing(point, 5))
    shop.lose(0)
    traffic(shop, 400, 450)
    lost = shop.rebuild([0, 1])
    assert len(lost.lanes) == 2 * PARTITIONS
    assert (lost.silent, lost.present, lost.unknown) == ((), (), {})
    priced, shipped = shop.effects(shop.priced), shop.effects(shop.shipped)
    # Publishers repeat what they sent before the loss, and go on.
    shop.publish(*range(1, 450, 3))
    traffic(shop, 450, 500)
    shop.run()
    assert shop.doubled(shop.priced) == {}
    assert shop.doubled(shop.shipped) == {}
    assert shop.missing(shop.shipped) == set()
    # What was emitted before the loss is what counts after it.
    for before, topic in ((priced, shop.priced), (shipped, shop.shipped)):
        after = shop.effects(topic)
        assert before == {n: after[n] for n in before}
    assert shop.proved() == []


def test_only_the_catalog_of_the_stage_upstream_is_lost(shop):
    shop.apart = True
    traffic(shop, 1, 300)
    shop.run()
    traffic(shop, 300, 400)
    with pytest.raises(Crash):
        shop.run(crashing(EMITTED_NOT_ACKNOWLEDGED, 2))
    shop.lose(0)
    lost = shop.rebuild([0])
    assert {lane.lane.split("/")[1] for lane in lost.lanes} == {"price"}
    shop.publish(*range(1, 400, 2))
    traffic(shop, 400, 450)
    shop.run()
    assert shop.doubled(shop.priced) == {}
    assert shop.doubled(shop.shipped) == {}
    assert shop.missing(shop.shipped) == set()
    # The stage downstream takes ids from headers, and its catalog knows no lane that wrote them.
    assert {one.kind for one in shop.proved()} <= {Kind.STRANGER}


def test_only_the_lanes_of_the_stage_upstream_are_lost(shop):
    traffic(shop, 1, 300)
    shop.run()
    traffic(shop, 300, 400)
    with pytest.raises(Crash):
        shop.run(crashing(EMITTED_NOT_ACKNOWLEDGED, 2))
    with closing(sqlite3.connect(shop.file(0))) as database:
        for table in ("lane", "entry", "chunk", "segment_list", "loser"):
            database.execute(f"DELETE FROM {table} WHERE lane LIKE '%/price/%'")  # noqa: S608 - names of ours
        database.commit()
    lost = shop.rebuild([0, 1])
    assert {lane.lane.split("/")[1] for lane in lost.lanes} == {"price"}
    assert {lane.split("/")[1] for lane in lost.present} == {"ship"}
    shop.publish(*range(1, 400, 2))
    traffic(shop, 400, 450)
    shop.run()
    assert shop.doubled(shop.priced) == {}
    assert shop.doubled(shop.shipped) == {}
    assert shop.missing(shop.shipped) == set()
    assert shop.proved() == []


def test_inputs_without_output_are_told_and_run(shop):
    numbers = range(1, 100)
    shop.publish(*numbers)
    shop.run()
    shop.lose(0)
    lost = shop.rebuild([0, 1])
    told = {lane.lane.rpartition("-")[2]: lane for lane in lost.lanes if "/price/" in lane.lane}
    for partition in range(PARTITIONS):
        mine = [n for n in numbers if n % PARTITIONS == partition]
        nothing = [at for at, n in enumerate(mine) if n % FILTERED == 0]
        lane = told[str(partition)]
        last = max(at for at, n in enumerate(mine) if n % FILTERED)
        nothing = [at for at in nothing if at <= last]
        assert lane.again == len(nothing)
        assert lane.frontier == nothing[0]
        assert lane.outputs == last + 1 - len(nothing)
        assert lane.ids == lane.outputs
        assert lane.end == last + 1
        assert lane.stretches[0][0] == nothing[0]
    shop.run()
    assert shop.doubled(shop.shipped) == {}
    assert shop.proved() == []


def test_inputs_without_output_may_be_taken_for_done(shop):
    shop.publish(*range(1, 100))
    with pytest.raises(Crash):
        shop.run(crashing(SEALED_NOT_EMITTED, 3))
    shop.lose(0)
    lost = shop.rebuild([0, 1], Terms(skip=frozenset({"price", "ship"})))
    for lane in lost.lanes:
        assert (lane.frontier, lane.again) == (lane.end, 0)
        assert lane.ids == lane.outputs + lane.taken
    shop.publish(*range(1, 100))
    shop.run()
    assert shop.doubled(shop.shipped) == {}
    assert shop.proved() == []


def test_killed_between_any_two_steps_it_is_run_again(shop):
    traffic(shop, 1, 150)
    shop.run()
    shop.lose(0)
    catalog = open_catalog(shop.plan(0, 1).catalog)
    steps = 0
    for count in range(1, 100):
        lost = survey(catalog, Cluster(shop.client), shop.specs())
        if not lost.lanes:
            break
        passed = 0

        def at(_: str, allowed: int = 1 + count % 3) -> None:
            nonlocal passed, steps
            passed += 1
            if passed == allowed:
                steps += 1
                raise Crash

        with suppress(Crash):
            perform(catalog, lost, at)
    assert steps >= 2 * PARTITIONS
    catalog.store.close()
    shop.publish(*range(1, 150))
    shop.run()
    assert shop.doubled(shop.shipped) == {}
    assert shop.missing(shop.shipped) == set()
    assert shop.proved() == []


def test_a_process_that_forgot_nothing_is_no_sender_any_more(shop, tmp_path):
    """Who goes on with the lost file is fenced in its own history: receivers drop what it sends."""
    traffic(shop, 1, 100)
    shop.run()
    copy = tmp_path / "asleep"
    copy.mkdir()
    for path in tmp_path.glob("shop.db*"):
        (copy / path.name).write_bytes(path.read_bytes())
    shop.lose(0)
    shop.rebuild([0, 1])
    traffic(shop, 100, 150)
    # The forgotten process prices the same orders from its own catalog.
    asleep = replace(shop.plan(0), catalog=f"sqlite:{copy / 'shop.db'}", home=None)
    with closing(Worker(asleep)) as worker:
        worker.open(asleep.stages[0], range(PARTITIONS), {})
        deadline = time.monotonic() + REST_SECONDS_MAX
        while worker.turn() or any(lane.lag for lane in worker.progress().lanes):
            assert time.monotonic() < deadline
    shop.run()
    assert shop.doubled(shop.shipped) == {}
    assert shop.missing(shop.shipped) == set()


PIPELINE = """
import uuid
from delivery import Delivery

d = Delivery(catalog={catalog!r}, kafka={kafka!r}, pipeline={name!r})

@d.stage(reads={orders!r}, writes={priced!r}, id_from="header:id", name="price")
def price(record):
    return record

@d.stage(reads={priced!r}, writes={shipped!r}, name="ship")
def ship(record):
    return record

if __name__ == "__main__":
    raise SystemExit("the file was run, not read")
"""


def test_the_verb_says_it_all_and_does_it(shop, tmp_path):
    shop.publish(*range(1, 100))
    shop.run()
    shop.lose(0)
    traffic(shop, 100, 120)
    plan = shop.plan(0, 1)
    names = {one: getattr(shop, one) for one in ("kafka", "name", "orders", "priced", "shipped")}
    (tmp_path / "shop.py").write_text(PIPELINE.format(catalog=plan.catalog, **names))
    verb = ("catalog", "repair", plan.catalog, "--pipeline", str(tmp_path / "shop.py"))
    planned = document(*verb)
    assert not shop.file(0).exists()
    assert (planned["done"], len(planned["lanes"]), planned["silent"]) == (False, 4, [])
    words = called(*verb).output
    assert "have no output" in words
    assert "show no output" in words
    assert "4 lanes can be rebuilt; --yes does it" in words
    done = document(*verb, "--yes")
    told = [{**lane, "frontier": 0} for lane in done["lanes"]]
    assert told == [{**lane, "frontier": 0} for lane in planned["lanes"]]
    assert "there is nothing to rebuild" in called(*verb).output
    # A hundred are there already, whoever asks.
    shop.publish(*range(1, 100))
    shop.run()
    assert shop.doubled(shop.shipped) == {}
    assert shop.missing(shop.shipped) == set()
    assert called("catalog", "verify", plan.catalog).exit_code == 0
    audited = called(
        "audit", plan.catalog, "--kafka", shop.kafka, "--finished", "--id-from", "price=header:id"
    )
    assert "exact" in audited.output


def test_a_stage_that_is_not_meant_is_refused(shop, tmp_path):
    file = tmp_path / "shop.py"
    file.write_text("raise ValueError('no such thing')")
    verb = ("catalog", "repair", shop.plan(0, 1).catalog, "--pipeline", str(file))
    assert "it fails: ValueError: no such thing" in called(*verb, code=2).stderr
    file.write_text("pipelines = []")
    assert "declares none" in called(*verb, code=2).stderr
    names = {one: getattr(shop, one) for one in ("kafka", "name", "orders", "priced", "shipped")}
    file.write_text(PIPELINE.format(catalog=shop.plan(0, 1).catalog, **names))
    refused = called(*verb, "--began-late", "pricing", code=2).stderr
    assert "stage pricing" in refused
