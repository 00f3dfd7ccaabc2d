"""A cluster through librdkafka: topics, their identities, and what their logs hold.

What it is: `Client` of the port.
What it must not know: what topics are for.

Invariants:
    Everything is read when it is asked for, and nothing is kept but what sets a group's offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    admin,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dedup.errors import DeliveryError
from dedup.model import IDENTITY_BYTES, Frontier, Source, TopicId
from delivery.kafka.confluent import errors
from delivery.kafka.confluent.chatter import spoken
from delivery.kafka.confluent.consumer import ConfluentConsumer
from delivery.kafka.confluent.groups import GroupOffsets
from delivery.kafka.confluent.producer import ConfluentProducer
from delivery.kafka.options import Options, for_librdkafka
from delivery.kafka.outages import gone
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

__all__ = ["ConfluentClient"]

_HALF = 64
#: What a question fails with where nobody is there to answer it.
_AWAY = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)  # noqa: SLF001  librdkafka's own codes begin so
#: What the library documents, but does not export by its own types.
_ADMIN: Any = admin
_T = TypeVar("_T")


class ConfluentClient:
    """One cluster; see the port."""

    library = "confluent"

    def __init__(self, options: Options) -> None:
        self._options = options
        #: Of each group that is told of; a pipeline has one a stage.
        self._groups: dict[str, GroupOffsets] = {}
        config = for_librdkafka(options, "admin") | spoken(options.bootstrap)
        try:
            self._admin = AdminClient(config)
        except KafkaException as error:
            raise self._wrong("open a Kafka client", options.bootstrap, error.args[0]) from None

    def __repr__(self) -> str:
        return f"ConfluentClient({self._options.bootstrap!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def names(self) -> list[str]:
        """Return the names of all topics; see the port."""
        try:
            said = self._admin.list_topics(timeout=ANSWER_SECONDS_MAX)
        except KafkaException as error:
            raise self._wrong("list topics", self._options.bootstrap, error.args[0]) from None
        return sorted(name for name in said.topics if not name.startswith(OWN_PREFIX))

    def describe(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return the topics of these names; see the port."""
        if not names:
            return {}
        answers = self._admin.describe_topics(
            TopicCollection(list(names)), request_timeout=ANSWER_SECONDS_MAX
        )
        found = {}
        for name, answer in answers.items():
            try:
                said = answer.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise self._wrong("describe a topic", name, error.args[0]) from None
            found[name] = Topic(name=name, id=_id(said.topic_id), partitions=len(said.partitions))
        return found

    def settings_of(self, name: str) -> dict[str, str]:
        """Return the settings of a topic; see the port."""
        resource = _ADMIN.ConfigResource(_ADMIN.ConfigResource.Type.TOPIC, name)
        answers = self._admin.describe_configs([resource], request_timeout=ANSWER_SECONDS_MAX)
        said: Mapping[str, Any] = self._answer("read the settings of a topic", name, answers)
        return {key: entry.value for key, entry in said.items() if entry.value is not None}

    def create(self, name: str, settings: TopicSettings) -> Topic:
        """Create a topic, or return the one that is there; see the port."""
        wanted = NewTopic(
            name,
            num_partitions=settings.partitions,
            replication_factor=-1 if settings.replicas is None else settings.replicas,
            config=settings.config(),
        )
        answers = self._admin.create_topics([wanted], request_timeout=ANSWER_SECONDS_MAX)
        try:
            answers[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._wrong("create a topic", name, error.args[0]) from None
        return awaited(self, name)

    def bounds(self, topic: str, sources: Sequence[Source]) -> Bounds:
        """Return what the log holds of these partitions; see the port."""
        return Bounds(
            low=self._offsets(topic, sources, _ADMIN.OffsetSpec.earliest()),
            high=self._offsets(topic, sources, _ADMIN.OffsetSpec.latest()),
        )

    def at_time(self, topic: str, sources: Sequence[Source], time_ms: int) -> Frontier:
        """Return the first offset that is not older; see the port."""
        spec = _ADMIN.OffsetSpec.for_timestamp(time_ms)
        return self._offsets(topic, sources, spec, absent=True)

    def consumer(
        self, *, group: str | None = None, buffer_bytes: int = FETCH_BUFFER_BYTES_MAX
    ) -> ConfluentConsumer:
        """Return a consumer that reads nothing yet."""
        return ConfluentConsumer(self._options, group=group, buffer_bytes=buffer_bytes)

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
        """Set the offsets of a consumer group; see the port."""
        if group not in self._groups:
            self._groups[group] = GroupOffsets(self._options, group)
        return self._groups[group].put(topic, offsets)

    def producer(self) -> ConfluentProducer:
        """Return a producer."""
        return ConfluentProducer(self._options, self.bounds)

    def close(self) -> None:
        """Let go of everything; librdkafka's threads end with the last reference."""
        while self._groups:
            self._groups.popitem()[1].close()

    # Inside -----------------------------------------------------------------------------------

    def _offsets(
        self, topic: str, sources: Sequence[Source], spec: Any, *, absent: bool = False
    ) -> Frontier:
        asked = {TopicPartition(topic, source.partition): spec for source in sources}
        if not asked:
            return Frontier()
        answers = self._admin.list_offsets(
            asked,
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=ANSWER_SECONDS_MAX,
        )
        by_number = {part.partition: answer for part, answer in answers.items()}
        found = {}
        for source in sources:
            try:
                offset = int(by_number[source.partition].result().offset)
            except KafkaException as error:
                raise self._unbounded(topic, source, error.args[0]) from None
            if not (absent and offset < 0):
                found[source] = offset_told(topic, source, offset)
        return Frontier.of(found.items())

    def _unbounded(self, topic: str, source: Source, error: KafkaError) -> DeliveryError:
        op, subject = "read the bounds of a log", f"{topic}[{source.partition}]"
        # librdkafka says of a missing topic that it has no leader, as of one that is being moved.
        found = self.describe([topic]).get(topic)
        if found is None or found.partitions <= source.partition:
            return errors.missing(op, subject)
        return self._wrong(op, subject, error)

    def _answer(self, op: str, subject: str, answers: Mapping[Any, Future[_T]]) -> _T:
        (answer,) = answers.values()
        try:
            return answer.result()
        except KafkaException as error:
            raise self._wrong(op, subject, error.args[0]) from None

    def _wrong(self, op: str, subject: str, error: KafkaError) -> DeliveryError:
        at, text = self._options.bootstrap, self._options.redacted(error.str())
        asked = "" if at in subject else f"; asked at {at}"
        if error.code() in _AWAY:
            gone(at)  # nobody polls an admin client, so it hears of no outage
        return errors.of_read(op, subject, error, f"{text}{asked}")


def _id(uuid: Any) -> TopicId:
    """Return the bytes of a topic's identity; librdkafka gives two signed halves."""
    high, low = uuid.get_most_significant_bits(), uuid.get_least_significant_bits()
    both = (high % (1 << _HALF)) << _HALF | low % (1 << _HALF)
    return TopicId(both.to_bytes(IDENTITY_BYTES, "big"))
