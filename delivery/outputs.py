"""Stored outputs: the rows of a bundle as compressed, checksummed Arrow chunks.

What it is: `encode_outputs` cuts rows into chunks, `decode_outputs` gives the very same rows back.
What it must not know: which store keeps them, who emits them.

Invariants:
    A row is stored complete: its header is a function of the row and of the chunk's own metadata
    (lane, incarnation, seq, attempt, minted-at), so every emission sends the same bytes to the same
    partition.
    A chunk holds about `CHUNK_BYTES` of payload, or one record; what is still larger than a store
    takes is cut into pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from dedup.arrays import pack
from dedup.catalog.store import CHUNK_BYTES_MAX
from dedup.errors import Corrupt
from dedup.formats.envelope import Kind, Reader, Writer, unwrap, wrap, wrapped_bytes
from dedup.ids import minted_many
from dedup.model import IDENTITY_BYTES, Attempt, HeadRef, Incarnation
from delivery.batch import Alike, Emissions, Rows
from delivery.buffers import blobs, numbers
from delivery.header import NAME, encode_headers
from delivery.protocol.senders import Mark
from delivery.records import Headers

VERSION = 1
#: Payload per chunk: with Arrow's own bytes, even without compression, below what a store takes.
CHUNK_BYTES = 384 * 1024

_HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
_SCHEMA = pa.schema(
    [
        ("edge", pa.uint16()),
        ("partition", pa.int32()),
        ("parent_partition", pa.int32()),
        ("parent_offset", pa.int64()),
        ("kept_id", pa.binary(IDENTITY_BYTES)),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)
_NO_PAIRS = pa.StructArray.from_arrays(
    [blobs([], pa.string()), blobs([], pa.binary())], fields=list(_HEADERS.value_type)
)
#: What stands for no bytes at all in a digest of content; the word of empty ones is another.
NULL_WORD = 0x5851F42D4C957F2D
_LENGTH = struct.Struct("<I")
_word = xxhash.xxh3_64_intdigest
_CODEC = pa.Codec("zstd", compression_level=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What all rows of a bundle share."""

    lane: str
    ref: HeadRef
    minted_at_ms: int


def encode_outputs(origin: Origin, rows: Rows) -> list[bytes]:
    """Return the chunks of a bundle's rows, in order; none for no rows."""
    if not rows:
        return []
    table = _columns(rows)
    chunks, start = [], 0
    # With its numbers a table weighs more than its payload: a light one is one chunk.
    light = table.nbytes <= CHUNK_BYTES
    for end in [len(rows)] if light else _cuts(_weights(table)):
        chunks += _encode_chunk(origin, start, table.slice(start, end - start))
        start = end
    return chunks


def decode_outputs(chunks: Sequence[bytes], place: str) -> Emissions:
    """Return the emissions of a bundle, in order."""
    return Emissions.join([_decode_chunk(chunk, place) for chunk in _whole(chunks, place)])


def emissions(origin: Origin, rows: Rows, first: int = 0) -> Emissions:
    """Return what rows are sent as; ordinals count from `first`."""
    known = [record_id for record_id in rows.kept_ids if record_id is not None]
    kept = np.full(len(rows), len(known) == len(rows))
    if 0 < len(known) < len(rows):
        kept = np.array([record_id is not None for record_id in rows.kept_ids])
    ids = pack(known)
    if len(known) < len(rows):
        ids = minted_many(origin.ref.attempt, np.array(rows.edges), first)
        ids[kept] = pack(known)
    ours = encode_headers(
        ids,
        Mark(origin.lane, origin.ref.incarnation, origin.ref.seq, origin.minted_at_ms),
        np.array(rows.parent_partitions, dtype=np.int32),
        np.array(rows.parent_offsets, dtype=np.int64),
        kept,
    )
    complete: Sequence[Headers]
    if any(rows.headers):
        # Of a header of our name user code has no say.
        complete = [
            (*(pair for pair in theirs if pair[0] != NAME), (NAME, own))
            for theirs, own in zip(rows.headers, ours, strict=True)
        ]
    else:
        complete = Alike(NAME, ours)
    return Emissions(rows.edges, rows.partitions, rows.keys, rows.values, complete, ids)


def content_digest(rows: Rows) -> bytes:
    """Return the digest of what rows say, whoever made them: equal for code that is deterministic.

    The digest in a seal is of its stored chunks, which name their attempt; this one compares what
    two attempts at the same records made. Specified in docs/formats.md, as part of recipes.
    """
    digest = xxhash.xxh3_128()
    places = (rows.edges, rows.partitions, rows.parent_partitions, rows.parent_offsets)
    for numbered in places:
        digest.update(np.array(numbered, dtype="<i8").tobytes())
    rests = _words(rows.keys)
    if any(rows.headers):
        for row, headers in enumerate(rows.headers):
            theirs = [pair for pair in headers if pair[0] != NAME]
            if theirs:
                rests[row] ^= np.uint64(_word(_flat(theirs)))
    digest.update(_words(rows.values).tobytes())
    digest.update(rests.tobytes())
    if any(rows.kept_ids):
        digest.update(_words(rows.kept_ids).tobytes())
    return digest.digest()


def _words(fields: Sequence[bytes | None]) -> npt.NDArray[np.uint64]:
    """Return a word of 64 bits for each field."""
    words = (NULL_WORD if one is None else _word(one) for one in fields)
    return np.fromiter(words, dtype=np.uint64, count=len(fields))


def _flat(headers: Sequence[tuple[str, bytes]]) -> bytes:
    """Return headers as bytes that no other headers have."""
    parts = (part for name, value in headers for part in (name.encode(), value))
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _columns(rows: Rows) -> pa.RecordBatch:
    ints = (rows.edges, rows.partitions, rows.parent_partitions, rows.parent_offsets)
    byte_strings = (rows.kept_ids, rows.keys, rows.values)
    kinds = iter(_SCHEMA.types)
    arrays = [numbers(column, next(kinds)) for column in ints]
    arrays += [blobs(column, next(kinds)) for column in byte_strings]
    return pa.RecordBatch.from_arrays([*arrays, _header_column(rows.headers)], schema=_SCHEMA)


def _header_column(headers: Sequence[Headers]) -> pa.Array:
    """Return the headers as Arrow has them; almost no output has any."""
    if not any(headers):
        ends = pa.py_buffer(bytes(4 * (len(headers) + 1)))
        return pa.Array.from_buffers(_HEADERS, len(headers), [None, ends], children=[_NO_PAIRS])
    pairs = [pair for some in headers for pair in some]
    flat = pa.StructArray.from_arrays(
        [
            blobs([name.encode() for name, _ in pairs], pa.string()),
            blobs([value for _, value in pairs], pa.binary()),
        ],
        fields=list(_HEADERS.value_type),
    )
    ends = np.zeros(len(headers) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, headers), np.int32, len(headers)), out=ends[1:])
    return pa.ListArray.from_arrays(numbers(ends, pa.int32()), flat, type=_HEADERS)


def _weights(table: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the payload of each row in bytes."""
    weights = _lengths(table.column("key")) + _lengths(table.column("value"))
    headers = table.column("headers")
    if len(headers.values):
        each = _lengths(headers.values.field("name")) + _lengths(headers.values.field("value"))
        total = np.concatenate(([0], np.cumsum(each)))
        ends = _ends(headers)
        weights += total[ends[1:]] - total[ends[:-1]]
    return weights


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the length of each value."""
    return np.diff(_ends(column)).astype(np.int64)


def _ends(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return where values end, of an array just made, so that its buffers begin with it."""
    return np.frombuffer(column.buffers()[1], dtype=np.int32, count=len(column) + 1)


def _cuts(weights: npt.NDArray[np.int64]) -> Iterator[int]:
    """Yield where each chunk ends: before the row that would make it too heavy."""
    total = np.cumsum(weights)
    start, before = 0, 0
    while start < len(total):
        # At least one row; rows without any bytes join whoever comes before them.
        fits = int(np.searchsorted(total, before + CHUNK_BYTES, side="right"))
        start = max(fits, start + 1)
        before = int(total[start - 1])
        yield start


def _encode_chunk(origin: Origin, first: int, rows: pa.RecordBatch) -> list[bytes]:
    # The schema is fixed by the format's version, so the message alone is stored: a bundle of a few
    # records is a quarter of the size it would have as an Arrow stream, and rides in its seal.
    arrow = rows.serialize()
    out = Writer().text(origin.lane).raw(origin.ref.incarnation).uint(origin.ref.seq)
    out.raw(origin.ref.attempt).uint(origin.minted_at_ms).uint(first)
    out.uint(len(arrow)).raw(_CODEC.compress(arrow, asbytes=True))
    blob = wrap(Kind.OUTPUTS, VERSION, out.body())
    return [blob[at : at + CHUNK_BYTES_MAX] for at in range(0, len(blob), CHUNK_BYTES_MAX)]


def _decode_chunk(blob: bytes, place: str) -> Emissions:
    _, body = unwrap(blob, Kind.OUTPUTS, version_max=VERSION, place=place)
    reader = Reader(body, place)
    lane, incarnation = reader.text(), Incarnation(reader.raw(IDENTITY_BYTES))
    seq, attempt = reader.uint(), Attempt(reader.raw(IDENTITY_BYTES))
    origin = Origin(lane=lane, ref=HeadRef(incarnation, seq, attempt), minted_at_ms=reader.uint())
    first, size, compressed = reader.uint(), reader.uint(), reader.rest()
    try:
        arrow = _CODEC.decompress(compressed, decompressed_size=size)
        table = pa.ipc.read_record_batch(arrow, _SCHEMA)
    except (OSError, pa.ArrowException) as error:
        raise Corrupt(
            "read stored outputs", place, f"the rows do not decode ({error}); keep a copy"
        ) from error
    return emissions(origin, _rows(table), first)


def _rows(table: pa.RecordBatch) -> Rows:
    column: dict[str, list[Any]] = {
        name: table.column(name).to_pylist() for name in _SCHEMA.names if name != "headers"
    }
    headers = table.column("headers")
    return Rows(
        edges=column["edge"],
        keys=column["key"],
        values=column["value"],
        headers=[
            tuple((pair["name"], pair["value"]) for pair in pairs) for pairs in headers.to_pylist()
        ]
        if len(headers.values)  # `flatten` would import pyarrow's functions, for nothing
        else [()] * len(headers),
        parent_partitions=column["parent_partition"],
        parent_offsets=column["parent_offset"],
        kept_ids=column["kept_id"],
        partitions=column["partition"],
    )


def _whole(pieces: Sequence[bytes], place: str) -> Iterator[bytes]:
    """Yield whole chunks from the pieces they were cut into."""
    held = b""
    for piece in pieces:
        held += piece
        if len(held) >= wrapped_bytes(held, place):
            yield held
            held = b""
    if held:
        raise Corrupt("read stored outputs", place, "the last chunk is torn; keep a copy")
