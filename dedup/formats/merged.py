"""The names of merged segments: a slot that says what is stored under it.

What it is: `Merged`, and the slots of its pieces.
What it must not know: how segments are merged, or when.

Invariants:
    No seal and no attempt has the incarnation of a merged segment, so nobody takes one for what a
    loser left behind.
    A name contains a digest of all that decides what is stored under it, the version of the segment
    list included: two merges that could differ in a byte have different names, and a name that a
    list of a later version does not contain will never be in one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from dedup.formats.envelope import Writer
from dedup.formats.fields import write_slot
from dedup.formats.segment import Bucket, Origin
from dedup.model import IDENTITY_BYTES, Attempt, Head, Incarnation, SegmentList, Slot

#: What stands in a merged segment's slot where others have the incarnation of their seal.
MERGED = Incarnation(bytes(IDENTITY_BYTES))
#: Origin of the bucket, level, span, number, piece, and the beginning of a digest.
_NAME = struct.Struct(">BBHIH6s")
_DIGEST_BYTES = 6
#: The largest span that a name can tell.
SPAN_MAX = (1 << 16) - 1
#: The most pieces of one merged segment.
PIECES_MAX = 1 << 16
#: The highest level; a merge of such ones stays there.
LEVEL_MAX = (1 << 8) - 1


@dataclass(frozen=True, slots=True, order=True)
class Merged:
    """A merged segment: the ids of one bucket in their order, cut into pieces."""

    bucket: Bucket
    #: How often what it was made of was merged within this bucket.
    level: int
    digest: bytes
    #: The lowest seq that its inputs name.
    first_seq: int

    def slot(self, lane: str, piece: int) -> Slot:
        """Return the place of one piece."""
        assert piece < PIECES_MAX, "a merged segment has a bounded number of pieces"
        at = self.bucket
        name = _NAME.pack(at.origin, self.level, at.span, at.number, piece, self.digest)
        return Slot(lane, MERGED, self.first_seq, Attempt(name))


def merged_at(slot: Slot) -> tuple[Merged, int] | None:
    """Return what a slot is a piece of, and which; None if it is the slot of an attempt."""
    if slot.incarnation != MERGED:
        return None
    origin, level, span, number, piece, digest = _NAME.unpack(slot.attempt)
    return Merged(Bucket(Origin(origin), number, span), level, digest, slot.seq), piece


def merge_digest(listed: SegmentList, head: Head, inputs: Sequence[Slot]) -> bytes:
    """Return the digest of all that decides what a merge of these inputs writes."""
    out = Writer().uint(listed.version).raw(head.ref.incarnation)
    for kept in head.past:
        out.raw(kept.incarnation).uint(kept.seq)
    for slot in inputs:
        write_slot(out, slot)
    return xxhash.xxh3_128_digest(out.body())[:_DIGEST_BYTES]
