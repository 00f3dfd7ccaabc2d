"""Offsets have holes, and positions move over them: a planned range ends at a position."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from connectors.kafka import KafkaReader
from delivery.kafka.opening import LIBRARIES, open_client
from delivery.kafka.port import Bounds, Client, Topic, TopicSettings
from delivery.ports import Frontier
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import ARRIVAL_SECONDS_MAX, Drained, Sent, drain, emissions, take

ABORTED = 300
CLEANED_SECONDS_MAX = 60.0


@pytest.fixture(params=LIBRARIES)
def client(request: pytest.FixtureRequest, kafka: Kafka) -> Iterator[Client]:
    with open_client(kafka.bootstrap, {"compression.type": "gzip"}, request.param) as client:
        yield client


@pytest.fixture
def topic(client: Client, unique: Callable[[str], str]) -> Topic:
    return client.create(unique("holes"), TopicSettings())


@pytest.fixture
def publisher(kafka: Kafka, unique: Callable[[str], str]) -> Producer:
    """A publisher that uses transactions, as others may."""
    made = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique("txn")})
    made.init_transactions(ARRIVAL_SECONDS_MAX)
    return made


def transact(publisher: Producer, topic: Topic, values: list[bytes], *, commit: bool) -> None:
    publisher.begin_transaction()
    for value in values:
        publisher.produce(topic.name, value, partition=0)
    if commit:
        publisher.commit_transaction(ARRIVAL_SECONDS_MAX)
    else:
        assert publisher.flush(ARRIVAL_SECONDS_MAX) == 0
        publisher.abort_transaction(ARRIVAL_SECONDS_MAX)


def settled(client: Client, topic: Topic, end: int) -> Bounds:
    """Wait for a log's end: a transaction has ended before its marker is in every log."""
    deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
    bounds = client.bounds(topic.name, topic.sources)
    while dict(bounds.high)[topic.sources[0]] < end and time.monotonic() < deadline:
        bounds = client.bounds(topic.name, topic.sources)
    return bounds


def test_positions_move_over_aborted_records_and_markers(
    client: Client, topic: Topic, publisher: Producer
) -> None:
    (source,) = topic.sources
    transact(publisher, topic, [b"a", b"b"], commit=True)
    transact(publisher, topic, [b"never"] * ABORTED, commit=False)
    transact(publisher, topic, [b"c"], commit=True)
    transact(publisher, topic, [b"never"] * ABORTED, commit=False)
    # Two records and a marker; the aborted ones and a marker; one and a marker; the same again.
    end = 3 + ABORTED + 1 + 2 + ABORTED + 1
    bounds = settled(client, topic, end)
    assert (bounds.low, bounds.high) == (Frontier.of([(source, 0)]), Frontier.of([(source, end)]))
    consumer = client.consumer()
    consumer.add(topic.name, {source: 0})
    drained = drain(consumer, dict(bounds.high), max_records=1)
    consumer.close()
    assert [(at, value) for at, _, value, _ in drained.rows[source]] == [
        (0, b"a"),
        (1, b"b"),
        (3 + ABORTED + 1, b"c"),
    ]
    assert drained.positions == {source: end}


def test_a_range_of_nothing_but_holes_is_read(
    client: Client, topic: Topic, publisher: Producer
) -> None:
    (source,) = topic.sources
    transact(publisher, topic, [b"never"] * ABORTED, commit=False)
    drained = Drained({source: []}, {})
    reader = KafkaReader(client, topic.name)
    take(drained, reader.read(Frontier.of([(source, 0)]), Frontier.of([(source, ABORTED + 1)])))
    assert drained == ({source: []}, {source: ABORTED + 1})


def test_a_planned_range_is_cut_at_its_ends(client: Client, topic: Topic) -> None:
    (source,) = topic.sources
    producer = client.producer()
    producer.emit([topic], emissions([Sent(0, b"%d" % n) for n in range(100)]))
    producer.close()
    reader = KafkaReader(client, topic.name, [0])
    drained = Drained({}, {source: 20})
    take(drained, reader.read(Frontier.of([(source, 20)]), Frontier.of([(source, 60)])))
    assert [row[0] for row in drained.rows[source]] == list(range(20, 60))
    assert drained.positions == {source: 60}
    assert list(reader.read(Frontier.of([(source, 20)]), Frontier.of([(source, 20)]))) == []


def test_nothing_of_an_open_transaction_is_read_or_counted(
    client: Client, topic: Topic, publisher: Producer
) -> None:
    (source,) = topic.sources
    producer, consumer = client.producer(), client.consumer()
    producer.emit([topic], emissions([Sent(0, None, b"before")]))
    publisher.begin_transaction()
    publisher.produce(topic.name, b"perhaps", partition=0)
    assert publisher.flush(ARRIVAL_SECONDS_MAX) == 0
    producer.emit([topic], emissions([Sent(0, None, b"behind")]))
    assert client.bounds(topic.name, topic.sources).high == Frontier.of([(source, 1)])
    consumer.add(topic.name, {source: 0})
    assert [row[2] for row in drain(consumer, {source: 1}).rows[source]] == [b"before"]
    assert consumer.position(source) == 1
    publisher.commit_transaction(ARRIVAL_SECONDS_MAX)
    drained = drain(consumer, {source: 4})
    assert [row[2] for row in drained.rows[source]] == [b"perhaps", b"behind"]
    producer.close()
    consumer.close()


@pytest.fixture(scope="module")
def compacted(kafka: Kafka) -> str:
    """A topic of which compaction took nearly all; returns its name."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    hurry = ConfigEntry(
        "log.cleaner.backoff.ms", "200", incremental_operation=AlterConfigOpType.SET
    )
    broker = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[hurry])
    for done in admin.incremental_alter_configs([broker]).values():
        done.result(ARRIVAL_SECONDS_MAX)
    name = f"compacted_{uuid.uuid4().hex[:12]}"
    settings = TopicSettings(
        more={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.ms": "100",
            "delete.retention.ms": "0",
        }
    )
    with open_client(kafka.bootstrap) as client:
        client.create(name, settings)
    publisher = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(500):
        publisher.produce(name, b"%d" % number, key=b"k%d" % (number % 3), partition=0)
    assert publisher.flush(ARRIVAL_SECONDS_MAX) == 0
    deadline = time.monotonic() + CLEANED_SECONDS_MAX
    with open_client(kafka.bootstrap) as client:
        topic = client.describe([name])[name]
        while count(client, topic) > 50:
            assert time.monotonic() < deadline, "the cleaner did not come"
            # Only a segment that is no longer written to is cleaned; a record too late rolls it.
            publisher.produce(name, b"later", key=b"roll", partition=0)
            assert publisher.flush(ARRIVAL_SECONDS_MAX) == 0
    return name


def count(client: Client, topic: Topic) -> int:
    """Count the records that are left."""
    bounds = client.bounds(topic.name, topic.sources)
    reader = KafkaReader(client, topic.name)
    return sum(len(fetched.batch) for fetched in reader.read(bounds.low, bounds.high))


def test_positions_move_over_what_compaction_took(client: Client, compacted: str) -> None:
    topic = client.describe([compacted])[compacted]
    (source,) = topic.sources
    end = dict(client.bounds(topic.name, topic.sources).high)[source]
    consumer = client.consumer()
    consumer.add(topic.name, {source: 0})
    drained = drain(consumer, {source: end}, max_records=1)
    consumer.close()
    offsets = [row[0] for row in drained.rows[source]]
    assert offsets[0] > 400, "the first records are gone"
    assert len(offsets) <= 60
    assert drained.positions == {source: end}
