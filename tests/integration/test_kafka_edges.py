"""A lane's two ends on Kafka: the reader it plans with, the emitter it delivers through."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from kafka import KafkaAdminClient

from connectors.kafka import KafkaReader
from delivery import InvalidUsage
from delivery.batch import Emissions, Rows
from delivery.kafka.opening import LIBRARIES, open_client
from delivery.kafka.partitioner import partition_of
from delivery.kafka.port import Client, TopicSettings
from delivery.ports import Frontier, Output, Record, Source
from delivery.services.kafka import Kafka
from sinks.kafka import KafkaEmitter
from tests.integration.kafka_kit import Sent, drain, emissions


@pytest.fixture(params=LIBRARIES)
def client(request: pytest.FixtureRequest, kafka: Kafka) -> Iterator[Client]:
    with open_client(kafka.bootstrap, {}, request.param) as client:
        yield client


def recreate(kafka: Kafka, client: Client, name: str) -> None:
    """Delete a topic and create another one under its name."""
    before = client.describe([name])[name]
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.delete_topics([name])
    admin.close()
    while client.create(name, TopicSettings(partitions=before.partitions)).id == before.id:
        continue


def test_a_reader_tells_identity_and_bounds(client: Client, unique: Callable[[str], str]) -> None:
    topic = client.create(unique("orders"), TopicSettings(partitions=3))
    producer = client.producer()
    producer.emit([topic], emissions([Sent(1), Sent(1), Sent(2)]))
    producer.close()
    log = KafkaReader(client, topic.name).log()
    assert log.topics == ((topic.name, topic.id),)
    assert log.low == Frontier.of((source, 0) for source in topic.sources)
    assert log.high == Frontier.of(zip(topic.sources, (0, 2, 1), strict=True))
    assert KafkaReader(client, topic.name, [1]).log().high == Frontier.of([(topic.sources[1], 2)])


def test_lanes_share_a_consumer(client: Client, unique: Callable[[str], str]) -> None:
    topics = [client.create(unique(name), TopicSettings(partitions=2)) for name in ("a", "b")]
    producer, consumer = client.producer(), client.consumer()
    for topic in topics:
        rows = [Sent(p, None, topic.name.encode()) for p in range(2)] * 50
        producer.emit([topic], emissions(rows))
        for source in topic.sources:
            KafkaReader(client, topic.name).join(consumer, Frontier.of([(source, 10)]))
    drained = drain(consumer, {source: 50 for topic in topics for source in topic.sources})
    for topic in topics:
        for source in topic.sources:
            expected = [(at, None, topic.name.encode(), ()) for at in range(10, 50)]
            assert drained.rows[source] == expected
    producer.close()
    consumer.close()


def test_a_topic_that_is_gone_is_never_taken_for_its_successor(
    client: Client, kafka: Kafka, unique: Callable[[str], str]
) -> None:
    topic = client.create(unique("orders"), TopicSettings())
    reader, consumer = KafkaReader(client, topic.name), client.consumer()
    start = Frontier.of([(topic.sources[0], 0)])
    recreate(kafka, client, topic.name)
    now = reader.topic()
    assert reader.log().topics == ((topic.name, now.id),)
    assert now.id != topic.id
    with pytest.raises(InvalidUsage, match="deleted and created again"):
        reader.join(consumer, start)
    with pytest.raises(InvalidUsage, match="deleted and created again"):
        list(reader.read(start, Frontier.of([(topic.sources[0], 1)])))
    consumer.close()


def test_a_topic_that_is_missing_is_named(client: Client, unique: Callable[[str], str]) -> None:
    name = unique("typo")
    with pytest.raises(InvalidUsage, match=f"{name}: there is no such topic"):
        KafkaReader(client, name).log()
    with pytest.raises(InvalidUsage, match=f"{name}: there is no such topic"):
        KafkaEmitter(client, [name])


def rows_of(outputs: list[Output], parent: Record) -> Rows:
    rows = Rows()
    rows.add(outputs, parent, None)
    return rows


def test_each_edge_has_its_topic_and_each_row_its_place(
    client: Client, unique: Callable[[str], str]
) -> None:
    topics = [client.create(unique(f"to{n}"), TopicSettings(partitions=n)) for n in (2, 5)]
    emitter = KafkaEmitter(client, [topic.name for topic in topics])
    assert emitter.writes == tuple(topic.id for topic in topics)
    assert emitter.warnings == ()
    parent = Record(source=Source(topics[0].id, 3), offset=1000)
    outputs = [
        Output(value=b"%d" % n, key=None if n % 4 == 0 else b"user-%d" % n, edge=n % 2)
        for n in range(200)
    ]
    rows = rows_of(outputs, parent)
    placed = emitter.place(rows)
    assert placed == [
        partition_of(output.key, (3, 1000), topics[output.edge].partitions) for output in outputs
    ]
    ids = np.zeros((len(outputs), 2), dtype=np.uint64)
    frontier = emitter.emit(
        Emissions(rows.edges, placed, rows.keys, rows.values, rows.headers, ids)
    )
    expected = {
        Source(topics[edge].id, partition): sum(
            (output.edge, where) == (edge, partition)
            for output, where in zip(outputs, placed, strict=True)
        )
        for edge, partition in set(zip(rows.edges, placed, strict=True))
    }
    assert dict(frontier) == expected
    emitter.close()
    emitter.close()


def test_rekeyed_records_are_placed_by_their_ids(
    client: Client, unique: Callable[[str], str]
) -> None:
    topic = client.create(unique("ids"), TopicSettings(partitions=7))
    emitter = KafkaEmitter(client, [topic.name], internal=[topic.name], by_id=[0])
    names = [bytes([n]) * 16 for n in range(50)]
    rows = Rows()
    for offset, name in enumerate(names):
        rows.add([Output(value=b"", key=b"same")], Record(offset=offset), name)
    placed = emitter.place(rows)
    assert placed == [partition_of(name, (0, 0), 7) for name in names]
    assert len(set(placed)) == 7
    emitter.close()


def test_sealed_rows_are_not_delivered_to_a_topics_successor(
    client: Client, kafka: Kafka, unique: Callable[[str], str]
) -> None:
    topic = client.create(unique("out"), TopicSettings())
    emitter = KafkaEmitter(client, [topic.name])
    emitter.emit(emissions([Sent(0)] * 10))
    recreate(kafka, client, topic.name)
    with pytest.raises(InvalidUsage, match="deleted and created again"):
        emitter.emit(emissions([Sent(0)]))
    with pytest.raises(InvalidUsage, match="deleted and created again"):
        emitter.emit(emissions([Sent(0)]))
    emitter.close()


def test_topics_that_cannot_work_are_refused_and_doubtful_ones_are_told(
    client: Client, unique: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    small, tidy = unique("small"), unique("tidy")
    client.create(small, TopicSettings(more={"max.message.bytes": "100000"}))
    client.create(tidy, TopicSettings(more={"cleanup.policy": "compact"}))
    with pytest.raises(InvalidUsage, match=r"max\.message\.bytes is 100000"):
        KafkaEmitter(client, [small])
    with pytest.raises(InvalidUsage, match="set it to delete"):
        KafkaEmitter(client, [tidy], internal=[tidy])
    with caplog.at_level(logging.WARNING, "sinks.kafka"):
        emitter = KafkaEmitter(client, [tidy, tidy])
    assert [f"topic {tidy} is compacted" in warning for warning in emitter.warnings] == [True]
    assert len(caplog.records) == 1
    with pytest.raises(InvalidUsage, match="emit records"):
        emitter.emit(emissions([Sent(0, None, b"no key")]))
    emitter.close()


def test_a_record_that_the_topic_refuses_is_no_reason_to_try_again(
    client: Client, unique: Callable[[str], str]
) -> None:
    topic = client.create(unique("small"), TopicSettings(more={"max.message.bytes": "2000"}))
    producer = client.producer()
    noise = random.Random(3).randbytes(5000)
    with pytest.raises(InvalidUsage, match=r"max\.message\.bytes"):
        producer.emit([topic], emissions([Sent(0, None, noise)] * 3))
    assert producer.emit([topic], emissions([Sent(0, b"small")])) != Frontier()
    producer.close()
