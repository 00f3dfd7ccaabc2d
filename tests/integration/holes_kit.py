"""Logs with holes: what transactions aborted, and what compaction took.

What it is: publishers that use transactions, and a topic that was compacted.
What it must not know: who reads it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from connectors.kafka import KafkaReader
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, Topic, TopicSettings
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import ARRIVAL_SECONDS_MAX

ABORTED = 300
CLEANED_SECONDS_MAX = 60.0


def transactional(kafka: Kafka, name: str) -> Producer:
    """A publisher that uses transactions, as others may."""
    made = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name})
    made.init_transactions(ARRIVAL_SECONDS_MAX)
    return made


def transact(publisher: Producer, topic: str, values: Sequence[bytes], *, commit: bool) -> None:
    """Write some records in one transaction."""
    publisher.begin_transaction()
    for value in values:
        publisher.produce(topic, value, partition=0)
    if commit:
        publisher.commit_transaction(ARRIVAL_SECONDS_MAX)
    else:
        assert publisher.flush(ARRIVAL_SECONDS_MAX) == 0
        publisher.abort_transaction(ARRIVAL_SECONDS_MAX)


def compacted_topic(kafka: Kafka, *, keep: bool = False) -> str:
    """Make a topic of which compaction took nearly all; return its name.

    Args:
        kafka: where.
        keep: whether it takes nothing more from then on, so that whoever reads it twice sees the
            same.
    """
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    _set(admin, ConfigResource.Type.BROKER, "1", "log.cleaner.backoff.ms", "200")
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
        while _count(client, topic) > 50:
            assert time.monotonic() < deadline, "the cleaner did not come"
            # Only a segment that is no longer written to is cleaned; a record too late rolls it.
            publisher.produce(name, b"later", key=b"roll", partition=0)
            assert publisher.flush(ARRIVAL_SECONDS_MAX) == 0
    if keep:
        # The broker breaks off a cleaning that is under way.
        _set(admin, ConfigResource.Type.TOPIC, name, "cleanup.policy", "delete")
    return name


def _set(admin: AdminClient, kind: ConfigResource.Type, name: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(ARRIVAL_SECONDS_MAX)


def _count(client: Client, topic: Topic) -> int:
    """Count the records that are left."""
    bounds = client.bounds(topic.name, topic.sources)
    reader = KafkaReader(client, topic.name)
    return sum(len(fetched.batch) for fetched in reader.read(bounds.low, bounds.high))
