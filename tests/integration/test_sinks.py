"""Every sink keeps what the port promises: one suite for all of them, and each in a stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from delivery.batch import Emissions
from delivery.broker import MemoryBroker
from delivery.host.fan import Fan
from delivery.host.worker import Worker
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.points import EMITTED_NOT_ACKNOWLEDGED, MID_EMIT, SEALED_NOT_EMITTED
from delivery.ports import Emitter, Record, Source
from delivery.services.cassandra import Cassandra
from delivery.services.kafka import Kafka
from delivery.sinks import BUNDLE_ROWS_MAX, Kind, kind_of
from delivery.testing import check_emitter
from sinks.cassandra import CassandraEmitter
from sinks.files import FilesEmitter, read_files
from sinks.kafka import KafkaEmitter
from sinks.memory import MemoryEmitter
from tests.integration.kafka_kit import drain
from tests.integration.receiver_kit import PARTITIONS, World, run_out
from tests.servers import connected

ReadBack = Callable[[Source], Sequence[Record]]
Made = tuple[Emitter, ReadBack]


class Sinks:
    """Makes sinks of every kind, each with targets that nobody has written to yet."""

    def __init__(
        self, request: pytest.FixtureRequest, unique: Callable[[str], str], root: Path
    ) -> None:
        self._request = request
        self._unique = unique
        self._root = root
        self.stack = ExitStack()

    def make(self, name: str) -> Made:
        """Return a sink and what reads it back."""
        made: Made = getattr(self, name)()
        return made

    def memory(self) -> Made:
        broker = MemoryBroker()
        broker.create("one", 2)
        broker.create("two")
        return MemoryEmitter(broker, ["one", "two"]), broker.partitions.__getitem__  # type: ignore[return-value]

    def kafka(self) -> Made:
        kafka: Kafka = self._request.getfixturevalue("kafka")
        client = self.stack.enter_context(open_client(kafka.bootstrap))
        names = [self._unique("sink"), self._unique("sink")]
        for name in names:
            client.create(name, TopicSettings(partitions=2))
        emitter = KafkaEmitter(client, names)
        self.stack.callback(emitter.close)
        topics = dict(zip(emitter.writes, names, strict=True))

        def read_back(source: Source) -> list[Record]:
            name = topics[source.topic]
            end = client.bounds(name, [source]).high.at(source) or 0
            with closing(client.consumer()) as consumer:
                consumer.add(name, {source: 0})
                rows = drain(consumer, {source: end}).rows[source]
            return [Record(value, key, headers, offset=at) for at, key, value, headers in rows]

        return emitter, read_back

    def parquet(self) -> Made:
        return self._files("")

    def jsonl(self) -> Made:
        return self._files("?format=jsonl")

    def _files(self, options: str) -> Made:
        directory = self._root / self._unique("out")

        def read_back(source: Source) -> list[Record]:
            return [record for record in read_files(directory) if record.source == source]

        return FilesEmitter(f"files:{directory}{options}"), read_back

    def cassandra(self) -> Made:
        node: Cassandra = self._request.getfixturevalue("cassandra")
        session = self.stack.enter_context(connected(node.contact_points, node.port))
        keyspace = self._unique("sink")
        session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication ="
            " {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        emitter = CassandraEmitter(
            f"cassandra://{node.contact_points[0]}:{node.port}/{keyspace}/rows"
        )
        self.stack.callback(emitter.close)

        def read_back(_source: Source) -> list[Record]:
            session.set_keyspace(keyspace)
            rows = sorted(session.execute("SELECT * FROM rows"), key=_place)
            return [
                Record(row.value, row.key, tuple(row.headers or ()), offset=_place(row))
                for row in rows
            ]

        return emitter, read_back

    def several(self) -> Made:
        made = [self.memory(), self.parquet(), self.jsonl()]
        of = {topic: read for emitter, read in made for topic in emitter.writes}
        return Fan([emitter for emitter, _ in made]), lambda source: of[source.topic](source)


def _place(row: Any) -> int:
    return int(row.seq * BUNDLE_ROWS_MAX + row.ordinal)


@pytest.fixture
def sinks(
    request: pytest.FixtureRequest, unique: Callable[[str], str], tmp_path: Path
) -> Iterator[Sinks]:
    sinks = Sinks(request, unique, tmp_path)
    with sinks.stack:
        yield sinks


@pytest.mark.parametrize("name", ["memory", "kafka", "parquet", "jsonl", "cassandra", "several"])
def test_every_sink_keeps_what_the_port_promises(sinks: Sinks, name: str) -> None:
    check_emitter(lambda: sinks.make(name))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("memory", Kind.KEYED),
        ("kafka", Kind.KEYED),
        ("parquet", Kind.STAGED),
        ("jsonl", Kind.STAGED),
        ("cassandra", Kind.KEYED),
    ],
)
def test_every_sink_declares_its_kind(sinks: Sinks, name: str, kind: Kind) -> None:
    emitter, _ = sinks.make(name)
    assert kind_of(emitter) is kind
    assert dict(emitter.emit(Emissions.join([]))) == {}


class _DeadError(Exception):
    pass


def test_a_stage_that_dies_while_it_emits_writes_every_bundle_once(
    kafka: Kafka, cassandra: Cassandra, unique: Callable[[str], str], tmp_path: Path, sinks: Sinks
) -> None:
    """Topic, files and table at once, through crashes before, in and after the emission."""
    world = World(kafka.bootstrap, unique("orders"), tmp_path).make()
    keyspace = unique("shop")
    session = sinks.stack.enter_context(connected(cassandra.contact_points, cassandra.port))
    session.execute(
        f"CREATE KEYSPACE {keyspace} WITH replication ="
        " {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    node = f"{cassandra.contact_points[0]}:{cassandra.port}"
    out, table = tmp_path / "out", f"cassandra://{node}/{keyspace}/priced"
    delivery = world.delivery

    @delivery.stage(
        reads=world.topic,
        writes=(f"files:{out}", table, f"files:{out}.lines?format=jsonl"),
        id_from="header:id",
    )
    def price(record: Record) -> Iterator[object]:
        for edge in range(3):
            yield record.replace(value=record.value).to(edge)

    world.send([*range(60), *range(30)])
    (spec,) = delivery.stages
    for point in (SEALED_NOT_EMITTED, MID_EMIT, EMITTED_NOT_ACKNOWLEDGED, "nowhere"):
        with closing(Worker(delivery.plan, at=_failing(point))) as worker:
            try:
                worker.open(spec, range(PARTITIONS), {})
                run_out(worker)
            except _DeadError:
                continue
    once = Counter(b'{"id": %d}' % number for number in range(60))
    assert Counter(record.value for record in read_files(out)) == once
    assert Counter(record.value for record in read_files(f"{out}.lines")) == once
    session.set_keyspace(keyspace)
    rows = session.execute("SELECT value FROM priced")
    assert Counter(row.value for row in rows) == once


def _failing(point: str) -> Callable[[str], None]:
    def at(passed: str) -> None:
        if passed == point:
            raise _DeadError

    return at
