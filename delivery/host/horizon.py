"""How far input topics reach, known without anybody waiting for it.

What it is: `Horizon`, which has a cluster asked in a thread of its own.
What it must not know: lanes, who shows what it says.

Invariants:
    Only the first answer about a topic is waited for. After that it says what was last heard, and
    asks anew.
    Nothing depends on it: where a cluster does not answer it says nothing, and never fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from dedup.errors import DeliveryError
from dedup.model import Frontier, Source
from delivery.kafka.port import Bounds, Client

__all__ = ["Horizon"]


class Horizon:
    """The ends of input topics.

    Args:
        client: the cluster.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(1, "delivery-horizon")
        self._asked: dict[str, Future[Bounds]] = {}
        self._known: dict[str, Frontier | None] = {}

    def of(self, topic: str, sources: Sequence[Source]) -> Frontier | None:
        """Return where partitions of a topic ended when that was last heard; None: unknown."""
        asked = self._asked.get(topic)
        if asked is None:
            asked = self._ask(topic, sources)
        if asked.done() or topic not in self._known:
            self._known[topic] = _heard(asked)
            self._ask(topic, sources)
        return self._known[topic]

    def close(self) -> None:
        """Ask nothing more, and wait for nothing. May be called twice."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, topic: str, sources: Sequence[Source]) -> Future[Bounds]:
        asked = self._pool.submit(self._client.bounds, topic, tuple(sources))
        self._asked[topic] = asked
        return asked


def _heard(asked: Future[Bounds]) -> Frontier | None:
    try:
        return asked.result().high
    except DeliveryError:
        return None
