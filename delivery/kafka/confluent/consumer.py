"""Reading through librdkafka: a poll becomes columns without a function of ours per record.

What it is: `Consumer` of the port.
What it must not know: what the records are for.

Invariants:
    Columns are made by mapping methods of the messages, all in C.
    A position moves with the last record and with the end-of-partition events, which librdkafka
    sends behind holes as well.
    What was fetched before a partition was removed or moved is thrown away by librdkafka itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter, ne
from types import NoneType
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from dedup.errors import DeliveryError, InvalidUsage
from dedup.model import Source
from delivery.batch import Batch
from delivery.kafka.confluent import errors
from delivery.kafka.confluent.chatter import is_outage, spoken
from delivery.kafka.options import Options, for_librdkafka
from delivery.kafka.port import (
    FETCH_RECORDS_MIN,
    RESPONSE_BYTES_MAX,
    Fetched,
    empty,
    unreadable,
)
from delivery.records import Headers

__all__ = ["ConfluentConsumer"]

LOG = logging.getLogger(__name__)

#: librdkafka wants some group's name even where no group is joined.
_NO_GROUP = "delivery-none"
_KIB = 1024
#: librdkafka hands out at most a million at once.
_CONSUME_MAX = 1_000_000
#: What a record is taken to weigh until some were seen.
_RECORD_BYTES_FIRST = 256
_EOF = KafkaError._PARTITION_EOF  # noqa: SLF001  librdkafka's own codes begin so
_AUTHENTICATION = KafkaError._AUTHENTICATION  # noqa: SLF001  see above
_SECOND = itemgetter(1)

_Where = tuple[str, int]


class ConfluentConsumer:
    """Reads partitions; see the port.

    Args:
        options: where, and how it is entered.
        group: under which name monitors are told of progress.
        buffer_bytes: what may be held before anybody asks.
    """

    def __init__(self, options: Options, *, group: str | None, buffer_bytes: int) -> None:
        self._options = options
        self._group = group
        self._sources: dict[_Where, Source] = {}
        self._places: dict[Source, _Where] = {}
        self._positions: dict[Source, int] = {}
        self._record_bytes = float(_RECORD_BYTES_FIRST)
        self._failure: KafkaError | None = None
        self._hint_failed = False
        self._closed = False
        config = {
            "group.id": group or _NO_GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "queued.min.messages": FETCH_RECORDS_MIN,
            "queued.max.messages.kbytes": max(1, buffer_bytes // _KIB),
            "fetch.max.bytes": min(RESPONSE_BYTES_MAX, max(buffer_bytes, _KIB * _KIB)),
            "fetch.queue.backoff.ms": 10,
            "fetch.wait.max.ms": 50,
            "message.max.bytes": _KIB * _KIB,
        } | for_librdkafka(options, "consumer")
        config |= spoken(options.bootstrap)
        config |= {"error_cb": self._heard, "on_commit": self._committed}
        try:
            self._consumer = Consumer(config)
        except KafkaException as error:
            raise self._wrong("open a Kafka consumer", options.bootstrap, error.args[0]) from None

    def __repr__(self) -> str:
        return f"ConfluentConsumer({self._options.bootstrap!r}, {len(self._sources)} partitions)"

    def add(self, topic: str, positions: Mapping[Source, int]) -> None:
        """Begin to read partitions; see the port."""
        for source in positions:
            if (topic, source.partition) in self._sources:
                raise InvalidUsage(
                    "read a partition",
                    f"{topic}[{source.partition}]",
                    "it is being read already; seek in it, or remove it first",
                )
        self._assign({(topic, source.partition): at for source, at in positions.items()})
        for source, offset in positions.items():
            place = (topic, source.partition)
            self._sources[place], self._places[source] = source, place
            self._positions[source] = offset

    def remove(self, sources: Iterable[Source]) -> None:
        """Stop reading partitions; see the port."""
        known = [source for source in sources if source in self._places]
        places = [self._places.pop(source) for source in known]
        for source, place in zip(known, places, strict=True):
            del self._sources[place], self._positions[source]
        if places:
            self._told(self._consumer.incremental_unassign, [TopicPartition(*p) for p in places])

    def seek(self, source: Source, offset: int) -> None:
        """Go on reading elsewhere; see the port."""
        place = self._places[source]
        # librdkafka's own seek fails on a partition whose fetching has not begun yet.
        self._told(self._consumer.incremental_unassign, [TopicPartition(*place)])
        self._assign({place: offset})
        self._positions[source] = offset

    def pause(self, sources: Iterable[Source]) -> None:
        """Hand out nothing of these; see the port."""
        self._told(self._consumer.pause, [TopicPartition(*self._places[s]) for s in sources])

    def resume(self, sources: Iterable[Source]) -> None:
        """Hand out records again; see the port."""
        self._told(self._consumer.resume, [TopicPartition(*self._places[s]) for s in sources])

    def position(self, source: Source) -> int:
        """Return the offset behind everything handed out."""
        return self._positions[source]

    def poll(self, *, max_records: int, max_bytes: int, timeout: float) -> list[Fetched]:
        """Return what is there; see the port."""
        assert max_records > 0, "a poll asks for records"
        assert max_bytes > 0, "a poll asks for records"
        # `consume` waits until it has all it was asked for; one message is waited for, and what
        # is behind it is taken as it is.
        first = self._told(self._consumer.poll, timeout)
        self._raise_failure()
        if first is None:
            return []
        messages, weight = [first], len(first)
        while len(messages) < max_records and weight < max_bytes:
            fitting = int((max_bytes - weight) / self._record_bytes) + 1
            asked = min(fitting, max_records - len(messages), _CONSUME_MAX)
            more = self._told(self._consumer.consume, asked, 0)
            messages += more
            weight += sum(map(len, more))
            self._record_bytes = max(1.0, weight / len(messages))
            if len(more) < asked:
                break
        try:
            return self._fetched(messages)
        except DeliveryError:
            # None of this poll is handed out, so the next one begins with it again.
            for place in {(m.topic() or "", m.partition() or 0) for m in messages}:
                if place in self._sources:
                    source = self._sources[place]
                    self.seek(source, self._positions[source])
            raise

    def commit_hint(self, positions: Mapping[Source, int]) -> None:
        """Tell lag monitors; see the port."""
        if self._group is None or self._closed:
            return
        offsets = [
            TopicPartition(*self._places[source], offset)
            for source, offset in positions.items()
            if source in self._places
        ]
        try:
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._committed(error.args[0], [])

    def close(self) -> None:
        """Let go of everything."""
        if not self._closed:
            self._closed = True
            self._consumer.close()

    # Inside -----------------------------------------------------------------------------------

    def _assign(self, offsets: Mapping[_Where, int]) -> None:
        parts = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        if parts:
            self._told(self._consumer.incremental_assign, parts)

    def _fetched(self, messages: list[Message]) -> list[Fetched]:
        """Return messages by partition, and where each partition stands now."""
        ends: dict[Source, int] = {}
        # By their types: librdkafka's errors cannot be compared with None.
        if set(map(type, map(Message.error, messages))) != {NoneType}:
            found = [(message, message.error()) for message in messages]
            for message, error in found:
                if error is not None:
                    self._note(message, error, ends)
            messages = [message for message, error in found if error is None]
        fetched, cut = [], []
        for source, rows in self._by_source(messages):
            batch = self._batch(source, rows)
            end = ends.pop(source, 0)
            if len(batch) < len(rows):
                cut.append(source)
                end = 0
            fetched.append(Fetched(batch, max(int(batch.offsets[-1]) + 1, end)))
        fetched += [
            Fetched(empty(source), end)
            for source, end in ends.items()
            if end > self._positions[source]
        ]
        self._positions |= {one.source: one.position for one in fetched}
        for source in cut:
            self.seek(source, self._positions[source])
        return fetched

    def _note(self, message: Message, error: KafkaError, ends: dict[Source, int]) -> None:
        """Keep an end of partition; raise anything else."""
        place = (message.topic() or "", message.partition() or 0)
        if error.code() != _EOF:
            raise self._wrong("read a partition", f"{place[0]}[{place[1]}]", error)
        if place in self._sources:
            source = self._sources[place]
            ends[source] = max(message.offset() or 0, ends.get(source, 0))

    def _by_source(self, messages: list[Message]) -> list[tuple[Source, list[Message]]]:
        """Return messages by partition; they come in long runs, a run for each response."""
        if not messages:
            return []
        numbers = np.fromiter(map(Message.partition, messages), np.int64, len(messages))
        changes = np.diff(numbers) != 0
        if len({topic for topic, _ in self._sources}) > 1:
            topics = list(map(Message.topic, messages))
            changes |= np.fromiter(map(ne, topics, topics[1:]), np.bool_, len(topics) - 1)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(messages)]
        rows: dict[_Where, list[Message]] = {}
        for first, end in pairwise(edges):
            place = (messages[first].topic() or "", int(numbers[first]))
            rows.setdefault(place, []).extend(messages[first:end])
        return [
            (self._sources[place], run) for place, run in rows.items() if place in self._sources
        ]

    def _batch(self, source: Source, messages: list[Message]) -> Batch:
        """Return messages as columns; those that cannot be read, and all behind, are left."""
        found: list[Any] = []
        try:
            found.extend(map(Message.headers, messages))
        except (SystemError, UnicodeDecodeError):
            # A second look at that message would find broken headers and no error.
            if not found:
                topic, number = self._places[source]
                raise unreadable(f"{topic}[{number}] offset {messages[0].offset()}") from None
            messages = messages[: len(found)]
        count = len(messages)
        offsets = np.fromiter(map(Message.offset, messages), np.int64, count)
        return Batch(
            source,
            offsets,
            np.fromiter(map(_SECOND, map(Message.timestamp, messages)), np.int64, count),
            list(map(Message.key, messages)),
            list(map(Message.value, messages)),
            _columns(found),
        )

    def _told(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call librdkafka, and translate what it raises."""
        try:
            return call(*arguments)
        except KafkaException as error:
            subject = ", ".join(f"{topic}[{number}]" for topic, number in self._sources)
            raise self._wrong("read partitions", subject, error.args[0]) from None

    def _heard(self, error: KafkaError) -> None:
        """Hear of what concerns no partition; called within a poll."""
        if is_outage(error, self._options.bootstrap):
            return
        if error.code() == _AUTHENTICATION or error.fatal():
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._wrong("read from Kafka", self._options.bootstrap, self._failure)

    def _committed(self, error: KafkaError | None, _offsets: Sequence[TopicPartition]) -> None:
        if error is not None and not self._hint_failed:
            self._hint_failed = True
            LOG.warning(
                "offsets of group %s are not shown to monitors (%s); nothing else depends on them",
                self._group,
                self._options.redacted(error.str()),
            )

    def _wrong(self, op: str, subject: str, error: KafkaError) -> DeliveryError:
        return errors.of_read(op, subject, error, self._options.redacted(error.str()))


def _columns(found: list[Any]) -> list[Headers | None]:
    """Return headers as tuples; nearly always all records have some, or none has."""
    lacking = found.count(None)
    if lacking == len(found):
        return found
    if None in map(_SECOND, chain.from_iterable(filter(None, found))):
        # Kafka has headers without a value; user code gets bytes.
        return [tuple((name, value or b"") for name, value in h) if h else None for h in found]
    if not lacking:
        return list(map(tuple, found))
    return [tuple(h) if h else None for h in found]
