"""Which lanes write what a lane reads, and when it is time to ask how far they have come.

What it is: `Writers`, what the lanes of a process know together of who writes which topic,
`Senders`, a callable for a lane's judge that names the senders now and then, and nobody in between,
and `logs_of`, what those read in their turn.
What it must not know: what is learned from a sender's row.

Invariants:
    Asking less often costs memory for a while, never correctness: what is not learned now is
    learned later, and a bucket of ids lives until then.
    The reads that a process makes for all this have a bound that does not grow with its lanes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from weakref import WeakSet

from dedup.catalog.catalog import Catalog
from dedup.errors import DeliveryError
from dedup.model import Frontier, TopicId
from delivery.host.adapters import open_reader
from delivery.judge import Logs, Memory
from delivery.kafka.port import Client
from delivery.ports import Log

#: How often a lane asks its senders how far they have delivered: each costs a read of the catalog,
#: and behind re-keying at most another, and all of them one look at the log that they read.
LEARN_SECONDS = 2.0
#: So many of those reads are made in a second at most, for all lanes of a process; ids live in
#: buckets of ten minutes, so that those of many lanes may well be asked for less often.
LEARN_READS_PER_SECOND = 200
#: How often the catalog is looked through for lanes that write the topic.
SCAN_SECONDS = 30.0
#: Of the lanes whose topics are known, so many are looked at again in a scan: a lane may be told to
#: write another topic.
LOOKED_AGAIN_MAX = 20


class Writers:
    """The lanes of a catalog, by the topics they write."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._writes: dict[str, tuple[TopicId, ...]] = {}
        #: Whose topics are known, the one that was looked at longest ago first.
        self._order: deque[str] = deque()
        self._scanned: float | None = None
        #: Who asks, as long as its lane is there.
        self.askers: WeakSet[Senders] = WeakSet()

    def of(self, topic: TopicId) -> tuple[str, ...]:
        """Return the lanes that write a topic, as of the last scan."""
        now = time.monotonic()
        if self._scanned is None or now - self._scanned > SCAN_SECONDS:
            self._scan()
            self._scanned = now
        return tuple(lane for lane, writes in self._writes.items() if topic in writes)

    def seconds(self, senders: int) -> float:
        """Return how long a lane with so many senders waits until it asks them again."""
        return max(LEARN_SECONDS, len(self.askers) * senders / LEARN_READS_PER_SECOND)

    def _scan(self) -> None:
        there = dict.fromkeys(self._catalog.lanes())
        order = deque(lane for lane in self._order if lane in there)
        again = [order.popleft() for _ in range(min(LOOKED_AGAIN_MAX, len(order)))]
        news = [lane for lane in there if lane not in self._writes]
        found = {lane: row for lane in (*again, *news) if (row := self._catalog.load(lane))}
        kept = {lane: writes for lane, writes in self._writes.items() if lane in there}
        self._writes = kept | {lane: row.head.writes for lane, row in found.items()}
        # Not before all of them were read: where a read fails, the next scan looks at the same again.
        self._order = order + deque(found)


class Senders:
    """The lanes that write one topic, for one lane that reads it.

    Args:
        writers: what this process knows of who writes what.
        topic: what the lane reads.
        logs: what is in topics just now.
    """

    def __init__(self, writers: Writers, topic: TopicId, logs: Logs | None = None) -> None:
        self.logs = logs
        #: What the lane's judges remember of them, one after the other.
        self.memory = Memory()
        self._writers = writers
        self._topic = topic
        self._next: float | None = None
        writers.askers.add(self)

    def __call__(self) -> Iterable[str]:
        """Return the senders if it is time to ask them, else none."""
        now = time.monotonic()
        if self._next is not None and now < self._next:
            return ()
        senders = self._writers.of(self._topic)
        self._next = now + self._writers.seconds(len(senders))
        return senders


def logs_of(client: Client) -> Logs:
    """Return how to find out what is in topics."""

    def logs(topics: Iterable[str]) -> Log | None:
        try:
            found = [open_reader(client, topic).log() for topic in topics]
        except DeliveryError:
            # Lane time waits until there is an answer; nothing else is asked for it.
            return None
        return Log(
            topics=tuple(topic for log in found for topic in log.topics),
            low=Frontier.of(position for log in found for position in log.low),
            high=Frontier.of(position for log in found for position in log.high),
        )

    return logs
