"""A cluster whose records are read and written over sockets of our own, and asked about through a library.

What it is: `Client` of the port, in front of another one; `serves`, which tells for which options.
What it must not know: what topics are for, how the other one asks.

Invariants:
    Questions about topics, offsets and groups are the other client's; only records go past it.
    An option that is not understood here is never passed over: the other client serves then.
    Where brokers are older than what is spoken here, the other client reads and writes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Self

from dedup.model import Frontier, Source
from delivery.kafka.options import Options
from delivery.kafka.port import (
    DELIVERY_SECONDS_MAX,
    FETCH_BUFFER_BYTES_MAX,
    Bounds,
    Client,
    Consumer,
    Producer,
    Topic,
    TopicSettings,
)
from delivery.kafka.wire import codecs
from delivery.kafka.wire.cluster import speaks
from delivery.kafka.wire.consumer import WireConsumer
from delivery.kafka.wire.producer import WireProducer

__all__ = ["WireClient", "serves"]

LOG = logging.getLogger(__name__)

#: Options that mean here what they mean in Kafka.
_COMPRESSION = "compression.type"
_DELIVERY_MS = ("delivery.timeout.ms", "message.timeout.ms")
_UNDERSTOOD = {_COMPRESSION, *_DELIVERY_MS, "client.id", "security.protocol"}
#: Kafka's names of what batches are compressed by, and its numbers.
_CODECS = {
    "none": codecs.NONE,
    "gzip": codecs.GZIP,
    "snappy": codecs.SNAPPY,
    "lz4": codecs.LZ4,
    "zstd": codecs.ZSTD,
}
#: Unless told otherwise.
_CODEC = "lz4"


def serves(options: Options) -> bool:
    """Tell whether every option is understood: with TLS, SASL or fine tuning a library serves."""
    given = options.given
    if not set(given) <= _UNDERSTOOD:
        return False
    plain = given.get("security.protocol", "plaintext").lower() == "plaintext"
    return plain and given.get(_COMPRESSION, _CODEC) in _CODECS


class WireClient:
    """One cluster; see the port.

    Args:
        options: where, and how it is entered.
        other: answers questions.
    """

    library = "wire"

    def __init__(self, options: Options, other: Client) -> None:
        assert serves(options), "every option is understood"
        self._bootstrap = options.bootstrap
        self._given = options.given
        self._other = other
        #: Whether brokers speak as we do; None: nobody has said so yet.
        self._spoken: bool | None = None

    def __repr__(self) -> str:
        return f"WireClient({self._bootstrap!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def names(self) -> list[str]:
        """Return the names of all topics; see the port."""
        return self._other.names()

    def describe(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return the topics of these names; see the port."""
        return self._other.describe(names)

    def settings_of(self, name: str) -> dict[str, str]:
        """Return the settings of a topic; see the port."""
        return self._other.settings_of(name)

    def create(self, name: str, settings: TopicSettings) -> Topic:
        """Create a topic, or return the one that is there; see the port."""
        return self._other.create(name, settings)

    def bounds(self, topic: str, sources: Sequence[Source]) -> Bounds:
        """Return what the log holds of these partitions; see the port."""
        return self._other.bounds(topic, sources)

    def at_time(self, topic: str, sources: Sequence[Source], time_ms: int) -> Frontier:
        """Return the first offset that is not older; see the port."""
        return self._other.at_time(topic, sources, time_ms)

    def consumer(
        self, *, group: str | None = None, buffer_bytes: int = FETCH_BUFFER_BYTES_MAX
    ) -> Consumer:
        """Return a consumer that reads nothing yet."""
        if not self._speaks():
            return self._other.consumer(group=group, buffer_bytes=buffer_bytes)
        return WireConsumer(
            self._bootstrap, group=group, buffer_bytes=buffer_bytes, commit=self._other.commit
        )

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
        """Set the offsets of a consumer group; see the port."""
        return self._other.commit(group, topic, offsets)

    def producer(self) -> Producer:
        """Return a producer."""
        if not self._speaks():
            return self._other.producer()
        given = [self._given[name] for name in _DELIVERY_MS if name in self._given]
        return WireProducer(
            self._bootstrap,
            self._other.bounds,
            codec=_CODECS[self._given.get(_COMPRESSION, _CODEC)],
            delivery_seconds=int(given[0]) / 1000 if given else DELIVERY_SECONDS_MAX,
        )

    def close(self) -> None:
        """Let go of the other client. May be called twice."""
        self._other.close()

    # Inside -----------------------------------------------------------------------------------

    def _speaks(self) -> bool:
        """Tell whether the brokers speak as we do; while nobody answers, they are taken to."""
        if self._spoken is None:
            self._spoken = speaks(self._bootstrap)
            if self._spoken is False:
                LOG.info(
                    "the brokers at %s are older than Kafka 3.1: records go through %s",
                    self._bootstrap,
                    self._other.library,
                )
        return self._spoken is not False
