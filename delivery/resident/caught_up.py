"""Waits until everything that is in a pipeline's input topics is delivered, through all its stages.

What it is: `wait_until_delivered`, which asks the catalog, not the tasks.
What it must not know: engines, who runs the lanes.

Invariants:
    A stage is waited for after those that write what it reads, so that what they delivered counts
    as available for it.
    Delivered means acknowledged, by whomever.
    Who waits outlasts servers as the pipeline does: while it runs, they are asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_catalog
from dedup.errors import Indeterminate, Unavailable
from dedup.model import Source
from delivery.host.spec import Plan, StageSpec
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client

__all__ = ["downstream", "wait_until_delivered"]

_T = TypeVar("_T")

#: How often the catalog is asked: each lane that is not done costs a read.
POLL_SECONDS = 0.1


def wait_until_delivered(plan: Plan, still_running: Callable[[], None]) -> None:
    """Wait until what the topics hold now has gone through every stage.

    Args:
        plan: the pipeline.
        still_running: called again and again; raises if there is nobody left to wait for.

    Raises:
        DeliveryError: topics or catalog cannot be what is asked for; that they are away is waited for.
    """
    pause = threading.Event()

    def answered(ask: Callable[[], _T]) -> _T:
        while True:
            try:
                return ask()
            except (Unavailable, Indeterminate):
                still_running()
                pause.wait(POLL_SECONDS)

    catalog = answered(lambda: open_catalog(plan.catalog))
    with (
        closing(catalog.store),
        open_client(plan.kafka, plan.options, plan.client) as client,
    ):
        for spec in downstream(plan.stages):
            for goal in answered(partial(_goals, client, spec)):
                while not answered(partial(goal.reached, catalog)):
                    still_running()
                    pause.wait(POLL_SECONDS)


def _goals(client: Client, spec: StageSpec) -> list[_Goal]:
    topic = client.describe([spec.reads])[spec.reads]
    ends = client.bounds(spec.reads, topic.sources).high
    return [_Goal(spec.lane(source), source, ends.at(source) or 0) for source in topic.sources]


class _Goal:
    """An offset of a lane below which everything is to be delivered."""

    def __init__(self, lane: str, source: Source, end: int) -> None:
        self._lane = lane
        self._source = source
        self._end = end
        #: The first seq seen that covers the offset. A lane under load is never done with its last.
        self._seq: int | None = None

    def reached(self, catalog: Catalog) -> bool:
        row = catalog.load(self._lane)
        if row is None:
            return False
        if self._seq is None and (row.head.frontier.at(self._source) or 0) >= self._end:
            self._seq = row.head.ref.seq
        return self._seq is not None and row.settled >= self._seq


def downstream(stages: Sequence[StageSpec]) -> Iterator[StageSpec]:
    """Yield stages behind those that write what they read; a circle as it was declared."""
    waiting = list(stages)
    while waiting:
        free = [
            spec
            for spec in waiting
            if not any(spec.reads in other.topics for other in waiting if other is not spec)
        ]
        yield from free or waiting
        waiting = [spec for spec in waiting if spec not in free] if free else []
