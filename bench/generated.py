"""A lane of any number of ids that need no room: what its segments hold is computed when it is read.

What it is: `GeneratedStore`, a store whose segments are made from their seq, and `GeneratedLane`,
which seals them, and goes back.
What it must not know: who reads them.

Invariants:
    The same seq has the same ids in every process, and no two seqs share one.
    All but the segments is in a catalog like any other: processes share it as they share any.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids, order, to_raw
from dedup.catalog.catalog import Catalog, blob_ref
from dedup.catalog.open import open_store
from dedup.catalog.store import Blob, Store
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part, segment_chunks
from dedup.model import (
    Ack,
    Attempt,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    Kept,
    LaneRow,
    Seal,
    Slot,
    advance,
)
from dedup.xxh3 import hash_rows

NAME = "bench/dedup/0"
INCARNATION = Incarnation(b"generated lane--")
NAME_BYTES = 16
#: Ids of a seal, and seals in ten minutes: a lane of 10,000 records a second.
BATCH_IDS, BUCKET_SEALS = 10_000, 600


def names(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Return the 16-byte names of records by their number."""
    rows = np.zeros((len(numbers), NAME_BYTES), dtype=np.uint8)
    rows[:, :8] = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)
    return rows


class GeneratedStore:
    """A store whose segments are nobody's.

    Args:
        inner: where everything else is.
        seal_ids: ids of one seal.
        bucket_seals: seals that fall into one bucket.
    """

    def __init__(self, inner: Store, seal_ids: int, bucket_seals: int) -> None:
        self._inner = inner
        self.seal_ids = seal_ids
        self.bucket_seals = bucket_seals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, kind: Blob, slot: Slot) -> list[bytes]:
        """Return the chunks of a slot; those of a segment are made."""
        if kind is not Blob.SEGMENT:
            return self._inner.get(kind, slot)
        return segment_chunks(self.parts(slot.seq))

    def parts(self, seq: int) -> tuple[Part, ...]:
        """Return what the seal of this seq decides."""
        ids = self.ids(seq)
        bucket = Bucket.at(Origin.EXTERNAL, self.lane_time_ms(seq))
        return (Part(bucket, to_raw(ids.take(order(ids), axis=0))),)

    def ids(self, seq: int) -> Ids:
        """Return the ids of a seal, in the order of their numbers."""
        first = (seq - 1) * self.seal_ids
        return hash_rows(names(np.arange(first, first + self.seal_ids, dtype=np.uint64)))

    def lane_time_ms(self, seq: int) -> int:
        """Return the lane time of a seal."""
        return seq // self.bucket_seals * BUCKET_MS


class GeneratedLane:
    """A lane in the catalog of a URL, sealed as far as its head; made if it is not there."""

    def __init__(self, url: str, seal_ids: int, bucket_seals: int) -> None:
        self.store = GeneratedStore(open_store(url), seal_ids, bucket_seals)
        self.catalog = Catalog(self.store)
        row = self.catalog.load(NAME)
        if row is None:
            ref = HeadRef(INCARNATION, 0, Attempt(bytes(16)))
            self.head = Head(ref=ref, frontier=Frontier())
            assert self.catalog.create(NAME, self.head, self._seal(ref, ()))
        else:
            self.head = row.head

    @property
    def count(self) -> int:
        """How many ids are sealed."""
        return self.head.ref.seq * self.store.seal_ids

    def append(self, parts: tuple[Part, ...] | None = None) -> tuple[Seal, tuple[Part, ...]]:
        """Seal what the next seq generates, or these parts, which are then nowhere to be read."""
        seq = self.head.ref.seq + 1
        parts = self.store.parts(seq) if parts is None else parts
        ref = HeadRef(self.head.ref.incarnation, seq, Attempt(seq.to_bytes(16)))
        seal = self._seal(ref, parts)
        head = advance(self.head, seal)
        assert self.catalog.append(NAME, self.head.ref, head, seal)
        self.head = head
        return seal, parts

    def restore(self, seq: int, incarnation: Incarnation) -> None:
        """Go back to a seq, as a backup from then does: in a new incarnation, the later ids free."""
        before = self.load()
        head = replace(
            before,
            ref=HeadRef(incarnation, seq, Attempt(seq.to_bytes(16))),
            lane_time_ms=self.store.lane_time_ms(seq),
            minted_at_ms=seq + 1,
            past=(*before.past, Kept(before.ref.incarnation, seq)),
        )
        row = LaneRow(head=head, ack=Ack(incarnation, 0), collected=0)
        assert self.catalog.reincarnate(NAME, before.ref, row)
        self.head = head

    def load(self) -> Head:
        """Read the head that the lane has now."""
        row = self.catalog.load(NAME)
        assert row is not None
        self.head = row.head
        return self.head

    def close(self) -> None:
        """Close the catalog."""
        self.catalog.store.close()

    def _seal(self, ref: HeadRef, parts: tuple[Part, ...]) -> Seal:
        return Seal(
            ref=ref,
            start=Frontier(),
            end=Frontier(),
            minted_at_ms=ref.seq + 1,
            lane_time_ms=self.store.lane_time_ms(ref.seq),
            segment=blob_ref(segment_chunks(parts), sum(part.count for part in parts)),
        )
