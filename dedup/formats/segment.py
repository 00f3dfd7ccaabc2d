"""Segments: the ids one bundle decided, by bucket.

What it is: the immutable batch of ids an attempt stores with its outputs.
What it must not know: which bundle, or whether its seal won.

Invariants:
    Ids are sorted and unique within a part; parts are sorted by bucket.
    A part of internal ids says, per sender, the highest seq it holds ids of: what must be read
    before it may be forgotten. A part of external ids leaves with lane time alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from dedup.errors import Corrupt
from dedup.formats.envelope import Kind, Reader, Writer, unwrap, wrap
from dedup.formats.fields import read_reads, write_reads
from dedup.model import IDENTITY_BYTES, ReadSeq, RecordId

VERSION = 1
#: Ids per chunk: 256 KiB of them.
CHUNK_IDS = 16 * 1024
#: Ids are forgotten bucket by bucket.
BUCKET_MS = 10 * 60 * 1000


class Origin(IntEnum):
    """What places an id in time. Numbers are for ever."""

    #: Made from an attempt: all copies carry the same minted-at, and a seq that can be read past.
    INTERNAL = 1
    #: Named by a publisher, who may repeat it in another lane: held for the window.
    EXTERNAL = 2


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Ten minutes of minted-at (internal) or of lane time (external)."""

    origin: Origin
    number: int

    @staticmethod
    def at(origin: Origin, time_ms: int) -> Bucket:
        """Return the bucket that a time falls into."""
        return Bucket(origin, time_ms // BUCKET_MS)

    @property
    def end_ms(self) -> int:
        """The first time after the bucket."""
        return (self.number + 1) * BUCKET_MS


@dataclass(frozen=True, slots=True)
class Part:
    """The ids of one bucket."""

    bucket: Bucket
    ids: tuple[RecordId, ...]
    seen: tuple[ReadSeq, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what a reader could not rely on."""
        assert list(self.ids) == sorted(set(self.ids)), "ids are sorted and unique"
        assert set(map(len, self.ids)) <= {IDENTITY_BYTES}, "an id is 16 bytes"
        assert self.bucket.origin is Origin.INTERNAL or not self.seen, "external ids have no sender"


def encode_segment(parts: tuple[Part, ...]) -> bytes:
    """Return the stored form of a segment."""
    out = Writer().uint(len(parts))
    for part in parts:
        out.uint(part.bucket.origin).uint(part.bucket.number)
        write_reads(out, part.seen)
        out.uint(len(part.ids)).raw(b"".join(part.ids))
    return wrap(Kind.SEGMENT, VERSION, out.body())


def segment_chunks(parts: tuple[Part, ...]) -> list[bytes]:
    """Return the chunks of a segment, each below what every store takes; none for no ids."""
    chunks = []
    for part in parts:
        for at in range(0, len(part.ids), CHUNK_IDS):
            piece = Part(part.bucket, part.ids[at : at + CHUNK_IDS], part.seen)
            chunks.append(piece)
    if sum(len(piece.ids) for piece in chunks) <= CHUNK_IDS:
        return [encode_segment(tuple(chunks))] if chunks else []
    return [encode_segment((piece,)) for piece in chunks]


def decode_segment(blob: bytes, place: str) -> tuple[Part, ...]:
    """Return the parts that `encode_segment` wrote."""
    _, body = unwrap(blob, Kind.SEGMENT, version_max=VERSION, place=place)
    reader = Reader(body, place)
    try:
        parts = tuple(_read_part(reader) for _ in range(reader.uint()))
    except (AssertionError, ValueError) as error:
        raise Corrupt(
            "read a segment", place, f"it contradicts itself ({error}); stop and keep a copy"
        ) from error
    reader.end()
    return parts


def _read_part(body: Reader) -> Part:
    bucket = Bucket(Origin(body.uint()), body.uint())
    seen = read_reads(body)
    ids = body.raw(body.uint() * IDENTITY_BYTES)
    cut = range(0, len(ids), IDENTITY_BYTES)
    return Part(bucket, tuple(RecordId(ids[at : at + IDENTITY_BYTES]) for at in cut), seen)
