"""What came out of the job: read from Kafka, counted against what went in.

What it is: `read`, which reads a topic from end to end; `received`, which drops what a receiver
drops; `Outcome`, how often each order had an effect.
What it must not know: how the job was run, what was killed.

Invariants:
    A record is dropped only if an earlier one has its id and its bytes.
    Two versions of an order are a conflict wherever they stand, also between the two stages.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from dedup.errors import Unavailable
from delivery.header import NAME, decode_header

#: How many records one call gets, and how long it may wait for as many.
BATCH = 10_000
TURN_SECONDS = 0.2
#: How long it may take to get any.
SILENCE_SECONDS_MAX = 30.0


class Found(NamedTuple):
    """A record: the id that a stage of ours gave it, if one did, and what is in it."""

    id: bytes | None
    value: bytes


class Received(NamedTuple):
    """What is left of a topic, and how many repeats of identical bytes were dropped."""

    records: list[Found]
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How often orders had an effect: an invoice.

    Attributes:
        effects: invoices.
        repeats: identical copies that were dropped, between the stages and behind them.
        lost: orders without an invoice.
        doubled: orders with more than one.
        doubled_once: those of them that were published once.
        conflicting: orders of which there are two versions: two prices, or two invoices.
        strange: invoices of no order, or at a price that was not given.
    """

    effects: int
    repeats: int
    lost: int
    doubled: int
    doubled_once: int
    conflicting: int
    strange: int

    @property
    def exact(self) -> bool:
        """Whether every order had one effect, in one version."""
        return not (self.lost or self.doubled or self.conflicting or self.strange)

    @classmethod
    def of(cls, sent: Counter[str], priced: Received, invoices: Received) -> Outcome:
        """Count what came of the orders that were sent, each so many times."""
        quotes: dict[str, set[bytes]] = defaultdict(set)
        given: dict[str, set[str]] = defaultdict(set)
        for found in priced.records:
            order = json.loads(found.value)
            quotes[order["order"]].add(found.value)
            given[order["order"]].add(order["quote"])
        versions: dict[str, set[bytes]] = defaultdict(set)
        effects: Counter[str] = Counter()
        strange = 0
        for found in invoices.records:
            order = json.loads(found.value)
            name = order["order"]
            effects[name] += 1
            versions[name].add(found.value)
            strange += name not in sent or order["quote"] not in given[name]
        doubled = [name for name, times in effects.items() if times > 1]
        return cls(
            effects=effects.total(),
            repeats=priced.repeats + invoices.repeats,
            lost=sum(name not in effects for name in sent),
            doubled=len(doubled),
            doubled_once=sum(sent[name] == 1 for name in doubled),
            conflicting=sum(len(quotes[name]) > 1 or len(versions[name]) > 1 for name in sent),
            strange=strange,
        )


def received(records: Iterable[Found]) -> Received:
    """Do what a receiver does: drop a record whose id and bytes came before.

    One with a known id and other bytes stays, and so is seen as what it is.
    """
    seen: set[Found] = set()
    left = []
    repeats = 0
    for record in records:
        if record.id is not None and record in seen:
            repeats += 1
        else:
            seen.add(record)
            left.append(record)
    return Received(left, repeats)


def read(kafka: str, topic: str) -> list[Found]:
    """Read everything that is in a topic now.

    Raises:
        Unavailable: Kafka does not answer.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "demonstration",  # never joined
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        ends = {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition))[1]
            for partition in consumer.list_topics(topic).topics[topic].partitions
        }
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        found: list[Found] = []
        came_at = time.monotonic()
        left = {partition for partition, end in ends.items() if end}
        while left:
            messages = consumer.consume(BATCH, TURN_SECONDS)
            if messages:
                came_at = time.monotonic()
            elif time.monotonic() - came_at > SILENCE_SECONDS_MAX:
                raise Unavailable("read a topic", topic, "nothing comes; nothing was changed")
            for message in messages:
                if message.error() is not None:
                    raise Unavailable("read a topic", topic, str(message.error()))
                found.append(Found(_id(list(message.headers() or [])), message.value() or b""))
            for place in consumer.position([TopicPartition(topic, p) for p in sorted(left)]):
                if place.offset >= ends[place.partition]:
                    left.discard(place.partition)
        return found
    finally:
        consumer.close()


def _id(headers: Iterable[Any]) -> bytes | None:
    ours = decode_header(dict(headers).get(NAME, b""))
    return None if ours is None else bytes(ours.id)
