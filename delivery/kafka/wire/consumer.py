"""Reading over sockets of our own: what a broker answers becomes columns, a batch at a time.

What it is: `Consumer` of the port.
What it must not know: what the records are for, how a batch's bytes are laid out.

Invariants:
    A broker has at most one request of ours, and of each partition no more is held than its share of
    the buffer, twice; a partition that is paused, or full, is not asked for.
    A partition is asked for by the topic's identity: what was created again under a name is never
    read as what was there before.
    An answer to what was asked before a partition was removed or moved is thrown away.
    A position moves with the last record handed out, and over batches of which nothing is.
    What went wrong with a partition is raised at every poll until it is moved or removed, and
    nothing of what was fetched of the others is lost by it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from dedup.errors import DeliveryError, InvalidUsage
from dedup.model import Source
from delivery.kafka.port import RESPONSE_BYTES_MAX, Fetched
from delivery.kafka.wire import errors, protocol
from delivery.kafka.wire.cluster import Cluster
from delivery.kafka.wire.connection import Connection, Lost
from delivery.kafka.wire.held import Held
from delivery.kafka.wire.protocol import FetchedPart, Part

__all__ = ["WireConsumer"]

LOG = logging.getLogger(__name__)

#: How long a broker keeps a request for which it has nothing.
FETCH_MS_MAX = 50
#: Of one partition in one answer: as much as several polls take, and no more than a socket holds.
PART_BYTES_MAX = 2 * 1024 * 1024
PART_BYTES_MIN = 64 * 1024
#: Before a partition that could not be read just now is asked for again.
RETRY_SECONDS = 0.1
#: How long a close waits for monitors to be told.
HINT_SECONDS_MAX = 1.0
#: How long a topic may be unknown before it is taken for gone: brokers learn of it one by one.
UNKNOWN_SECONDS_MAX = 5.0

_STARVED = attrgetter("starved")

#: Sets the offsets of a group: group, topic, offset by partition.
Commit = Callable[[str, str, Mapping[int, int]], bool]


class WireConsumer:
    """Reads partitions; see the port.

    Args:
        bootstrap: "host:port,host:port".
        group: under which name monitors are told of progress.
        buffer_bytes: what may be held before anybody asks.
        commit: tells them.
    """

    def __init__(
        self, bootstrap: str, *, group: str | None, buffer_bytes: int, commit: Commit
    ) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._buffer_bytes = buffer_bytes
        self._commit = commit
        self._cluster = Cluster(bootstrap)
        self._held: dict[Part, Held] = {}
        #: What each connection was asked for and has not answered.
        self._asked: dict[Connection, dict[Part, int]] = {}
        #: Who is looked at first; it changes with every poll, so that nobody starves.
        self._first = 0
        self._hint: threading.Thread | None = None
        self._hint_failed = False
        self._closed = False

    def __repr__(self) -> str:
        return f"WireConsumer({self._bootstrap!r}, {len(self._held)} partitions)"

    def add(self, topic: str, positions: Mapping[Source, int]) -> None:
        """Begin to read partitions; see the port."""
        for source in positions:
            if Part(source.topic, source.partition) in self._held:
                raise InvalidUsage(
                    "read a partition",
                    f"{topic}[{source.partition}]",
                    "it is being read already; seek in it, or remove it first",
                )
        for source, offset in positions.items():
            self._held[Part(source.topic, source.partition)] = Held(source, topic, offset)
        self._cluster.watch([topic])

    def remove(self, sources: Iterable[Source]) -> None:
        """Stop reading partitions; see the port."""
        for source in sources:
            self._held.pop(Part(source.topic, source.partition), None)

    def seek(self, source: Source, offset: int) -> None:
        """Go on reading elsewhere; see the port."""
        self._of(source).move(offset)

    def pause(self, sources: Iterable[Source]) -> None:
        """Hand out nothing of these; see the port."""
        for source in sources:
            self._of(source).paused = True

    def resume(self, sources: Iterable[Source]) -> None:
        """Hand out records again; see the port."""
        for source in sources:
            self._of(source).paused = False

    def position(self, source: Source) -> int:
        """Return the offset behind everything handed out."""
        return self._of(source).position

    def poll(self, *, max_records: int, max_bytes: int, timeout: float) -> list[Fetched]:
        """Return what is there; see the port."""
        assert max_records > 0, "a poll asks for records"
        assert max_bytes > 0, "a poll asks for records"
        deadline = time.monotonic() + timeout
        while True:
            self._tend()
            self._raise_failure()
            fetched = self._take(max_records, max_bytes)
            if fetched:
                # There is room again: the broker gets the next answer ready meanwhile.
                self._ask()
                return fetched
            # What cannot be read may have come to light just now.
            self._raise_failure()
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            self._cluster.wait(left)

    def watched(self, seconds: float) -> tuple[Sequence[Connection], float]:
        """Return what to wait for instead of in a poll; see `await_news`."""
        return self._cluster.watched(seconds)

    def commit_hint(self, positions: Mapping[Source, int]) -> None:
        """Tell lag monitors; see the port."""
        if self._group is None or self._closed:
            return
        if self._hint is not None and self._hint.is_alive():
            return
        by_topic: dict[str, dict[int, int]] = {}
        for source, offset in positions.items():
            held = self._held.get(Part(source.topic, source.partition))
            if held is not None:
                by_topic.setdefault(held.topic, {})[source.partition] = offset
        if by_topic:
            told = partial(self._tell, self._group, by_topic)
            self._hint = threading.Thread(target=told, name="delivery-kafka-hint", daemon=True)
            self._hint.start()

    def close(self) -> None:
        """Let go of everything."""
        if not self._closed:
            self._closed = True
            self._cluster.close()
            self._held.clear()
            if self._hint is not None:
                self._hint.join(HINT_SECONDS_MAX)

    # Inside -----------------------------------------------------------------------------------

    def _of(self, source: Source) -> Held:
        return self._held[Part(source.topic, source.partition)]

    def _tend(self) -> None:
        """Take what has been answered, and ask on."""
        self._cluster.exchange(self._answered)
        if len(self._asked) > len(self._cluster.links):
            there = self._cluster.links
            self._asked = {link: asked for link, asked in self._asked.items() if link in there}
        self._ask()

    def _answered(self, link: Connection, answer: memoryview) -> None:
        asked = self._asked.pop(link, {})
        error, parts = protocol.read_fetch(answer)
        if error:
            # Of the request as a whole: every partition asks again, after a pause.
            parts = [FetchedPart(part, error, -1, (), memoryview(b"")) for part in asked]
        for one in parts:
            held = self._held.get(one.part)
            if held is None or asked.get(one.part) != held.turn:
                continue
            if one.error == errors.NONE:
                held.take_in(one)
            else:
                self._refused(held, one.error)

    def _refused(self, held: Held, code: int) -> None:
        if not errors.again(code):
            held.failure = errors.of_read("read a partition", held.name, code)
            return
        held.not_before = time.monotonic() + RETRY_SECONDS
        self._cluster.look()
        if code in errors.NOT_THERE:
            self._unknown(held, code)

    def _unknown(self, held: Held, code: int) -> None:
        """Take a topic for gone that has been unknown for long."""
        now = time.monotonic()
        held.unknown_since = held.unknown_since or now
        if now - held.unknown_since > UNKNOWN_SECONDS_MAX:
            said = self._cluster.said_of(held.topic)
            if said is not None and said[0] not in (None, held.source.topic):
                held.failure = errors.replaced("read a partition", held.name)
            else:
                held.failure = errors.of_read("read a partition", held.name, code)

    def _ask(self) -> None:
        """Ask every broker that has no request of ours for what it leads."""
        now = time.monotonic()
        share = self._share
        wanted: dict[Connection, list[Held]] = {}
        for held in self._held.values():
            if not held.hungry(share, now):
                continue
            link = self._cluster.leader(held.part)
            if link is None:
                self._leaderless(held)
            elif link not in self._asked:
                wanted.setdefault(link, []).append(held)
        for link, some in wanted.items():
            # Kafka answers in this order and always with something whole of the first that has any.
            first = self._first % len(some)
            order = sorted(some[first:] + some[:first], key=_STARVED, reverse=True)
            positions = {held.part: held.next for held in order}
            request = protocol.fetch(
                positions,
                wait_ms=FETCH_MS_MAX,
                bytes_max=RESPONSE_BYTES_MAX,
                part_bytes_max=share,
            )
            try:
                link.ask(protocol.FETCH, request)
            except Lost:
                self._cluster.lost(link)
                continue
            self._asked[link] = {held.part: held.turn for held in some}

    def _leaderless(self, held: Held) -> None:
        if self._cluster.outdated:
            held.failure = InvalidUsage(
                "read a partition",
                held.name,
                'its brokers are older than Kafka 3.1; nothing was read: say client="confluent"',
            )
            return
        said = self._cluster.said_of(held.topic)
        if said is None:
            return
        identity, error = said
        if error and not errors.again(error):
            held.failure = errors.of_read("read a partition", held.name, error)
        elif error in errors.NOT_THERE or identity not in (None, held.source.topic):
            self._unknown(held, error or min(errors.NOT_THERE))

    @property
    def _share(self) -> int:
        """What of one partition is asked for at once, and held before it is asked for again."""
        fair = self._buffer_bytes // (2 * max(1, len(self._held)))
        return max(PART_BYTES_MIN, min(PART_BYTES_MAX, fair))

    def _take(self, rows: int, size: int) -> list[Fetched]:
        """Hand out what is held, from one partition after the other until it is enough."""
        some = list(self._held.values())
        self._first += 1
        fetched = []
        for at in range(len(some)):
            held = some[(self._first + at) % len(some)]
            if held.paused or rows <= 0 or size <= 0:
                continue
            one = held.hand_out(rows, size)
            if one is not None:
                fetched.append(one)
                rows -= len(one.batch)
                size -= held.handed_bytes
        return fetched

    def _raise_failure(self) -> None:
        for held in self._held.values():
            if held.failure is not None:
                raise held.failure

    def _tell(self, group: str, by_topic: Mapping[str, Mapping[int, int]]) -> None:
        """Tell monitors, in a thread of its own: whoever leads the group may take his time."""
        try:
            told = all(self._commit(group, topic, at) for topic, at in by_topic.items())
        except (DeliveryError, RuntimeError) as error:  # the latter where it was closed meanwhile
            self._untold(str(error))
            return
        if not told:
            self._untold("refused")

    def _untold(self, why: str) -> None:
        if not self._hint_failed and not self._closed:
            self._hint_failed = True
            LOG.warning(
                "offsets of group %s are not shown to monitors (%s); nothing else depends on them",
                self._group,
                why,
            )
