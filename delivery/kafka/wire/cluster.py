"""Who leads which partition, and a connection to each of them: found out beside whoever reads or writes.

What it is: `Cluster`, which one consumer or one producer has for itself.
What it must not know: offsets, records, what is asked over a connection.

Invariants:
    Whoever asks for a leader waits for nothing: names are resolved, connections made and brokers
    asked in threads that live as long as one such errand. What they bring is taken in by `tend`.
    A broker that refuses is tried again after a pause that grows to `RECONNECT_MS_MAX`; who leads
    what is asked again whenever a leader turned out to be none.
    After `close` an errand that comes home finds nobody, and closes what it brought.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from dedup.model import TopicId
from delivery.kafka.outages import gone
from delivery.kafka.port import RECONNECT_MS_MAX
from delivery.kafka.reaching import addresses
from delivery.kafka.waiting import await_news
from delivery.kafka.wire import protocol
from delivery.kafka.wire.connection import (
    CONNECT_SECONDS_MAX,
    Connection,
    Lost,
    answered,
    dialled,
)
from delivery.kafka.wire.protocol import Metadata, Node, Part

__all__ = ["Cluster", "speaks"]

#: The first pause before a broker is tried again, and the least between two questions who leads.
PAUSE_SECONDS = 0.05
#: How long a close waits for an errand: nearly all are home at once, and nobody needs the others.
HOME_SECONDS_MAX = 1.0
#: While an errand is under way nobody sleeps longer: what it brings may be what is waited for.
ERRAND_SECONDS = 0.01


class Cluster:
    """Leaders and connections.

    Args:
        bootstrap: "host:port,host:port".
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._named = [Node(*one) for one in addresses(bootstrap)]
        self._topics: set[str] = set()
        self._known = Metadata({}, {}, {})
        self._links: dict[int, Connection] = {}
        self._dialling: set[int] = set()
        #: When a broker may be tried again, and the pause before that.
        self._pauses: dict[int, tuple[float, float]] = {}
        self._looking = False
        self._look_wanted = False
        self._look_from = 0.0
        self._look_pause = PAUSE_SECONDS
        #: Why nobody answers, while nobody does.
        self.fault = ""
        #: Set once a broker was met that does not speak as we do.
        self.outdated = False
        self._errands: list[threading.Thread] = []
        self._home: deque[Callable[[], None]] = deque()
        self._turn = threading.Lock()
        self._closed = False

    @property
    def links(self) -> list[Connection]:
        """Every connection there is."""
        return list(self._links.values())

    def watch(self, topics: Iterable[str]) -> None:
        """Find out who leads the partitions of these topics too."""
        new = set(topics) - self._topics
        if new:
            self._topics |= new
            self._look_from = 0.0
            self.look()

    def said_of(self, topic: str) -> tuple[TopicId | None, int] | None:
        """Return what brokers last said of a topic: its identity, or an error; None: nothing yet."""
        return self._known.topics.get(topic)

    def part(self, topic: str, number: int) -> Part | None:
        """Return a partition by the topic's name; None while the topic is not known."""
        said = self.said_of(topic)
        return None if said is None or said[0] is None else Part(said[0], number)

    def leader(self, part: Part) -> Connection | None:
        """Return a connection to who leads a partition; None while there is none."""
        node = self._known.leaders.get(part)
        if node is None:
            self.look()
            return None
        return self._link(node)

    def anyone(self) -> Connection | None:
        """Return a connection to some broker; None while there is none."""
        if self._links:
            return next(iter(self._links.values()))
        for node in self._known.nodes:
            self._link(node)
        if not self._known.nodes:
            self.look()
        return None

    def look(self) -> None:
        """Ask again who leads what, soon."""
        self._look_wanted = True
        self._look()

    def lost(self, link: Connection) -> None:
        """Take note that a connection is gone."""
        link.close()
        for node in [node for node, other in self._links.items() if other is link]:
            del self._links[node]
        self.look()

    def tend(self) -> None:
        """Take in what errands have brought home."""
        while self._home:
            self._home.popleft()()
        self._look()

    def exchange(self, take: Callable[[Connection, memoryview], None]) -> None:
        """Take in what errands brought, send what is kept, and hand over every answer that is there.

        A connection that broke, or over which something else than Kafka speaks, is lost.
        """
        self.tend()
        for link in self.links:
            try:
                link.flush()
                for _, answer in link.receive():
                    take(link, answer)
            except (Lost, ValueError):
                self.lost(link)

    def watched(self, seconds: float) -> tuple[Sequence[Connection], float]:
        """Return what to wait for, and not for longer than an errand may take to come home."""
        busy = self._looking or self._dialling or self._look_wanted
        return self.links, min(seconds, ERRAND_SECONDS) if busy else seconds

    def wait(self, seconds: float) -> None:
        """Wait until a broker says something or an errand may have come home."""
        await_news([self], seconds)

    def close(self) -> None:
        """Let go of every connection. May be called twice."""
        with self._turn:
            self._closed = True
        self.tend()
        for errand in self._errands:
            errand.join(HOME_SECONDS_MAX)
        while self._links:
            self._links.popitem()[1].close()

    # Inside -----------------------------------------------------------------------------------

    def _link(self, node: int) -> Connection | None:
        link = self._links.get(node)
        if link is None and node not in self._dialling and node in self._known.nodes:
            since, _ = self._pauses.get(node, (0.0, 0.0))
            if time.monotonic() >= since:
                self._dialling.add(node)
                self._errand(partial(self._dial, node, self._known.nodes[node]))
        return link

    def _look(self) -> None:
        if not self._look_wanted or self._looking or self._closed or not self._topics:
            return
        if time.monotonic() < self._look_from:
            return
        self._look_wanted, self._looking = False, True
        others = list(self._known.nodes.values())
        random.shuffle(others)
        self._errand(partial(self._ask, [*others, *self._named], sorted(self._topics)))

    def _errand(self, run: Callable[[], None]) -> None:
        self._errands = [errand for errand in self._errands if errand.is_alive()]
        errand = threading.Thread(target=run, name="delivery-kafka-errand", daemon=True)
        self._errands.append(errand)
        errand.start()

    def _bring(self, take: Callable[[], None], *links: Connection) -> None:
        """Leave what an errand brought for `tend`."""
        with self._turn:
            if not self._closed:
                self._home.append(take)
                return
        for link in links:
            link.close()

    # In threads of errands --------------------------------------------------------------------

    def _dial(self, number: int, node: Node) -> None:
        try:
            link = dialled(node)
        except Lost as error:
            self._bring(partial(self._refused, number, str(error)))
            return
        if link is None:
            self._bring(partial(self._too_old, number))
        else:
            self._bring(partial(self._connected, number, link), link)

    def _ask(self, nodes: list[Node], topics: list[str]) -> None:
        why = []
        for node in dict.fromkeys(nodes):
            try:
                found = _told(node, topics)
            except (Lost, ValueError) as error:
                why.append(str(error))
                continue
            if found is None:
                self._bring(partial(self._too_old, None))
            else:
                self._bring(partial(self._told, found))
            return
        gone(self._bootstrap)
        self._bring(partial(self._unanswered, "; ".join(why)))

    # Taken in by `tend` -----------------------------------------------------------------------

    def _connected(self, number: int, link: Connection) -> None:
        self._dialling.discard(number)
        self._pauses.pop(number, None)
        if self._closed or self._known.nodes.get(number) != link.node:
            link.close()
            return
        self._links[number] = link

    def _refused(self, number: int, why: str) -> None:
        self._dialling.discard(number)
        self.fault = why
        _, pause = self._pauses.get(number, (0.0, 0.0))
        pause = min(max(2 * pause, PAUSE_SECONDS), RECONNECT_MS_MAX / 1000)
        self._pauses[number] = (time.monotonic() + pause, pause)
        self.look()

    def _too_old(self, number: int | None) -> None:
        self._looking = False
        if number is not None:
            self._dialling.discard(number)
        self.outdated = True

    def _told(self, found: Metadata) -> None:
        self._looking, self.fault = False, ""
        for number, node in self._known.nodes.items():
            # A broker that moved is another one.
            if found.nodes.get(number) != node and number in self._links:
                self._links.pop(number).close()
        self._known = found
        self._look_pause = min(2 * self._look_pause, RECONNECT_MS_MAX / 1000)
        self._look_from = time.monotonic() + self._look_pause
        if all(error == 0 for _, error in found.topics.values()):
            self._look_pause = PAUSE_SECONDS
            self._look_from = time.monotonic() + PAUSE_SECONDS

    def _unanswered(self, why: str) -> None:
        self._looking, self._look_wanted, self.fault = False, True, why
        self._look_pause = min(2 * self._look_pause, RECONNECT_MS_MAX / 1000)
        self._look_from = time.monotonic() + self._look_pause


def _told(node: Node, topics: list[str]) -> Metadata | None:
    """Ask one broker who leads what; None if it does not speak as we do. Waits."""
    link = dialled(node)
    if link is None:
        return None
    try:
        link.ask(protocol.METADATA, protocol.metadata(topics))
        answer = answered(link, time.monotonic() + CONNECT_SECONDS_MAX)
        return protocol.read_metadata(answer)
    finally:
        link.close()


def speaks(bootstrap: str) -> bool | None:
    """Tell whether the brokers of an address speak as we do; None if nobody answers. Waits."""
    for address in addresses(bootstrap):
        try:
            link = dialled(Node(*address))
        except Lost:
            continue
        if link is not None:
            link.close()
        return link is not None
    return None
