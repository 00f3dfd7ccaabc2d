"""Arrow arrays made of Python values by way of their buffers, and the other way round.

What it is: `numbers` and `blobs`, what `pa.array` makes of the same lists; `numbers_of` and `bytes_of`,
what `to_numpy` and `to_pylist` make of columns.
What it must not know: what the columns mean.

Invariants:
    pandas stays out. `pa.array` imports it wherever it is installed, to ask whether a list is one of
    its own, and so does `to_numpy`: 50 MB and half a second of every process that stores a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: What the offsets of a column can address.
COLUMN_BYTES_MAX = (1 << 31) - 1


def numbers(values: Sequence[int | None] | npt.NDArray[np.integer], kind: pa.DataType) -> pa.Array:
    """Return integers, None being null."""
    validity = None if isinstance(values, np.ndarray) else _validity(values)
    there = values if validity is None else [value or 0 for value in values]
    data = np.array(there, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(data)])


def blobs(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Return bytes, or text already encoded, of any length or all of one; None being null."""
    validity = _validity(values)
    if values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    width = kind.byte_width if pa.types.is_fixed_size_binary(kind) else 0
    gap = bytes(width)
    there = [gap if value is None else value for value in values]
    data = pa.py_buffer(b"".join(there))
    if width:
        assert set(map(len, there)) <= {width}, "every value has the width of its column"
        return pa.Array.from_buffers(kind, len(values), [validity, data])
    assert data.size <= COLUMN_BYTES_MAX, "a bundle's bytes fit into one column"
    ends = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, there), np.int32, len(values)), out=ends[1:])
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(ends), data])


def numbers_of(column: pa.Array) -> npt.NDArray[Any]:
    """Return integers that are all there, without copying them."""
    assert not column.null_count, "every row has its number"
    kind = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def bytes_of(column: pa.Array) -> list[bytes | None]:
    """Return a column of bytes as a list, null being None; in a fifth of the time of `to_pylist`."""
    if column.null_count == len(column):
        return [None] * len(column)
    assert pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type), "bytes"
    wide = pa.types.is_large_binary(column.type)
    validity, ends, data = column.buffers()
    bounds = np.frombuffer(ends, np.int64 if wide else np.int32)
    bounds = bounds[column.offset : column.offset + len(column) + 1]
    first = int(bounds[0])
    # A slice shares the bytes of all: only its own are copied.
    raw = b"" if data is None else bytes(memoryview(data)[first : int(bounds[-1])])
    found: list[bytes | None] = [raw[at:end] for at, end in pairwise((bounds - first).tolist())]
    if column.null_count:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        for row in np.flatnonzero(bits[column.offset :][: len(column)] == 0).tolist():
            found[row] = None
    return found


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    """Return the bits that say which values are there; None if all are."""
    if None not in values:
        return None
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return pa.py_buffer(np.packbits(present, bitorder="little"))
