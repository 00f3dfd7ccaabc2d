"""Offsets have holes, and positions move over them: a planned range ends at a position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from connectors.kafka import KafkaReader
from delivery.kafka.opening import LIBRARIES, open_client
from delivery.kafka.port import Bounds, Client, Topic, TopicSettings
from delivery.ports import Frontier
from delivery.services.kafka import Kafka
from tests.integration.holes_kit import ABORTED, compacted_topic, transact, transactional
from tests.integration.kafka_kit import ARRIVAL_SECONDS_MAX, Drained, Sent, drain, emissions, take


@pytest.fixture(params=LIBRARIES)
def client(request: pytest.FixtureRequest, kafka: Kafka) -> Iterator[Client]:
    with open_client(kafka.bootstrap, {"compression.type": "gzip"}, request.param) as client:
        yield client


@pytest.fixture
def topic(client: Client, unique: Callable[[str], str]) -> Topic:
    return client.create(unique("holes"), TopicSettings())


@pytest.fixture
def publisher(kafka: Kafka, unique: Callable[[str], str]) -> Producer:
    return transactional(kafka, unique("txn"))


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
    transact(publisher, topic.name, [b"a", b"b"], commit=True)
    transact(publisher, topic.name, [b"never"] * ABORTED, commit=False)
    transact(publisher, topic.name, [b"c"], commit=True)
    transact(publisher, topic.name, [b"never"] * ABORTED, commit=False)
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
    transact(publisher, topic.name, [b"never"] * ABORTED, commit=False)
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
    return compacted_topic(kafka)


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
