"""A lane whose seals are written by hand, with ids in the buckets a test wants.

What it is: `Shelf`, which seals, lists and reads back what a lane's list holds, and short words for
what tests of compaction do with it.
What it must not know: how segments are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import xxhash

from dedup import compact
from dedup.catalog.catalog import Catalog, segment_place
from dedup.catalog.store import Blob, Store
from dedup.collect import Keep, collect
from dedup.formats.merged import merged_at
from dedup.formats.segment import (
    BUCKET_MS,
    Bucket,
    Origin,
    Part,
    raw_ids,
    segment_chunks,
    whole_segment,
)
from dedup.model import (
    Ack,
    Attempt,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    LaneRow,
    ReadSeq,
    RecordId,
    Seal,
    Slot,
    TopicId,
)

LANE = "shop/price/0"
#: A window whose largest tier spans sixteen buckets.
WINDOW_MS = 64 * BUCKET_MS
TOPIC = TopicId(b"t" * 16)
SENDER = ("shop/in/0", Incarnation(b"s" * 16), TOPIC)


def record_id(name: object) -> RecordId:
    return RecordId(xxhash.xxh3_128_digest(str(name).encode()))


def part(
    number: int, ids: Iterable[object], *, origin: Origin = Origin.EXTERNAL, seq: int = 0
) -> Part:
    """The ids of these names in one bucket; internal ones came with `seq` of the one sender."""
    seen = (ReadSeq(*SENDER, seq),) if origin is Origin.INTERNAL else ()
    return Part(Bucket(origin, number), raw_ids([record_id(one) for one in ids]), seen)


class Shelf:
    """One lane on a store."""

    def __init__(self, store: Store) -> None:
        self.catalog = Catalog(store, inline_bytes_max=0)
        row = self.catalog.load(LANE)
        self.minted = row.head.ref.seq << 16 if row else 0
        if row is None:
            ref = HeadRef(Incarnation(self.fresh()), 0, Attempt(self.fresh()))
            head = Head(ref=ref, frontier=Frontier())
            seal = Seal(ref=ref, start=Frontier(), end=Frontier(), minted_at_ms=0, lane_time_ms=0)
            assert self.catalog.create(LANE, head, seal)

    def fresh(self) -> bytes:
        self.minted += 1
        return xxhash.xxh3_128_digest(f"minted {self.minted}".encode())

    @property
    def row(self) -> LaneRow:
        row = self.catalog.load(LANE)
        assert row is not None
        return row

    def seal(self, *parts: Part, lane_time_ms: int = 0, reads: Sequence[ReadSeq] = ()) -> Slot:
        """Seal these ids, acknowledged at once."""
        head = self.row.head
        ref = HeadRef(head.ref.incarnation, head.ref.seq + 1, Attempt(self.fresh()))
        slot = Slot(LANE, ref.incarnation, ref.seq, ref.attempt)
        chunks = segment_chunks(parts)
        time_ms = max(lane_time_ms, head.lane_time_ms)
        seal = Seal(
            ref=ref,
            start=Frontier(),
            end=Frontier(),
            minted_at_ms=ref.seq,
            lane_time_ms=time_ms,
            learned=tuple(reads),
            segment=self.catalog.put(Blob.SEGMENT, slot, chunks, sum(one.count for one in parts)),
        )
        after = replace(
            head,
            ref=ref,
            lane_time_ms=time_ms,
            minted_at_ms=ref.seq,
            read_seqs=tuple(reads) or head.read_seqs,
        )
        assert self.catalog.append(LANE, head.ref, after, seal)
        assert self.catalog.acknowledge(LANE, self.row.ack, Ack(ref.incarnation, ref.seq))
        return slot

    def collect(self, window_ms: int) -> list[str]:
        return collect(self.catalog, LANE, Keep(window_ms=window_ms))

    def slots(self) -> tuple[Slot, ...]:
        listed = self.catalog.segment_list(LANE)
        return listed.slots if listed else ()

    def parts(self) -> list[Part]:
        """Every part that the list names."""
        found = []
        for slot in self.slots():
            chunks = self.catalog.store.get(Blob.SEGMENT, slot)
            parts = whole_segment(chunks, segment_place(self.catalog, slot))
            assert parts is not None, f"the list names {slot}, which is not whole"
            found += parts
        return found

    def held(self) -> list[RecordId]:
        """Every id that the list holds for this history, in order, repeats included."""
        head = self.row.head
        return sorted(one for part in self.parts() for one in part.of_history(head))

    def stored(self) -> set[Slot]:
        self.catalog.store.flush()
        return set(self.catalog.store.slots(Blob.SEGMENT, LANE))


def shelved(shelf: Shelf, buckets: range, seals: int = 2, ids: int = 3) -> list[str]:
    """Seal some ids in each bucket, list them, and return their names."""
    names = []
    for number in buckets:
        for seal in range(seals):
            mine = [f"{number} {seal} {one}" for one in range(ids)]
            shelf.seal(part(number, mine), lane_time_ms=number * BUCKET_MS)
            names += mine
    shelf.collect(1 << 50)
    return names


def merge(shelf: Shelf, window_ms: int = WINDOW_MS) -> list[str]:
    return compact.compact(shelf.catalog, LANE, window_ms, plain_min=2)


def tiers(shelf: Shelf) -> list[Bucket]:
    return sorted({found[0].bucket for slot in shelf.slots() if (found := merged_at(slot))})


def ids(names: list[str]) -> list[bytes]:
    return sorted(map(record_id, names))
