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

import pyarrow as pa
import xxhash

from dedup.catalog.store import CHUNK_BYTES_MAX
from dedup.errors import Corrupt
from dedup.formats.envelope import Kind, Reader, Writer, unwrap, wrap, wrapped_bytes
from dedup.ids import minted
from dedup.model import IDENTITY_BYTES, Attempt, HeadRef, Incarnation, RecordId
from delivery.header import NAME, Header, encode_header
from delivery.protocol.senders import Mark
from delivery.records import Output

VERSION = 1
#: Payload per chunk: with Arrow's own bytes, even without compression, below what a store takes.
CHUNK_BYTES = 384 * 1024

_SCHEMA = pa.schema(
    [
        ("edge", pa.uint16()),
        ("partition", pa.int32()),
        ("parent_partition", pa.int32()),
        ("parent_offset", pa.int64()),
        ("kept_id", pa.binary(IDENTITY_BYTES)),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)
#: Edge, partition, parent partition, parent offset, headers.
_NUMBERS = struct.Struct("<HiiqI")
_LENGTH = struct.Struct("<I")
_CODEC = pa.Codec("zstd", compression_level=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An output with everything that is frozen when it is stored."""

    output: Output
    partition: int
    parent: tuple[int, int]
    #: The id of the input record, where re-keying keeps it; None: an id is minted.
    kept_id: RecordId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What all rows of a bundle share."""

    lane: str
    ref: HeadRef
    minted_at_ms: int


@dataclass(frozen=True, slots=True)
class Emission:
    """One record as it is sent, by whomever and however often."""

    edge: int
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    id: RecordId


def encode_outputs(origin: Origin, rows: Sequence[Row]) -> list[bytes]:
    """Return the chunks of a bundle's rows, in order; none for no rows."""
    chunks, start, size = [], 0, 0
    for index, row in enumerate(rows):
        weight = _weight(row.output)
        if size and size + weight > CHUNK_BYTES:
            chunks += _encode_chunk(origin, start, rows[start:index])
            start, size = index, 0
        size += weight
    if rows:
        chunks += _encode_chunk(origin, start, rows[start:])
    return chunks


def decode_outputs(chunks: Sequence[bytes], place: str) -> Iterator[Emission]:
    """Yield the emissions of a bundle, in order."""
    for chunk in _whole(chunks, place):
        yield from _decode_chunk(chunk, place)


def emissions(origin: Origin, rows: Sequence[Row], first: int = 0) -> Iterator[Emission]:
    """Yield what rows are sent as; ordinals count from `first`."""
    for ordinal, row in enumerate(rows, first):
        output = row.output
        record_id = row.kept_id or minted(origin.ref.attempt, output.edge, ordinal)
        mark = Mark(
            origin.lane,
            origin.ref.incarnation,
            origin.ref.seq,
            origin.minted_at_ms,
            kept=row.kept_id is not None,
        )
        ours = (NAME, encode_header(Header(record_id, mark, row.parent)))
        headers = (*(pair for pair in output.headers if pair[0] != NAME), ours)
        yield Emission(output.edge, row.partition, output.key, output.value, headers, record_id)


def content_digest(rows: Sequence[Row]) -> bytes:
    """Return the digest of what rows say, whoever made them: equal for code that is deterministic.

    The digest in a seal is of its stored chunks, which name their attempt; this one compares what
    two attempts at the same records made.
    """
    digest = xxhash.xxh3_128()
    for row in rows:
        output, headers = row.output, row.output.headers
        digest.update(_NUMBERS.pack(output.edge, row.partition, *row.parent, len(headers)))
        named = (part for name, value in headers for part in (name.encode(), value))
        for field in (output.key, output.value, row.kept_id, *named):
            # A length one higher, so that nothing and an empty field differ.
            digest.update(_LENGTH.pack(0 if field is None else len(field) + 1))
            digest.update(field or b"")
    return digest.digest()


def _weight(output: Output) -> int:
    extra = sum(len(name) + len(value) for name, value in output.headers)
    return len(output.key or b"") + len(output.value or b"") + extra


def _encode_chunk(origin: Origin, first: int, rows: Sequence[Row]) -> list[bytes]:
    columns: list[list[Any]] = [
        [row.output.edge for row in rows],
        [row.partition for row in rows],
        [row.parent[0] for row in rows],
        [row.parent[1] for row in rows],
        [row.kept_id for row in rows],
        [row.output.key for row in rows],
        [row.output.value for row in rows],
        [[{"name": n, "value": v} for n, v in row.output.headers] for row in rows],
    ]
    arrays = [
        pa.array(column, type=field.type) for column, field in zip(columns, _SCHEMA, strict=True)
    ]
    # The schema is fixed by the format's version, so the message alone is stored: a bundle of a few
    # records is a quarter of the size it would have as an Arrow stream, and rides in its seal.
    arrow = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA).serialize()
    out = Writer().text(origin.lane).raw(origin.ref.incarnation).uint(origin.ref.seq)
    out.raw(origin.ref.attempt).uint(origin.minted_at_ms).uint(first)
    out.uint(len(arrow)).raw(_CODEC.compress(arrow, asbytes=True))
    blob = wrap(Kind.OUTPUTS, VERSION, out.body())
    return [blob[at : at + CHUNK_BYTES_MAX] for at in range(0, len(blob), CHUNK_BYTES_MAX)]


def _decode_chunk(blob: bytes, place: str) -> Iterator[Emission]:
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
    yield from emissions(origin, [_row(values) for values in table.to_pylist()], first)


def _row(values: dict[str, Any]) -> Row:
    output = Output(
        edge=values["edge"],
        key=values["key"],
        value=values["value"],
        headers=tuple((header["name"], header["value"]) for header in values["headers"]),
    )
    parent = (values["parent_partition"], values["parent_offset"])
    return Row(
        output=output, partition=values["partition"], parent=parent, kept_id=values["kept_id"]
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
