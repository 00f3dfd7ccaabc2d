"""Segments: the ids one bundle decided, by bucket, and the ids of many bundles put together.

What it is: the immutable batch of ids an attempt stores with its outputs, and the same in large,
as compaction leaves it; both are stored as the same kind of chunk.
What it must not know: which bundle, or whether its seal won.

Invariants:
    Ids are sorted and unique within a part; parts are sorted by bucket.
    A part of internal ids says, per sender, the highest seq it holds ids of: what must be read
    before it may be forgotten. A part of external ids leaves with lane time alone.
    A merged part says of every id which seal it came from. A plain one says nothing: its slot does.
    Every chunk says how many there are, so that a segment read while it is deleted shows its gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from dedup.errors import Corrupt
from dedup.formats.envelope import Kind, Reader, Writer, unwrap, wrap
from dedup.formats.fields import read_reads, write_reads
from dedup.model import IDENTITY_BYTES, Head, Incarnation, ReadSeq, RecordId

VERSION = 1
#: Ids per chunk: 256 KiB of them, and as much again for what is said about each.
CHUNK_IDS = 16 * 1024
#: Ids are forgotten bucket by bucket.
BUCKET_MS = 10 * 60 * 1000
#: The low 16 bits of XXH3-64 over a record's payload.
DIGEST_BYTES = 2
#: Up to here an index into the origins is two bytes, beyond it four.
ORIGINS_SHORT_MAX = 1 << 16
#: Below this, Python's own sort is quicker than calling numpy.
_FEW_IDS = 64
#: Numbers that are spread no further are told apart by marks, else by sorting.
_DENSE_SPREAD_MAX = 1 << 18
#: How wide the distances between the seqs of origins may be stored.
_WIDTHS = (1, 2, 4, 8)


class Origin(IntEnum):
    """What places an id in time. Numbers are for ever."""

    #: Made from an attempt: all copies carry the same minted-at, and a seq that can be read past.
    INTERNAL = 1
    #: Named by a publisher, who may repeat it in another lane: held for the window.
    EXTERNAL = 2


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Ten minutes of minted-at (internal) or of lane time (external), or `span` of them in a row."""

    origin: Origin
    number: int
    span: int = 1

    def __post_init__(self) -> None:
        """A bucket covers something."""
        assert self.span >= 1, "a bucket covers at least ten minutes"

    @staticmethod
    def at(origin: Origin, time_ms: int) -> Bucket:
        """Return the bucket that a time falls into."""
        return Bucket(origin, time_ms // BUCKET_MS)

    @property
    def end_ms(self) -> int:
        """The first time after the bucket."""
        return (self.number + self.span) * BUCKET_MS


@dataclass(frozen=True, slots=True)
class Part:
    """The ids of one bucket."""

    bucket: Bucket
    #: Raw ids, 16 bytes each, sorted.
    ids: bytes
    seen: tuple[ReadSeq, ...] = ()
    #: Two bytes for each id, in the order of the ids; empty where the stage does not ask for them.
    digests: bytes = b""
    #: The seals that the ids of a merged part came from, oldest first; empty in a plain one.
    origins: tuple[tuple[Incarnation, int], ...] = ()
    #: For each id a little-endian index into `origins`, `index_bytes` wide.
    origin_of: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what a reader could not rely on."""
        assert len(self.ids) % IDENTITY_BYTES == 0, "an id is 16 bytes"
        assert _ascending(self.ids), "ids are sorted and unique"
        assert self.bucket.origin is Origin.INTERNAL or not self.seen, "external ids have no sender"
        assert len(self.digests) in (0, self.count * DIGEST_BYTES), "each id has a digest, or none"
        if self.origins or self.origin_of:
            self._check_origins()

    def _check_origins(self) -> None:
        assert len(self.origin_of) == self.count * self.index_bytes, "each id has an origin"
        assert all(one[1] < two[1] for one, two in pairwise(self.origins)), (
            "oldest first, each once"
        )
        index = self.indexes()
        assert not index.size or int(index.max()) < len(self.origins), "an origin is one of them"

    @property
    def count(self) -> int:
        """How many ids."""
        return len(self.ids) // IDENTITY_BYTES

    @property
    def index_bytes(self) -> int:
        """How wide an index into the origins is."""
        return 2 if len(self.origins) <= ORIGINS_SHORT_MAX else 4

    def indexes(self) -> npt.NDArray[np.uint32] | npt.NDArray[np.uint16]:
        """Return the index into `origins` for each id of a merged part."""
        return np.frombuffer(self.origin_of, dtype=f"<u{self.index_bytes}")

    def __iter__(self) -> Iterator[RecordId]:
        """Yield the ids one by one."""
        for at in range(0, len(self.ids), IDENTITY_BYTES):
            yield RecordId(self.ids[at : at + IDENTITY_BYTES])

    def rows(self, first: int, end: int) -> Part:
        """Return the part of the ids in [first, end), with the origins that occur there."""
        if (first, end) == (0, self.count):
            return self
        ids = self.ids[first * IDENTITY_BYTES : end * IDENTITY_BYTES]
        digests = self.digests[first * DIGEST_BYTES : end * DIGEST_BYTES]
        cut = replace(self, ids=ids, digests=digests, origins=(), origin_of=b"")
        if not self.origins:
            return cut
        used, index = dense(self.indexes()[first:end])
        origins = tuple(self.origins[at] for at in used.tolist())
        return replace(cut, origins=origins, origin_of=pack_indexes(index, len(origins)))

    def of_history(self, head: Head) -> Part:
        """Return the ids that count: of a merged part those whose seal `head` has kept."""
        kept = np.fromiter(
            (_kept(head, incarnation, seq) for incarnation, seq in self.origins),
            dtype=np.bool_,
            count=len(self.origins),
        )
        if kept.all():
            return self
        mask = kept[self.indexes()]
        return replace(
            self,
            ids=np.frombuffer(self.ids, dtype=np.uint8).reshape(-1, IDENTITY_BYTES)[mask].tobytes(),
            digests=np.frombuffer(self.digests, dtype="<u2")[mask].tobytes()
            if self.digests
            else b"",
            origin_of=self.indexes()[mask].tobytes(),
        )


def raw_ids(ids: Sequence[bytes]) -> bytes:
    """Return ids in any order as a part keeps them."""
    return b"".join(sorted(ids))


def dense(
    numbers: npt.NDArray[np.integer],
) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
    """Return the different numbers in order, and of each number which of them it is."""
    if not numbers.size or int(numbers.max()) - int(numbers.min()) > _DENSE_SPREAD_MAX:
        return np.unique(numbers, return_inverse=True)
    # Seqs lie close together, and marking them is several times quicker than sorting them.
    first = numbers.min()
    places = (numbers - first).astype(np.intp)
    marks = np.zeros(int(places.max()) + 1, dtype=np.bool_)
    marks[places] = True
    return np.flatnonzero(marks) + first, (np.cumsum(marks) - 1)[places]


def pack_indexes(index: npt.NDArray[np.integer], origins: int) -> bytes:
    """Return indexes into so many origins as a part keeps them."""
    return index.astype("<u2" if origins <= ORIGINS_SHORT_MAX else "<u4").tobytes()


def encode_segment(parts: tuple[Part, ...], *, chunks: int = 1) -> bytes:
    """Return the stored form of one chunk of a segment that has so many of them."""
    out = Writer().uint(chunks).uint(len(parts))
    for part in parts:
        out.uint(part.bucket.origin).uint(part.bucket.number).uint(part.bucket.span)
        write_reads(out, part.seen)
        out.uint(part.count).raw(part.ids).data(part.digests)
        _write_origins(out, part)
    return wrap(Kind.SEGMENT, VERSION, out.body())


def segment_chunks(parts: tuple[Part, ...]) -> list[bytes]:
    """Return the chunks of a segment, each below what every store takes; none for no ids.

    The chunks of a bucket follow each other in the order of their ids, and do not overlap.
    """
    pieces = [
        part.rows(at, min(at + CHUNK_IDS, part.count))
        for part in parts
        for at in range(0, part.count, CHUNK_IDS)
    ]
    if sum(piece.count for piece in pieces) <= CHUNK_IDS:
        return [encode_segment(tuple(pieces))] if pieces else []
    return [encode_segment((piece,), chunks=len(pieces)) for piece in pieces]


def decode_segment(blob: bytes, place: str) -> tuple[Part, ...]:
    """Return the parts that `encode_segment` wrote."""
    return _decode(blob, place)[1]


def whole_segment(chunks: Sequence[bytes], place: str) -> list[Part] | None:
    """Return the parts of a stored segment; None if it is gone, or some of its chunks are.

    Raises:
        Corrupt: what is there is damaged.
    """
    decoded = [_decode(chunk, place) for chunk in chunks]
    if not decoded or any(count != len(chunks) for count, _ in decoded):
        return None
    return [part for _, parts in decoded for part in parts]


def _decode(blob: bytes, place: str) -> tuple[int, tuple[Part, ...]]:
    _, body = unwrap(blob, Kind.SEGMENT, version_max=VERSION, place=place)
    reader = Reader(body, place)
    try:
        chunks = reader.uint()
        parts = tuple(_read_part(reader) for _ in range(reader.uint()))
    except (AssertionError, ValueError) as error:
        raise Corrupt(
            "read a segment", place, f"it contradicts itself ({error}); stop and keep a copy"
        ) from error
    reader.end()
    return chunks, parts


def _read_part(body: Reader) -> Part:
    bucket = Bucket(Origin(body.uint()), body.uint(), body.uint())
    seen = read_reads(body)
    count = body.uint()
    ids, digests = body.raw(count * IDENTITY_BYTES), body.data()
    origins = _read_origins(body)
    wide = 2 if len(origins) <= ORIGINS_SHORT_MAX else 4
    return Part(bucket, ids, seen, digests, origins, body.raw(count * wide) if origins else b"")


def _write_origins(out: Writer, part: Part) -> None:
    """Write origins as stretches of one incarnation: its first seq, then the distances."""
    stretches = [list(found) for _, found in groupby(part.origins, key=lambda origin: origin[0])]
    out.uint(len(stretches))
    for stretch in stretches:
        seqs = np.array([seq for _, seq in stretch], dtype=np.uint64)
        steps = np.diff(seqs)
        width = next(w for w in _WIDTHS if not steps.size or int(steps.max()) < 1 << (8 * w))
        out.raw(stretch[0][0]).uint(stretch[0][1])
        out.uint(len(steps)).uint(width).raw(steps.astype(f"<u{width}").tobytes())
    out.raw(part.origin_of)


def _read_origins(body: Reader) -> tuple[tuple[Incarnation, int], ...]:
    origins: list[tuple[Incarnation, int]] = []
    for _ in range(body.uint()):
        incarnation, first, count = Incarnation(body.raw(IDENTITY_BYTES)), body.uint(), body.uint()
        width = body.uint()
        if width not in _WIDTHS:
            msg = f"seqs of origins are {width} bytes apart"
            raise ValueError(msg)
        steps = np.frombuffer(body.raw(count * width), dtype=f"<u{width}").astype(np.uint64)
        seqs = np.uint64(first) + np.concatenate((np.zeros(1, np.uint64), np.cumsum(steps)))
        origins += [(incarnation, seq) for seq in seqs.tolist()]
    return tuple(origins)


def _kept(head: Head, incarnation: Incarnation, seq: int) -> bool:
    last = head.last_kept(incarnation)
    return last is not None and seq <= last and head.incarnation_of(seq) == incarnation


def _ascending(raw: bytes) -> bool:
    """Tell whether raw ids are sorted and unique."""
    if len(raw) <= _FEW_IDS * IDENTITY_BYTES:
        ids = [raw[at : at + IDENTITY_BYTES] for at in range(0, len(raw), IDENTITY_BYTES)]
        return all(one < two for one, two in pairwise(ids))
    halves = np.frombuffer(raw, dtype=">u8").reshape(-1, 2)
    high = halves[:, 0].astype(np.uint64)
    rising = high[:-1] < high[1:]
    if rising.all():  # as all do that nobody chose
        return True
    low, level = halves[:, 1].astype(np.uint64), high[:-1] == high[1:]
    return bool((rising | (level & (low[:-1] < low[1:]))).all())
