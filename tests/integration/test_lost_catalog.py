"""A catalog is lost, rebuilt from the topics of a real broker, and nothing is lost or doubled."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_catalog
from delivery import Delivery
from delivery.checker import Kind
from delivery.host.worker import Worker
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client
from delivery.operate.logs import Cluster
from delivery.operate.repair.found import Terms
from delivery.operate.repair.lost import perform, survey
from delivery.points import EMITTED_NOT_ACKNOWLEDGED, SEALED_NOT_EMITTED
from delivery.services.kafka import Kafka
from tests.integration.lost_kit import (
    FILTERED,
    PARTITIONS,
    REST_SECONDS_MAX,
    Crash,
    Shop,
    crashing,
    traffic,
)
from tests.integration.work_kit import Bench
from tests.integration.work_kit import named as sent
from tests.unit.operate_kit import called, document


@pytest.fixture
def client(kafka: Kafka):
    with open_client(kafka.bootstrap) as client:
        yield client


@pytest.fixture
def shop(client: Client, kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Shop:
    made = Shop(client, kafka.bootstrap, tmp_path, unique("shop"))
    made.create()
    return made


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


def test_outputs_that_retention_has_deleted_are_not_made_again(shop, kafka):
    shop.publish(*range(1, 120))
    shop.run()
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    try:
        admin.delete_records(
            {TopicPartition(shop.priced, 0): 30, TopicPartition(shop.shipped, 1): 20}
        )
    finally:
        admin.close()
    before = shop.effects(shop.shipped)
    shop.lose(0)
    lost = {lane.lane.removeprefix(f"{shop.name}/"): lane for lane in shop.rebuild([0, 1]).lanes}
    # Orders that nothing was made of lie among those whose outputs are gone.
    price, ship = lost[f"price/{shop.orders}-0"], lost[f"ship/{shop.priced}-0"]
    assert price.taken > 0
    assert price.ids == price.outputs + price.taken
    assert ship.gone > 0
    shop.publish(*range(1, 140))
    shop.run()
    assert shop.doubled(shop.priced) == {}
    assert shop.doubled(shop.shipped) == {}
    after = shop.effects(shop.shipped)
    assert all(after[n] == ids for n, ids in before.items())
    assert {n for n in range(120, 140) if n % FILTERED} <= after.keys()


def test_a_lost_file_is_rebuilt_in_cassandra(shop, cassandra, unique):
    traffic(shop, 1, 150)
    with pytest.raises(Crash):
        shop.run(crashing(EMITTED_NOT_ACKNOWLEDGED, 3))
    shop.lose(0)
    url = f"cassandra://{cassandra.contact_points[0]}:{cassandra.port}/{unique('rebuilt')}"
    with closing(open_catalog(url).store) as store:
        catalog = Catalog(store)
        perform(catalog, survey(catalog, Cluster(shop.client), shop.specs()))
        assert survey(catalog, Cluster(shop.client), shop.specs()).lanes == ()
    shop.url = url
    shop.publish(*range(1, 150, 2))
    traffic(shop, 150, 170)
    shop.run()
    assert shop.doubled(shop.shipped) == {}
    assert shop.missing(shop.shipped) == set()
    assert shop.proved() == []


def test_a_stage_that_was_re_keyed(client, kafka, unique, tmp_path):
    name = unique("clicks")
    delivery = Delivery(
        catalog=f"sqlite:{tmp_path / 'clicks.db'}",
        kafka=kafka.bootstrap,
        pipeline=unique("shop"),
        home=str(tmp_path / "home"),
    )
    bench = Bench(client, delivery)
    bench.create(name, 2)
    bench.create(f"{name}.out", 1)
    delivery.stage(
        reads=name, writes=f"{name}.out", name="count", id_from="header:id", dedup="topic"
    )(lambda record: record.replace(value=(record.value or b"") + uuid.uuid4().bytes))
    clicks = [f"click-{number}" for number in range(60)]
    bench.publish(name, [*sent(0, *clicks[:40]), *sent(1, *clicks[20:])])
    bench.work()
    assert len(bench.records(f"{name}.out")) == len(clicks)
    for path in tmp_path.glob("clicks.db*"):
        path.unlink()
    catalog = open_catalog(delivery.catalog)
    lost = survey(catalog, Cluster(client), delivery.stages)
    perform(catalog, lost)
    catalog.store.close()
    assert sum(lane.ids for lane in lost.lanes if "/count/" in lane.lane) == len(clicks)
    # Publishers repeat themselves in the other partition.
    bench.publish(name, [*sent(1, *clicks[:40], "new-1"), *sent(0, *clicks[20:], "new-2", "new-1")])
    bench.work()
    assert len(bench.records(f"{name}.out")) == len(clicks) + 2
    assert bench.proved() == []


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
