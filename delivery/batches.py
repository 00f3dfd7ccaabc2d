"""How a whole bundle goes through user code at once: Arrow in, Arrow out.

What it is: `ArrowFunction`, a stage whose code takes and returns `pyarrow.RecordBatch`, and the
search for the record that makes it fail.
What it must not know: bundles, lanes, stores.

Invariants:
    Three tries at all records together; then one by one, under the policy of a single record: so a
    record that cannot be processed is named, or becomes a dead letter, and its neighbours count.
    A batch that says nothing about the parents of its rows has one row for each record. One that
    does, has them in the order of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delivery.arrow import HEADERS, record_batch
from delivery.batch import Batch, Rows, batches_of
from delivery.records import RECORD_BYTES_MAX, Headers, Output, Record
from delivery.stage import RECORD_TRIES, Policy, run_record

__all__ = ["ArrowFunction"]

_COLUMNS = {
    "value": pa.binary(),
    "key": pa.binary(),
    "headers": HEADERS,
    "edge": pa.int32(),
    "parent": pa.int64(),
}
_TEXTS = (pa.types.is_string, pa.types.is_large_string)


class ArrowFunction:
    """A stage made of one function: a batch in, a batch out.

    The columns of the input are those of `delivery.arrow.SCHEMA`. Of the output, `value` must be
    there, and may be `key`, `headers`, `edge` (0 if it is missing) and `parent`: the offset of the
    record a row was made from, if there is not one row for each record. A key that is not said is
    the record's; headers that are not said are none.

    Args:
        call: the function; None for no outputs.
        code: version of the code, kept in every seal.
    """

    def __init__(
        self, call: Callable[[pa.RecordBatch], pa.RecordBatch | None], code: str = ""
    ) -> None:
        self.call = call
        self.code = code

    def run_rows(
        self, batch: Batch, chosen: npt.NDArray[np.intp], policy: Policy, rows: Rows
    ) -> int:
        """Add what some rows of a batch become; return how many dead letters are among it."""
        for _ in range(RECORD_TRIES):
            made = self._tried(batch, chosen)
            if made is not None:
                _add(made, batch.source.partition, rows)
                return 0
            rows.unrepeatable = True
        dead_letters = 0
        for place, record in zip(chosen.tolist(), batch.records(chosen), strict=True):
            outputs, dead, _ = run_record(_One(self, batch, place), record, policy)
            dead_letters += dead
            rows.add(outputs, record, None)
        return dead_letters

    def run(self, record: Record) -> Sequence[Output]:
        """Return what one record becomes, as a batch of one."""
        (one,) = batches_of([record])
        return self.outputs(one, 0)

    def outputs(self, batch: Batch, place: int) -> list[Output]:
        """Return what one row of a batch becomes."""
        made = self.columns(record_batch(batch, [place]))
        columns = zip(made["value"], made["key"], made["headers"], made["edge"], strict=True)
        return [Output(*column) for column in columns]

    def columns(self, given: pa.RecordBatch) -> dict[str, list[Any]]:
        """Call the function and return its columns, checked and complete.

        Raises:
            Exception: whatever user code raises, or what is wrong with what it returned.
        """
        made = self.call(given)
        columns = {name: [] for name in _COLUMNS} if made is None else _columns(made, given)
        _check_sizes(columns)
        return columns

    def _tried(self, batch: Batch, chosen: npt.NDArray[np.intp]) -> dict[str, list[Any]] | None:
        """Return the columns that some rows become, or None where user code fails on them."""
        try:
            return self.columns(record_batch(batch, chosen))
        except Exception:  # noqa: BLE001 - user code may raise anything; one by one it is told
            return None


class _One:
    """One row of a batch as a stage, for the policy of a single record."""

    def __init__(self, stage: ArrowFunction, batch: Batch, place: int) -> None:
        self.code = stage.code
        self._stage = stage
        self._batch = batch
        self._place = place

    def run(self, _record: Record) -> Sequence[Output]:
        """Return what the row becomes."""
        return self._stage.outputs(self._batch, self._place)


def _columns(made: pa.RecordBatch, given: pa.RecordBatch) -> dict[str, list[Any]]:
    """Return a batch's columns as lists, those that are missing filled in."""
    if not isinstance(made, pa.RecordBatch):
        kind = type(made).__name__
        raise TypeError(f"a stage of batches returns a pyarrow.RecordBatch, not {kind}")
    names = made.schema.names
    if "value" not in names or not set(names) <= set(_COLUMNS):
        raise TypeError(
            f"a stage of batches returns the column value, and maybe {', '.join(_COLUMNS)}; it "
            f"returned {', '.join(names)}"
        )
    columns = {name: _column(made.column(name), _COLUMNS[name]) for name in names}
    offsets = np.asarray(given.column("offset"))
    if "parent" not in columns:
        if len(made) != len(given):
            raise TypeError(
                f"{len(made)} rows for {len(given)} records, and no column `parent` that says which "
                "offset each was made from"
            )
        columns["parent"] = offsets.tolist()
    places = _places(columns["parent"], offsets)
    if "key" not in columns:
        keys = given.column("key").to_pylist()
        columns["key"] = [keys[place] for place in places]
    edges = columns.setdefault("edge", [0] * len(made))
    if None in edges:
        raise TypeError("a row's `edge` is a number: 0 is the first output")
    headers = columns.get("headers")
    columns["headers"] = [()] * len(made) if headers is None else [_headers(one) for one in headers]
    return columns


def _column(column: pa.Array, kind: pa.DataType) -> list[Any]:
    if kind == pa.binary() and any(is_text(column.type) for is_text in _TEXTS):
        column = pc.cast(column, pa.binary())
    if column.type != kind:
        column = column.cast(kind)
    return list(column.to_pylist())


def _places(parents: list[int | None], offsets: npt.NDArray[np.int64]) -> list[int]:
    """Return the place among the records of each row's parent."""
    found = np.array([-1 if parent is None else parent for parent in parents], dtype=np.int64)
    if not np.isin(found, offsets).all():
        raise TypeError("a row's `parent` is the offset of one of the records that were given")
    if (np.diff(found) < 0).any():
        raise TypeError("rows stand in the order of the records they were made from")
    return [int(place) for place in np.searchsorted(offsets, found).tolist()]


def _headers(pairs: list[dict[str, Any]] | None) -> Headers:
    return tuple((pair["key"], pair["value"]) for pair in pairs or ())


def _check_sizes(columns: dict[str, list[Any]]) -> None:
    """Refuse what no broker would take, as an output does by itself."""
    longest = [max(map(len, filter(None, columns[name])), default=0) for name in ("value", "key")]
    if sum(longest) <= RECORD_BYTES_MAX and not any(columns["headers"]):
        return
    for value, key, headers in zip(
        columns["value"], columns["key"], columns["headers"], strict=True
    ):
        Output(value, key, headers)


def _add(made: dict[str, list[Any]], partition: int, rows: Rows) -> None:
    """Add columns to the rows of a bundle."""
    count = len(made["value"])
    rows.values += made["value"]
    rows.keys += made["key"]
    rows.headers += made["headers"]
    rows.edges += made["edge"]
    rows.parent_partitions += [partition] * count
    rows.parent_offsets += made["parent"]
    rows.kept_ids += [None] * count
