"""Arrow batches as user code: what goes in, what may come out, and the record that fails."""

from __future__ import annotations

from itertools import repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delivery.arrow import SCHEMA, record_batch
from delivery.batch import Rows, batches_of
from delivery.ports import Output, Record, Source, TopicId
from delivery.stage import (
    RECORD_TRIES,
    Policy,
    StoppedByRecordError,
    run_fresh,
    stage_of,
)

SOURCE = Source(TopicId(b"t" * 16), 3)
RECORDS = [
    Record(
        b"%d" % n,
        b"k%d" % n if n % 2 else None,
        (("h", b"%d" % n),) * (n % 3),
        1000 + n,
        SOURCE,
        7 * n,
    )
    for n in range(10)
]
EVERY = np.arange(len(RECORDS))


def run(call, chosen=EVERY, policy=None):
    """Run a batch of records through a stage; return its rows and how many are dead letters."""
    (batch,) = batches_of(RECORDS)
    rows = Rows()
    dead = run_fresh(
        stage_of(call, batch=True), batch, chosen, policy or Policy(), rows, kept=repeat(None)
    )
    return rows, dead


def doubled(given: pa.RecordBatch) -> pa.RecordBatch:
    text = pc.cast(given.column("value"), pa.string())
    numbers = pc.cast(pc.multiply(pc.cast(text, pa.int64()), 2), pa.string())
    return pa.record_batch({"value": numbers})


def test_a_batch_has_a_row_for_each_record():
    (batch,) = batches_of(RECORDS)
    found = record_batch(batch, [1, 4, 5])
    assert found.schema == SCHEMA
    chosen = [RECORDS[n] for n in (1, 4, 5)]
    assert found.column("value").to_pylist() == [record.value for record in chosen]
    assert found.column("key").to_pylist() == [record.key for record in chosen]
    assert found.column("offset").to_pylist() == [record.offset for record in chosen]
    assert found.column("partition").to_pylist() == [3, 3, 3]
    assert [
        tuple((pair["key"], pair["value"]) for pair in pairs)
        for pairs in found.column("headers").to_pylist()
    ] == [record.headers for record in chosen]
    assert pc.cast(found.column("timestamp"), pa.int64()).to_pylist() == [1001, 1004, 1005]
    assert record_batch(batch, []).num_rows == 0


def test_a_row_for_each_record_needs_no_parents():
    rows, dead = run(doubled, EVERY[2:])
    assert dead == 0
    assert rows.values == [b"%d" % (2 * n) for n in range(2, 10)]
    assert rows.keys == [record.key for record in RECORDS[2:]]
    assert rows.parent_offsets == [record.offset for record in RECORDS[2:]]
    assert rows.parent_partitions == [3] * 8
    assert rows.edges == [0] * 8
    assert rows.headers == [()] * 8
    assert rows.kept_ids == [None] * 8


def test_any_number_of_rows_with_parents():
    def call(given):
        offsets = given.column("offset").to_pylist()
        twice = [offset for offset in offsets[1:] for _ in range(2)]
        return pa.record_batch(
            {
                "value": pa.array([b"v"] * len(twice)),
                "parent": pa.array(twice),
                "edge": pa.array([number % 2 for number in range(len(twice))]),
                "headers": pa.array(
                    [[{"key": "a", "value": b"b"}]] * len(twice), SCHEMA.field("headers").type
                ),
            }
        )

    rows, _ = run(call)
    assert rows.parent_offsets == [record.offset for record in RECORDS[1:] for _ in range(2)]
    assert rows.edges == [0, 1] * 9
    assert rows.headers == [(("a", b"b"),)] * 18
    assert rows.keys == [record.key for record in RECORDS[1:] for _ in range(2)]


def test_no_rows_at_all():
    rows, _ = run(lambda _: None)
    assert len(rows) == 0
    rows, _ = run(
        lambda given: pa.record_batch(
            {
                "value": given.column("value").slice(0, 0),
                "parent": given.column("offset").slice(0, 0),
            }
        )
    )
    assert len(rows) == 0


def test_a_batch_gets_three_tries():
    calls = []

    def call(given):
        calls.append(len(given))
        if len(calls) < RECORD_TRIES:
            raise ZeroDivisionError
        return doubled(given)

    rows, dead = run(call)
    assert (len(rows), dead) == (10, 0)
    assert calls == [10] * RECORD_TRIES


def picky(given: pa.RecordBatch) -> pa.RecordBatch:
    if pc.any(pc.equal(given.column("value"), b"6")).as_py():
        raise ValueError("six")
    return doubled(given)


def test_the_record_that_fails_is_named():
    with pytest.raises(StoppedByRecordError, match=r"offset 42 of partition 3.*six"):
        run(picky)


def test_the_record_that_fails_is_a_dead_letter_and_its_neighbours_count():
    rows, dead = run(picky, policy=Policy(dead_letter_edge=1))
    assert dead == 1
    assert rows.edges == [0] * 6 + [1] + [0] * 3
    assert rows.values[6] == b"6"
    assert rows.keys[6] == RECORDS[6].key
    assert rows.headers[6][-1] == ("delivery-error", b"ValueError: six")
    assert rows.parent_offsets == [record.offset for record in RECORDS]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"value": pa.array([b"a"])}, "no column `parent`"),
        ({"value": pa.array([b"a"]), "parent": pa.array([1])}, "offset of one of the records"),
        ({"value": pa.array([b"a", b"b"]), "parent": pa.array([7, 0])}, "in the order"),
        ({"key": pa.array([b"a"])}, "the column value"),
        ({"value": pa.array([b"a"] * 10), "colour": pa.array([1] * 10)}, "colour"),
        ({"value": pa.array([[1]] * 10)}, "cast"),
        ({"value": pa.array([b"a" * 800_000] * 10)}, "limit"),
    ],
)
def test_what_is_no_output_is_a_failure_of_the_code(made, said):
    def call(given):
        if len(given) == 1:
            raise ZeroDivisionError
        return pa.record_batch(made)

    (batch,) = batches_of(RECORDS)
    stage = stage_of(call, batch=True)
    with pytest.raises(Exception, match=said):
        stage.columns(record_batch(batch, EVERY))
    with pytest.raises(StoppedByRecordError):
        run(call)


def test_something_else_than_a_batch_is_a_failure_of_the_code():
    with pytest.raises(StoppedByRecordError, match="not list"):
        run(lambda _: [])


def test_a_stage_of_batches_runs_one_record_too():
    stage = stage_of(doubled, "v1", batch=True)
    assert stage.code == "v1"
    assert stage.run(RECORDS[4]) == [Output(b"8", RECORDS[4].key)]
