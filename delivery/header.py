"""The record header: what every emitted record says of itself. Specified in docs/formats.md.

What it is: encode and decode of the value of the Kafka header named `delivery`.
What it must not know: what a receiver concludes from it.

Invariants:
    Frozen with the stored row: every copy of a record carries the same bytes.
    Whatever does not decode is not ours; the record is treated as external, never dropped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from dedup.model import LANE_NAME_BYTES_MAX, Incarnation, RecordId
from delivery.protocol.senders import Mark

NAME = "delivery"
VERSION = 1
_KEPT = 1
#: version, flags, id, incarnation, seq, minted-at ms, parent partition, parent offset; then the
#: sender lane in UTF-8 to the end. Big-endian.
_FIXED = struct.Struct(">BB16s16sQQiq")
#: Parent of a record that has no single one.
NO_PARENT = (-1, -1)


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


class HeaderColumns:
    def __init__(self, values):
        import numpy as np
        hs = [None if v is None else decode_header(v) for v in values]
        self.marks = list(dict.fromkeys(h.mark for h in hs if h))
        at = {mk: i for i, mk in enumerate(self.marks)}
        self.mark_of = np.array([-1 if h is None else at[h.mark] for h in hs], dtype=np.intp)
        from dedup.arrays import pack
        self.ids = pack([bytes(16) if h is None else h.id for h in hs])
    def first_rows(self):
        return [int((self.mark_of == i).argmax()) for i in range(len(self.marks))]


def decode_headers(values):
    return HeaderColumns(values)


def encode_headers(ids, mark, parents, kept):
    from dataclasses import replace

    from dedup.arrays import to_raw
    raw = to_raw(ids)
    return [encode_header(Header(raw[16*i:16*i+16], replace(mark, kept=bool(kept[i])), (int(parents[0][i]), int(parents[1][i])))) for i in range(len(ids))]
