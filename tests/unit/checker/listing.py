"""Segment lists as collection and compaction leave them, for worlds that are damaged then.

What it is: the ids of seals listed, and the ids of seals merged.
What it must not know: what the checker calls any of it.

Invariants:
    What is listed is what the seals hold, unless the caller asks for something else.
"""

from __future__ import annotations

import numpy as np

from dedup.catalog.store import Blob
from dedup.formats.lane import encode_segment_list
from dedup.formats.merged import Merged
from dedup.formats.segment import Part, encode_segment, pack_indexes, raw_ids
from dedup.model import Incarnation, SegmentList, Slot
from tests.unit.checker.worlds import World


def keep_segment(world: World, lane: str, seq: int) -> Slot:
    """Store a seal's ids beside it, as a collector does before the entry goes."""
    world.store.put(Blob.SEGMENT, world.slot(lane, seq), [world.seal(lane, seq).inline_segment])
    return world.slot(lane, seq)


def put_list(world: World, lane: str, listed: SegmentList) -> None:
    world.store.tables.lists[lane] = (listed.version, encode_segment_list(listed))


def list_all(world: World, lane: str) -> None:
    """Put the ids of every seal into the segment list."""
    head = world.store.tables.lanes[lane].ref.seq
    with_ids = [seq for seq in range(head + 1) if world.seal(lane, seq).segment.chunks]
    slots = tuple(keep_segment(world, lane, seq) for seq in with_ids)
    put_list(world, lane, SegmentList(version=1, upto=head, slots=slots))


def merge_all(
    world: World, lane: str, *, shift: int = 0, incarnation: Incarnation | None = None
) -> None:
    """Put the ids of every seal into one merged segment, as compaction leaves them."""
    head = world.store.tables.lanes[lane].ref
    came = {
        one: seq
        for seq in range(1, head.seq + 1)
        for part in world.parts(lane, seq)
        for one in part
    }
    seqs = sorted(set(came.values()))
    of = [seqs.index(min(came[one] + shift, seqs[-1])) for one in sorted(came)]
    owner = incarnation or head.incarnation
    merged = Part(
        world.parts(lane, 1)[0].bucket,
        raw_ids(list(came)),
        origins=tuple((owner, seq) for seq in seqs),
        origin_of=pack_indexes(np.array(of), len(seqs)),
    )
    slot = Merged(merged.bucket, 1, b"digest", 1).slot(lane, 0)
    world.store.put(Blob.SEGMENT, slot, [encode_segment((merged,))])
    put_list(world, lane, SegmentList(version=1, upto=head.seq, slots=(slot,)))
