"""Writing over sockets of our own: columns become record batches, one answer for each.

What it is: `Producer` of the port, with `begin`.
What it must not know: what the records are for, how a batch's bytes are laid out.

Invariants:
    Batches of a partition are numbered without a gap, so that the broker appends each once and in
    order, however often it is sent. What may or may not have arrived is sent again with its number.
    Of a partition no more is on its way than the broker remembers the numbers of.
    After a failed emission everything on its way is given up, and the next one begins as another
    producer: nothing of what failed is sent by this one any more.
    A sending is done when every batch of it has been answered.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dedup.errors import DeliveryError, Indeterminate, InvalidUsage
from dedup.model import Frontier, Source
from delivery.batch import Emissions, taken
from delivery.kafka.port import BATCH_BYTES_MAX, DELIVERY_SECONDS_MAX, Bounds, Topic
from delivery.kafka.wire import errors, protocol
from delivery.kafka.wire.cluster import Cluster
from delivery.kafka.wire.connection import ANSWER_MS_MAX, Connection, Lost
from delivery.kafka.wire.encoding import cuts, encode, stamp
from delivery.kafka.wire.protocol import Produced
from delivery.records import RECORD_BYTES_MAX

__all__ = ["WireProducer", "WireSending"]

#: So many batches of a producer a broker knows again; and requests on one connection.
REQUESTS_MAX = 5
#: A batch before it is compressed: the smallest topic that is written to takes it as it is.
_BATCH_BYTES_MAX = min(BATCH_BYTES_MAX, RECORD_BYTES_MAX + 48 * 1024)
#: Before what was refused for now is sent again.
RETRY_SECONDS = 0.1
#: How long a topic may be unknown before it is taken for gone.
UNKNOWN_SECONDS_MAX = 5.0
#: An answer may be this much later than the time a record has for its delivery.
_LATE_SECONDS_MAX = 5.0
#: How long is waited at a time for what is on its way.
_SERVE_SECONDS = 0.1

#: A place as one number: the edge above the partition.
_EDGE_SHIFT = 32

_Place = tuple[str, int]
_Rows = npt.NDArray[np.intp]
_Ends = Callable[[str, Sequence[Source]], Bounds]


@dataclass(slots=True, eq=False)
class _Batch:
    """Records of one partition that are sent together."""

    data: bytearray
    count: int
    sending: WireSending
    sequence: int = -1
    #: Refused for now, or on a connection that broke.
    failed: bool = False


@dataclass(slots=True, eq=False)
class _Lane:
    """What is on its way to one partition, in order."""

    next_sequence: int = 0
    waiting: deque[_Batch] = field(default_factory=deque)
    flying: deque[_Batch] = field(default_factory=deque)
    not_before: float = 0.0
    unknown_since: float = 0.0


class WireSending:
    """Records on their way; see `Sending`."""

    def __init__(self, owner: WireProducer, topics: Sequence[Topic], deadline: float) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.deadline = deadline
        #: Batches without an answer.
        self.left = 0
        #: Behind the last record of each partition; None: the broker did not say.
        self.behind: dict[_Place, int | None] = {}
        self.failure: DeliveryError | None = None
        self._owner = owner

    def done(self, seconds: float = 0.0) -> Frontier | None:
        """Return where it landed, or None while records are on their way; see `Sending`."""
        return self._owner.finish(self, seconds)


class WireProducer:
    """Sends records; see the port.

    Args:
        bootstrap: "host:port,host:port".
        ends: reads the end of partitions, for an answer without an offset.
        codec: how batches are compressed, by Kafka's number.
        delivery_seconds: how long a record may take to be acknowledged.
    """

    def __init__(
        self,
        bootstrap: str,
        ends: _Ends,
        *,
        codec: int,
        delivery_seconds: float = DELIVERY_SECONDS_MAX,
    ) -> None:
        self._bootstrap = bootstrap
        self._ends = ends
        self._codec = codec
        self._delivery_seconds = delivery_seconds
        self._cluster = Cluster(bootstrap)
        self._begin_anew()

    def __repr__(self) -> str:
        return f"WireProducer({self._bootstrap!r})"

    def emit(self, topics: Sequence[Topic], emissions: Emissions) -> Frontier:
        """Send in order, wait, and say where it landed; see the port."""
        sending = self.begin(topics, emissions)
        while (landed := sending.done(_SERVE_SECONDS)) is None:
            pass
        return landed

    def begin(self, topics: Sequence[Topic], emissions: Emissions) -> WireSending:
        """Send in order and wait for nothing; `done` of what is returned says where it landed."""
        patience = self._delivery_seconds + _LATE_SECONDS_MAX
        sending = WireSending(self, topics, time.monotonic() + patience)
        for (edge, partition), rows in _by_place(emissions):
            place = (topics[edge].name, partition)
            sending.behind[place] = 0
            self._pack(sending, place, emissions, rows)
        if sending.left:
            self._sendings.append(sending)
            self._cluster.watch(sending.topics)
            self._tend()
        return sending

    def finish(self, sending: WireSending, seconds: float) -> Frontier | None:
        """Look at what was answered, and say where one sending landed."""
        self._tend()
        if sending.left and not sending.failure and seconds:
            self._cluster.wait(seconds)
            self._tend()
        if sending.failure is None and sending.left and time.monotonic() > sending.deadline:
            self._give_up(self._late())
        if sending.failure is not None:
            raise sending.failure
        return None if sending.left else self._behind(sending)

    def close(self) -> None:
        """Let go of everything."""
        self._give_up(self._late())
        self._cluster.close()

    # Inside -----------------------------------------------------------------------------------

    def _pack(self, sending: WireSending, place: _Place, emissions: Emissions, rows: _Rows) -> None:
        """Make batches of the records of one partition."""
        lane = self._lanes.setdefault(place, _Lane())
        keys = taken(emissions.keys, rows)
        values = taken(emissions.values, rows)
        headers = taken(emissions.headers, rows)
        now_ms, first = int(time.time() * 1000), 0
        for end in cuts(keys, values, headers, _BATCH_BYTES_MAX):
            part = slice(first, end)
            data = encode(
                keys[part], values[part], headers[part], timestamp_ms=now_ms, codec=self._codec
            )
            lane.waiting.append(_Batch(data, end - first, sending))
            sending.left += 1
            first = end

    def _begin_anew(self) -> None:
        #: By topic and partition.
        self._lanes: dict[_Place, _Lane] = {}
        self._sendings: list[WireSending] = []
        #: Our identity and epoch, once a broker has given them.
        self._identity: tuple[int, int] | None = None
        self._introduced: Connection | None = None
        self._introduce_from = 0.0
        #: What each connection carries, a list for each request without an answer.
        self._flying: dict[Connection, deque[list[tuple[_Place, _Batch]]]] = {}

    def _give_up(self, why: DeliveryError) -> None:
        """Fail everything that is on its way, and begin as another producer."""
        for sending in self._sendings:
            if sending.left and sending.failure is None:
                sending.failure = why
        for link in self._flying:
            # Whatever is still in its buffers must not be sent behind what comes next.
            self._cluster.lost(link)
        self._begin_anew()

    def _tend(self) -> None:
        """Take in answers, and send what may be sent."""
        self._cluster.tend()
        for link in self._cluster.links:
            try:
                link.flush()
                for _, answer in link.receive():
                    self._answered(link, answer)
            except (Lost, ValueError):
                self._cluster.lost(link)
                self._fallen(link)
        for link in [link for link in self._flying if link.fileno() < 0]:
            self._fallen(link)
        self._sendings = [one for one in self._sendings if one.left and one.failure is None]
        if self._sendings:
            self._send()

    def _send(self) -> None:
        if self._cluster.outdated:
            self._give_up(
                InvalidUsage(
                    "emit records",
                    self._bootstrap,
                    'the brokers are older than Kafka 3.1; nothing was sent: say client="confluent"',
                )
            )
            return
        if self._identity is None:
            self._introduce()
            return
        while True:
            lanes, requests = self._lanes, self._ready()
            if not requests or lanes is not self._lanes:
                return
            for link, batches in requests.items():
                self._ask(link, batches)

    def _introduce(self) -> None:
        """Ask some broker for an identity."""
        link = self._cluster.anyone()
        if link is None or self._introduced is not None or time.monotonic() < self._introduce_from:
            return
        try:
            link.ask(protocol.INIT_PRODUCER_ID, protocol.init_producer_id())
        except Lost:
            self._cluster.lost(link)
            return
        self._introduced = link

    def _ready(self) -> dict[Connection, list[tuple[_Place, _Batch]]]:
        """Return the next batch of each partition that may be sent now, by who leads it."""
        now = time.monotonic()
        ready: dict[Connection, list[tuple[_Place, _Batch]]] = {}
        for place, lane in self._lanes.items():
            # Behind what failed nothing is sent until all of it is back, to be sent in order.
            blocked = len(lane.flying) >= REQUESTS_MAX or any(one.failed for one in lane.flying)
            if not lane.waiting or blocked or now < lane.not_before:
                continue
            part = self._cluster.part(*place)
            link = None if part is None else self._cluster.leader(part)
            if link is None:
                self._leaderless(place, lane)
            elif len(self._flying.get(link, ())) < REQUESTS_MAX:
                ready.setdefault(link, []).append((place, lane.waiting[0]))
        return ready

    def _ask(self, link: Connection, batches: list[tuple[_Place, _Batch]]) -> None:
        assert self._identity is not None, "who sends has an identity"
        by_topic: dict[str, list[tuple[int, bytearray]]] = {}
        for place, batch in batches:
            lane = self._lanes[place]
            lane.flying.append(lane.waiting.popleft())
            if batch.sequence < 0:
                batch.sequence = lane.next_sequence
                lane.next_sequence = (lane.next_sequence + batch.count) & 0x7FFFFFFF
                stamp(batch.data, *self._identity, batch.sequence)
            by_topic.setdefault(place[0], []).append((place[1], batch.data))
        self._flying.setdefault(link, deque()).append(batches)
        try:
            link.ask(protocol.PRODUCE, *protocol.produce(by_topic, timeout_ms=ANSWER_MS_MAX))
        except Lost:
            self._cluster.lost(link)
            self._fallen(link)

    def _answered(self, link: Connection, answer: memoryview) -> None:
        if link is self._introduced:
            self._introduced = None
            code, identity, epoch = protocol.read_init_producer_id(answer)
            if code == errors.NONE:
                self._identity = (identity, epoch)
            elif errors.again(code):
                self._introduce_from = time.monotonic() + RETRY_SECONDS
            else:
                self._give_up(errors.of_write(self._bootstrap, code, ""))
            return
        batches = self._flying[link].popleft()
        told = {(one.topic, one.number): one for one in protocol.read_produce(answer)}
        for place, batch in batches:
            self._told(place, batch, told[place])

    def _told(self, place: _Place, batch: _Batch, said: Produced) -> None:
        lane = self._lanes.get(place)
        if lane is None or batch not in lane.flying:
            return  # given up meanwhile
        if said.error in (errors.NONE, errors.DUPLICATE):
            lane.flying.remove(batch)
            lane.unknown_since = 0.0
            offset = said.offset + batch.count if said.offset >= 0 else None
            sending = batch.sending
            before = sending.behind[place]
            known = offset is not None and before is not None
            sending.behind[place] = max(offset, before) if known else None  # type: ignore[type-var]
            sending.left -= 1
            self._settle(lane)
            return
        behind_failed = lane.flying[0] is not batch or lane.flying[0].failed
        if said.error == errors.OUT_OF_ORDER and behind_failed:
            self._fail(lane, batch)
        elif errors.again(said.error):
            self._cluster.look()
            if said.error in errors.NOT_THERE:
                self._unknown(place, lane, said.error)
            self._fail(lane, batch)
        else:
            name = f"{place[0]}[{place[1]}]"
            self._give_up(errors.of_write(name, said.error, said.text))

    def _fallen(self, link: Connection) -> None:
        """Take note that nobody answers over a connection any more."""
        if link is self._introduced:
            self._introduced = None
        for batches in self._flying.pop(link, ()):
            for place, batch in batches:
                lane = self._lanes.get(place)
                if lane is not None and batch in lane.flying:
                    self._fail(lane, batch)

    def _fail(self, lane: _Lane, batch: _Batch) -> None:
        batch.failed = True
        self._settle(lane)

    def _settle(self, lane: _Lane) -> None:
        """Send again, in order, once nothing is on its way that has not failed."""
        if lane.flying and all(batch.failed for batch in lane.flying):
            for batch in reversed(lane.flying):
                batch.failed = False
                lane.waiting.appendleft(batch)
            lane.flying.clear()
            lane.not_before = time.monotonic() + RETRY_SECONDS

    def _leaderless(self, place: _Place, lane: _Lane) -> None:
        said = self._cluster.said_of(place[0])
        if said is None or not said[1]:
            return
        if errors.again(said[1]):
            if said[1] in errors.NOT_THERE:
                self._unknown(place, lane, said[1])
        else:
            self._refuse(place, said[1])

    def _unknown(self, place: _Place, lane: _Lane, code: int) -> None:
        now = time.monotonic()
        lane.unknown_since = lane.unknown_since or now
        if now - lane.unknown_since > UNKNOWN_SECONDS_MAX:
            self._refuse(place, code)

    def _refuse(self, place: _Place, code: int) -> None:
        """Give up, because a partition is not to be had."""
        self._give_up(errors.of_write(f"{place[0]}[{place[1]}]", code, ""))

    def _behind(self, sending: WireSending) -> Frontier:
        behind: dict[Source, int] = {}
        unknown: dict[str, list[Source]] = {}
        for (name, partition), offset in sending.behind.items():
            source = Source(sending.topics[name].id, partition)
            if offset is None:
                unknown.setdefault(name, []).append(source)
            else:
                behind[source] = offset
        for name, sources in unknown.items():
            behind |= dict(self._ends(name, sources).high)
        return Frontier.of(behind.items())

    def _late(self) -> DeliveryError:
        fault = f" ({self._cluster.fault})" if self._cluster.fault else ""
        return Indeterminate(
            "emit records",
            self._bootstrap,
            f"some were neither acknowledged nor refused in time{fault}, and may have been written; "
            "receivers drop repeats: emit the same again",
        )


def _by_place(emissions: Emissions) -> Iterator[tuple[tuple[int, int], _Rows]]:
    """Yield each edge and partition that records go to, and which records, in order."""
    if not len(emissions):
        return
    edges = np.fromiter(emissions.edges, np.int64, len(emissions))
    places = edges << _EDGE_SHIFT | np.fromiter(emissions.partitions, np.int64, len(emissions))
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    for rows in np.split(order, starts[1:]):
        place = int(places[rows[0]])
        yield (place >> _EDGE_SHIFT, place & ((1 << _EDGE_SHIFT) - 1)), rows
