"""Records as Arrow batches, and Arrow batches as outputs.

What it is: the columns that user code sees, named as Spark's Kafka source names them, and back.
What it must not know: lanes, verdicts, who calls.

Invariants:
    A row of the batch is a record, in the same order; nothing is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delivery.batch import Batch
from delivery.records import Headers

__all__ = ["SCHEMA", "record_batch"]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
#: What user code is given.
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)


def record_batch(batch: Batch, rows: Sequence[int] | npt.NDArray[np.intp]) -> pa.RecordBatch:
    """Return some rows of a batch as user code sees them."""
    chosen = np.asarray(rows, dtype=np.intp)
    places = chosen.tolist()
    keys, values = batch.keys, batch.values
    timestamps = pa.array(batch.timestamps_ms[chosen], pa.int64())
    columns = [
        pa.array([keys[row] for row in places], pa.binary()),
        pa.array([values[row] for row in places], pa.binary()),
        _headers([batch.headers[row] for row in places]),
        timestamps.cast(SCHEMA.field("timestamp").type),
        pa.array(np.full(len(chosen), batch.source.partition, dtype=np.int32)),
        pa.array(batch.offsets[chosen]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _headers(headers: Sequence[Headers | None]) -> pa.Array:
    """Return headers as Arrow has them: flat columns and where each record's begin."""
    counts = [len(one) if one else 0 for one in headers]
    ends = np.cumsum([0, *counts], dtype=np.int32)
    names, values = (
        zip(*chain.from_iterable(filter(None, headers)), strict=True) if ends[-1] else ((), ())
    )
    flat = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())],
        fields=list(HEADERS.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(ends), flat, type=HEADERS)
