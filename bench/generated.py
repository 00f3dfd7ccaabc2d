"""A lane of any number of ids that need no room: what its segments hold is computed when it is read.

What it is: `GeneratedStore`, a memory catalog whose segments are made from their seq, and
`GeneratedLane`, which seals them.
What it must not know: who reads them.

Invariants:
    The same seq has the same ids in every process, and no two seqs share one.
    A lane is a value: what one process has sealed, another one reads from a file.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dedup.arrays import Ids, order, to_raw
from dedup.catalog.catalog import Catalog, blob_ref
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import Blob
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part, segment_chunks
from dedup.model import Attempt, Frontier, Head, HeadRef, Incarnation, Seal, Slot, advance
from dedup.xxh3 import hash_rows

NAME = "bench/dedup/0"
INCARNATION = Incarnation(b"generated lane--")
NAME_BYTES = 16


def names(numbers: np.ndarray) -> np.ndarray:
    """Return the 16-byte names of records by their number."""
    rows = np.zeros((len(numbers), NAME_BYTES), dtype=np.uint8)
    rows[:, :8] = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)
    return rows


class GeneratedStore(MemoryStore):
    """Rows in memory, segments in nobody's."""

    seal_ids = 10_000
    #: Seals that fall into one bucket.
    bucket_seals = 1

    def get(self, kind: Blob, slot: Slot) -> list[bytes]:
        """Return the chunks of a slot; those of a segment are made."""
        if kind is not Blob.SEGMENT:
            return super().get(kind, slot)
        return segment_chunks(self.parts(slot.seq))

    def parts(self, seq: int) -> tuple[Part, ...]:
        """Return what the seal of this seq decides."""
        ids = self.ids(seq)
        number = self.lane_time_ms(seq) // BUCKET_MS
        return (Part(Bucket(Origin.EXTERNAL, number), to_raw(ids.take(order(ids), axis=0))),)

    def ids(self, seq: int) -> Ids:
        """Return the ids of a seal, in the order of their numbers."""
        first = (seq - 1) * self.seal_ids
        return hash_rows(names(np.arange(first, first + self.seal_ids, dtype=np.uint64)))

    def lane_time_ms(self, seq: int) -> int:
        """Return the lane time of a seal."""
        return seq // self.bucket_seals * BUCKET_MS


@dataclass
class GeneratedLane:
    """A lane, sealed as far as its head."""

    seal_ids: int
    bucket_seals: int
    store: GeneratedStore = field(default_factory=GeneratedStore)
    head: Head = field(
        default_factory=lambda: Head(
            ref=HeadRef(INCARNATION, 0, Attempt(bytes(16))), frontier=Frontier()
        )
    )

    def __post_init__(self) -> None:
        self.store.seal_ids, self.store.bucket_seals = self.seal_ids, self.bucket_seals
        self.catalog = Catalog(self.store)
        if self.catalog.load(NAME) is None:
            assert self.catalog.create(NAME, self.head, self._seal(self.head.ref, ()))

    @property
    def count(self) -> int:
        """How many ids are sealed."""
        return self.head.ref.seq * self.seal_ids

    def append(self, parts: tuple[Part, ...] | None = None) -> tuple[Seal, tuple[Part, ...]]:
        """Seal what the next seq generates, or these parts, which are then nowhere to be read."""
        seq = self.head.ref.seq + 1
        parts = self.store.parts(seq) if parts is None else parts
        ref = HeadRef(INCARNATION, seq, Attempt(seq.to_bytes(16)))
        seal = self._seal(ref, parts)
        head = advance(self.head, seal)
        assert self.catalog.append(NAME, self.head.ref, head, seal)
        self.head = head
        return seal, parts

    def save(self, path: Path) -> None:
        """Write it to a file for other processes."""
        fresh = path.with_suffix(".new")
        fresh.write_bytes(
            pickle.dumps((self.seal_ids, self.bucket_seals, self.store.tables, self.head))
        )
        fresh.replace(path)

    @staticmethod
    def load(path: Path) -> GeneratedLane:
        """Read what `save` wrote."""
        seal_ids, bucket_seals, tables, head = pickle.loads(path.read_bytes())  # noqa: S301 - ours
        return GeneratedLane(seal_ids, bucket_seals, GeneratedStore(tables), head)

    def _seal(self, ref: HeadRef, parts: tuple[Part, ...]) -> Seal:
        return Seal(
            ref=ref,
            start=Frontier(),
            end=Frontier(),
            minted_at_ms=ref.seq + 1,
            lane_time_ms=self.store.lane_time_ms(ref.seq),
            segment=blob_ref(segment_chunks(parts), sum(part.count for part in parts)),
        )
