"""Which adapter a word of a user's means: the one place in hosts that names sinks.

What it is: functions that import an adapter when it is asked for, and open it.
What it must not know: how any adapter works.

Invariants:
    Nothing is imported that is not used: an adapter's driver may not be installed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from delivery.host.fan import Fan
from delivery.host.spec import StageSpec, scheme_of
from delivery.kafka.port import Client, Fetched
from delivery.points import At, nowhere
from delivery.ports import Emitter, Frontier, Reader
from delivery.sinks import Ledger, kind_of

__all__ = ["file_of", "load", "open_emitter", "open_ledger", "open_reader", "open_topics"]


class Ranges(Reader, Protocol):
    """A source that also gives the records of a planned range."""

    def read(self, start: Frontier, end: Frontier) -> Iterator[Fetched]:
        """Yield a planned range."""


class Topics(Emitter, Protocol):
    """A sink that holds a connection."""

    def close(self) -> None:
        """Let go of it. May be called twice."""


def load() -> None:
    """Load what nearly every pipeline uses, so that whoever is forked from here has it."""
    import connectors.kafka  # noqa: F401, PLC0415 - see the module
    import sinks.kafka  # noqa: F401, PLC0415 - see the module


def open_reader(client: Client, topic: str, partition: int | None = None) -> Ranges:
    """Return the source of one lane: one partition, or all of a topic's."""
    from connectors.kafka import KafkaReader  # noqa: PLC0415 - see the module

    return KafkaReader(client, topic, None if partition is None else [partition])


def open_topics(client: Client, topics: Sequence[str]) -> Topics:
    """Return the sink of a stage that writes to topics only."""
    from sinks.kafka import KafkaEmitter  # noqa: PLC0415 - see the module

    return KafkaEmitter(client, topics)


def open_emitter(client: Client, spec: StageSpec) -> Emitter:
    """Return the sink of a stage: Kafka, another one, or several behind one face.

    Raises:
        DeliveryError: one of them cannot be written to.
    """
    parts: list[Emitter] = []
    for scheme, targets in groupby(spec.topics, scheme_of):
        if scheme:
            parts += [_opened(scheme, target) for target in targets]
        else:
            # Dead letters too: then repeats of one, too, are in one partition. What takes no effect
            # keeps no id.
            topics = list(targets)
            kept = (at for at, name in enumerate(topics) if name != spec.duplicates)
            parts.append(_kafka(client, topics, tuple(kept) if spec.by_id else ()))
    if not parts:
        parts.append(_kafka(client, (), ()))
    kind_of(parts[0])
    return parts[0] if len(parts) == 1 else Fan(parts)


def _kafka(client: Client, topics: Sequence[str], by_id: Collection[int]) -> Emitter:
    from sinks.kafka import KafkaEmitter  # noqa: PLC0415 - see the module

    return KafkaEmitter(client, topics, by_id=by_id)


def _opened(scheme: str, target: str) -> Emitter:
    if scheme == "files":
        from sinks.files import FilesEmitter  # noqa: PLC0415 - see the module

        return FilesEmitter(target)
    from sinks.cassandra import CassandraEmitter  # noqa: PLC0415 - see the module

    return CassandraEmitter(target)


def open_ledger(path: str, at: At = nowhere, *, reading: bool = False) -> Ledger:
    """Open the lanes that are kept in a user's database, if asked so without writing to it.

    Raises:
        InvalidUsage: it is not there, or cannot be used.
        Unavailable: it cannot be read now.
    """
    from sinks.sql import SqliteLedger  # noqa: PLC0415 - see the module

    return SqliteLedger(path, at, reading=reading)


def file_of(connection: object) -> str:
    """Return the file that a connection to a database writes to.

    Raises:
        InvalidUsage: it is no connection that we know, or writes to no file.
    """
    from sinks.sql_effect import file_of as of_sqlite  # noqa: PLC0415 - see the module

    return of_sqlite(connection)
