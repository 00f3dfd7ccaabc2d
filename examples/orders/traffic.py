"""Orders on their way into Kafka, some of them twice: a publisher that loses answers.

What it is: `Publisher`, which publishes the same orders to the input topic of each contender, at a
rate, and no further ahead than it is told.
What it must not know: who reads them, how.

Invariants:
    A repeat has the id, the key, the value and so the partition of the record that it repeats.
    What it counts was acknowledged by the broker.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter
from collections.abc import Sequence

from confluent_kafka import KafkaError, Message, Producer

from dedup.errors import Unavailable

#: How many of a hundred orders are published twice.
REPEATED_PERCENT = 5
#: A repeat comes so many orders later: in the same bundle, in the next, long after it.
LATER = (1, 30, 3_000)
USERS = 97
#: Of librdkafka; what goes wrong for good comes with the delivery reports.
ERRORS_ONLY = 2
FLUSH_SECONDS_MAX = 60.0


class Publisher:
    """Publishes `orders` orders to each of `topics`.

    Args:
        kafka: "host:port".
        topics: where to; each gets the same.
        orders: how many.
        seed: of what is repeated, and when.
    """

    def __init__(self, kafka: str, topics: Sequence[str], orders: int, seed: int) -> None:
        # Idempotent: the client's own retries repeat nothing, only we do.
        self._producer = Producer(
            {
                "bootstrap.servers": kafka,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": ERRORS_ONLY,
            }
        )
        self._topics = topics
        self._dice = random.Random(seed)  # noqa: S311 - a run that can be had again
        self.orders = orders
        #: Orders published so far, each once.
        self.published = 0
        #: Order -> how often it was published. The same for every topic.
        self.sent: Counter[str] = Counter()
        #: Repeats still to come, as a heap: behind how many orders, and of which.
        self._repeats: list[tuple[int, int]] = []
        self._failed: KafkaError | None = None

    @property
    def repeats(self) -> int:
        """How many records were repeats."""
        return self.sent.total() - len(self.sent)

    @property
    def done(self) -> bool:
        """Whether everything is published."""
        return self.published == self.orders

    def publish(self, up_to: int) -> None:
        """Publish orders until there are `up_to`, and the repeats that are due."""
        while self.published < min(up_to, self.orders):
            self._send(self.published)
            if self._dice.randrange(100) < REPEATED_PERCENT:
                later = self.published + self._dice.choice(LATER)
                heapq.heappush(self._repeats, (later, self.published))
            self.published += 1
            self._repeat()
        self._producer.poll(0)
        self._check()

    def _repeat(self) -> None:
        last = self.published == self.orders
        while self._repeats and (last or self._repeats[0][0] <= self.published):
            self._send(heapq.heappop(self._repeats)[1])

    def _send(self, number: int) -> None:
        name = f"order-{number:07d}"
        user = f"user-{number % USERS}"
        order = {"order": name, "user": user, "pieces": number % 7 + 1}
        for topic in self._topics:
            self._producer.produce(
                topic,
                json.dumps(order).encode(),
                user,
                headers=[("id", name.encode())],
                on_delivery=self._delivered,
            )
        self.sent[name] += 1

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        self._failed = self._failed or error

    def flush(self) -> None:
        """Wait until the broker has taken everything."""
        left = self._producer.flush(FLUSH_SECONDS_MAX)
        self._check()
        if left:
            raise Unavailable("publish orders", f"{left} records", "the broker does not take them")

    def _check(self) -> None:
        if self._failed is not None:
            raise Unavailable("publish orders", str(self._topics), f"{self._failed}; run it again")
