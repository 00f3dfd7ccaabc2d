"""Ids out of columns: Parquet, and whatever Arrow can read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dedup.errors import InvalidUsage
from dedup.ids import named_many
from delivery.seeding import names
from delivery.seeding.names import of_column

NAMES = [f"order-{number}" for number in range(1000)]
TABLE = pa.table({"id": NAMES, "n": list(range(1000))})


def ids_of(data, column="id"):
    found = list(of_column(data, column))
    assert sum(one.records for one in found) == sum(len(one.ids) for one in found)
    return np.concatenate([one.ids for one in found])


def expected():
    return named_many([name.encode() for name in NAMES])


@pytest.fixture
def parquet(tmp_path):
    path = tmp_path / "seen" / "part-0.parquet"
    path.parent.mkdir()
    pq.write_table(TABLE, path)
    return path


def test_a_column_of_parquet_names_records_as_their_publishers_do(parquet, monkeypatch):
    monkeypatch.setattr(names, "BATCH_ROWS", 64)
    for data in (parquet, str(parquet), str(parquet.parent), ds.dataset(parquet)):
        assert (ids_of(data) == expected()).all()
    assert len(list(of_column(parquet, "id"))) > 10


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str
)
def test_whatever_arrow_reads_will_do(kind):
    table = TABLE.set_column(0, "id", TABLE["id"].cast(kind))
    for data in (table, table.to_reader(), table.to_batches()[0]):
        assert (ids_of(data) == expected()).all()


def test_bytes_of_one_length_are_names_too():
    raw = [name.encode().ljust(12) for name in NAMES]
    column = pa.array(raw, pa.binary(12))
    assert (ids_of(pa.table({"id": column})) == named_many(raw)).all()


def test_numbers_are_named_as_json_spells_them():
    assert (ids_of(TABLE, "n") == named_many([b"%d" % number for number in range(1000)])).all()


def test_a_single_column_needs_no_name():
    assert (ids_of(TABLE.select(["id"]), None) == expected()).all()


REFUSED = {
    "two columns and none named": (TABLE, None),
    "a column that is not there": (TABLE, "key"),
    "nulls": (pa.table({"id": ["a", None]}), "id"),
    "numbers with a point": (pa.table({"id": [1.5]}), "id"),
    "no data": (object(), "id"),
    "no file": ("/no/such/file.parquet", "id"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_names_nobody_is_refused(case):
    with pytest.raises(InvalidUsage, match="nothing was"):
        ids_of(*REFUSED[case])


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    path = tmp_path / "seen.parquet"
    path.write_bytes(b"id\norder-1\n")
    with pytest.raises(InvalidUsage, match="nothing was written"):
        ids_of(path)
