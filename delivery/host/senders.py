"""Which lanes write what a lane reads, and when it is time to ask how far they have come.

What it is: a callable for the judge that names the senders now and then, and nobody in between.
What it must not know: what is learned from a sender's row.

Invariants:
    Asking less often costs memory for a while, never correctness: what is not learned now is
    learned later, and a bucket of ids lives until then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from dedup.catalog.catalog import Catalog
from dedup.model import TopicId

#: How often a lane asks its senders how far they have delivered: each costs a read of the catalog.
LEARN_SECONDS = 2.0
#: How often the catalog is looked through for lanes that write the topic.
SCAN_SECONDS = 30.0


class Senders:
    """The lanes that write one topic.

    Args:
        catalog: where lanes are.
        topic: the topic; it is known once the lane has looked at its log.
    """

    def __init__(self, catalog: Catalog, topic: TopicId) -> None:
        self._catalog = catalog
        self._topic = topic
        self._known: tuple[str, ...] = ()
        self._scanned: float | None = None
        self._asked: float | None = None

    def __call__(self) -> Iterable[str]:
        """Return the senders if it is time to ask them, else none."""
        now = time.monotonic()
        if self._scanned is None or now - self._scanned > SCAN_SECONDS:
            self._known, self._scanned = tuple(self._writers()), now
        if self._asked is not None and now - self._asked < LEARN_SECONDS:
            return ()
        self._asked = now
        return self._known

    def _writers(self) -> Iterable[str]:
        for lane in self._catalog.lanes():
            row = self._catalog.load(lane)
            if row is not None and self._topic in row.head.writes:
                yield lane
