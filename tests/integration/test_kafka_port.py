"""Both client libraries keep the same promises, on a real broker."""

from __future__ import annotations

import dataclasses
import gc
import random
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition
from kafka import KafkaAdminClient, KafkaProducer
from kafka import TopicPartition as KafkaPartition

from dedup.errors import Corrupt, InvalidUsage, Unavailable
from dedup.model import Frontier, TopicId
from delivery.kafka.opening import LIBRARIES, open_client
from delivery.kafka.port import Client, Topic, TopicSettings
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import (
    ARRIVAL_SECONDS_MAX,
    LEAVES_SOCKETS,
    NEVER,
    Sent,
    drain,
    emissions,
)

KIB = 1024
LARGE = 700 * KIB
#: No library of the test machine may be needed to read what another one wrote.
OPTIONS = {"compression.type": "gzip"}


@pytest.fixture(params=LIBRARIES)
def client(request: pytest.FixtureRequest, kafka: Kafka) -> Iterator[Client]:
    with open_client(kafka.bootstrap, OPTIONS, request.param) as client:
        yield client


@pytest.fixture(params=LIBRARIES)
def other(request: pytest.FixtureRequest, kafka: Kafka) -> Iterator[Client]:
    with open_client(kafka.bootstrap, OPTIONS, request.param) as client:
        yield client


@pytest.fixture
def topic(client: Client, unique: Callable[[str], str]) -> Topic:
    return client.create(unique("port"), TopicSettings(partitions=3))


def random_rows(count: int) -> list[Sent]:
    dice = random.Random(1)

    def some(size: int) -> bytes | None:
        return None if dice.random() < 0.2 else dice.randbytes(dice.randrange(size))

    return [
        Sent(
            dice.randrange(3),
            some(20),
            some(200),
            tuple((f"h{n}", dice.randbytes(9)) for n in range(dice.randrange(3))),
        )
        for _ in range(count)
    ]


def test_what_is_emitted_is_read_by_either_library(
    client: Client, other: Client, topic: Topic
) -> None:
    rows = random_rows(2000)
    producer = client.producer()
    frontier = producer.emit([topic], emissions(rows))
    producer.close()
    consumer = other.consumer()
    consumer.add(topic.name, dict.fromkeys(topic.sources, 0))
    drained = drain(consumer, dict(frontier), max_records=300)
    consumer.close()
    for source in topic.sources:
        sent = [row[1:] for row in rows if row.partition == source.partition]
        assert drained.rows[source] == [(at, *row) for at, row in enumerate(sent)]
    assert (
        drained.positions == dict(frontier) == dict(client.bounds(topic.name, topic.sources).high)
    )


def test_large_records_and_a_thousand_headers_pass(client: Client, topic: Topic) -> None:
    noise = random.Random(2).randbytes(LARGE)
    many = tuple((f"name-{number % 7}", str(number).encode()) for number in range(1000))
    rows = [Sent(0, b"large", noise), Sent(0, b"many", b"", many), Sent(0, None, None)]
    producer, consumer = client.producer(), client.consumer()
    frontier = producer.emit([topic], emissions(rows))
    consumer.add(topic.name, {topic.sources[0]: 0})
    drained = drain(consumer, dict(frontier), max_bytes=1)
    producer.close()
    consumer.close()
    assert drained.rows[topic.sources[0]] == [(at, *row[1:]) for at, row in enumerate(rows)]


def test_nothing_is_nowhere(client: Client, topic: Topic) -> None:
    producer = client.producer()
    assert producer.emit([topic], emissions([])) == Frontier()
    producer.close()


def test_the_frontier_is_behind_what_this_producer_sent(client: Client, topic: Topic) -> None:
    producer, neighbour = client.producer(), client.producer()
    first, second = topic.sources[:2]
    assert producer.emit([topic], emissions([Sent(0), Sent(1), Sent(0)])) == Frontier.of(
        [(first, 2), (second, 1)]
    )
    neighbour.emit([topic], emissions([Sent(0)] * 5))
    assert producer.emit([topic], emissions([Sent(0)])) == Frontier.of([(first, 8)])
    producer.close()
    neighbour.close()


def test_partitions_come_and_go_without_disturbing_the_others(client: Client, topic: Topic) -> None:
    first, second, third = topic.sources
    producer, consumer = client.producer(), client.consumer()
    producer.emit([topic], emissions([Sent(p, b"%d" % n) for n in range(100) for p in range(3)]))
    consumer.add(topic.name, {first: 0})
    assert len(drain(consumer, {first: 10}, max_records=10).rows[first]) >= 10
    at = consumer.position(first)
    consumer.add(topic.name, {second: 90, third: 99})
    drained = drain(consumer, {first: 100, second: 100, third: 100}, max_records=7)
    assert [row[0] for row in drained.rows[first]] == list(range(at, 100))
    assert [row[0] for row in drained.rows[second]] == list(range(90, 100))
    consumer.remove([second, third])
    consumer.remove([second])
    producer.emit([topic], emissions([Sent(p) for p in range(3)]))
    drained = drain(consumer, {first: 101})
    assert set(drained.rows) == {first}
    consumer.add(topic.name, {second: 100})
    assert [row[0] for row in drain(consumer, {second: 101}).rows[second]] == [100]
    with pytest.raises(InvalidUsage, match="being read already"):
        consumer.add(topic.name, {second: 0})
    producer.close()
    consumer.close()


def test_a_seek_goes_back_and_forth(client: Client, topic: Topic) -> None:
    source = topic.sources[0]
    producer, consumer = client.producer(), client.consumer()
    producer.emit([topic], emissions([Sent(0, b"%d" % n) for n in range(50)]))
    consumer.add(topic.name, {source: 0})
    consumer.seek(source, 40)
    assert [row[0] for row in drain(consumer, {source: 50}).rows[source]] == list(range(40, 50))
    consumer.seek(source, 5)
    assert consumer.position(source) == 5
    drained = drain(consumer, {source: 50}, max_records=3)
    assert [row[1] for row in drained.rows[source]] == [b"%d" % n for n in range(5, 50)]
    producer.close()
    consumer.close()


def test_a_paused_partition_gives_nothing_and_loses_nothing(client: Client, topic: Topic) -> None:
    first, second, _ = topic.sources
    producer, consumer = client.producer(), client.consumer()
    rows = [Sent(p, b"%d" % n) for n in range(500) for p in range(2)]
    producer.emit([topic], emissions(rows))
    consumer.add(topic.name, {first: 0, second: 0})
    consumer.pause([first])
    stood = consumer.position(first)
    drained = drain(consumer, {second: 500}, max_records=20)
    assert stood == consumer.position(first) == 0
    assert first not in drained.rows
    consumer.resume([first])
    assert len(drain(consumer, {first: 500}).rows[first]) == 500
    producer.close()
    consumer.close()


def test_polls_are_bounded_in_rows_and_bytes(client: Client, topic: Topic) -> None:
    source = topic.sources[0]
    producer, consumer = client.producer(), client.consumer()
    producer.emit([topic], emissions([Sent(0, b"k", bytes(KIB))] * 3000))
    consumer.add(topic.name, {source: 0})
    drain(consumer, {source: 100}, max_records=100)
    sizes = []
    while consumer.position(source) < 3000:
        polled = consumer.poll(max_records=50, max_bytes=20 * KIB, timeout=1)
        sizes += [len(fetched.batch) for fetched in polled]
    assert 10 < max(sizes) <= 22
    producer.close()
    consumer.close()


@pytest.mark.parametrize("offset", [50, 3])
def test_an_offset_that_the_log_does_not_hold_is_an_error(
    client: Client, topic: Topic, kafka: Kafka, offset: int
) -> None:
    """Beyond the end, and below the start that retention left."""
    source = topic.sources[0]
    producer, consumer = client.producer(), client.consumer()
    producer.emit([topic], emissions([Sent(0)] * 10))
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.delete_records({KafkaPartition(topic.name, 0): 6})
    admin.close()
    assert client.bounds(topic.name, [source]).low == Frontier.of([(source, 6)])
    consumer.add(topic.name, {source: offset})
    with pytest.raises(Unavailable, match="load the lane again"):
        drain(consumer, {source: 1 << 40})
    producer.close()
    consumer.close()


def test_a_header_that_is_not_utf8_names_its_record(
    client: Client, topic: Topic, kafka: Kafka
) -> None:
    publisher = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for name in ("good", "good", NotText("bad"), "good"):
        publisher.send(topic.name, b"v", partition=0, headers=[(name, b"1")])
    publisher.flush(ARRIVAL_SECONDS_MAX)
    publisher.close()
    consumer = client.consumer()
    consumer.add(topic.name, {topic.sources[0]: 0})
    assert len(drain(consumer, {topic.sources[0]: 2}).rows[topic.sources[0]]) == 2
    for _ in range(2):  # it is not passed over when it is asked for again
        with pytest.raises(Corrupt, match=rf"{topic.name}\[0\].*kafka-delete-records"):
            drain(consumer, {topic.sources[0]: 3})
    assert consumer.position(topic.sources[0]) == 2
    consumer.close()


class NotText(str):
    """A header name that a client with less care would send."""

    __slots__ = ()

    def encode(self, *_: str) -> bytes:  # type: ignore[override]
        return b"\xff\xfe"


def test_a_header_without_a_value_is_an_empty_one(
    client: Client, topic: Topic, kafka: Kafka
) -> None:
    publisher = ConfluentProducer({"bootstrap.servers": kafka.bootstrap})
    publisher.produce(topic.name, b"v", partition=0, headers=[("a", None), ("b", b"1")])
    assert publisher.flush(ARRIVAL_SECONDS_MAX) == 0
    consumer = client.consumer()
    consumer.add(topic.name, {topic.sources[0]: 0})
    ((_, _, _, headers),) = drain(consumer, {topic.sources[0]: 1}).rows[topic.sources[0]]
    assert headers == (("a", b""), ("b", b"1"))
    consumer.close()


def test_monitors_see_the_hint(
    client: Client, topic: Topic, kafka: Kafka, unique: Callable[[str], str]
) -> None:
    group, source = unique("billing"), topic.sources[1]
    producer, consumer = client.producer(), client.consumer(group=group)
    producer.emit([topic], emissions([Sent(1)] * 9))
    consumer.add(topic.name, {source: 0})
    drain(consumer, {source: 9})
    monitor = ConfluentConsumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    for _ in range(int(ARRIVAL_SECONDS_MAX)):
        consumer.commit_hint({source: 7})
        consumer.poll(max_records=1, max_bytes=1, timeout=0.2)
        (seen,) = monitor.committed([TopicPartition(topic.name, 1)], ARRIVAL_SECONDS_MAX)
        if seen.offset == 7:
            break
    assert seen.offset == 7
    monitor.close()
    consumer.close()
    consumer.close()
    consumer.commit_hint({source: 8})
    producer.close()


def test_topics_have_one_identity_whoever_asks(
    client: Client, other: Client, topic: Topic, kafka: Kafka
) -> None:
    assert other.describe([topic.name]) == {topic.name: topic}
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.delete_topics([topic.name])
    admin.close()
    again = None
    while again is None or again.id == topic.id:
        again = client.create(topic.name, TopicSettings(partitions=3))
    assert other.describe([topic.name, "nowhere"]) == {topic.name: again}
    assert dataclasses.replace(again, id=topic.id) == topic


def test_a_topic_is_created_as_asked_and_once(client: Client, unique: Callable[[str], str]) -> None:
    name = unique("made")
    settings = TopicSettings(
        partitions=2, replicas=1, in_sync_min=1, retention_ms=7_200_000, append_time=True
    )
    made = client.create(name, settings)
    assert client.create(name, TopicSettings(partitions=5)) == made
    assert made.partitions == 2
    assert client.settings_of(name).items() >= settings.config().items()
    with pytest.raises(InvalidUsage, match="fewer copies"):
        client.create(unique("made"), TopicSettings(replicas=3))


def test_all_topics_are_named_but_kafkas_own(client: Client, topic: Topic) -> None:
    names = client.names()
    assert topic.name in names
    assert names == sorted(set(names))
    assert not any(name.startswith("__") for name in names)


def test_what_does_not_exist_is_refused(client: Client, unique: Callable[[str], str]) -> None:
    missing = Topic(name=unique("missing"), id=TopicId(bytes(16)), partitions=1)
    assert client.describe([missing.name]) == {}
    assert client.describe([]) == {}
    with pytest.raises(InvalidUsage, match="no such topic"):
        client.bounds(missing.name, missing.sources)


@pytest.mark.filterwarnings(LEAVES_SOCKETS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_an_unreachable_broker_is_unavailable(
    library: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody listens on the discard port."""
    caplog.set_level(NEVER, "kafka")
    monkeypatch.setattr("delivery.kafka.confluent.client.ANSWER_SECONDS_MAX", 2.0)
    monkeypatch.setattr("delivery.kafka.kafka_python.client._ANSWER_MS_MAX", 2000)
    with pytest.raises(Unavailable, match="no broker answers"):
        open_client("127.0.0.1:9", {}, library).describe(["orders"])
    gc.collect()
