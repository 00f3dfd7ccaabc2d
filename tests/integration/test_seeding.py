"""Switching on beside what ran before, on a real broker: nothing is replayed, nothing is skipped."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delivery import Delivery, InvalidUsage
from delivery.kafka.opening import open_client
from delivery.records import Output, Record
from delivery.services.kafka import Kafka
from tests.integration.work_kit import Bench, named


def priced(record: Record) -> Output:
    """User code that never says the same twice."""
    return record.replace(value=(record.value or b"") + uuid.uuid4().bytes)


@pytest.fixture
def bench(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Bench]:
    delivery = Delivery(
        catalog=f"sqlite:{tmp_path / 'catalog.db'}",
        kafka=kafka.bootstrap,
        pipeline=unique("shop"),
        home=str(tmp_path / "home"),
    )
    with open_client(kafka.bootstrap) as client:
        yield Bench(client, delivery)


@pytest.fixture
def orders(bench: Bench, unique: Callable[[str], str]) -> str:
    """The input topic, with two partitions and a stage that reads it."""
    name = unique("orders")
    bench.create(name, 2)
    bench.create(f"{name}.priced", 2)
    bench.delivery.stage(reads=name, writes=f"{name}.priced", name="price", id_from="header:id")(
        priced
    )
    return name


def parents(bench: Bench, topic: str) -> list[bytes]:
    """Return the names of the records that took effect."""
    marker = len(uuid.uuid4().bytes)
    return sorted(
        (record.value or b"")[len(b"value of ") : -marker] for record in bench.records(topic)
    )


def test_ids_of_the_stages_own_input_below_its_start(bench, orders):
    bench.publish(orders, [*named(0, "a", "b"), *named(1, "x", "y")])
    starts = {0: 2, 1: 2}
    bench.publish(orders, [*named(0, "b", "c", "x"), *named(1, "z", "y")])
    told = []
    report = bench.delivery.seed("price", topic=orders, start=starts, progress=told.append)
    assert (report.begun, report.ids, report.records, report.unnamed) == (2, 4, 4, 0)
    assert told[-1].records == told[-1].total == 4
    bench.work()
    # Partitions are apart: "x" was never seen in the one it came to now.
    assert parents(bench, f"{orders}.priced") == [b"c", b"x", b"z"]
    assert bench.proved() == []


def test_a_stage_that_writes_to_another_sink_than_a_topic(bench, unique, tmp_path):
    orders = unique("orders")
    bench.create(orders, 1)
    bench.delivery.stage(
        reads=orders, writes=f"files:{tmp_path / 'priced'}", name="price", id_from="header:id"
    )(priced)
    bench.publish(orders, named(0, "a", "b"))
    report = bench.delivery.seed("price", topic=orders, start={0: 2})
    assert (report.begun, report.ids) == (1, 2)
    bench.publish(orders, named(0, "b", "c"))
    assert bench.work()["fresh"] == 1
    tables = [pq.read_table(file) for file in (tmp_path / "priced").rglob("*.parquet")]
    assert sum(table.num_rows for table in tables) == 1


def test_ids_of_another_topic_are_known_to_every_lane(bench, orders, unique):
    done = unique("done")
    bench.create(done, 3)
    bench.publish(done, [*named(0, "a"), *named(1, "b"), *named(2, "c", "a")])
    bench.publish(orders, [*named(0, "a", "b", "new"), *named(1, "a", "c", "other")])
    report = bench.delivery.seed("price", topic=done, offsets={0: (0, 1), 2: (0, 9)})
    assert (report.begun, report.ids, report.records) == (2, 4, 3)
    bench.work()
    assert parents(bench, f"{orders}.priced") == [b"b", b"new", b"other"]
    assert bench.proved() == []


def test_ids_of_a_column_behind_re_keying_each_for_its_own_lane(bench, unique, tmp_path):
    name = unique("clicks")
    bench.create(name, 2)
    bench.create(f"{name}.out", 1)
    bench.delivery.stage(
        reads=name, writes=f"{name}.out", name="count", id_from="header:id", dedup="topic"
    )(priced)
    old = [f"old-{number}" for number in range(200)]
    pq.write_table(pa.table({"id": old, "n": range(200)}), tmp_path / "seen.parquet")
    bench.publish(name, [*named(0, *old, "new-1"), *named(1, *old[:50], "new-2", "new-1")])
    path = str(tmp_path / "seen.parquet")
    report = bench.delivery.seed("count", parquet=path, column="id")
    assert (report.begun, report.ids, report.records) == (8, 200, 200)
    bench.work()
    assert parents(bench, f"{name}.out") == [b"new-1", b"new-2"]
    assert bench.proved() == []


def checkpoint(root: Path, offsets: dict[str, dict[int, int]], *, committed: bool = True) -> str:
    """Write a checkpoint as Spark does."""
    for folder in ("offsets", "commits"):
        (root / folder).mkdir(parents=True)
    source = {topic: {str(p): at for p, at in found.items()} for topic, found in offsets.items()}
    (root / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(source)}")
    if committed:
        (root / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return str(root)


def test_a_stage_goes_on_where_a_spark_query_stands(bench, orders, tmp_path):
    bench.publish(orders, [*named(0, "a", "b", "c"), *named(1, "x")])
    stands = checkpoint(tmp_path / "query", {orders: {0: 2, 1: 1}})
    report = bench.delivery.start_from(stands)
    assert sorted(report.starts.values()) == [1, 2]
    bench.publish(orders, named(1, "y", "x"))
    bench.work()
    assert parents(bench, f"{orders}.priced") == [b"c", b"x", b"y"]
    assert bench.proved() == []


def test_with_the_ids_of_what_the_query_did_its_publishers_repeats_are_known(
    bench, orders, tmp_path
):
    bench.publish(orders, [*named(0, "a", "b", "c"), *named(1, "x")])
    stands = checkpoint(tmp_path / "query", {orders: {0: 2, 1: 1}})
    bench.delivery.seed("price", topic=orders, checkpoint=stands)
    bench.publish(orders, [*named(1, "y", "x"), *named(0, "a", "d")])
    bench.work()
    assert parents(bench, f"{orders}.priced") == [b"c", b"d", b"y"]
    assert bench.proved() == []


def test_a_partition_that_the_query_never_saw_begins_at_its_first_offset(bench, orders, tmp_path):
    bench.publish(orders, [*named(0, "a"), *named(1, "x")])
    bench.delivery.start_from(checkpoint(tmp_path / "query", {orders: {0: 1}}))
    bench.work()
    assert parents(bench, f"{orders}.priced") == [b"x"]


def test_the_same_again_does_nothing_and_anything_else_is_refused(bench, orders, tmp_path):
    bench.publish(orders, named(0, "a", "b"))
    stands = checkpoint(tmp_path / "query", {orders: {0: 1, 1: 0}})
    first = bench.delivery.start_from(stands)
    again = bench.delivery.start_from(stands)
    assert (first.begun, again.begun) == (2, 0)
    assert again.starts == first.starts
    with pytest.raises(InvalidUsage, match="it ran before"):
        bench.delivery.seed("price", topic=orders, start="latest")
    bench.work()
    assert bench.delivery.start_from(stands).begun == 0
    assert parents(bench, f"{orders}.priced") == [b"b"]


def test_a_stage_that_ran_is_neither_seeded_nor_moved(bench, orders, tmp_path):
    bench.publish(orders, named(0, "a"))
    bench.work()
    with pytest.raises(InvalidUsage, match="it ran before"):
        bench.delivery.start_from(checkpoint(tmp_path / "query", {orders: {0: 1, 1: 0}}))
    with pytest.raises(InvalidUsage, match="it ran before"):
        bench.delivery.seed("price", topic=orders, start="latest")
    assert bench.proved() == []


REFUSED = {
    "beyond the log": ({0: 9, 1: 0}, "partition 0 ends at 2"),
    "no such partition": ({0: 1, 7: 0}, "there is no partition 7"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_positions_that_do_not_fit_the_topic_are_refused(bench, orders, tmp_path, case):
    bench.publish(orders, named(0, "a", "b"))
    offsets, words = REFUSED[case]
    with pytest.raises(InvalidUsage, match=words):
        bench.delivery.start_from(checkpoint(tmp_path / "query", {orders: offsets}))
    assert bench.delivery.start_from(checkpoint(tmp_path / "good", {orders: {0: 1}})).begun == 2


def test_what_cannot_be_what_was_meant_is_refused(bench, orders, tmp_path):
    bench.publish(orders, named(0, "a", "b"))
    d = bench.delivery
    other = checkpoint(tmp_path / "query", {"others": {0: 1}})
    for call in (
        lambda: d.start_from(other),
        lambda: d.start_from(other, stage="price"),
        lambda: d.seed("price", topic=orders),
        lambda: d.seed("price", topic=orders, id_from="header:none", start="latest"),
        lambda: d.seed("price", topic="no-such-topic"),
        lambda: d.seed("no-such-stage", topic=orders),
        lambda: d.seed("price", topic=orders, start={0: 1}),
        lambda: d.seed("price", topic=orders, start="sometime"),
        lambda: d.seed("price"),
        lambda: d.seed("price", topic=orders, parquet="x"),
        lambda: d.seed("price", topic=orders, start="latest", checkpoint=other),
        lambda: d.seed("price", parquet="x", offsets={}),
        lambda: d.seed("price", parquet="x", id_from="key"),
    ):
        with pytest.raises(InvalidUsage, match="nothing was"):
            call()
    bench.work()
    assert parents(bench, f"{orders}.priced") == [b"a", b"b"]
