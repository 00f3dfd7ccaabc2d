"""XXH3-128 of many messages: of rows, names, a column, or of one message counted through.

What it is: the choice between the `xxhash` package, one message at a time, and the same hash
computed by a kernel or in arrays, by what costs less.
What it must not know: what is hashed, or why; the arithmetic.

Invariants:
    Which way a message went never shows: both make the same 128 bits.
    Nothing is read beside the messages: a column may be a slice, and rows may be a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash

from dedup.arrays import Ids, Places, from_raw
from dedup.compiled.kernels import Kernels, Rows, kernels
from dedup.errors import InvalidUsage
from dedup.xxh3_vectors import VECTOR_BYTES_MAX, Bytes, Words, counted, hash_vectors, secret

#: From how many numbers on an array pays.
COUNTED_MIN: Final = 128
#: From how many messages of one length on an array pays: (length at most, messages at least). An
#: array operation has a fixed price, and every 32 bytes of a message need as many again; the
#: package takes 40 ns for a message, whatever its length, and 20 more to make an object of it.
#: Behind the last line it is always the quicker one.
PAYS: Final = ((16, 2_500), (32, 3_000), (64, 4_000))
#: Values of a column that are made objects together. More at once would have the allocator return
#: their memory after every batch, and fetching fresh pages costs more than all the hashing.
OBJECTS_MAX: Final = 2_048


def hash_rows(messages: Bytes) -> Ids:
    """Return the hash of every row of an array of shape (n, length)."""
    assert messages.dtype == np.uint8, "messages are bytes"
    count, length = messages.shape
    if (compiled := kernels()) is not None and 0 < length <= VECTOR_BYTES_MAX:
        rows = messages if messages.strides[1] == 1 else np.ascontiguousarray(messages)
        return compiled.hash_rows(rows, secret())
    if _pays(count, length):
        return hash_vectors(messages)
    if length == 0:
        return _hash_each([b""] * count)
    # An array of opaque items becomes bytes objects in a third of the time that slices take.
    return _hash_each(np.ascontiguousarray(messages).view(f"V{length}").ravel().tolist())


def hash_names(names: Sequence[bytes]) -> Ids:
    """Return the hash of every name, of whatever lengths.

    Names that are objects already go through the package: to learn their lengths and to join them
    costs what arrays would save.
    """
    return _hash_each(names)


def hash_counted(prefix: bytes, numbers: Words) -> Ids:
    """Return the hash of `prefix` and each number behind it, in 8 bytes, little-endian."""
    if len(numbers) < COUNTED_MIN:
        return _hash_each(prefix + number.to_bytes(8, "little") for number in numbers.tolist())
    return counted(prefix, numbers)


def hash_column(column: pa.Array | pa.ChunkedArray) -> Ids:
    """Return the hash of every value of a column of bytes or text, straight from its buffers.

    Text is hashed in UTF-8.

    Raises:
        InvalidUsage: a value is null, or the column holds something else.
    """
    if isinstance(column, pa.ChunkedArray):
        parts = [hash_column(chunk) for chunk in column.chunks]
        return np.concatenate([np.empty((0, 2), dtype=np.uint64), *parts])
    if column.null_count:
        raise InvalidUsage(
            "hash a column",
            f"{column.null_count} of {len(column)} values are null",
            "nothing was hashed: what is null names no record; fill or drop these rows first",
        )
    kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        start, end = (
            column.offset * kind.byte_width,
            (column.offset + len(column)) * kind.byte_width,
        )
        rows = _content(column.buffers()[1])[start:end]
        return hash_rows(rows.reshape(len(column), kind.byte_width))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    elif not pa.types.is_binary(kind) and not pa.types.is_large_binary(kind):
        raise InvalidUsage(
            "hash a column",
            f"it holds {kind}",
            "nothing was hashed: cast the column to binary, in the one spelling its ids have",
        )
    return _hash_spans(column)


def _hash_spans(column: pa.Array) -> Ids:
    """Hash values of any lengths; those of one length together, where they are many."""
    count = len(column)
    if count == 0:
        return np.empty((0, 2), dtype=np.uint64)
    _, ends, content = column.buffers()
    wide = pa.types.is_large_binary(column.type)
    every = np.frombuffer(ends, dtype=np.int64 if wide else np.int32)
    bounds: Rows = every[column.offset : column.offset + count + 1].astype(np.int64)
    data, lengths = _content(content), np.diff(bounds)
    if (compiled := kernels()) is not None:
        return _hash_compiled(compiled, column, data, bounds, lengths)
    first = int(lengths[0])
    if (lengths == first).all():
        return hash_rows(data[bounds[0] : bounds[-1]].reshape(count, first))
    ids = np.empty((count, 2), dtype=np.uint64)
    rest = np.ones(count, dtype=np.bool_)
    for length, places in _groups(lengths):
        # Every place of the buffer seen as one item of this length: picking items copies them.
        items = np.ndarray(
            (len(data) - length + 1,), dtype=f"V{length}", buffer=data.data, strides=(1,)
        )
        rows = items[bounds[places]].view(np.uint8).reshape(-1, length)
        ids[places] = hash_vectors(rows)
        rest[places] = False
    others = np.flatnonzero(rest)
    if len(others) == count:
        return _hash_objects(column)
    if len(others):
        ids[others] = _hash_objects(column.take(pa.array(others)))
    return ids


def _hash_compiled(
    compiled: Kernels, column: pa.Array, data: Bytes, bounds: Rows, lengths: Places
) -> Ids:
    """Hash what a kernel can, and the few that are too long for it one by one."""
    ids = compiled.hash_spans(data, bounds, VECTOR_BYTES_MAX, secret())
    long = np.flatnonzero(lengths > VECTOR_BYTES_MAX)
    if len(long):
        ids[long] = _hash_objects(column if len(long) == len(ids) else column.take(pa.array(long)))
    return ids


def _hash_objects(column: pa.Array) -> Ids:
    ids = np.empty((len(column), 2), dtype=np.uint64)
    for start in range(0, len(column), OBJECTS_MAX):
        end = start + OBJECTS_MAX
        ids[start:end] = _hash_each(column[start:end].to_pylist())
    return ids


def _content(buffer: pa.Buffer | None) -> Bytes:
    """Return a column's bytes; Arrow leaves the buffer out where there are none."""
    return np.frombuffer(b"" if buffer is None else buffer, dtype=np.uint8)


def _hash_each(messages: Iterable[bytes]) -> Ids:
    return from_raw(b"".join(map(xxhash.xxh3_128_digest, messages)))


def _groups(lengths: Places) -> Iterator[tuple[int, Places]]:
    """Yield each length that enough messages have to be worth an array, and where they are."""
    counts = np.bincount(np.minimum(lengths, VECTOR_BYTES_MAX + 1))
    for length in np.flatnonzero(counts).tolist():
        if _pays(int(counts[length]), length):
            yield length, np.flatnonzero(lengths == length)


def _pays(count: int, length: int) -> bool:
    if length == 0:
        return False
    return next((count >= least for length_max, least in PAYS if length <= length_max), False)
