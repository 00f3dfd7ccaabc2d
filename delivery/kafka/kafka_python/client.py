"""A cluster through kafka-python: topics, their identities, and what their logs hold.

What it is: `Client` of the port.
What it must not know: what topics are for.

Invariants:
    Everything is read when it is asked for, and nothing is kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self
from uuid import UUID

from kafka import KafkaAdminClient, TopicPartition
from kafka import errors as k
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.consumer import IsolationLevel, OffsetSpec
from kafka.structs import OffsetAndMetadata

from dedup.model import Frontier, Source, TopicId
from delivery.kafka.kafka_python import errors
from delivery.kafka.kafka_python.consumer import KafkaPythonConsumer
from delivery.kafka.kafka_python.producer import KafkaPythonProducer
from delivery.kafka.kafka_python.starting import started
from delivery.kafka.options import Options, for_kafka_python
from delivery.kafka.port import (
    ANSWER_SECONDS_MAX,
    FETCH_BUFFER_BYTES_MAX,
    OWN_PREFIX,
    Bounds,
    Topic,
    TopicSettings,
    awaited,
    offset_told,
)

__all__ = ["KafkaPythonClient"]

#: How often a connection is looked for that the library is about to make.
_RECONNECT_SECONDS = 0.1
_ANSWER_MS_MAX = int(ANSWER_SECONDS_MAX * 1000)


class KafkaPythonClient:
    """One cluster; see the port."""

    library = "kafka-python"

    def __init__(self, options: Options) -> None:
        self._options = options
        #: Set when this client is closed: nobody waits for its connections any more.
        self._closed = threading.Event()
        keywords = {
            "request_timeout_ms": _ANSWER_MS_MAX,
            "bootstrap_timeout_ms": _ANSWER_MS_MAX,
        } | for_kafka_python(options, KafkaAdminClient.DEFAULT_CONFIG)
        self._admin: Any = self._told(
            "open a Kafka client", options.bootstrap, lambda: started(KafkaAdminClient, keywords)
        )

    def __repr__(self) -> str:
        return f"KafkaPythonClient({self._options.bootstrap!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def names(self) -> list[str]:
        """Return the names of all topics; see the port."""
        said = self._told("list topics", self._options.bootstrap, self._admin.list_topics)
        return sorted(name for name in said if not name.startswith(OWN_PREFIX))

    def describe(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return the topics of these names; see the port."""
        if not names:
            return {}
        subject = ", ".join(names)
        said = self._told(
            "describe a topic", subject, lambda: self._admin.describe_topics(list(names))
        )
        found = {}
        for topic in said:
            name, code = topic["name"], topic["error_code"]
            if code == k.UnknownTopicOrPartitionError.errno:
                continue
            if code != k.NoError.errno:
                raise self._wrong("describe a topic", name, k.for_code(code)())
            identity = TopicId(UUID(str(topic["topic_id"])).bytes)
            found[name] = Topic(name=name, id=identity, partitions=len(topic["partitions"]))
        return found

    def settings_of(self, name: str) -> dict[str, str]:
        """Return the settings of a topic; see the port."""
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        said = self._told(
            "read the settings of a topic",
            name,
            lambda: self._admin.describe_configs([resource], config_filter="all"),
        )
        return {
            key: str(entry["value"])
            for key, entry in said["topic"][name].items()
            if entry["value"] is not None
        }

    def create(self, name: str, settings: TopicSettings) -> Topic:
        """Create a topic, or return the one that is there; see the port."""
        wanted = {
            name: {
                "num_partitions": settings.partitions,
                "replication_factor": -1 if settings.replicas is None else settings.replicas,
                "configs": settings.config(),
            }
        }
        try:
            self._admin.create_topics(wanted)
        except k.TopicAlreadyExistsError:
            pass
        except errors.DRIVER as error:
            raise self._wrong("create a topic", name, error) from None
        return awaited(self, name)

    def bounds(self, topic: str, sources: Sequence[Source]) -> Bounds:
        """Return what the log holds of these partitions; see the port."""
        return Bounds(
            low=self._offsets(topic, sources, OffsetSpec.EARLIEST),
            high=self._offsets(topic, sources, OffsetSpec.LATEST),
        )

    def at_time(self, topic: str, sources: Sequence[Source], time_ms: int) -> Frontier:
        """Return the first offset that is not older; see the port."""
        return self._offsets(topic, sources, time_ms, absent=True)

    def consumer(
        self, *, group: str | None = None, buffer_bytes: int = FETCH_BUFFER_BYTES_MAX
    ) -> KafkaPythonConsumer:
        """Return a consumer that reads nothing yet."""
        return KafkaPythonConsumer(self._options, group=group, buffer_bytes=buffer_bytes)

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
        """Set the offsets of a consumer group; see the port."""
        parts = {
            TopicPartition(topic, number): OffsetAndMetadata(at, "", -1)
            for number, at in offsets.items()
        }
        said = self._told(
            "set the offsets of a consumer group",
            group,
            lambda: self._admin.alter_group_offsets(group, parts),
        )
        return all(error is k.NoError for error in said.values())

    def producer(self) -> KafkaPythonProducer:
        """Return a producer."""
        return KafkaPythonProducer(self._options, self.bounds)

    def close(self) -> None:
        """Let go of everything."""
        self._closed.set()
        self._admin.close()

    # Inside -----------------------------------------------------------------------------------

    def _offsets(
        self, topic: str, sources: Sequence[Source], spec: int, *, absent: bool = False
    ) -> Frontier:
        asked = {TopicPartition(topic, source.partition): spec for source in sources}
        if not asked:
            return Frontier()
        said = self._told(
            "read the bounds of a log",
            topic,
            lambda: self._admin.list_partition_offsets(
                asked, isolation_level=IsolationLevel.READ_COMMITTED, timeout_ms=_ANSWER_MS_MAX
            ),
        )
        found = {part.partition: answer.offset for part, answer in said.items()}
        if absent:
            sources = [source for source in sources if found[source.partition] >= 0]
        return Frontier.of(
            (source, offset_told(topic, source, found[source.partition])) for source in sources
        )

    def _told(self, op: str, subject: str, call: Callable[[], Any]) -> Any:
        """Call the library, and translate what it raises."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            try:
                return call()
            except k.NodeNotReadyError as error:
                # It does not wait for a connection that it is about to make; others do.
                if self._closed.is_set() or time.monotonic() > deadline:
                    raise self._wrong(op, subject, error) from None
                self._closed.wait(_RECONNECT_SECONDS)
            except errors.DRIVER as error:
                raise self._wrong(op, subject, error) from None

    def _wrong(self, op: str, subject: str, error: Exception) -> Exception:
        at, text = self._options.bootstrap, self._options.redacted(error)
        asked = "" if at in subject else f"; asked at {at}"
        return errors.of_read(op, subject, error, f"{text}{asked}")
