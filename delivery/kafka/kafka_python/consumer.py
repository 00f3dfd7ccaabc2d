"""Reading through kafka-python: a poll becomes columns by transposing what it returns.

What it is: `Consumer` of the port.
What it must not know: what the records are for.

Invariants:
    Positions are the library's own, which move over holes as Java's do.
    After an error about a record the library would go on behind it; this consumer repeats the
    error instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from dedup.errors import Corrupt, InvalidUsage
from dedup.model import Source
from delivery.batch import Batch
from delivery.kafka.kafka_python import errors
from delivery.kafka.kafka_python.starting import started
from delivery.kafka.options import Options, for_kafka_python
from delivery.kafka.port import ANSWER_SECONDS_MAX, RESPONSE_BYTES_MAX, Fetched, empty
from delivery.records import Headers

__all__ = ["KafkaPythonConsumer"]

LOG = logging.getLogger(__name__)

#: What a record is taken to weigh until some were seen.
_RECORD_BYTES_FIRST = 256
#: One partition's share of a response; a topic may have records of a mebibyte.
_PARTITION_BYTES_MAX = 1024 * 1024
_SECOND = itemgetter(1)


class KafkaPythonConsumer:
    """Reads partitions; see the port.

    Args:
        options: where, and how it is entered.
        group: under which name monitors are told of progress.
        buffer_bytes: what may be held before anybody asks.
    """

    def __init__(self, options: Options, *, group: str | None, buffer_bytes: int) -> None:
        self._options = options
        self._group = group
        self._sources: dict[TopicPartition, Source] = {}
        self._parts: dict[Source, TopicPartition] = {}
        self._positions: dict[Source, int] = {}
        self._record_bytes = float(_RECORD_BYTES_FIRST)
        self._unreadable: Corrupt | None = None
        self._hint_failed = False
        self._closed = False
        keywords = {
            "fetch_max_bytes": max(_PARTITION_BYTES_MAX, min(RESPONSE_BYTES_MAX, buffer_bytes)),
            "max_partition_fetch_bytes": _PARTITION_BYTES_MAX,
            "bootstrap_timeout_ms": int(ANSWER_SECONDS_MAX * 1000),
        } | for_kafka_python(options, KafkaConsumer.DEFAULT_CONFIG)
        keywords |= {
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
        }
        self._consumer: Any = self._told(lambda: started(KafkaConsumer, keywords))

    def __repr__(self) -> str:
        return f"KafkaPythonConsumer({self._options.bootstrap!r}, {len(self._sources)} partitions)"

    def add(self, topic: str, positions: Mapping[Source, int]) -> None:
        """Begin to read partitions; see the port."""
        parts = {source: TopicPartition(topic, source.partition) for source in positions}
        for part in parts.values():
            if part in self._sources:
                raise InvalidUsage(
                    "read a partition",
                    f"{topic}[{part.partition}]",
                    "it is being read already; seek in it, or remove it first",
                )
        self._sources |= {part: source for source, part in parts.items()}
        self._parts |= parts
        self._positions |= positions
        self._told(lambda: self._consumer.assign(list(self._sources)))
        for source, part in parts.items():
            self._seek(part, positions[source])

    def remove(self, sources: Iterable[Source]) -> None:
        """Stop reading partitions; see the port."""
        for source in [source for source in sources if source in self._parts]:
            del self._sources[self._parts.pop(source)], self._positions[source]
        self._told(lambda: self._consumer.assign(list(self._sources)))

    def seek(self, source: Source, offset: int) -> None:
        """Go on reading elsewhere; see the port."""
        self._seek(self._parts[source], offset)
        self._positions[source] = offset

    def pause(self, sources: Iterable[Source]) -> None:
        """Hand out nothing of these; see the port."""
        self._consumer.pause(*(self._parts[source] for source in sources))

    def resume(self, sources: Iterable[Source]) -> None:
        """Hand out records again; see the port."""
        self._consumer.resume(*(self._parts[source] for source in sources))

    def position(self, source: Source) -> int:
        """Return the offset behind everything handed out."""
        return self._positions[source]

    def poll(self, *, max_records: int, max_bytes: int, timeout: float) -> list[Fetched]:
        """Return what is there; see the port."""
        assert max_records > 0, "a poll asks for records"
        assert max_bytes > 0, "a poll asks for records"
        if self._unreadable is not None:
            raise self._unreadable
        fitting = min(max_records, int(max_bytes / self._record_bytes) + 1)
        found: dict[TopicPartition, list[Any]] = self._told(
            lambda: self._consumer.poll(timeout_ms=timeout * 1000, max_records=fitting)
        )
        fetched, count, weight = [], 0, 0
        for part, source in self._sources.items():
            batch = self._batch(source, found[part]) if part in found else empty(source)
            count += len(batch)
            weight += sum(map(len, filter(None, batch.values)))
            position = self._consumer.position(part, timeout_ms=0)
            if len(batch) or (position is not None and position > self._positions[source]):
                self._positions[source] = position
                fetched.append(Fetched(batch, position))
        if count:
            self._record_bytes = max(1.0, weight / count)
        return fetched

    def commit_hint(self, positions: Mapping[Source, int]) -> None:
        """Tell lag monitors; see the port."""
        if self._group is None or self._closed:
            return
        offsets = {
            self._parts[source]: OffsetAndMetadata(offset, "", -1)
            for source, offset in positions.items()
            if source in self._parts
        }
        if not offsets:
            return
        try:
            self._consumer.commit_async(offsets, callback=self._committed)
        except errors.DRIVER as error:
            self._committed(offsets, error)

    def close(self) -> None:
        """Let go of everything."""
        if not self._closed:
            self._closed = True
            self._consumer.close(autocommit=False)

    # Inside -----------------------------------------------------------------------------------

    def _seek(self, part: TopicPartition, offset: int) -> None:
        self._told(lambda: self._consumer.seek(part, offset))

    @staticmethod
    def _batch(source: Source, records: list[Any]) -> Batch:
        _, _, _, offsets, stamps, _, keys, values, headers, *_ = zip(*records, strict=True)
        return Batch(
            source,
            np.array(offsets, dtype=np.int64),
            np.array(stamps, dtype=np.int64),
            keys,
            values,
            _headers(headers),
        )

    def _told(self, call: Callable[[], Any]) -> Any:
        """Call the library, and translate what it raises."""
        try:
            return call()
        except errors.DRIVER as error:
            text = self._options.redacted(error)
            subject = ", ".join(f"{part.topic}[{part.partition}]" for part in self._sources)
            wrong = errors.of_read(
                "read partitions", subject or self._options.bootstrap, error, text
            )
            if isinstance(wrong, Corrupt):
                self._unreadable = wrong
            raise wrong from None

    def _committed(self, _offsets: object, answer: object) -> None:
        if isinstance(answer, Exception) and not self._hint_failed:
            self._hint_failed = True
            LOG.warning(
                "offsets of group %s are not shown to monitors (%s); nothing else depends on them",
                self._group,
                self._options.redacted(answer),
            )


def _headers(found: tuple[Any, ...]) -> list[Headers | None]:
    if None in map(_SECOND, chain.from_iterable(filter(None, found))):
        # Kafka has headers without a value; user code gets bytes.
        return [tuple((name, value or b"") for name, value in h) if h else None for h in found]
    return [tuple(h) if h else None for h in found]
