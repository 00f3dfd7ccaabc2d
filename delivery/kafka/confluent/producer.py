"""Writing through librdkafka.

What it is: `Producer` of the port.
What it must not know: what the records are for.

Invariants:
    Every record has a delivery report, and every report is looked at.
    After a failed emission the producer is thrown away with all it holds: nothing of that
    emission is sent by it any more, and the next one begins with a new producer.
    A full queue is waited out by serving reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from dedup.errors import DeliveryError, Indeterminate
from dedup.model import Frontier, Source
from delivery.batch import Emissions
from delivery.kafka.confluent import errors
from delivery.kafka.confluent.chatter import spoken
from delivery.kafka.options import Options, for_librdkafka
from delivery.kafka.port import (
    BATCH_BYTES_MAX,
    DELIVERY_SECONDS_MAX,
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_RECORDS_MAX,
    Bounds,
    Topic,
)

__all__ = ["ConfluentProducer"]

#: How long reports are waited for at a time, while the queue is full or being emptied.
_SERVE_SECONDS = 0.1
#: A report may be this much later than the time a record has for its delivery.
_LATE_SECONDS_MAX = 5.0
#: How long records wait for company: those of a bundle come together anyway.
_LINGER_MS = 1
_KIB = 1024
#: Reports of one partition: the last record that arrived under None, and one per kind of failure.
#: A dictionary's own `__setitem__` takes (error, message) without a function of ours.
_Reports = dict[KafkaError | None, Message]
_Told = Callable[[KafkaError | None, Message], None]


class ConfluentSending:
    """Records on their way through one producer.

    Reports of one partition come in the order of its records, so the last record's is the last.
    """

    def __init__(
        self,
        owner: ConfluentProducer,
        producer: Producer,
        topics: Sequence[Topic],
        emissions: Emissions,
    ) -> None:
        self.producer = producer
        self.topics = topics
        self.deadline = time.monotonic() + owner.patience()
        self._owner = owner
        places = list(zip(emissions.edges, emissions.partitions, strict=True))
        last = {place: row for row, place in enumerate(places)}
        self.reports: dict[tuple[int, int], _Reports] = {place: {} for place in last}
        #: Partitions whose last record has no report yet.
        self.left = len(last)
        record: dict[tuple[int, int], _Told] = {
            place: report.__setitem__ for place, report in self.reports.items()
        }
        #: What is told of each record's report.
        self.told: list[_Told] = [record[place] for place in places]
        for place, row in last.items():
            self.told[row] = partial(self._last, self.reports[place])

    def done(self, seconds: float = 0.0) -> Frontier | None:
        """Return where it landed, or None while records are on their way; see `Sending`."""
        return self._owner.finish(self, seconds)

    def _last(self, report: _Reports, error: KafkaError | None, message: Message) -> None:
        report[error] = message
        self.left -= 1


class ConfluentProducer:
    """Sends records; see the port.

    Args:
        options: where, and how it is entered.
        ends: reads the end of partitions, for a report without an offset.
    """

    def __init__(self, options: Options, ends: Any) -> None:
        self._options = options
        self._ends = ends
        self._config: dict[str, Any] = {
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": _LINGER_MS,
            "batch.size": BATCH_BYTES_MAX,
            "queue.buffering.max.kbytes": IN_FLIGHT_BYTES_MAX // _KIB,
            "queue.buffering.max.messages": IN_FLIGHT_RECORDS_MAX,
            "delivery.timeout.ms": int(DELIVERY_SECONDS_MAX * 1000),
        } | for_librdkafka(options, "producer")
        if "message.timeout.ms" in self._config:  # the same setting, and it was given
            del self._config["delivery.timeout.ms"]
        self._producer: Producer | None = None
        self._open()

    def __repr__(self) -> str:
        return f"ConfluentProducer({self._options.bootstrap!r})"

    def emit(self, topics: Sequence[Topic], emissions: Emissions) -> Frontier:
        """Send in order, wait, and say where it landed; see the port."""
        sending = self.begin(topics, emissions)
        # SUBTLE: not by librdkafka's flush. While it runs nothing lingers, and whenever as many
        # requests are on their way as may be, the thread of the broker spins until one is answered.
        while (landed := sending.done(_SERVE_SECONDS)) is None:
            pass
        return landed

    def begin(self, topics: Sequence[Topic], emissions: Emissions) -> ConfluentSending:
        """Send in order and wait for nothing; `done` of what is returned says where it landed."""
        producer = self._producer or self._open()
        sending = ConfluentSending(self, producer, topics, emissions)
        try:
            self._send(producer, topics, emissions, sending.told)
        except BaseException:
            self._throw_away()
            raise
        return sending

    def finish(self, sending: ConfluentSending, seconds: float) -> Frontier | None:
        """Serve reports, and look at those of one sending."""
        if self._producer is not sending.producer:
            # Another sending failed, and everything that was on its way went with its producer.
            raise self._late()
        sending.producer.poll(seconds if sending.left else 0)
        if sending.left and time.monotonic() < sending.deadline:
            return None
        failed = [
            (sending.topics[edge].name, partition, error)
            for (edge, partition), report in sending.reports.items()
            for error in report
            if error is not None
        ]
        if failed:
            self._throw_away()
            name, partition, error = failed[0]
            raise self._wrong(f"{name}[{partition}]", error)
        if sending.left:
            self._throw_away()
            raise self._late()
        return self._behind(sending.topics, sending.reports)

    def patience(self) -> float:
        """Return how long a record may be on its way."""
        given = self._config.get("message.timeout.ms") or self._config["delivery.timeout.ms"]
        return int(given) / 1000 + _LATE_SECONDS_MAX

    def close(self) -> None:
        """Let go of everything."""
        self._throw_away()

    # Inside -----------------------------------------------------------------------------------

    def _open(self) -> Producer:
        try:
            self._producer = Producer(self._config | spoken(self._options.bootstrap))
        except KafkaException as error:
            fault = error.args[0]
            raise errors.of_read(
                "open a Kafka producer",
                self._options.bootstrap,
                fault,
                self._options.redacted(fault.str()),
            ) from None
        return self._producer

    def _send(
        self,
        producer: Producer,
        topics: Sequence[Topic],
        emissions: Emissions,
        told: Sequence[_Told],
    ) -> None:
        """Hand everything to librdkafka."""
        names = [topic.name for topic in topics]
        produce: Any = producer.produce
        columns = zip(
            emissions.edges,
            emissions.partitions,
            emissions.keys,
            emissions.values,
            map(list, emissions.headers),
            told,
            strict=True,
        )
        for edge, partition, key, value, headers, report in columns:
            row = (names[edge], value, key, partition, report, None, 0, headers)
            try:
                produce(*row)
            except BufferError:
                self._send_when_there_is_room(producer, row)
            except KafkaException as error:
                raise self._wrong(f"{names[edge]}[{partition}]", error.args[0]) from None
        producer.poll(0)

    def _send_when_there_is_room(self, producer: Producer, row: tuple[Any, ...]) -> None:
        # Every record in the queue is reported within its time, so there is room by then.
        deadline = time.monotonic() + self.patience()
        while time.monotonic() < deadline:
            producer.poll(_SERVE_SECONDS)
            try:
                producer.produce(*row)
            except BufferError:
                continue
            return
        raise self._late()

    def _behind(
        self, topics: Sequence[Topic], reports: dict[tuple[int, int], _Reports]
    ) -> Frontier:
        behind: dict[Source, int] = {}
        unknown: dict[Topic, list[Source]] = {}
        for (edge, partition), report in reports.items():
            source = Source(topics[edge].id, partition)
            offset = report[None].offset()
            if offset is None or offset < 0:
                unknown.setdefault(topics[edge], []).append(source)
            else:
                behind[source] = max(offset + 1, behind.get(source, 0))
        for topic, sources in unknown.items():
            bounds: Bounds = self._ends(topic.name, sources)
            behind |= dict(bounds.high)
        return Frontier.of(behind.items())

    def _throw_away(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(0)
            self._producer = None

    def _late(self) -> DeliveryError:
        return Indeterminate(
            "emit records",
            self._options.bootstrap,
            "some were neither acknowledged nor refused in time, and may have been written; "
            "receivers drop repeats: emit the same again",
        )

    def _wrong(self, subject: str, error: KafkaError) -> DeliveryError:
        return errors.of_write("emit records", subject, error, self._options.redacted(error.str()))
