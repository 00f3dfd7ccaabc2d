"""A receiver: what a user's loop iterates over, and what an operator asks of it.

What it is: `Receiver`, an iterable of bundles.
What it must not know: how the loop works, what the effect is.

Invariants:
    Making one connects to nothing; each loop begins anew, from the lanes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

from dedup.collect import Keep
from dedup.errors import InvalidUsage
from delivery.host.spec import Plan, StageSpec
from delivery.points import At, nowhere
from delivery.receiver.bundle import Bundle
from delivery.receiver.loop import Running, Setup
from delivery.watch.serving import Run, Serving

__all__ = ["Receiver"]


class Receiver:
    """Consumes one topic as one process of a group; iterate over it.

    Args:
        plan: catalog and cluster.
        spec: the group, said as a stage that reads the topic and writes nothing.
        database: where the user's database is, if it was moved.
        bounded: end once everything is sealed that was in the topic when the loop began.
        stop: set when the loop is to end after the bundle in hand.
        at: is told each place at which a test may let the process die.
        metrics: where the loop shows how it goes.
    """

    def __init__(
        self,
        plan: Plan,
        spec: StageSpec,
        *,
        database: str | None = None,
        bounded: bool = False,
        stop: threading.Event | None = None,
        at: At = nowhere,
        metrics: Serving | None = None,
    ) -> None:
        self._metrics = metrics
        self._setup = Setup(
            plan=plan,
            spec=spec,
            database=database,
            bounded=bounded,
            stop=stop or threading.Event(),
            at=at,
        )
        self._running: Running | None = None

    def __repr__(self) -> str:
        return f"Receiver(topic={self._setup.spec.reads!r}, group={self._setup.spec.name!r})"

    def __iter__(self) -> Iterator[Bundle]:
        """Yield bundles until `stop`, or, if bounded, until the end.

        Raises:
            DeliveryError: it cannot begin, or a lane cannot go on; nothing was skipped.
        """
        if self._running is not None:
            raise InvalidUsage(
                "consume a topic",
                repr(self),
                "it is iterated over already; make another receiver for another loop",
            )
        running = self._running = Running(self._setup)
        try:
            self._show(running)
            yield from running.bundles()
        finally:
            self._running = None
            running.close()

    def _show(self, running: Running) -> None:
        if self._metrics is not None:
            self._metrics.begin(self._setup.plan)
            self._metrics.follow(
                Run(
                    self._setup.spec.name,
                    lambda: self._running is running,
                    running.counters,
                )
            )

    def stop(self) -> None:
        """End the loop after the bundle in hand; may be called by a signal handler."""
        self._setup.stop.set()

    # An operator's ----------------------------------------------------------------------------

    def accept(self, database: str) -> None:
        """Say that a database counts as it is: one put back from a backup, moved, or empty.

        What the database lacks is done again, and what it has is not. Whoever works with another
        copy, or with another history of the catalog, is fenced.

        Raises:
            DeliveryError: it was not done, or not of every lane; it may be called again.
        """
        with closing(Running(self._setup)) as running:
            running.accept(database)

    def collect(self, keep: Keep | None = None) -> list[str]:
        """Take away what no repeat can need any more; return what was done, in words.

        For a group whose lanes are in a database only this does it, because only here it is open.
        It may run beside receivers.
        """
        with closing(Running(self._setup)) as running:
            return running.collect(keep)
