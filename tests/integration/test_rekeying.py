"""A publisher that retries without a key: the copies lie in several partitions, and one counts."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from delivery import Delivery
from delivery.header import decode_header
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.records import RECORD_BYTES_MAX, Output, Record
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import ARRIVAL_SECONDS_MAX, Sent
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


# Windows --------------------------------------------------------------------------------------

HOUR_MS = 3_600_000
#: Long before any of it is run.
FRIDAY = 1_750_000_000_000


def published_at(
    kafka: Kafka, topic: str, partition: int, at_ms: int, names: Iterable[str]
) -> None:
    """Write one record for each name, stamped with a time, as a publisher does."""
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap)) as producer:
        for name in names:
            headers = [("id", name.encode())]
            producer.send(topic, b"value", None, headers, partition, at_ms)
        producer.flush()


def lane_times(bench: Bench) -> list[int]:
    """The lane times of those lanes behind re-keying that have sealed anything."""
    with closing(open_store(bench.delivery.catalog)) as store:
        catalog = Catalog(store)
        rows = [catalog.load(lane) for lane in catalog.lanes() if "/count/" in lane]
        return [row.head.lane_time_ms for row in rows if row.head.ref.seq]


def test_a_window_behind_re_keying_is_measured_on_the_slowest_partition(bench, kafka, unique):
    """Partition 2 is empty for ever; a retry waits in partition 1 while 0 goes on for two days."""
    clicks, out = unique("clicks"), unique("counted")
    bench.create(clicks, 3)
    bench.create(out, 2)
    bench.delivery.stage(
        reads=clicks, writes=out, name="count", id_from="header:id", dedup="topic", window="1h"
    )(counted)

    def some(day: int) -> list[str]:
        # Enough for every partition behind re-keying.
        return [f"{day}/{number}" for number in range(100)]

    published_at(kafka, clicks, 0, FRIDAY, ["x", *some(0)])
    published_at(kafka, clicks, 1, FRIDAY + HOUR_MS // 2, ["x"])
    for day in (1, 2):
        bench.work({"count.by-id": [0]})
        assert lane_times(bench) == [0] * 8, "nothing is known of partition 1"
        published_at(kafka, clicks, 0, FRIDAY + day * 24 * HOUR_MS, some(day))
    bench.work()
    seen = Counter(record.value.partition(b"/")[0] for record in bench.records(out))
    assert seen[b"x"] == 1
    assert bench.proved() == []
    for day in (3, 4):
        published_at(kafka, clicks, 0, FRIDAY + day * 24 * HOUR_MS, some(day))
        bench.work()
    sealed = lane_times(bench)
    assert min(sealed) >= FRIDAY + 3 * 24 * HOUR_MS, "partition 2 holds nothing back"
    assert max(sealed) <= FRIDAY + 4 * 24 * HOUR_MS
    published_at(kafka, clicks, 0, FRIDAY + 5 * 24 * HOUR_MS, ["x"])
    bench.work()
    seen = Counter(record.value.partition(b"/")[0] for record in bench.records(out))
    assert seen[b"x"] == 2, "its window is long past, and it is held no more"


def test_what_cannot_be_rekeyed_is_a_dead_letter_like_what_cannot_be_counted(bench, unique):
    """In front of the stage as in it: without a name, or too large to be passed on."""
    clicks, out, dead = unique("clicks"), unique("counted"), unique("dead")
    more = {"max.message.bytes": str(2 * RECORD_BYTES_MAX)}
    bench.client.create(clicks, TopicSettings(partitions=PARTITIONS, more=more))
    bench.create(out, 2)
    bench.create(dead, 3)
    again = unique("again")
    bench.create(again, 2)

    def picky(record: Record) -> Output:
        if record.json()["id"] == 3:
            raise ValueError("unlucky")
        return Output(value=record.value, key=uuid.uuid4().bytes)

    declared = {"reads": clicks, "writes": out, "dead_letters": dead, "id_from": "json:id"}
    bench.delivery.stage(name="count", dedup="topic", duplicates=again, **declared)(picky)
    good = [b'{"id": %d}' % number for number in range(9)]
    bad = [b"{", b"[1]", b'{"id": "\xff"}']
    large = b'{"id": 100, "pad": "%s"}' % (b"x" * RECORD_BYTES_MAX)
    values = [*good, *bad, large]
    publisher = Producer(
        {
            "bootstrap.servers": bench.delivery.kafka,
            "message.max.bytes": 2 * RECORD_BYTES_MAX,
        }
    )
    for times in range(2):
        for number, value in enumerate(values):
            publisher.produce(clicks, value, partition=(number + times) % PARTITIONS)
    assert publisher.flush(ARRIVAL_SECONDS_MAX) == 0
    counters = bench.work()
    assert bench.proved() == []
    assert sorted(record.value for record in bench.records(out)) == sorted(good[:3] + good[4:])
    letters = bench.records(dead)
    whole = Counter(letter.value for letter in letters if not letter.header("delivery-truncated"))
    assert whole == Counter({good[3]: 1} | dict.fromkeys(bad, 2)), "places name what nothing names"
    repeats = Counter(record.value for record in bench.records(again))
    assert repeats == Counter(good), "dropped in front or behind, each copy is told once"
    cut = [letter for letter in letters if letter.header("delivery-truncated")]
    assert len(cut) == 2, "re-keying knows a repeat in the next stage only, by the id it keeps"
    assert len({decode_header(letter.header("delivery")).id for letter in cut}) == 1
    assert len({letter.source.partition for letter in cut}) == 1
    assert counters["dead_letter"] == len(letters)
    # Who seeds a stage with what is there meets the same records, and passes over them.
    bench.delivery.stage(name="later", **declared)(counted)
    seeded = bench.delivery.seed("later", topic=clicks, start="latest")
    assert (seeded.ids, seeded.unnamed) == (2 * len([*good, large]), 2 * len(bad))
