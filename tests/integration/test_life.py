"""A stage's life on a real broker, with SQLite and with Cassandra: nothing lost, nothing doubled."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from delivery import Delivery, InvalidUsage
from delivery.host.starting import prepare
from delivery.kafka.opening import open_client
from delivery.life.reset import Begin
from delivery.records import Output, Record
from delivery.services.cassandra import Cassandra
from delivery.services.kafka import Kafka
from tests.integration.work_kit import Bench, named
from tests.unit.operate_kit import called, document


def priced(record: Record) -> Output:
    """User code that never says the same twice."""
    return record.replace(value=(record.value or b"") + uuid.uuid4().bytes)


class Shop:
    """One pipeline whose declaration changes."""

    def __init__(self, catalog: str, kafka: Kafka, name: str, home: Path) -> None:
        self._home = home
        self._stack = ExitStack()
        self.client = self._stack.enter_context(open_client(kafka.bootstrap))
        self.url, self.kafka, self.name = catalog, kafka.bootstrap, name
        self.orders, self.priced = f"{name}.orders", f"{name}.priced"
        self.bench = self.declared()
        for topic in (self.orders, self.priced):
            self.bench.create(topic, 2)

    def declared(self, stage: str = "price", **more: object) -> Bench:
        """Declare its one stage, anew."""
        delivery = Delivery(
            catalog=self.url, kafka=self.kafka, pipeline=self.name, home=str(self._home)
        )
        delivery.stage(
            reads=self.orders, writes=self.priced, name=stage, id_from="header:id", **more
        )(priced)
        self.bench = Bench(self.client, delivery)
        return self.bench

    def effects(self) -> list[str]:
        """Return the names of the records that took effect, each as often as it did."""
        marker = len(uuid.uuid4().bytes)
        seen = {record.value for record in self.bench.records(self.priced)}
        return sorted((value or b"")[len(b"value of ") : -marker].decode() for value in seen)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(params=["sqlite", "cassandra"])
def shop(
    request: pytest.FixtureRequest,
    kafka: Kafka,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> Iterator[Shop]:
    url = f"sqlite:{tmp_path / 'shop.db'}"
    if request.param == "cassandra":
        server: Cassandra = request.getfixturevalue("cassandra")
        url = f"cassandra://{server.contact_points[0]}:{server.port}/{unique('shop')}"
    found = Shop(url, kafka, unique("shop"), tmp_path / "home")
    yield found
    found.close()


def test_a_stage_is_renamed_changed_and_changed_back_without_loss_or_double(shop):
    bench, orders = shop.bench, shop.orders
    bench.publish(orders, [*named(0, "a", "b"), *named(1, "x", "y")])
    bench.work()
    life = bench.delivery.life
    assert not life.rename("price", "cost").done
    assert life.rename("price", "cost", perform=True).done
    with pytest.raises(InvalidUsage, match="goes on as cost"):
        prepare(bench.delivery.plan)
    bench = shop.declared("cost")
    bench.publish(orders, [*named(0, "b", "c"), *named(1, "x", "z")])
    bench.work()
    assert shop.effects() == ["a", "b", "c", "x", "y", "z"]
    assert bench.proved() == []

    # Repeats in another partition count as new records now; behind re-keying they do not.
    assert life.change_dedup("cost", "topic", perform=True).done
    with pytest.raises(InvalidUsage, match="dedup='topic'"):
        prepare(bench.delivery.plan)
    bench = shop.declared("cost", dedup="topic")
    bench.publish(orders, [*named(1, "a", "b", "c", "d"), *named(0, "x", "y", "d")])
    bench.work()
    assert shop.effects() == ["a", "b", "c", "d", "x", "y", "z"]
    assert bench.proved() == []
    with pytest.raises(InvalidUsage, match="change-dedup"):
        life.rename("cost", "other")

    bench.publish(orders, named(0, "e"))
    bench.work()
    life.change_dedup("cost", "partition", perform=True)
    bench = shop.declared("cost")
    bench.publish(orders, [*named(0, "z", "f"), *named(1, "e", "a")])
    bench.work()
    assert shop.effects() == ["a", "b", "c", "d", "e", "f", "x", "y", "z"]
    assert document("catalog", "verify", shop.url)["whole"]
    assert bench.proved() == []

    # And once more: names that were given up are taken up again.
    life.change_dedup("cost", "topic", perform=True)
    bench = shop.declared("cost", dedup="topic")
    bench.publish(orders, [*named(0, "d", "y", "g"), *named(1, "b", "g")])
    bench.work()
    assert shop.effects() == ["a", "b", "c", "d", "e", "f", "g", "x", "y", "z"]
    assert document("catalog", "verify", shop.url)["whole"]


def test_it_is_not_changed_back_while_something_is_in_between(shop):
    bench = shop.declared("price", dedup="topic")
    bench.publish(shop.orders, named(0, "a"))
    bench.work()
    front, behind = bench.delivery.stages
    bench.publish(shop.orders, named(1, "b"))
    only = Bench(shop.client, replace_stages(bench.delivery, front))
    only.work()
    with pytest.raises(InvalidUsage, match=r"1 offsets of .*by-id are not sealed yet"):
        bench.delivery.life.change_dedup("price", "partition", perform=True)
    bench.work()
    assert bench.delivery.life.change_dedup("price", "partition", perform=True).done
    assert shop.effects() == ["a", "b"]
    assert behind.name == "price"


def replace_stages(delivery: Delivery, spec: object) -> Delivery:
    """Return a pipeline of one of another one's stages."""
    found = Delivery(catalog=delivery.catalog, kafka=delivery.kafka, pipeline=delivery.pipeline)
    found._add(replace(spec))
    return found


def test_a_stage_is_reset_to_every_kind_of_position(shop):
    bench, orders, life = shop.bench, shop.orders, shop.bench.delivery.life
    bench.publish(orders, [*named(0, "a", "b"), *named(1, "x")])
    bench.work()
    bench.publish(orders, named(0, "skipped"))
    life.reset("price", Begin(at="latest"), perform=True)
    bench.publish(orders, named(0, "c", "a"))
    bench.work()
    assert shop.effects() == ["a", "b", "c", "x"]
    life.reset("price", Begin(time_ms=0), perform=True)
    bench.work()
    assert shop.effects() == ["a", "b", "c", "skipped", "x"], "what was skipped, and no more"
    life.reset("price", Begin(offsets={1: 0}), forget_ids=True, perform=True)
    bench.work()
    assert shop.effects() == ["a", "b", "c", "skipped", "x", "x"], "done again, as was asked"


def test_a_topic_created_again_is_refused_until_it_is_accepted(shop):
    bench, orders, life = shop.bench, shop.orders, shop.bench.delivery.life
    bench.publish(orders, [*named(0, "a", "b"), *named(1, "x")])
    bench.work()
    recreate(shop, orders)
    bench.publish(orders, [*named(0, "b", "c"), *named(1, "y")])
    with pytest.raises(InvalidUsage, match="accept-topic"):
        bench.work()
    assert life.accept_topic(orders, perform=True).done
    bench.work()
    assert shop.effects() == ["a", "b", "c", "x", "y"]
    assert bench.proved() == []
    recreate(shop, shop.priced)
    with pytest.raises(InvalidUsage, match="accept-topic"):
        bench.work()
    life.accept_topic(shop.priced, writers=["price"], perform=True)
    bench.publish(orders, named(0, "c", "d"))
    bench.work()
    assert shop.effects() == ["d"], "in the new topic"
    assert bench.proved() == []


def recreate(shop: Shop, topic: str) -> None:
    """Delete a topic and create it again."""
    before = shop.client.describe([topic])[topic].id
    admin = KafkaAdminClient(bootstrap_servers=shop.kafka)
    admin.delete_topics([topic])
    admin.close()
    while shop.client.describe([topic]).get(topic) is not None:
        pass
    assert shop.bench.create(topic, 2).id != before


def test_a_stage_is_left_taken_back_and_retired_from_the_command_line(shop, unique):
    bench, orders = shop.bench, shop.orders
    bench.publish(orders, [*named(0, "a", "b"), *named(1, "x")])
    bench.work()
    line = ("price", "--kafka", shop.kafka)
    said = document("stage", "leave", shop.url, *line)
    assert (said["done"], said["offsets"]) == (False, {orders: {"0": 2, "1": 1}})
    group = unique("plain")
    shown = called("stage", "leave", shop.url, *line, "--group", group, "--yes").stdout
    assert f"startingOffsets: {json.dumps({orders: {'0': 2, '1': 1}})}" in shown
    assert committed(shop, group) == {0: 2, 1: 1}
    with pytest.raises(InvalidUsage, match="without this library"):
        prepare(bench.delivery.plan)
    bench.publish(orders, [*named(0, "plain"), *named(1, "x", "z")])
    document("stage", "reset", shop.url, *line, "--to", "0:3,1:1", "--yes")
    bench.work()
    assert shop.effects() == ["a", "b", "x", "z"]
    assert document("stage", "retire", shop.url, *line, "--yes")["done"]
    with pytest.raises(InvalidUsage, match="was retired"):
        prepare(bench.delivery.plan)
    assert document("catalog", "verify", shop.url)["whole"]
    assert document("catalog", "inspect", shop.url)["lanes"][0]["ids"] == 0


def committed(shop: Shop, group: str) -> dict[int, int]:
    """Return the offsets of a consumer group."""
    admin = KafkaAdminClient(bootstrap_servers=shop.kafka)
    try:
        said = admin.list_group_offsets(group)
    finally:
        admin.close()
    return {part.partition: found.offset for part, found in said[group].items()}


def test_a_stage_gets_other_outputs_under_another_name_without_loss_or_double(shop):
    """What a start says that refuses them: leave it, and begin where it ended with what it knew."""
    bench, orders = shop.bench, shop.orders
    bench.publish(orders, [*named(0, "a", "b"), *named(1, "x")])
    bench.work()
    bench.create(f"{shop.name}.dead")
    bench = shop.declared(dead_letters=f"{shop.name}.dead")
    with pytest.raises(InvalidUsage, match=r"declared now with .*\.priced, .*\.dead.*stage leave"):
        prepare(bench.delivery.plan)

    offsets = bench.delivery.life.leave("price", perform=True).offsets[orders]
    assert dict(offsets) == {0: 2, 1: 1}
    bench.publish(orders, [*named(0, "a", "c"), *named(1, "x", "y")])
    bench = shop.declared("cost", dead_letters=f"{shop.name}.dead")
    bench.delivery.seed("cost", topic=orders, start=offsets)
    bench.work()
    assert shop.effects() == ["a", "b", "c", "x", "y"]
    assert document("catalog", "verify", shop.url)["whole"]
