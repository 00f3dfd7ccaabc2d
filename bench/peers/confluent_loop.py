"""The loop one would write by hand: confluent-kafka, consume, transform, produce, in transactions.

What it is: a driver of two processes, each with its share of the partitions, the offsets inside the
transaction; with "dedup" it also drops ids that it finds in a local RocksDB.
What it must not know: this library.

Invariants:
    What was read, what was made of it and how far reading went are one transaction.
    The ids are NOT part of it: RocksDB and Kafka have no commit in common. A crash between the two
    loses records or repeats them, whichever is written first. It is in the race because it is what
    people write, not because it is exactly-once.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from bench.peers.order import ID, TASKS, Order, nonce, told, work

PARTITIONS = 4
#: Messages asked for at once, and how long to wait for them: what is there is sent at once.
MESSAGES_MAX, WAIT_SECONDS = 10_000, 0.01
#: How long a call about transactions may take.
TRANSACTION_SECONDS_MAX = 60.0


def main(order: Order) -> None:
    """Run the loops until nobody wants them any more."""
    context = multiprocessing.get_context("spawn")
    loops = [context.Process(target=_loop, args=(order, index)) for index in range(TASKS)]
    for loop in loops:
        loop.start()
    work()
    for loop in loops:
        loop.terminate()
        loop.join()


def _loop(order: Order, index: int) -> None:
    """Read, transform and write in transactions, for ever."""
    shared = {"bootstrap.servers": order.kafka}
    reading = {
        "group.id": f"loop-{order.target}",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "queued.min.messages": 200_000,
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": 50,
    }
    writing = {
        "transactional.id": f"loop-{order.target}-{index}",
        "linger.ms": 5,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
    }
    consumer, producer = Consumer(shared | reading), Producer(shared | writing)
    shares = range(index, PARTITIONS, TASKS)
    consumer.assign([TopicPartition(order.source, at, OFFSET_BEGINNING) for at in shares])
    producer.init_transactions(TRANSACTION_SECONDS_MAX)
    seen = _Seen(f"{order.scratch}/ids-{index}") if order.dedup else None
    while True:
        first = _fetched(consumer)
        if not first:
            continue
        with _transaction(consumer, producer):
            deadline = time.monotonic() + int(order.commit_ms) / 1000
            messages = first
            while True:
                for message in seen.fresh(messages) if seen else messages:
                    value, partition = message.value() or b"", message.partition() or 0
                    producer.produce(order.target, nonce(value), partition=partition)
                producer.poll(0)
                if time.monotonic() >= deadline:
                    break
                messages = _fetched(consumer)


def _fetched(consumer: Consumer) -> list[Message]:
    messages: list[Message] = consumer.consume(MESSAGES_MAX, WAIT_SECONDS)
    for message in messages:
        assert message.error() is None, message.error()
    return messages


@contextmanager
def _transaction(consumer: Consumer, producer: Producer) -> Iterator[None]:
    """Commit what is produced in a block together with how far the consumer is."""
    producer.begin_transaction()
    yield
    positions = consumer.position(consumer.assignment())
    group = consumer.consumer_group_metadata()
    # A partition nothing came from has no position yet, and nothing to commit.
    read = [position for position in positions if position.offset >= 0]
    producer.send_offsets_to_transaction(read, group, TRANSACTION_SECONDS_MAX)
    producer.commit_transaction(TRANSACTION_SECONDS_MAX)


class _Seen:
    """The ids this process has met, in RocksDB."""

    def __init__(self, path: str) -> None:
        from rocksdict import (  # type: ignore[import-not-found]  # noqa: PLC0415 - a peer's, and only where ids are deduplicated
            Options,
            Rdict,
            WriteBatch,
        )

        self._ids = Rdict(path, Options(raw_mode=True))
        self._batch = WriteBatch

    def fresh(self, messages: list[Message]) -> list[Message]:
        """Return the messages whose id was not met before; they are from now on."""
        ids = [dict(message.headers() or ())[ID] for message in messages]
        known = self._ids[ids] if ids else []
        batch, new, within = self._batch(raw_mode=True), [], set()
        for message, identity, value in zip(messages, ids, known, strict=True):
            if value is None and identity not in within:
                within.add(identity)
                batch.put(identity, b"")
                new.append(message)
        self._ids.write(batch)
        return new


if __name__ == "__main__":
    main(told())
