"""The offsets of a consumer group that nobody joins, through librdkafka.

What it is: `GroupOffsets`.
What it must not know: why a group has offsets, who looks at them.

Invariants:
    SUBTLE: they are set by the commit of a consumer that reads nothing, never by the admin API. Where
    a group's coordinator goes away under a request of the admin API, librdkafka ends the process with
    a failed assertion (librdkafka 4605, open; seen with 2.16 when a broker was killed).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from delivery.kafka.confluent.chatter import spoken
from delivery.kafka.options import Options, for_librdkafka
from delivery.kafka.port import ANSWER_SECONDS_MAX

__all__ = ["GroupOffsets"]

#: How long librdkafka is listened to at a time.
LISTEN_SECONDS = 0.1


class GroupOffsets:
    """Those of one group.

    Args:
        options: of the cluster.
        group: which.
    """

    def __init__(self, options: Options, group: str) -> None:
        self._answers: list[bool] = []
        config = {"enable.auto.commit": False} | for_librdkafka(options, "consumer")
        config |= spoken(options.bootstrap)
        config |= {"group.id": group, "on_commit": self._answered}
        self._consumer = Consumer(config)

    def put(self, topic: str, offsets: Mapping[int, int]) -> bool:
        """Set offsets by partition; False if that was refused, or nobody answered."""
        self._answers.clear()
        parts = [TopicPartition(topic, number, at) for number, at in offsets.items()]
        try:
            self._consumer.commit(offsets=parts, asynchronous=True)
            deadline = time.monotonic() + ANSWER_SECONDS_MAX
            while not self._answers and time.monotonic() < deadline:
                self._consumer.poll(LISTEN_SECONDS)
        except KafkaException:
            return False  # of the group as a whole: it has members, or may not be changed
        return self._answers == [True]

    def close(self) -> None:
        """Let go of it. May be called twice."""
        self._consumer.close()

    def _answered(self, error: KafkaError | None, parts: Sequence[TopicPartition]) -> None:
        self._answers.append(error is None and all(part.error is None for part in parts))
