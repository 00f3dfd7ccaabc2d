"""Writing through kafka-python.

What it is: `Producer` of the port.
What it must not know: what the records are for.

Invariants:
    Every record has a report, and every report is looked at.
    After a failed emission the producer is thrown away with all it holds: nothing of that
    emission is sent by it any more, and the next one begins with a new producer.
    What is under way is bounded here, because the library's own buffer is not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from kafka import KafkaProducer
from kafka import codec as codecs
from kafka import errors as k
from kafka.serializer import Serializer

from dedup.model import Frontier, Source
from delivery.batch import Emissions
from delivery.kafka.kafka_python import errors
from delivery.kafka.kafka_python.starting import started
from delivery.kafka.options import Options, for_kafka_python
from delivery.kafka.port import (
    ANSWER_SECONDS_MAX,
    DELIVERY_SECONDS_MAX,
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_RECORDS_MAX,
    Bounds,
    Topic,
)

__all__ = ["KafkaPythonProducer"]

LOG = logging.getLogger(__name__)

#: A report may be this much later than the time a record has for its delivery. Records whose
#: connection broke may get no report at all.
_LATE_SECONDS_MAX = 5.0
_LINGER_MS = 5
_BATCH_BYTES = 256 * 1024
#: How long an old producer may take to end its thread.
_CLOSE_SECONDS_MAX = 5.0
#: Stands for "no value": the library refuses a record with neither key nor value before it asks
#: its serializer, and Kafka does not.
_NOTHING = object()

_Place = tuple[int, int]


class _Values(Serializer):  # type: ignore[misc]  # the library has no types
    """Passes bytes through, and turns `_NOTHING` into nothing."""

    def serialize(self, _topic: str, _headers: Any, data: Any) -> bytes | None:
        return None if data is _NOTHING else data


class KafkaPythonProducer:
    """Sends records; see the port.

    Args:
        options: where, and how it is entered.
        ends: reads the end of partitions, for a report without an offset.
    """

    def __init__(self, options: Options, ends: Callable[[str, Sequence[Source]], Bounds]) -> None:
        self._options = options
        self._ends = ends
        keywords = {
            "compression_type": _compression(),
            "linger_ms": _LINGER_MS,
            "batch_size": _BATCH_BYTES,
            "delivery_timeout_ms": int(DELIVERY_SECONDS_MAX * 1000),
            "bootstrap_timeout_ms": int(ANSWER_SECONDS_MAX * 1000),
        } | for_kafka_python(options, KafkaProducer.DEFAULT_CONFIG)
        keywords |= {
            "acks": "all",
            "enable_idempotence": True,
            "allow_auto_create_topics": False,
            "max_block_ms": keywords["delivery_timeout_ms"],
            "metrics_enabled": False,
            "value_serializer": _Values(),
        }
        # A request may not outlast the time a record has.
        keywords.setdefault("request_timeout_ms", min(10_000, keywords["delivery_timeout_ms"] // 2))
        self._keywords = keywords
        self._producer: Any = None
        self._open()

    def __repr__(self) -> str:
        return f"KafkaPythonProducer({self._options.bootstrap!r})"

    def emit(self, topics: Sequence[Topic], emissions: Emissions) -> Frontier:
        """Send in order, flush, and say where it landed; see the port."""
        producer = self._producer or self._open()
        last: dict[_Place, Any] = {}
        try:
            self._send(producer, topics, emissions, last)
        except BaseException:
            self._throw_away()
            raise
        return self._behind(topics, last)

    def close(self) -> None:
        """Let go of everything."""
        self._throw_away()

    # Inside -----------------------------------------------------------------------------------

    def _open(self) -> Any:
        try:
            self._producer = started(KafkaProducer, self._keywords)
        except errors.DRIVER as error:
            raise errors.of_read(
                "open a Kafka producer",
                self._options.bootstrap,
                error,
                self._options.redacted(error),
            ) from None
        return self._producer

    def _send(
        self,
        producer: Any,
        topics: Sequence[Topic],
        emissions: Emissions,
        last: dict[_Place, Any],
    ) -> None:
        """Hand everything to the library, and flush whenever enough is under way."""
        names = [topic.name for topic in topics]
        send, reports, weight = producer.send, [], 0
        columns = zip(
            emissions.edges,
            emissions.partitions,
            emissions.keys,
            emissions.values,
            map(list, emissions.headers),
            strict=True,
        )
        for edge, partition, key, value, headers in columns:
            try:
                sent = _NOTHING if value is None else value
                report = send(names[edge], sent, key, headers, partition)
            except errors.DRIVER as error:
                raise self._wrong(f"{names[edge]}[{partition}]", error) from None
            last[edge, partition] = report
            reports.append(report)
            weight += len(value or b"") + len(key or b"")
            if weight > IN_FLIGHT_BYTES_MAX or len(reports) >= IN_FLIGHT_RECORDS_MAX:
                self._flush(producer, reports)
                weight = 0
        self._flush(producer, reports)

    def _flush(self, producer: Any, reports: list[Any]) -> None:
        """Wait for every report, look at it, and forget it."""
        patience = self._keywords["delivery_timeout_ms"] / 1000 + _LATE_SECONDS_MAX
        deadline = time.monotonic() + patience
        try:
            producer.flush(patience)
        except k.KafkaError as error:
            # Also raised about a batch that was split and whose parts are fine: the reports know.
            LOG.debug("flush: %s", error)
        try:
            for report in reports:
                if not report.is_done:
                    report.get(max(0.0, deadline - time.monotonic()))
        except errors.DRIVER as error:
            raise self._wrong(self._options.bootstrap, error) from None
        for report in reports:
            if report.exception is not None:
                part = report._produce_future.topic_partition  # noqa: SLF001  nowhere else
                subject = f"{part.topic}[{part.partition}]"
                raise self._wrong(subject, report.exception)
        reports.clear()

    def _behind(self, topics: Sequence[Topic], last: dict[_Place, Any]) -> Frontier:
        behind: dict[Source, int] = {}
        unknown: dict[Topic, list[Source]] = {}
        for (edge, partition), report in last.items():
            source = Source(topics[edge].id, partition)
            offset = report.value.offset
            if offset is None or offset < 0:
                unknown.setdefault(topics[edge], []).append(source)
            else:
                behind[source] = max(offset + 1, behind.get(source, 0))
        for topic, sources in unknown.items():
            behind |= dict(self._ends(topic.name, sources).high)
        return Frontier.of(behind.items())

    def _throw_away(self) -> None:
        old, self._producer = self._producer, None
        if old is None:
            return
        # The library's own `close` first waits for what it holds, and ends nothing if that fails.
        sender = old._sender  # noqa: SLF001  there is no other way to give records up
        sender.force_close()
        sender.join(_CLOSE_SECONDS_MAX)
        try:
            old.close(_CLOSE_SECONDS_MAX)
        except k.KafkaError as error:
            LOG.warning("a producer did not end in time and was abandoned (%s)", error)

    def _wrong(self, subject: str, error: Exception) -> Exception:
        text = self._options.redacted(error)
        return errors.of_write("emit records", subject, error, text)


def _compression() -> str | None:
    """Return the best compression for which the library finds a package."""
    if codecs.has_lz4():
        return "lz4"
    return "zstd" if codecs.has_zstd() else None
