"""Receivers on a real broker: what a group consumes, where it is kept, and who is refused."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from dedup.errors import InvalidUsage
from dedup.formats.lane import decode_seal
from delivery.host.worker import Worker
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.records import Record
from delivery.services.cassandra import Cassandra
from delivery.services.kafka import Kafka
from sinks.sql import SqliteLedger
from tests.integration.receiver_kit import (
    BUNDLE_ROWS,
    PARTITIONS,
    PROCESS_SECONDS_MAX,
    World,
    command,
    consume,
    once_each,
    rows,
    run_out,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def world(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> World:
    return World(kafka.bootstrap, unique("report"), tmp_path).make()


@pytest.fixture
def connection(world: World) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(world.database)) as connection:
        yield connection


# What is consumed -----------------------------------------------------------------------------


def test_every_record_has_its_effect_once_in_the_users_database(world: World) -> None:
    world.send([*range(100), *range(50, 150)])
    assert consume(world, world.receiver(bounded=True)) >= 150 // BUNDLE_ROWS
    assert world.effects() == once_each(range(150))
    world.send([*range(140, 160)])
    assert consume(world, world.receiver(bounded=True)) > 0
    assert world.effects() == once_each(range(160))
    assert consume(world, world.receiver(bounded=True)) == 0


def test_the_catalog_may_be_a_cluster(
    world: World, cassandra: Cassandra, unique: Callable[[str], str]
) -> None:
    node = f"{cassandra.contact_points[0]}:{cassandra.port}"
    world = world._replace(catalog=f"cassandra://{node}/{unique('receiver')}")
    world.send([*range(300), *range(50)])
    assert consume(world, world.receiver(bounded=True, bundle_rows=200)) > 0
    world.send(range(250, 310))
    consume(world, world.receiver(bounded=True))
    assert world.effects() == once_each(range(310))
    seen = Counter[bytes]()
    for bundle in world.receiver("plain", bounded=True):
        seen += Counter(record.value or b"" for record in bundle.records())
        bundle.done()
    assert set(seen.values()) == {1}
    assert len(seen) == 310


def test_a_bundle_is_rows_or_columns_and_knows_its_partition(world: World) -> None:
    world.send(range(30))
    seen = 0
    for bundle in world.delivery.receiver(topic=world.topic, group="looking", bounded=True):
        records, table = list(bundle.records()), bundle.table()
        assert len(bundle) == len(records) == table.num_rows > 0
        assert bundle.topic == world.topic
        assert {record.source.partition for record in records} == {bundle.partition}
        assert table.column("value").to_pylist() == [record.value for record in records]
        assert table.column("offset").to_pylist() == [record.offset for record in records]
        assert set(table.column("partition").to_pylist()) == {bundle.partition}
        stamps = [stamp.timestamp() * 1000 for stamp in table.column("timestamp").to_pylist()]
        assert stamps == [record.timestamp_ms for record in records]
        assert [
            tuple((pair["key"], pair["value"]) for pair in pairs)
            for pairs in table.column("headers").to_pylist()
        ] == [record.headers for record in records]
        seen += len(bundle)
        bundle.done()
    assert seen == 30


def test_lag_monitors_see_the_group(world: World) -> None:
    world.send(range(60))
    consume(world, world.receiver(bounded=True))
    monitor = Consumer({"bootstrap.servers": world.bootstrap, "group.id": "billing"})
    parts = [TopicPartition(world.topic, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + PROCESS_SECONDS_MAX
    committed: list[int] = []
    while committed != [30, 30]:
        assert time.monotonic() < deadline, committed
        committed = [part.offset for part in monitor.committed(parts, timeout=10)]
    monitor.close()


def test_what_a_stage_emitted_twice_is_received_once(
    world: World, unique: Callable[[str], str]
) -> None:
    """A second process that emits what is sealed again: remnants and repeats are dropped."""
    priced = unique("priced")
    with open_client(world.bootstrap) as client:
        client.create(priced, TopicSettings(partitions=PARTITIONS))
    delivery = world.delivery

    @delivery.stage(reads=world.topic, writes=priced, id_from="header:id")
    def price(record: Record) -> object:
        return record.replace(value=record.value)

    world.send([*range(50), *range(20)])
    (spec,) = delivery.stages
    for point in ("emitted-not-acknowledged", "nowhere"):
        with closing(Worker(delivery.plan, at=_failing(point))) as worker:
            try:
                worker.open(spec, range(PARTITIONS), {})
                run_out(worker)
            except _DeadError:
                continue
    received = world._replace(topic=priced)
    consume(received, received.receiver(bounded=True, named=None))
    assert world.effects() == once_each(range(50))
    with closing(Consumer({"bootstrap.servers": world.bootstrap, "group.id": "none"})) as log:
        ends = [
            log.get_watermark_offsets(TopicPartition(priced, number), timeout=10)[1]
            for number in range(PARTITIONS)
        ]
    assert sum(ends) > 50, "something was emitted twice"


class _DeadError(Exception):
    pass


def _failing(point: str) -> Callable[[str], None]:
    def at(passed: str) -> None:
        if passed == point:
            raise _DeadError

    return at


def test_records_of_a_lane_that_the_catalog_does_not_know_stop_it(
    world: World, unique: Callable[[str], str], tmp_path: Path
) -> None:
    priced = unique("foreign")
    with open_client(world.bootstrap) as client:
        client.create(priced, TopicSettings(partitions=PARTITIONS))
    elsewhere = world._replace(root=tmp_path / "elsewhere")
    elsewhere.root.mkdir()
    delivery = elsewhere.delivery
    delivery.stage(reads=world.topic, writes=priced, id_from="header:id", name="pass")(
        lambda record: record.replace(value=record.value)
    )
    world.send(range(20))
    with closing(Worker(delivery.plan)) as worker:
        worker.open(delivery.stages[0], range(PARTITIONS), {})
        run_out(worker)
    received = world._replace(topic=priced)
    with pytest.raises(InvalidUsage, match='id_from="delivery"'):
        consume(received, received.receiver(bounded=True, named=None))
    assert not world.effects()
    consume(received, received.receiver(bounded=True, named="delivery"))
    assert world.effects() == once_each(range(20))


# What the body of the loop may do -------------------------------------------------------------


def test_an_exception_rolls_back_and_the_bundle_comes_again(
    world: World, connection: sqlite3.Connection
) -> None:
    world.send(range(10))
    failed = 0
    for bundle in world.receiver(bounded=True):
        try:
            with bundle.once(connection) as tx:
                tx.executemany("INSERT INTO effect VALUES (?, ?, ?)", rows(bundle))
                assert 1 / (failed // 2), "fails twice"
        except ZeroDivisionError:
            failed += 1
    assert failed == 2
    assert world.effects() == once_each(range(10))


def test_a_bundle_that_nobody_seals_is_not_skipped(world: World) -> None:
    world.send(range(10))
    seen = []
    with pytest.raises(InvalidUsage, match="never sealed"):
        seen += [len(bundle) for bundle in world.receiver(bounded=True)]
    consume(world, world.receiver(bounded=True))
    assert world.effects() == once_each(range(10))


@pytest.mark.parametrize(
    "end",
    [
        lambda tx, _: tx.commit(),
        lambda tx, _: tx.rollback(),
        lambda tx, _: tx.executescript("SELECT 1"),
        lambda tx, _: tx.execute("COMMIT"),
        lambda tx, _: tx.execute("DELETE FROM delivery_lane"),
        lambda _, connection: connection.commit(),
        lambda _, connection: connection.rollback(),
        lambda _, connection: connection.executescript("SELECT 1"),
        lambda _, connection: connection.close(),
        lambda tx, _: tx.execute("INSERT OR ROLLBACK INTO picky VALUES (1)"),
    ],
)
def test_nothing_ends_the_transaction_but_the_seal(
    world: World, end: Callable[..., object], connection: sqlite3.Connection
) -> None:
    world.send([1])
    connection.execute("CREATE TABLE picky (one INTEGER PRIMARY KEY)")
    connection.execute("INSERT INTO picky VALUES (1)")
    connection.commit()
    with (  # noqa: PT012 - the loop raises, wherever in it
        closing(sqlite3.connect(world.database)) as used,
        pytest.raises((InvalidUsage, sqlite3.Error)),
    ):
        for bundle in world.receiver(bounded=True):
            with bundle.once(used) as tx:
                tx.executemany("INSERT INTO effect VALUES (?, ?, ?)", rows(bundle))
                end(tx, used)
    assert not world.effects()
    consume(world, world.receiver(bounded=True))
    assert world.effects() == once_each([1])


def test_what_cannot_hold_an_effect_and_a_seal_is_refused(
    world: World, connection: sqlite3.Connection, tmp_path: Path
) -> None:
    world.send(range(2))
    other = sqlite3.connect(tmp_path / "other.db")
    busy = sqlite3.connect(world.database)
    busy.execute("INSERT INTO effect VALUES ('x', 0, NULL)")
    with closing(sqlite3.connect(":memory:")) as memory, closing(other), closing(busy):
        for bundle in islice(world.receiver(), 1):
            for wrong, said in ((memory, "in memory"), (object(), "sqlite3")):
                with pytest.raises(InvalidUsage, match=said), bundle.once(wrong):
                    pass
            with pytest.raises(InvalidUsage, match="in a transaction already"), bundle.once(busy):
                pass
            busy.rollback()
            with bundle.once(connection) as tx:
                tx.executemany("INSERT INTO effect VALUES (?, ?, ?)", rows(bundle))
            with pytest.raises(InvalidUsage, match="sealed already"), bundle.once(connection):
                pass
        world.send(range(2, 4))
        for bundle in islice(world.receiver(), 1):
            with pytest.raises(InvalidUsage, match="writes its effects into"), bundle.once(other):
                pass
            with pytest.raises(InvalidUsage, match=r"with bundle\.once"):
                bundle.done()
    for bundle in islice(world.receiver("plain"), 1):
        bundle.done()
    for bundle in islice(world.receiver("plain"), 1):
        with (
            pytest.raises(InvalidUsage, match=r"with bundle\.done"),
            bundle.once(connection),
        ):
            pass


# A group of several ---------------------------------------------------------------------------


def test_who_loses_a_race_is_rolled_back_and_goes_on_behind_the_winner(
    world: World, connection: sqlite3.Connection
) -> None:
    """A slow process keeps a bundle in hand while another takes its lanes over."""
    world.send(range(40))
    slow = world.receiver()
    bundles = iter(slow)
    held = next(bundles)
    with held.once(connection) as tx:
        tx.executemany("INSERT INTO effect VALUES (?, ?, ?)", rows(held))
    held = next(bundles)
    taken: list[int] = []
    for bundle in world.receiver(bounded=True):
        with bundle.once(connection) as tx:
            tx.executemany("INSERT INTO effect VALUES (?, ?, ?)", rows(bundle))
        taken += [record.offset for record in bundle.records()]
    assert taken
    with held.once(connection) as tx:
        tx.executemany("INSERT INTO effect VALUES (?, ?, ?)", rows(held))
    assert not held.won
    slow.stop()
    assert list(bundles) == []
    assert world.effects() == once_each(range(40))


def test_a_seal_after_a_take_over_is_refused_and_its_effect_stays(world: World) -> None:
    """With `done` the effect came before: at least once, and the loop goes on all the same."""
    world.send(range(20))
    slow = world.receiver()
    bundles = iter(slow)
    next(bundles).done()
    world.send(range(20, 40))
    held = next(bundles)
    for bundle in world.receiver(bounded=True):
        bundle.done()
    held.done()
    assert not held.won
    slow.stop()
    assert list(bundles) == []


def test_processes_share_a_topic_and_take_over_from_the_dead(
    kafka: Kafka, unique: Callable[[str], str], tmp_path: Path
) -> None:
    partitions = 4
    world = World(kafka.bootstrap, unique("shared"), tmp_path).make(partitions)
    world.send(range(100), partitions)
    processes = [
        subprocess.Popen(command(world, "once", "on", "", "1"), cwd=ROOT) for _ in range(2)
    ]
    try:
        sent = 100
        deadline = time.monotonic() + PROCESS_SECONDS_MAX
        while len(_owners(world, partitions)) < 2:
            assert time.monotonic() < deadline, "only one of two processes works"
            world.send(range(sent, sent + 20), partitions)
            sent += 20
            time.sleep(0.1)  # records trickle in, as from a publisher
        processes[0].kill()
        processes[0].wait()
        world.send(range(sent, sent + 100), partitions)
        sent += 100
        while world.effects() != once_each(range(sent)):
            assert set(world.effects().values()) <= {1}
            assert time.monotonic() < deadline, "the survivor did not take over"
            time.sleep(0.2)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _owners(world: World, partitions: int) -> set[str]:
    """Return who sealed last in the lanes of the group."""
    with closing(SqliteLedger(world.database)) as ledger:
        found = set()
        for number in range(partitions):
            lane = f"shop/billing/{world.topic}-{number}"
            row = ledger.read(lane)
            if row is not None:
                ((_, entry),) = ledger.entries(lane, row.ref.incarnation, row.ref.seq, row.ref.seq)
                found.add(decode_seal(entry, lane).code)
        return found


def test_the_loop_of_the_documents_runs(world: World, connection: sqlite3.Connection) -> None:
    page = (ROOT / "docs" / "receivers.md").read_text()
    known: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], known)  # noqa: S102 - our own document
    connection.execute("CREATE TABLE bill (orders INTEGER, cents INTEGER)")
    connection.commit()
    world.send_values(b'{"order":%d,"cents":%d}' % (one, 100 * one) for one in range(20))
    receiver = world.delivery.receiver(topic=world.topic, group="billing", bounded=True)
    known["bill"](receiver, str(world.database))
    assert sorted(connection.execute("SELECT * FROM bill")) == [(n, 100 * n) for n in range(20)]
