"""A lane's segment list: the ids whose entries may be gone, and which of them count.

What it is: `read_list`, and `counting`, which says of listed ids which seal they came from.
What it must not know: which inputs there were.

Invariants:
    What cannot be read is said once and left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from dedup.errors import Corrupt
from dedup.formats.lane import decode_segment_list
from dedup.model import RecordId, SegmentList
from delivery.checker.chunks import read_listed
from delivery.checker.evidence import Kind
from delivery.checker.rows import Book, owner
from delivery.checker.world import World

#: The seal that makes a lane reads nothing; the ids that it has were brought in.
SEEDS = 0


def read_list(world: World, book: Book) -> SegmentList:
    """Return the segment list; an empty one if there is none to be read."""
    raw = world.evidence.store.read_list(book.name)
    if raw is None:
        return SegmentList()
    try:
        listed = decode_segment_list(raw[1], f"segment list of {book.name}")
    except Corrupt as error:
        world.findings.add(Kind.UNREADABLE, book.name, "segment list", str(error))
        return SegmentList()
    if listed.version != raw[0]:
        text = f"version {listed.version} beside {raw[0]}"
        world.findings.add(Kind.COLUMNS, book.name, "segment list", text)
    return listed


def counting(
    world: World, book: Book, listed: SegmentList
) -> Iterator[tuple[RecordId, int | None]]:
    """Yield the listed ids that count, of merged ones and of seeds with the seal they came from."""
    head = book.head
    for slot, part in read_listed(world.evidence.store, listed.slots, world.findings):
        if not part.origins:
            yield from ((record_id, None if slot.seq > SEEDS else SEEDS) for record_id in part)
            continue
        for record_id, index in zip(part, part.indexes().tolist(), strict=True):
            incarnation, seq = part.origins[index]
            if seq <= head.ref.seq and owner(head, seq) == incarnation:
                yield record_id, seq
