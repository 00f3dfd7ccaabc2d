"""Stored chunks read by docs/formats.md: outputs, ids and dropped offsets that a seal promises.

What it is: a second reader, written from the specification, for what stands beside a seal.
What it must not know: the code that writes them, or the catalog between.

Invariants:
    A chunk is believed only if it is what the seal promises: number, size, digest, and the
    position it names itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from dedup.catalog.store import Blob, Store
from dedup.errors import Corrupt
from dedup.formats.dropped import Run, decode_dropped
from dedup.formats.envelope import Kind as Envelope
from dedup.formats.envelope import Reader, unwrap, wrapped_bytes
from dedup.formats.segment import Part, decode_segment, whole_segment
from dedup.model import IDENTITY_BYTES, BlobRef, Incarnation, RecordId, Seal, Slot, TopicId
from delivery.checker.evidence import Findings, Kind
from delivery.checker.rows import Book
from delivery.header import NAME, Header, encode_header
from delivery.protocol.senders import Mark

OUTPUTS_VERSION = 1
RECIPE_VERSION = 1
#: What stands for no bytes at all in a digest of content.
NOTHING = 0x5851F42D4C957F2D
#: The explorer asks about the same few blobs a hundred thousand times; large ones come once.
REMEMBERED = 4096
REMEMBERED_BYTES = 4096
_NUMBERS = struct.Struct("<QQ")
_MINTED = np.dtype([("identity", "V16"), ("first", "<u8"), ("second", "<u8")])
Numbers: TypeAlias = npt.NDArray[np.int64]
#: The position a chunk says it belongs to: lane, incarnation, seq, attempt, minted-at.
_Origin = tuple[str, Incarnation, int, bytes, int]
_CODEC = pa.Codec("zstd")
_ROW = pa.schema(
    [
        ("edge", pa.uint16()),
        ("partition", pa.int32()),
        ("parent_partition", pa.int32()),
        ("parent_offset", pa.int64()),
        ("kept_id", pa.binary(16)),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass(frozen=True, slots=True)
class Promise:
    """One record that a seal promises to be in the sink."""

    edge: int
    partition: int
    id: RecordId
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    parent: tuple[int, int]
    kept: bool


def mint(identity: bytes, first: int, second: int) -> RecordId:
    """Return the id made of 16 bytes and two numbers."""
    return RecordId(xxhash.xxh3_128_digest(identity + _NUMBERS.pack(first, second)))


def minted_ids(identity: bytes, first: Numbers, second: Numbers) -> npt.NDArray[np.uint64]:
    """Return many ids of 16 bytes and two numbers, as two words each."""
    rows = np.empty(len(first), dtype=_MINTED)
    rows["identity"], rows["first"], rows["second"] = np.void(identity), first, second
    raw = b"".join(map(xxhash.xxh3_128_digest, rows.view("V32").tolist()))
    return np.frombuffer(raw, dtype=">u8").reshape(-1, 2).astype(np.uint64)


def external(name: bytes | None, topic: TopicId, partition: int, offset: int) -> RecordId:
    """Return the id of an external record: by its name, else by its place."""
    if name is None:
        return mint(topic, partition, offset)
    return RecordId(xxhash.xxh3_128_digest(name))


def read_parts(store: Store, book: Book, seal: Seal, findings: Findings) -> list[Part] | None:
    """Return the ids of a seal by bucket; None if they cannot be read, which is said."""
    ref, subject = seal.segment, f"segment of seal {seal.ref.seq}"
    chunks = stored(store, Blob.SEGMENT, book.name, seal)
    if ref.chunks and not chunks:
        findings.add(
            Kind.SEGMENT_GONE, book.name, subject, f"{ref.rows} ids in {ref.chunks} chunks"
        )
        return None
    try:
        parts = [part for chunk in chunks for part in read_segment(chunk, subject)]
    except Corrupt as error:
        findings.add(Kind.UNREADABLE, book.name, subject, str(error))
        return None
    if differs(chunks, ref):
        findings.add(Kind.DIGEST, book.name, subject, f"{len(chunks)} chunks")
        return None
    return parts


def read_dropped(store: Store, book: Book, seal: Seal, findings: Findings) -> list[Run] | None:
    """Return the runs of offsets that a seal dropped; None if they cannot be read, which is said."""
    ref, subject = seal.dropped, f"dropped offsets of seal {seal.ref.seq}"
    chunks = stored(store, Blob.DROPPED, book.name, seal)
    if ref.chunks and not chunks:
        findings.add(
            Kind.DROPPED_GONE, book.name, subject, f"{ref.rows} runs in {ref.chunks} chunks"
        )
        return None
    try:
        runs = [run for chunk in chunks for run in decode_dropped(chunk, subject)]
    except Corrupt as error:
        findings.add(Kind.UNREADABLE, book.name, subject, str(error))
        return None
    if differs(chunks, ref):
        findings.add(Kind.DIGEST, book.name, subject, f"{len(chunks)} chunks")
        return None
    if len(runs) != ref.rows:
        text = f"{ref.rows} runs promised, {len(runs)} stored"
        findings.add(Kind.COUNTS, book.name, subject, text)
    return runs


def read_listed(
    store: Store, slots: Iterable[Slot], findings: Findings
) -> Iterator[tuple[Slot, Part]]:
    """Yield listed segments and their ids; what cannot be read is said and left out."""
    for slot in slots:
        subject = f"listed segment of seal {slot.seq}"
        try:
            parts = _whole_segment(tuple(store.get(Blob.SEGMENT, slot)), subject)
        except Corrupt as error:
            findings.add(Kind.UNREADABLE, slot.lane, subject, str(error))
            continue
        if parts is None:
            findings.add(Kind.SEGMENT_GONE, slot.lane, subject, f"attempt {slot.attempt.hex()[:8]}")
        else:
            yield from ((slot, part) for part in parts)


def read_recipe(chunks: Sequence[bytes], place: str) -> bytes | None:
    """Return the digest by which outputs are known that are not stored; None if rows are."""
    if len(chunks) != 1 or chunks[0][2:3] != bytes([Envelope.RECIPE]):
        return None
    _, body = unwrap(chunks[0], Envelope.RECIPE, version_max=RECIPE_VERSION, place=place)
    reader = Reader(body, place)
    for _ in range(reader.uint()):
        reader.uint()  # partitions of an edge: where a record lies is in the digest
    digest = reader.raw(IDENTITY_BYTES)
    reader.end()
    return digest


def content_digest(rows: Sequence[Promise]) -> bytes:
    """Return the digest of what rows say."""
    numbers = ([row.edge for row in rows], [row.partition for row in rows])
    parents = ([row.parent[0] for row in rows], [row.parent[1] for row in rows])
    values = [_word(row.value) for row in rows]
    rests = [_word(row.key) ^ _headers_word(row) for row in rows]
    return xxhash.xxh3_128_digest(
        b"".join(struct.pack(f"<{len(rows)}q", *column) for column in (*numbers, *parents))
        + b"".join(struct.pack(f"<{len(rows)}Q", *column) for column in (values, rests))
    )


def _word(field: bytes | None) -> int:
    return NOTHING if field is None else xxhash.xxh3_64_intdigest(field)


def _headers_word(row: Promise) -> int:
    theirs = b"".join(
        struct.pack("<I", len(part)) + part
        for name, value in row.headers
        for part in (name.encode(), value)
        if name != NAME
    )
    return xxhash.xxh3_64_intdigest(theirs) if theirs else 0


def read_outputs(
    store: Store, book: Book, seal: Seal, findings: Findings
) -> list[Promise] | bytes | None:
    """Return what a seal promises, or the digest of it if its rows are not stored.

    None if it cannot be read, which is said unless collected.
    """
    ref, subject = seal.outputs, f"outputs of seal {seal.ref.seq}"
    chunks = stored(store, Blob.OUTPUTS, book.name, seal)
    collected = seal.ref.seq <= book.collected
    if collected and differs(chunks, ref):
        return None  # some of them, or all, were deleted: that is what collected means
    if ref.chunks and not chunks:
        findings.add(Kind.OUTPUTS_GONE, book.name, subject, f"{ref.rows} rows")
        return None
    try:
        digest = read_recipe(chunks, subject)
        decoded = []
        if digest is None:
            decoded = [_remembered(blob, subject) for blob in whole_chunks(chunks, subject)]
    except (Corrupt, pa.ArrowException, OSError) as error:
        findings.add(Kind.UNREADABLE, book.name, subject, str(error))
        return None
    if differs(chunks, ref):
        findings.add(Kind.DIGEST, book.name, subject, f"{len(chunks)} chunks")
        return None
    return _of_seal(book, seal, decoded, findings) if digest is None else digest


def _of_seal(
    book: Book, seal: Seal, decoded: Sequence[tuple[_Origin, list[Promise]]], findings: Findings
) -> list[Promise] | None:
    """Return the rows of chunks that name the seal they stand beside."""
    at, subject = seal.ref, f"outputs of seal {seal.ref.seq}"
    origin = (book.name, at.incarnation, at.seq, at.attempt, seal.minted_at_ms)
    if any(found != origin for found, _ in decoded):
        text = "the chunks name another lane, position or attempt than the entry"
        findings.add(Kind.ENTRY_FOREIGN, book.name, subject, text)
        return None
    promises = [promise for _, rows in decoded for promise in rows]
    if len(promises) != seal.outputs.rows:
        text = f"{seal.outputs.rows} rows promised, {len(promises)} stored"
        findings.add(Kind.COUNTS, book.name, subject, text)
    return promises


def stored(store: Store, kind: Blob, lane: str, seal: Seal) -> list[bytes]:
    """Return the chunks that stand beside a seal, or inside of it."""
    inline = {
        Blob.OUTPUTS: seal.inline_outputs,
        Blob.SEGMENT: seal.inline_segment,
        Blob.DROPPED: seal.inline_dropped,
    }[kind]
    if inline:
        return [inline]
    return store.get(kind, Slot(lane, seal.ref.incarnation, seal.ref.seq, seal.ref.attempt))


def differs(chunks: Sequence[bytes], ref: BlobRef) -> bool:
    """Tell whether chunks are not those that a seal promises."""
    digest = xxhash.xxh3_128_digest(b"".join(map(xxhash.xxh3_128_digest, chunks)))
    if not chunks:
        digest = bytes(IDENTITY_BYTES)
    return (len(chunks), sum(map(len, chunks)), digest) != (ref.chunks, ref.size, ref.digest)


def whole_chunks(pieces: Sequence[bytes], place: str) -> Iterator[bytes]:
    """Yield the envelopes that pieces make up; the length in each says where it ends."""
    rest = b"".join(pieces)
    while rest:
        size = wrapped_bytes(rest, place)
        yield rest[:size]
        rest = rest[size:]


def _remembered(blob: bytes, place: str) -> tuple[_Origin, list[Promise]]:
    return _small_chunk(blob, place) if len(blob) <= REMEMBERED_BYTES else _chunk(blob, place)


@lru_cache(maxsize=REMEMBERED)
def _small_chunk(blob: bytes, place: str) -> tuple[_Origin, list[Promise]]:
    return _chunk(blob, place)


def _whole_segment(chunks: tuple[bytes, ...], place: str) -> list[Part] | None:
    small = sum(map(len, chunks)) <= REMEMBERED_BYTES
    return _small_whole(chunks, place) if small else whole_segment(chunks, place)


@lru_cache(maxsize=REMEMBERED)
def _small_whole(chunks: tuple[bytes, ...], place: str) -> list[Part] | None:
    return whole_segment(chunks, place)


@lru_cache(maxsize=REMEMBERED)
def _small_segment(blob: bytes, place: str) -> tuple[Part, ...]:
    return decode_segment(blob, place)


def read_segment(blob: bytes, place: str) -> tuple[Part, ...]:
    """Return the parts of one stored chunk of ids."""
    small = len(blob) <= REMEMBERED_BYTES
    return _small_segment(blob, place) if small else decode_segment(blob, place)


def opened_chunk(blob: bytes, place: str) -> tuple[_Origin, int, pa.RecordBatch]:
    """Return the position a chunk names, the ordinal of its first row, and its rows."""
    _, body = unwrap(blob, Envelope.OUTPUTS, version_max=OUTPUTS_VERSION, place=place)
    reader = Reader(body, place)
    lane, incarnation = reader.text(), Incarnation(reader.raw(IDENTITY_BYTES))
    seq, attempt = reader.uint(), reader.raw(IDENTITY_BYTES)
    minted_at_ms, ordinal, size = reader.uint(), reader.uint(), reader.uint()
    arrow = _CODEC.decompress(reader.rest(), decompressed_size=size)
    rows = pa.ipc.read_record_batch(arrow, _ROW)
    return (lane, incarnation, seq, attempt, minted_at_ms), ordinal, rows


def _chunk(blob: bytes, place: str) -> tuple[_Origin, list[Promise]]:
    origin, ordinal, rows = opened_chunk(blob, place)
    lane, incarnation, seq, attempt, minted_at_ms = origin
    promises = []
    for row in rows.to_pylist():
        kept_id, parent = row["kept_id"], (row["parent_partition"], row["parent_offset"])
        record_id = RecordId(kept_id or mint(attempt, row["edge"], ordinal))
        mark = Mark(lane, incarnation, seq, minted_at_ms, kept=kept_id is not None)
        ours = (NAME, encode_header(Header(record_id, mark, parent)))
        theirs = ((h["name"], h["value"]) for h in row["headers"] if h["name"] != NAME)
        promises.append(
            Promise(
                edge=row["edge"],
                partition=row["partition"],
                id=record_id,
                key=row["key"],
                value=row["value"],
                headers=(*theirs, ours),
                parent=parent,
                kept=kept_id is not None,
            )
        )
        ordinal += 1
    return origin, promises
