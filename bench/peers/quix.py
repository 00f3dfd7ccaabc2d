"""Quix Streams, exactly-once: a driver of two processes in one consumer group.

What it is: the job as a streaming data frame; with "dedup" a stateful filter in front of it that
remembers the ids it met in the framework's own state, which is part of its commit.
What it must not know: this library.

Invariants:
    Ids are never forgotten within a turn, as in every other contestant.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from quixstreams import (  # type: ignore[import-not-found]  # a peer's
    Application,
    State,
)

from bench.peers.order import ID, TASKS, Order, nonce, told, work

#: A second process that joins is noticed after this; librdkafka's 3 s would be most of a short turn.
HEARTBEAT_MS = 500


def main(order: Order) -> None:
    """Run the applications until nobody wants them any more."""
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=_application, args=(order, index)) for index in range(TASKS)]
    for process in running:
        process.start()
    work()
    for process in running:
        process.terminate()
        process.join()


def _application(order: Order, index: int) -> None:
    """Run one application."""
    app = Application(
        broker_address=order.kafka,
        consumer_group=f"quix-{order.target}",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=int(order.commit_ms) / 1000,
        state_dir=f"{order.scratch}/quix-{index}",
        consumer_extra_config={"heartbeat.interval.ms": HEARTBEAT_MS},
        producer_extra_config={"compression.type": "lz4"},
        loglevel="ERROR",
    )
    source = app.topic(order.source, value_deserializer="bytes", key_deserializer="bytes")
    target = app.topic(order.target, value_serializer="bytes", key_serializer="bytes")
    rows = app.dataframe(source)
    if order.dedup:
        rows = rows.filter(_is_new, stateful=True, metadata=True)
    rows.apply(nonce).to_topic(target)
    app.run()


def _is_new(_value: bytes, _key: Any, _timestamp: int, headers: Any, state: State) -> bool:
    """Tell whether an id was not met before; it is from now on."""
    identity = dict(headers)[ID].decode()
    if state.exists(identity):
        return False
    state.set(identity, 1)
    return True


if __name__ == "__main__":
    main(told())
