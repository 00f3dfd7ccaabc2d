"""Record batches become columns.

What it is: `decode` (one batch as columns) and `aborts` (what a marker says); and, from the module
on batches, what finds them.
What it must not know: partitions, positions, transactions that are open, sockets.

Invariants:
    Every record ends where its length says, the last one where the data ends, and offsets rise
    within what the batch spans; anything else is `BrokenBatch`, and nothing of the batch is returned.
    Few records are read one by one, many as columns of numbers; both return the same.
    Values are bytes of their own: none keeps a response alive.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from delivery.batch import Alike
from delivery.kafka.wire import codecs
from delivery.kafka.wire.batches import BrokenBatch, OldFormat, RawBatch, split
from delivery.kafka.wire.cutting import Spans, cut
from delivery.kafka.wire.reading import (
    INT_BYTES_MAX,
    LONG_BYTES_MAX,
    LOW,
    Broken,
    blob,
    headers_at,
    varint,
)
from delivery.records import Headers

__all__ = ["BrokenBatch", "Columns", "OldFormat", "RawBatch", "aborts", "decode", "split"]

#: What a marker's key begins with: its version, and which of both it is.
_MARKER = struct.Struct(">hh")
_ABORT = 0

#: Below this many records, reading them one by one is faster.
_COLUMNS_RECORDS_MIN = 40
#: The first number that two bytes do not hold.
_TWO_BYTES = 1 << 14
#: The shortest record: its length, five numbers and the attributes, all of one byte.
_RECORD_BYTES_MIN = 7

#: A longer name of a header is not looked for in all records at once.
_NAME_BYTES_MAX = 256

#: The numbers that one byte spells.
_OF_ONE_BYTE = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(LOW + 1)], dtype=np.int64)

_Bytes = bytes | None
_Ints = npt.NDArray[np.int64]
_Octets = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Records of one batch, in offset order.

    Attributes:
        headers: None for a record without headers; a null value of one is empty.
        unreadable: offset of the first record with a header whose name is not UTF-8; the columns
            hold the records before it.
    """

    offsets: _Ints
    timestamps_ms: _Ints
    keys: list[_Bytes]
    values: list[_Bytes]
    headers: Sequence[Headers | None]
    unreadable: int | None = None

    def __len__(self) -> int:
        return len(self.offsets)


def decode(batch: RawBatch) -> Columns:
    """Return the records of a batch, read.

    Raises:
        BrokenBatch: they are not what the batch says.
        codecs.NoCodec: the package that decompresses them is missing.
    """
    try:
        return _decoded(batch)
    except (codecs.Garbled, Broken) as error:
        raise BrokenBatch(batch.base_offset, str(error)) from None


def _decoded(batch: RawBatch) -> Columns:
    if not batch.count and not batch.records:
        # What compaction leaves of a batch may name a codec that had nothing to compress.
        nothing = np.empty(0, dtype=np.int64)
        return Columns(nothing, nothing, [], [], [])
    data = codecs.decompress(batch.codec, batch.records)
    if not batch.count or batch.count * _RECORD_BYTES_MIN > len(data):
        raise Broken(f"{len(data)} bytes do not hold {batch.count} records")
    if batch.count < _COLUMNS_RECORDS_MIN:
        return _one_by_one(batch, data)
    return _as_columns(batch, data)


def aborts(batch: RawBatch) -> bool:
    """Tell whether a marker aborts the transaction of its producer, or commits it.

    Raises:
        BrokenBatch: it is no marker.
    """
    keys = decode(batch).keys
    if not batch.control or len(keys) != 1 or len(keys[0] or b"") < _MARKER.size:
        raise BrokenBatch(batch.base_offset, "it says to be a marker, and is none")
    _, kind = _MARKER.unpack_from(keys[0] or b"")
    return bool(kind == _ABORT)


# One by one ---------------------------------------------------------------------------------------


def _one_by_one(batch: RawBatch, data: bytes) -> Columns:
    """Return the records of a batch by a loop over them."""
    rows: list[tuple[int, int, _Bytes, _Bytes, Headers | None]] = []
    readable = batch.count
    at, last = 0, -1
    try:
        for row in range(batch.count):
            length, at = varint(data, at)
            end = at + length
            time, at = varint(data, at + 1, LONG_BYTES_MAX)
            delta, at = varint(data, at)
            key, at = blob(data, at)
            value, at = blob(data, at)
            count, at = varint(data, at)
            headers = None
            if count:
                headers, at = headers_at(data, at, count)
                if headers is None:
                    readable = min(readable, row)
            if at != end or delta <= last:
                raise Broken("a record ends elsewhere than it says, or offsets do not rise")
            last = delta
            rows.append((delta, time, key, value, headers))
    except IndexError:
        raise Broken("a record ends behind the data") from None
    if at != len(data):
        raise Broken("there is something behind the records")
    deltas, times, keys, values, some = map(list, zip(*rows, strict=True))
    return _columns(
        batch,
        readable,
        Columns(np.array(deltas, np.int64), np.array(times, np.int64), keys, values, some),
    )


# All at once --------------------------------------------------------------------------------------


def _as_columns(batch: RawBatch, data: bytes) -> Columns:
    """Return the records of a batch by arrays of the numbers in them.

    A place behind the data reads as its last byte: no harm, for places only grow, and all of them
    are compared with the records' ends before anything is taken from between them.
    """
    octets = np.frombuffer(data, dtype=np.uint8)
    starts = _starts(data, batch.count)
    lengths, at = _varints(octets, starts)
    ends = np.append(starts[1:], len(data))
    if (at + lengths != ends).any():
        raise Broken("the length of a record is negative")
    times, at = _varints(octets, at + 1, LONG_BYTES_MAX)
    deltas, at = _varints(octets, at)
    key_lengths, key_at = _varints(octets, at)
    value_lengths, value_at = _varints(octets, _behind(key_at, key_lengths))
    counts, at = _varints(octets, _behind(value_at, value_lengths))
    if (counts < 0).any() or (deltas[1:] <= deltas[:-1]).any() or deltas[0] < 0:
        raise Broken("headers fewer than none, or offsets that do not rise")
    names, spans = _same_headers(octets, at, counts, ends) or (None, [])
    headers: Sequence[Headers | None]
    headers, readable = _any_headers(data, at, counts, ends) if names is None else ([], len(at))
    # Nothing is taken before here: where headers end has been compared with where records do.
    keys, values, *contents = cut(data, [(key_at, key_lengths), (value_at, value_lengths), *spans])
    if names is not None:
        headers, readable = _named(names, contents, len(at))
    return _columns(batch, readable, Columns(deltas, times, keys, values, headers))


def _starts(data: bytes, count: int) -> _Ints:
    """Return where each record begins; only a loop of Python's own can go from one to the next."""
    found: list[int] = []
    add = found.append
    at = 0
    try:
        for _ in range(count):
            add(at)
            byte = data[at]
            if byte <= LOW:
                at += 1 + (byte >> 1)
                continue
            second = data[at + 1]
            if second <= LOW:
                at += 2 + ((second << 7 | byte & LOW) >> 1)
            else:
                length, at = varint(data, at)
                at += max(length, 0)
    except IndexError:
        raise Broken("a record ends behind the data") from None
    if at != len(data):
        raise Broken("the records end elsewhere than the data")
    return np.array(found, dtype=np.int64)


def _varints(octets: _Octets, at: _Ints, bytes_max: int = INT_BYTES_MAX) -> tuple[_Ints, _Ints]:
    """Return the number at each place, and the place behind each."""
    first = octets.take(at, mode="clip")
    behind = at + 1
    # Nearly always: and nothing asks so soon as text does whether all bytes are below 128.
    if first.tobytes().isascii():
        return _OF_ONE_BYTE.take(first), behind
    found = first.astype(np.int64)
    more = found > LOW
    second = octets.take(behind, mode="clip").astype(np.int64)
    found = np.where(more, found & LOW | second << 7, found)
    behind += more
    numbers = (found >> 1) ^ -(found & 1)
    longer = np.flatnonzero(found >= _TWO_BYTES)
    if len(longer):
        numbers[longer], behind[longer] = _long_varints(octets, at[longer], bytes_max)
    return numbers, behind


def _long_varints(octets: _Octets, at: _Ints, bytes_max: int) -> tuple[_Ints, _Ints]:
    found = np.zeros(len(at), dtype=np.uint64)
    behind = at.copy()
    going = np.ones(len(at), dtype=np.bool_)
    for place in range(bytes_max):
        byte = octets.take(at + place, mode="clip").astype(np.uint64)
        found |= np.where(going, (byte & np.uint64(LOW)) << np.uint64(7 * place), np.uint64(0))
        behind += going
        going &= byte > LOW
        if not going.any():
            signs = (found & np.uint64(1)).astype(np.int64)
            return (found >> np.uint64(1)).astype(np.int64) ^ -signs, behind
    raise Broken("a number does not end")


def _behind(at: _Ints, lengths: _Ints) -> _Ints:
    """Return the places behind what begins at some; a null has no bytes."""
    return at + np.maximum(lengths, 0)


def _same_headers(
    octets: _Octets, at: _Ints, counts: _Ints, ends: _Ints
) -> tuple[list[bytes], list[Spans]] | None:
    """Return the names of headers that all records have, and where their values are.

    None if they have not.
    """
    count = int(counts[0])
    if (counts != count).any() or count * 2 > int(ends[0]):
        return None
    names: list[bytes] = []
    spans: list[Spans] = []
    for _ in range(count):
        lengths, at = _varints(octets, at)
        length = int(lengths[0])
        # More of them than there are bytes is no name that all have, and would take memory.
        most = min(_NAME_BYTES_MAX, len(octets) // len(at))
        if (lengths != length).any() or not 0 <= length <= most:
            return None
        found = octets.take(at[:, np.newaxis] + np.arange(length), mode="clip")
        if (found != found[0]).any():
            return None
        names.append(found[0].tobytes())
        lengths, at = _varints(octets, at + length)
        lengths = np.maximum(lengths, 0)
        spans.append((at, lengths))
        at = at + lengths
    if (at != ends).any():
        raise Broken("a record ends elsewhere than its length says")
    return names, spans


def _named(
    names: list[bytes], contents: list[list[_Bytes]], rows: int
) -> tuple[Sequence[Headers | None], int]:
    """Return headers of the same names, and how many records can be read."""
    if not names:
        return [None] * rows, rows
    try:
        read = [name.decode() for name in names]
    except UnicodeDecodeError:
        return [None] * rows, 0
    if len(read) == 1:
        values: Any = contents[0]
        return Alike(read[0], values), rows
    columns: Any = (zip(repeat(name), one) for name, one in zip(read, contents, strict=True))
    return list(zip(*columns, strict=True)), rows


def _any_headers(
    data: bytes, at: _Ints, counts: _Ints, ends: _Ints
) -> tuple[list[Headers | None], int]:
    """Return the headers of records one by one, and how many records can be read."""
    found: list[Headers | None] = []
    readable = len(at)
    places = zip(at.tolist(), counts.tolist(), ends.tolist(), strict=True)
    try:
        for row, (first, count, end) in enumerate(places):
            headers, behind = headers_at(data, first, count) if count else (None, first)
            if behind != end:
                raise Broken("a record ends elsewhere than its length says")
            if count and headers is None:
                readable = min(readable, row)
            found.append(headers)
    except IndexError:
        raise Broken("a header ends behind the data") from None
    return found, readable


def _columns(batch: RawBatch, readable: int, columns: Columns) -> Columns:
    """Return columns of the records before the first that cannot be read.

    Given are their offsets and times as the batch has them: counted from its first.
    """
    if columns.offsets[-1] > batch.last_offset - batch.base_offset:
        raise Broken("there are records behind the last one")
    offsets = columns.offsets + batch.base_offset
    if batch.append_time:
        times = np.full(len(offsets), batch.max_ms, dtype=np.int64)
    else:
        times = columns.timestamps_ms + batch.first_ms
    if readable == len(offsets):
        return Columns(offsets, times, columns.keys, columns.values, columns.headers)
    part = slice(readable)
    return Columns(
        offsets[part],
        times[part],
        columns.keys[part],
        columns.values[part],
        columns.headers[part],
        int(offsets[readable]),
    )
