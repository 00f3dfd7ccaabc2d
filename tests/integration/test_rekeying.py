"""A publisher that retries without a key: the copies lie in several partitions, and one counts."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delivery import Delivery
from delivery.kafka.opening import open_client
from delivery.records import Output, Record
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import Sent
from tests.integration.work_kit import Bench, named

PARTITIONS = 4
NAMES = [f"click-{number}" for number in range(300)]


def counted(record: Record) -> Output:
    """User code that never says the same twice."""
    return Output(value=record.header("id") + b"/" + uuid.uuid4().bytes)


@pytest.fixture
def bench(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Bench]:
    delivery = Delivery(
        catalog=f"sqlite:{tmp_path / 'catalog.db'}",
        kafka=kafka.bootstrap,
        pipeline=unique("shop"),
        home=str(tmp_path / "home"),
    )
    with open_client(kafka.bootstrap) as client:
        yield Bench(client, delivery)


def published(seed: int) -> list[Sent]:
    """Every click once, many of them again, each without a key and in whatever partition."""
    drawn = random.Random(seed)
    rows = []
    for name in NAMES:
        for _ in range(drawn.choice((1, 1, 2, 3))):
            rows += named(drawn.randrange(PARTITIONS), name)
    drawn.shuffle(rows)
    return rows


def test_retries_without_a_key_across_partitions_count_once(bench, unique):
    clicks, out = unique("clicks"), unique("counted")
    bench.create(clicks, PARTITIONS)
    bench.create(out, 2)
    bench.delivery.stage(
        reads=clicks, writes=out, name="count", id_from="header:id", dedup="topic"
    )(counted)
    for seed in (1, 2):
        rows = published(seed)
        assert len({row.partition for row in rows}) == PARTITIONS
        bench.publish(clicks, rows)
        bench.work()
    seen = Counter(record.value.partition(b"/")[0] for record in bench.records(out))
    assert seen == Counter(name.encode() for name in NAMES)
    assert bench.proved() == []


def test_without_re_keying_each_partition_counts_its_own(bench, unique):
    """What dedup="topic" is for."""
    clicks, out = unique("clicks"), unique("counted")
    bench.create(clicks, PARTITIONS)
    bench.create(out, 2)
    bench.delivery.stage(reads=clicks, writes=out, name="count", id_from="header:id")(counted)
    rows = published(1)
    bench.publish(clicks, rows)
    bench.work()
    places = {(row.partition, row.headers) for row in rows}
    assert len(bench.records(out)) == len(places) > len(NAMES)
    assert bench.proved() == []
