"""A consumer that nobody asks holds no more than it was told to."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable

import psutil
import pytest

from delivery.kafka.opening import LIBRARIES, open_client
from delivery.kafka.port import RESPONSE_BYTES_MAX, Client, Topic, TopicSettings
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import ARRIVAL_SECONDS_MAX, Sent, emissions

MIB = 1024 * 1024
KIB = 1024
#: What the topic holds, and what the consumer may.
TOPIC_BYTES = 160 * MIB
BUFFER_BYTES = 8 * MIB
#: A response that is being read stands in memory twice, compressed and not; the rest is overhead.
BOUND_BYTES = BUFFER_BYTES + 2 * RESPONSE_BYTES_MAX + 16 * MIB
WATCH_SECONDS = 4.0


@pytest.fixture
def topic(kafka: Kafka, unique: Callable[[str], str]) -> Topic:
    """A topic that is several times larger than the bound, and does not compress."""
    with open_client(kafka.bootstrap, {"compression.type": "none"}) as client:
        made = client.create(unique("heavy"), TopicSettings(partitions=2))
        producer = client.producer()
        noise = random.Random(4).randbytes(16 * KIB)
        piece = [Sent(n % 2, None, noise) for n in range(16 * MIB // len(noise))]
        for _ in range(TOPIC_BYTES // (16 * MIB)):
            producer.emit([made], emissions(piece))
        producer.close()
    return made


def grown(client: Client, topic: Topic, buffer_bytes: int, until: int) -> int:
    """Read a little, slowly; return by how much this process grew, at most, up to `until`."""
    process = psutil.Process()
    # What was let go of before would be taken again, and nobody would see the process grow.
    ctypes.CDLL(None).malloc_trim(0)
    consumer = client.consumer(buffer_bytes=buffer_bytes)
    before, most = process.memory_info().rss, 0
    consumer.add(topic.name, dict.fromkeys(topic.sources, 0))
    deadline = time.monotonic() + (WATCH_SECONDS if until > TOPIC_BYTES else ARRIVAL_SECONDS_MAX)
    while time.monotonic() < deadline and most < until:
        consumer.poll(max_records=1, max_bytes=1, timeout=0.05)
        most = max(most, process.memory_info().rss - before)
    consumer.close()
    return most


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_slow_reader_stays_within_its_buffer(kafka: Kafka, topic: Topic, library: str) -> None:
    with open_client(kafka.bootstrap, {}, library) as client:
        assert grown(client, topic, BUFFER_BYTES, 10 * TOPIC_BYTES) < BOUND_BYTES


def test_without_the_bound_it_would_not(kafka: Kafka, topic: Topic) -> None:
    """What the test above would see: librdkafka fetches ahead as far as it may."""
    with open_client(kafka.bootstrap, {}, "confluent") as client:
        assert grown(client, topic, 2 * TOPIC_BYTES, BOUND_BYTES) >= BOUND_BYTES
