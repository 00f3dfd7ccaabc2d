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

import numpy as np
import numpy.typing as npt

from dedup.errors import DeliveryError, Indeterminate, InvalidUsage
from dedup.model import Frontier, Source
from delivery.batch import Emissions, taken
from delivery.kafka.port import BATCH_BYTES_MAX, DELIVERY_SECONDS_MAX, Bounds, Topic
from delivery.kafka.wire import errors, protocol
from delivery.kafka.wire.cluster import Cluster
from delivery.kafka.wire.connection import ANSWER_MS_MAX, Connection, Lost
from delivery.kafka.wire.encoding import cuts, encode
from delivery.kafka.wire.flights import REQUESTS_MAX, RETRY_SECONDS, Flight, Runway
from delivery.kafka.wire.protocol import Produced
from delivery.records import RECORD_BYTES_MAX

__all__ = ["WireProducer", "WireSending"]

#: A batch before it is compressed: the smallest topic that is written to takes it as it is.
_BATCH_BYTES_MAX = min(BATCH_BYTES_MAX, RECORD_BYTES_MAX + 48 * 1024)
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
_Flight = Flight["WireSending"]
_Runway = Runway["WireSending"]


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

    def landed(self, place: _Place, behind: int | None) -> None:
        """Take note of where a batch landed; None: the broker knew it, and not where."""
        before = self.behind[place]
        self.behind[place] = None if behind is None or before is None else max(behind, before)
        self.left -= 1

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

    def watched(self, seconds: float) -> tuple[Sequence[Connection], float]:
        """Return what to wait for while something is on its way; see `await_news`."""
        if not self._sendings:
            return (), seconds
        links, seconds = self._cluster.watched(seconds)
        # What was refused for now is sent again without anybody saying so.
        return links, min(seconds, RETRY_SECONDS)

    def close(self) -> None:
        """Let go of everything."""
        self._give_up(self._late())
        self._cluster.close()

    # Inside -----------------------------------------------------------------------------------

    def _pack(self, sending: WireSending, place: _Place, emissions: Emissions, rows: _Rows) -> None:
        """Make batches of the records of one partition."""
        runway = self._runways.setdefault(place, Runway())
        keys = taken(emissions.keys, rows)
        values = taken(emissions.values, rows)
        headers = taken(emissions.headers, rows)
        now_ms, first = int(time.time() * 1000), 0
        for end in cuts(keys, values, headers, _BATCH_BYTES_MAX):
            part = slice(first, end)
            data = encode(
                keys[part], values[part], headers[part], timestamp_ms=now_ms, codec=self._codec
            )
            runway.add(Flight(data, end - first, sending))
            sending.left += 1
            first = end

    def _begin_anew(self) -> None:
        #: By topic and partition.
        self._runways: dict[_Place, _Runway] = {}
        self._sendings: list[WireSending] = []
        #: Our identity and epoch, once a broker has given them.
        self._identity: tuple[int, int] | None = None
        self._introduced: Connection | None = None
        self._introduce_from = 0.0
        #: What each connection carries, a list for each request without an answer.
        self._flying: dict[Connection, deque[list[tuple[_Place, _Flight]]]] = {}

    def _give_up(self, why: DeliveryError) -> None:
        """Fail everything that is on its way, and begin as another producer."""
        for sending in self._sendings:
            if sending.left and sending.failure is None:
                sending.failure = why
        for link in {*self._flying, *filter(None, [self._introduced])}:
            # Whatever is still in its buffers must not be sent behind what comes next, nor an answer
            # of before be taken for one to that.
            self._cluster.lost(link)
        self._begin_anew()

    def _tend(self) -> None:
        """Take in answers, and send what may be sent."""
        self._cluster.exchange(self._answered)
        for link in {*self._flying, *filter(None, [self._introduced])}:
            if link.fileno() < 0:
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
            runways, requests = self._runways, self._ready()
            if not requests or runways is not self._runways:
                return
            for link, places in requests.items():
                self._ask(link, places)

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

    def _ready(self) -> dict[Connection, list[_Place]]:
        """Return the partitions of which a batch may be sent now, by who leads them."""
        now = time.monotonic()
        ready: dict[Connection, list[_Place]] = {}
        for place, runway in self._runways.items():
            if not runway.may_leave(now):
                continue
            part = self._cluster.part(*place)
            link = None if part is None else self._cluster.leader(part)
            if link is None:
                self._leaderless(place, runway)
            elif len(self._flying.get(link, ())) < REQUESTS_MAX:
                ready.setdefault(link, []).append(place)
        return ready

    def _ask(self, link: Connection, places: list[_Place]) -> None:
        assert self._identity is not None, "who sends has an identity"
        flights = [(place, self._runways[place].leave(*self._identity)) for place in places]
        by_topic: dict[str, list[tuple[int, bytearray]]] = {}
        for (topic, number), flight in flights:
            by_topic.setdefault(topic, []).append((number, flight.data))
        self._flying.setdefault(link, deque()).append(flights)
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
        if not self._flying.get(link):
            return  # given up meanwhile
        flights = self._flying[link].popleft()
        told = {(one.topic, one.number): one for one in protocol.read_produce(answer)}
        for place, flight in flights:
            self._told(place, flight, told[place])

    def _told(self, place: _Place, flight: _Flight, said: Produced) -> None:
        runway = self._runways.get(place)
        if runway is None or not runway.flies(flight):
            return  # given up meanwhile
        if said.error in (errors.NONE, errors.DUPLICATE):
            runway.landed(flight)
            flight.sending.landed(place, said.offset + flight.count if said.offset >= 0 else None)
        elif said.error == errors.OUT_OF_ORDER and not runway.first(flight):
            runway.fail(flight)
        elif errors.again(said.error):
            self._cluster.look()
            runway.fail(flight)
            if said.error in errors.NOT_THERE:
                self._unknown(place, runway, said.error)
        else:
            name = f"{place[0]}[{place[1]}]"
            self._give_up(errors.of_write(name, said.error, said.text))

    def _fallen(self, link: Connection) -> None:
        """Take note that nobody answers over a connection any more."""
        if link is self._introduced:
            self._introduced = None
        for flights in self._flying.pop(link, ()):
            for place, flight in flights:
                runway = self._runways.get(place)
                if runway is not None and runway.flies(flight):
                    runway.fail(flight)

    def _leaderless(self, place: _Place, runway: _Runway) -> None:
        said = self._cluster.said_of(place[0])
        if said is None or not said[1]:
            return
        if errors.again(said[1]):
            if said[1] in errors.NOT_THERE:
                self._unknown(place, runway, said[1])
        else:
            self._refuse(place, said[1])

    def _unknown(self, place: _Place, runway: _Runway, code: int) -> None:
        now = time.monotonic()
        runway.unknown_since = runway.unknown_since or now
        if now - runway.unknown_since > UNKNOWN_SECONDS_MAX:
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
