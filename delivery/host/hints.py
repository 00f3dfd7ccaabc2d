"""What monitors of consumer groups are told of a stage that has no consumer of its own.

What it is: `Hints`, which tells it in a thread of its own.
What it must not know: lanes, seals, who asks a group for its lag.

Invariants:
    Nothing depends on it: it never fails, and nobody waits for it but whoever closes it.
    What is told last is told for certain, unless it is refused; what is overtaken need not be.
    Where it is refused, the cluster is left alone for a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from delivery.kafka.port import Client

__all__ = ["Hints"]

LOG = logging.getLogger(__name__)

#: A cluster that refuses, or is slow to answer, is asked again after that.
QUIET_SECONDS = 60.0
#: Monitors look every few seconds; each time they are told costs a write of the brokers'.
TELL_SECONDS = 1.0


class Hints:
    """Tells Kafka how far a stage is, under a group's name.

    Args:
        client: the cluster; open for as long as this is.
        group: which no consumer joins.
    """

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group
        self._quiet_until = 0.0
        self._failed = False
        self._pool = ThreadPoolExecutor(1, "delivery-hints")
        self._turn = threading.Lock()
        self._closing = threading.Event()
        #: What is to be told, by topic, and who tells it; None: nobody is about to.
        self._news: dict[str, dict[int, int]] = {}
        self._telling: Future[None] | None = None

    def tell(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the offsets behind what is sealed, by partition, before long."""
        if not offsets or self._closing.is_set():
            return
        with self._turn:
            self._news.setdefault(topic, {}).update(offsets)
            if self._telling is None:
                self._telling = self._pool.submit(self._tell_all)

    def close(self) -> None:
        """Tell what is left, and end. May be called twice."""
        self._closing.set()
        self._pool.shutdown()

    def _tell_all(self) -> None:
        while True:
            with self._turn:
                news, self._news = self._news, {}
                if not news:
                    self._telling = None
                    return
            for topic, offsets in news.items():
                self._commit(topic, offsets)
            self._closing.wait(TELL_SECONDS)

    def _commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        if time.monotonic() < self._quiet_until:
            return
        why = "the cluster refused"
        try:
            if self._client.commit(self._group, topic, offsets):
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, the batch is sealed
            why = type(error).__name__  # its text may hold what nobody should read
        self._quiet_until = time.monotonic() + QUIET_SECONDS
        if not self._failed:
            self._failed = True
            LOG.warning(
                "offsets of group %s are not shown to monitors (%s); nothing else depends on them",
                self._group,
                why,
            )
