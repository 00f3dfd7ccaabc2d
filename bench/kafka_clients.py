"""Benchmarks of the Kafka client port: reading into columns and emitting columns, by each library.

What it is: the port by each client beside the barest loop over confluent-kafka, on one real broker;
records of 150 bytes with a key and one header.
What it must not know: lanes, catalogs.

Invariants:
    Bare means librdkafka with the same settings, every message's value taken, and nothing kept.
    A turn reads or writes all of its records, and counts them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from bench.job import VALUE_BYTES, Job
from delivery.batch import Emissions
from delivery.kafka.opening import open_client
from delivery.kafka.port import (
    DELIVERY_SECONDS_MAX,
    FETCH_RECORDS_MIN,
    Client,
    Topic,
    TopicSettings,
)
from delivery.services.ephemeral import ephemeral

PARTITIONS = 4
#: Records of a turn: a second or two for librdkafka. kafka-python does a part of them.
RECORDS = 200_000
RECORDS_SLOW = 40_000
#: Records that are emitted together, and asked for in one poll.
BUNDLE_ROWS = 20_000
POLL_BYTES = 16 * 1024 * 1024
#: As long as one of ours.
HEADER = ("delivery", bytes(96))
STALL_SECONDS_MAX = 30.0

CONFLUENT, KAFKA_PYTHON, BARE = "port, confluent-kafka", "port, kafka-python", "bare loop"
WIRE = "port, sockets of our own"
LIBRARIES = {WIRE: "wire", CONFLUENT: "confluent", KAFKA_PYTHON: "kafka-python"}


def _emissions(records: int) -> Emissions:
    job = Job()
    return Emissions(
        edges=[0] * records,
        partitions=[at % PARTITIONS for at in range(records)],
        keys=[b"user-%d" % (at % 997) for at in range(records)],
        values=[job.record(at).value for at in range(records)],
        headers=[(HEADER,)] * records,
        ids=np.zeros((records, 2), dtype=np.uint64),
    )


def _emit(client: Client, topic: Topic, records: int) -> Turn:
    producer = client.producer()
    bundle = _emissions(BUNDLE_ROWS)
    began = time.perf_counter()
    for _ in range(records // BUNDLE_ROWS):
        producer.emit([topic], bundle)
    seconds = time.perf_counter() - began
    producer.close()
    return Turn(seconds=(seconds,), amount=records)


def _emit_bare(bootstrap: str, topic: Topic) -> Turn:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "queue.buffering.max.messages": RECORDS,
        }
    )
    bundle = _emissions(BUNDLE_ROWS)
    rows: list[Any] = [
        (topic.name, value, key, partition, None, None, 0, list(headers))
        for value, key, partition, headers in zip(
            bundle.values, bundle.keys, bundle.partitions, bundle.headers, strict=True
        )
    ]
    began = time.perf_counter()
    for _ in range(RECORDS // BUNDLE_ROWS):
        for row in rows:
            producer.produce(*row)
        assert producer.flush(DELIVERY_SECONDS_MAX) == 0, "everything was delivered"
    return Turn(seconds=(time.perf_counter() - began,), amount=RECORDS)


def _read(client: Client, topic: Topic, records: int) -> Turn:
    consumer = client.consumer()
    count, began = 0, time.perf_counter()
    consumer.add(topic.name, dict.fromkeys(topic.sources, 0))
    while count < records:
        assert time.perf_counter() - began < STALL_SECONDS_MAX, "records keep coming"
        polled = consumer.poll(max_records=BUNDLE_ROWS, max_bytes=POLL_BYTES, timeout=1)
        count += sum(len(fetched.batch) for fetched in polled)
    seconds = time.perf_counter() - began
    consumer.close()
    return Turn(seconds=(seconds,), amount=count)


def _read_bare(bootstrap: str, topic: Topic) -> Turn:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": FETCH_RECORDS_MIN,
            "fetch.queue.backoff.ms": 10,
            "fetch.wait.max.ms": 50,
        }
    )
    count, began = 0, time.perf_counter()
    consumer.assign([TopicPartition(topic.name, number, 0) for number in range(PARTITIONS)])
    while count < RECORDS:
        assert time.perf_counter() - began < STALL_SECONDS_MAX, "records keep coming"
        messages = consumer.consume(BUNDLE_ROWS, 0.05)
        count += sum(value is not None for value in map(Message.value, messages))
    seconds = time.perf_counter() - began
    consumer.close()
    return Turn(seconds=(seconds,), amount=count)


@contextmanager
def _cluster(lab: Lab) -> Iterator[tuple[str, dict[str, Client], Topic]]:
    with ephemeral(kafka=1, report=lab.report) as services:
        bootstrap = services.kafka.bootstrap
        with ExitStack() as stack:
            clients = {
                name: stack.enter_context(open_client(bootstrap, {}, library))
                for name, library in LIBRARIES.items()
            }
            name = f"bench-{uuid.uuid4().hex[:8]}"
            topic = clients[CONFLUENT].create(name, TopicSettings(partitions=PARTITIONS))
            yield bootstrap, clients, topic


@contextmanager
def _writers(lab: Lab) -> Iterator[Sequence[Contestant]]:
    with _cluster(lab) as (bootstrap, clients, topic):
        yield (
            Contestant(name=BARE, turn=partial(_emit_bare, bootstrap, topic)),
            *(
                Contestant(name=name, turn=partial(_emit, client, topic, _records(name)))
                for name, client in clients.items()
            ),
        )


@contextmanager
def _readers(lab: Lab) -> Iterator[Sequence[Contestant]]:
    with _cluster(lab) as (bootstrap, clients, topic):
        # Uncompressed, so that kafka-python reads it whatever packages are installed.
        with open_client(bootstrap, {"compression.type": "none"}, "confluent") as plain:
            _emit(plain, topic, RECORDS)
        yield (
            Contestant(name=BARE, turn=partial(_read_bare, bootstrap, topic)),
            *(
                Contestant(name=name, turn=partial(_read, client, topic, _records(name)))
                for name, client in clients.items()
            ),
        )


def _records(name: str) -> int:
    return RECORDS_SLOW if name == KAFKA_PYTHON else RECORDS


KAFKA_WRITE = Benchmark(
    name="kafka-write",
    says=f"{BUNDLE_ROWS} records of {VALUE_BYTES} bytes emitted at a time, with every report read",
    unit="record",
    staged=_writers,
    baseline=BARE,
    goals=(
        Goal(
            says="what reports and columns cost beside a loop without either",
            contestant=WIRE,
            measure="ratio",
            at_most=1.5,
        ),
    ),
)
KAFKA_READ = Benchmark(
    name="kafka-read",
    says=f"records of {VALUE_BYTES} bytes read into columns",
    unit="record",
    staged=_readers,
    baseline=BARE,
    goals=(
        Goal(
            says="what columns cost beside a loop that looks at values only",
            contestant=WIRE,
            measure="ratio",
            at_most=2.0,
        ),
    ),
)

BENCHMARKS = (KAFKA_WRITE, KAFKA_READ)
