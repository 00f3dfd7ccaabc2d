"""The record header: what every emitted record says of itself. Specified in docs/formats.md.

What it is: encode and decode of the value of the Kafka header named `delivery`, of one record and
of a whole batch as columns.
What it must not know: what a receiver concludes from it.

Invariants:
    Frozen with the stored row: every copy of a record carries the same bytes.
    Whatever does not decode is not ours; the record is treated as external, never dropped.
    The columns say of every record what `encode_header` and `decode_header` say of it: all but
    ids and parents goes through these two, once for each mark that occurs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids, Mask, Places
from dedup.model import IDENTITY_BYTES, LANE_NAME_BYTES_MAX, Incarnation, RecordId
from delivery.protocol.senders import Mark

NAME = "delivery"
VERSION = 1
_KEPT = 1
#: version, flags, id, incarnation, seq, minted-at ms, parent partition, parent offset; then the
#: sender lane in UTF-8 to the end. Big-endian.
_FIXED = struct.Struct(">BB16s16sQQiq")
#: Where in a value its flags stand.
_FLAGS_AT = 1
#: Parent of a record that has no single one.
NO_PARENT = (-1, -1)
#: Values decoded together. Their copy in one buffer stays small enough for the allocator to give
#: out the same memory again; fresh pages would cost as much as the rest.
BLOCK_VALUES = 4096
#: What `HeaderColumns.mark_of` says of a record that carries no header of ours.
NO_MARK = -1


@dataclass(frozen=True, slots=True)
class Header:
    """The id of a record, its mark, and the input record it came from."""

    id: RecordId
    mark: Mark
    parent: tuple[int, int] = NO_PARENT


def encode_header(header: Header) -> bytes:
    """Return the header's value."""
    mark = header.mark
    fixed = _FIXED.pack(
        VERSION,
        _KEPT if mark.kept else 0,
        header.id,
        mark.incarnation,
        mark.seq,
        mark.minted_at_ms,
        *header.parent,
    )
    return fixed + mark.sender.encode()


def decode_header(value: bytes) -> Header | None:
    """Return what `encode_header` wrote, or None for bytes that are not ours."""
    sender = value[_FIXED.size :]
    if len(value) < _FIXED.size or not 0 < len(sender) <= LANE_NAME_BYTES_MAX:
        return None
    version, flags, record_id, incarnation, seq, minted_at_ms, partition, offset = (
        _FIXED.unpack_from(value)
    )
    if version != VERSION or flags & ~_KEPT:
        return None
    try:
        name = sender.decode()
    except UnicodeDecodeError:
        return None
    mark = Mark(name, Incarnation(incarnation), seq, minted_at_ms, kept=bool(flags & _KEPT))
    return Header(RecordId(record_id), mark, (partition, offset))


@dataclass(frozen=True, slots=True, eq=False)
class HeaderColumns:
    """The headers of a batch, column by column.

    Attributes:
        ids: of every record; 0 where the header is not ours.
        marks: those that occur, each once; a batch has few.
        mark_of: of every record the place of its mark in `marks`, or `NO_MARK`.
        partitions: of every record's parent.
        offsets: of every record's parent; both are those of `NO_PARENT` where the header is not
            ours.
    """

    ids: Ids
    marks: tuple[Mark, ...]
    mark_of: npt.NDArray[np.int32]
    partitions: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]

    @property
    def ours(self) -> Mask:
        """Tell of every record whether it carries a header of ours."""
        ours: Mask = self.mark_of != NO_MARK
        return ours

    def take(
        self, places: Places | slice, rows: npt.NDArray[np.void], mark_of: npt.NDArray[np.int32]
    ) -> None:
        """Put what some rows say where their records are."""
        self.mark_of[places] = mark_of
        self.ids[places, 0] = rows["high"]
        self.ids[places, 1] = rows["low"]
        self.partitions[places] = rows["partition"]
        self.offsets[places] = rows["offset"]


def encode_headers(
    ids: Ids,
    mark: Mark,
    partitions: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    kept: Mask | None = None,
) -> list[bytes]:
    """Return the header values of the records of one bundle.

    Args:
        ids: of every record.
        mark: of the bundle.
        partitions: of every record's parent.
        offsets: of every record's parent.
        kept: which ids are kept from further up, if it is not the same for all as `mark` says.
    """
    unkept = mark if kept is None else replace(mark, kept=False)
    blank = encode_header(Header(RecordId(bytes(IDENTITY_BYTES)), unkept))
    rows = np.frombuffer(bytearray(blank) * len(ids), dtype=_row(len(blank)))
    rows["high"] = ids[:, 0]
    rows["low"] = ids[:, 1]
    rows["partition"] = partitions
    rows["offset"] = offsets
    if kept is not None:
        rows["flags"] = np.where(kept, _KEPT, 0)
    values: list[bytes] = rows.view(f"V{len(blank)}").tolist()
    return values


def decode_headers(values: Sequence[bytes | None]) -> HeaderColumns:
    """Return what `decode_header` says of every value; None is a record without a header."""
    count = len(values)
    seen = _Seen()
    columns = HeaderColumns(
        ids=np.zeros((count, 2), dtype=np.uint64),
        marks=(),
        mark_of=np.full(count, NO_MARK, dtype=np.int32),
        partitions=np.full(count, NO_PARENT[0], dtype=np.int32),
        offsets=np.full(count, NO_PARENT[1], dtype=np.int64),
    )
    # Nearly all topics are somebody else's, or all ours.
    for start in range(0, count, BLOCK_VALUES) if any(values) else ():
        block = [value or b"" for value in values[start : start + BLOCK_VALUES]]
        lengths = np.fromiter(map(len, block), dtype=np.intp, count=len(block))
        for length, places in _alike(lengths):
            whole = len(places) == len(block)
            alike = block if whole else [block[at] for at in places.tolist()]
            rows = np.frombuffer(b"".join(alike), dtype=_row(length))
            mark_of = _marked(rows, alike, seen)
            ours = np.flatnonzero(mark_of != NO_MARK)
            if whole and len(ours) == len(block):
                columns.take(slice(start, start + len(block)), rows, mark_of)
            else:
                columns.take(places[ours] + start, rows[ours], mark_of[ours])
    return replace(columns, marks=tuple(seen.marks))


@dataclass(frozen=True, slots=True)
class _Seen:
    """The marks of a batch so far, and where in the list each spelling has its mark."""

    marks: list[Mark] = field(default_factory=list)
    place: dict[bytes, int] = field(default_factory=dict)

    def place_of(self, value: bytes) -> int:
        """Return the place of a value's mark, which is decoded if it is new."""
        # All but the id and the parent.
        spelling = value[:2] + value[18:50] + value[_FIXED.size :]
        place = self.place.get(spelling)
        if place is None:
            header = decode_header(value)
            place = NO_MARK if header is None else len(self.marks)
            if header is not None:
                self.marks.append(header.mark)
            self.place[spelling] = place
        return place


def _row(length: int) -> np.dtype[np.void]:
    """Return a value of `length` bytes as an array's item: `_FIXED`, by what varies together."""
    return np.dtype(
        {
            "names": ["kind", "flags", "high", "low", "place", "partition", "offset", "sender"],
            "formats": ["V2", "u1", ">u8", ">u8", "V32", ">i4", ">i8", f"V{length - _FIXED.size}"],
            "offsets": [0, _FLAGS_AT, 2, 10, 18, 50, 54, _FIXED.size],
            "itemsize": length,
        }
    )


def _alike(lengths: Places) -> Iterator[tuple[int, Places]]:
    """Yield each length that a value of ours can have, and where it occurs."""
    longest = _FIXED.size + LANE_NAME_BYTES_MAX
    counts = np.bincount(np.minimum(lengths, longest + 1))
    for length in np.flatnonzero(counts).tolist():
        if _FIXED.size < length <= longest:
            yield length, np.flatnonzero(lengths == length)


def _marked(
    rows: npt.NDArray[np.void], values: Sequence[bytes], seen: _Seen
) -> npt.NDArray[np.int32]:
    """Return the place of each row's mark.

    Records of one bundle come one behind the other, so that only where a mark differs from the one
    before it is there something to look up.
    """
    changed = np.ones(len(rows), dtype=np.bool_)
    changed[1:] = False
    for part in ("kind", "place", "sender"):
        column = rows[part]
        changed[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(changed)
    found = np.array([seen.place_of(values[start]) for start in starts.tolist()], dtype=np.int32)
    return np.repeat(found, np.diff(np.append(starts, len(rows))))
