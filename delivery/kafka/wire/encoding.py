"""Columns become record batches.

What it is: `encode` (one batch of some rows), `stamp` (who sends it) and `cuts` (which rows make one).
What it must not know: topics, requests, what was sent before.

Invariants:
    The rows of a batch are consecutive: the offset of one is its place.
    Rows that are alike are joined by C alone: no function of ours runs for one of them.
    The CRC is computed once, when the last of what it covers is written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from delivery.batch import Alike
from delivery.kafka.wire import codecs
from delivery.kafka.wire.batches import ATTRIBUTES_AT, HEADER, MAGIC, PREFIX_BYTES
from delivery.records import Headers

__all__ = ["cuts", "encode", "stamp"]

_NOBODY = -1
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
_CRC = struct.Struct(">I")
_CRC_AT = 17

#: Numbers below this take two bytes at most, and stand in tables.
_TABLE_NUMBERS = 8192
_ONE_BYTE_NUMBERS = 64
#: Below this many rows, joining them one by one is faster.
_ALIKE_ROWS_MIN = 20
#: What begins a record behind its length: no attributes, and the time of the batch.
_BEGIN = b"\0\0"
_NULL = b"\x01"

_Bytes = bytes | None
_Parts = Iterable[bytes]
_Ints = npt.NDArray[np.int64]


def _varint(number: int) -> bytes:
    """Return a number that is not negative as Kafka spells those that may be."""
    left = number << 1
    spelt = bytearray()
    while left > 0x7F:  # noqa: PLR2004  seven bits a byte
        spelt.append(left & 0x7F | 0x80)
        left >>= 7
    spelt.append(left)
    return bytes(spelt)


_VARINTS = [_varint(number) for number in range(_TABLE_NUMBERS)]
#: What stands between a record's length and its key's, or its value's where there is no key.
_DELTAS = [_BEGIN + spelt for spelt in _VARINTS]
_DELTAS_KEYLESS = [spelt + _NULL for spelt in _DELTAS]


def encode(
    keys: Sequence[_Bytes],
    values: Sequence[_Bytes],
    headers: Sequence[Headers],
    *,
    timestamp_ms: int,
    codec: int,
) -> bytearray:
    """Return rows as one batch, which nobody sends yet.

    What the codec does not make smaller is left as it is.

    Raises:
        codecs.NoCodec: the codec cannot be had.
    """
    count = len(values)
    assert count, "a batch has records"
    assert len(keys) == len(headers) == count, "columns are of one length"
    parts = _alike(keys, values, headers) if count >= _ALIKE_ROWS_MIN else None
    body = b"".join(parts if parts is not None else _one_by_one(keys, values, headers))
    if codec:
        packed = codecs.compress(codec, body)
        if len(packed) < len(body):
            body = packed
        else:
            codec = codecs.NONE
    header = HEADER.pack(
        0,
        HEADER.size - PREFIX_BYTES + len(body),
        _NOBODY,
        MAGIC,
        0,
        codec,
        count - 1,
        timestamp_ms,
        timestamp_ms,
        _NOBODY,
        _NOBODY,
        _NOBODY,
        count,
    )
    return bytearray().join((header, body))


def stamp(batch: bytearray, producer_id: int, epoch: int, base_sequence: int) -> None:
    """Write into a batch who sends it and where in their sequence it stands; and its CRC."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, epoch, base_sequence)
    with memoryview(batch) as view:
        _CRC.pack_into(batch, _CRC_AT, crc32c(view[ATTRIBUTES_AT:]))


def cuts(
    keys: Sequence[_Bytes],
    values: Sequence[_Bytes],
    headers: Sequence[Headers],
    bytes_max: int,
) -> list[int]:
    """Return the row behind each batch, none of which is larger before it is compressed.

    A row that is larger makes a batch of its own.
    """
    count = len(values)
    # Every length in a batch that fits is below its limit, and so is a place in it.
    width = len(_varint(bytes_max))
    room = bytes_max - HEADER.size
    # Of a record: attributes, time, and five numbers: its length, its place, key, value, headers.
    overhead = len(_BEGIN) + 5 * width
    there = chain(filter(None, keys), filter(None, values))
    most = count * overhead + sum(map(len, there)) + _header_bytes_max(headers, 2 * width)
    if count and most <= room:
        return [count]
    sizes = _lengths(keys) + _lengths(values) + overhead
    if any(headers):
        sizes += _header_sizes(headers, 2 * width)
    totals = np.cumsum(sizes)
    ends: list[int] = []
    row = before = 0
    while row < count:
        row = max(row + 1, int(totals.searchsorted(before + room, side="right")))
        before = int(totals[row - 1])
        ends.append(row)
    return ends


def _header_bytes_max(headers: Sequence[Headers], overhead: int) -> int:
    """Return more than all headers take, and soon: a character of a name has four bytes at most."""
    if isinstance(headers, Alike):
        return (overhead + 4 * len(headers.name)) * len(headers) + sum(map(len, headers.values))
    parts = chain.from_iterable(chain.from_iterable(headers))
    return overhead * sum(map(len, headers)) + 4 * sum(map(len, parts))


def _lengths(column: Sequence[_Bytes]) -> _Ints:
    """Return how long each is; a null has no bytes."""
    try:
        return np.fromiter(map(len, column), np.int64, len(column))  # type: ignore[arg-type]
    except TypeError:
        pass
    if not any(column):
        return np.zeros(len(column), dtype=np.int64)
    return np.fromiter((len(one or b"") for one in column), np.int64, len(column))


def _header_sizes(headers: Sequence[Headers], overhead: int) -> _Ints:
    """Return how much the headers of each row take."""
    if isinstance(headers, Alike):
        return _lengths(headers.values) + len(headers.name.encode()) + overhead
    names, values = zip(*chain.from_iterable(headers), strict=True)
    weights = {name: len(name.encode()) + overhead for name in set(names)}
    sizes = _lengths(values) + np.fromiter(map(weights.__getitem__, names), np.int64, len(names))
    totals = np.append(0, np.cumsum(sizes))
    counts = np.fromiter(map(len, headers), np.int64, len(headers))
    ends = np.cumsum(counts)
    found: _Ints = totals[ends] - totals[ends - counts]
    return found


def _one_by_one(
    keys: Sequence[_Bytes], values: Sequence[_Bytes], headers: Sequence[Headers]
) -> Iterator[bytes]:
    """Yield the parts of rows of any kind."""
    for row, (key, value, some) in enumerate(zip(keys, values, headers, strict=True)):
        record = [_BEGIN, _number(row), *_blob(key), *_blob(value), _number(len(some))]
        for name, content in some:
            record += *_blob(name.encode()), *_blob(content)
        joined = b"".join(record)
        yield _number(len(joined))
        yield joined


def _number(number: int) -> bytes:
    return _VARINTS[number] if number < _TABLE_NUMBERS else _varint(number)


def _blob(value: _Bytes) -> tuple[bytes, bytes]:
    return (_NULL, b"") if value is None else (_number(len(value)), value)


# Alike --------------------------------------------------------------------------------------------


def _alike(
    keys: Sequence[_Bytes], values: Sequence[_Bytes], headers: Sequence[Headers]
) -> _Parts | None:
    """Return the parts of rows that differ in nothing but content; None of others."""
    rows = range(len(values))
    parts: list[_Parts] = []
    beyond = map(_varint, range(_TABLE_NUMBERS, len(rows)))
    try:
        if not any(keys) and keys.count(None) == len(keys):
            deltas: _Parts = chain(_DELTAS_KEYLESS, (_BEGIN + some + _NULL for some in beyond))
            sizes = np.full(len(rows), len(_BEGIN + _NULL), dtype=np.int64)
        else:
            deltas = chain(_DELTAS, (_BEGIN + some for some in beyond))
            parts, sizes = _blobs(keys)
            sizes += len(_BEGIN)
        more, lengths = _blobs(values)
    except TypeError:  # some are null
        return None
    found = _alike_headers(headers)
    if found is None:
        return None
    trailing, trailing_sizes = found
    sizes += lengths + trailing_sizes + _widths(np.arange(len(rows)))
    return chain.from_iterable(
        zip(_spelt(sizes.tolist()), deltas, *parts, *more, *trailing, strict=False)
    )


def _blobs(column: Sequence[_Bytes]) -> tuple[list[_Parts], _Ints]:
    """Return the lengths of bytes and the bytes, and how much both take together."""
    lengths = list(map(len, column))  # type: ignore[arg-type]
    sizes = np.array(lengths, dtype=np.int64)
    sizes += _widths(sizes)
    return [_spelt(lengths), column], sizes  # type: ignore[list-item]


def _alike_headers(headers: Sequence[Headers]) -> tuple[list[_Parts], _Ints | int] | None:
    """Return the parts of headers of the same names, and how much they take; None of others."""
    columns = _header_columns(headers)
    if columns is None:
        return None
    ahead = _number(len(columns))
    if not columns:
        return [repeat(ahead)], len(ahead)
    parts: list[_Parts] = []
    sizes: _Ints | int = 0
    for name, column in columns:
        raw = name.encode()
        ahead += _number(len(raw)) + raw
        lengths = set(map(len, column))
        if len(lengths) == 1:
            # The length is that of all, as of an id.
            length = lengths.pop()
            ahead += _number(length)
            parts += repeat(ahead), column
            sizes = sizes + len(ahead) + length
        else:
            more, own = _blobs(column)
            parts += repeat(ahead), *more
            sizes = sizes + len(ahead) + own
        ahead = b""
    return parts, sizes


def _header_columns(headers: Sequence[Headers]) -> list[tuple[str, Sequence[bytes]]] | None:
    """Return name and values of each header, if all rows have the same names; else None."""
    if isinstance(headers, Alike):
        return [(headers.name, headers.values)]
    counts = set(map(len, headers))
    if len(counts) > 1:
        return None
    count = counts.pop()
    if not count:
        return []
    names, values = zip(*chain.from_iterable(headers), strict=True)
    columns: list[tuple[str, Sequence[bytes]]] = [
        (names[place], values[place::count]) for place in range(count)
    ]
    same = all(
        names[place::count].count(name) == len(headers) for place, (name, _) in enumerate(columns)
    )
    return columns if same else None


def _spelt(numbers: list[int]) -> _Parts:
    """Return numbers as Kafka spells them."""
    table = _VARINTS.__getitem__ if max(numbers) < _TABLE_NUMBERS else _number
    return map(table, numbers)


def _widths(numbers: _Ints) -> _Ints:
    """Return how many bytes numbers take."""
    widths = np.ones(len(numbers), dtype=np.int64)
    bound = _ONE_BYTE_NUMBERS
    while (longer := numbers >= bound).any():
        widths += longer
        bound <<= 7
    return widths
