"""Ids that a lane knows before it reads its first record: they come with its very first seal.

What it is: `Gathering`, which holds ids as they come, and `begin`, which makes a lane that starts
somewhere, and knows these ids.
What it must not know: where ids come from, topics' names, Spark, Kafka.

Invariants:
    Ids and starting frontier are one seal, seq 0, made by the one conditional write that makes the
    lane: whoever is killed before it has left nothing that counts, and there is no half of it.
    A lane that exists is never given ids: what it read until now was judged without them.
    Seeded ids are external, in the bucket of the lane time that the seal states. That is the clock
    of whoever seeds, the latest that lane time may be: they are held for a whole window from then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dedup.arrays import Ids, sorted_unique, to_raw
from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.errors import Indeterminate, InvalidUsage, Unavailable
from dedup.formats.segment import Bucket, Origin, Part, segment_chunks
from dedup.model import (
    Attempt,
    BlobRef,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    Seal,
    Slot,
    TopicId,
)

__all__ = ["SEED_IDS_MAX", "Beginning", "Gathering", "Seeds", "begin", "begun_as"]

#: Ids that one lane is seeded with at most: 256 MiB, which whoever reads a seal's ids holds at once.
SEED_IDS_MAX = 16 * 1024 * 1024
#: Ids that wait until they are sorted with the others, or as many as these are.
_LOOSE_IDS_MAX = 1024 * 1024
#: How often a creation that may have happened is looked into.
_TRIES_MAX = 5


class Gathering:
    """Ids as they come, each kept once.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int = SEED_IDS_MAX) -> None:
        self._most = most
        self._sorted: Ids = np.empty((0, 2), dtype=np.uint64)
        self._loose: list[Ids] = []
        self._waiting = 0

    def add(self, ids: Ids) -> None:
        """Take more of them.

        Raises:
            InvalidUsage: they are too many.
        """
        self._loose.append(ids)
        self._waiting += len(ids)
        if self._waiting >= max(_LOOSE_IDS_MAX, len(self._sorted)):
            self._settle()

    def __len__(self) -> int:
        """How many there are at most: some that wait may be repeats."""
        return len(self._sorted) + self._waiting

    @property
    def ids(self) -> Ids:
        """All of them, sorted."""
        self._settle()
        return self._sorted

    def _settle(self) -> None:
        if self._loose:
            self._sorted = sorted_unique(np.concatenate([self._sorted, *self._loose]))
            self._loose, self._waiting = [], 0
        if len(self._sorted) > self._most:
            raise InvalidUsage(
                "seed a lane",
                f"more than {self._most} ids",
                "nothing was written: seed those of the window alone; older repeats would be "
                "forgotten at once",
            )


@dataclass(frozen=True, slots=True)
class Seeds:
    """Ids as they are stored; the same for every lane that gets them."""

    chunks: tuple[bytes, ...] = ()
    count: int = 0

    @staticmethod
    def of(ids: Ids, lane_time_ms: int) -> Seeds:
        """Return ids, sorted and each once, in the bucket of a lane time."""
        if not len(ids):
            return Seeds()
        part = Part(Bucket.at(Origin.EXTERNAL, lane_time_ms), to_raw(ids))
        return Seeds(tuple(segment_chunks((part,))), len(ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """How a lane begins.

    Attributes:
        start: where it goes on from.
        topics: names and identities of what it reads.
        writes: identities of what it writes, by edge.
        lane_time_ms: 0, or the clock if it is seeded.
        mark: what seq 0 says in place of a version of code: who began the lane, and how.
    """

    start: Frontier
    topics: tuple[tuple[str, TopicId], ...]
    writes: tuple[TopicId, ...]
    lane_time_ms: int
    mark: str


def begun_as(catalog: Catalog, lane: str) -> str | None:
    """Return the mark of a lane's first seal; "" if it has none any more, None if it never was."""
    row = catalog.load(lane)
    if row is None:
        return None
    seal = catalog.seal(lane, row.head.incarnation_of(0), 0)
    return seal.code if seal is not None else ""


def begin(
    catalog: Catalog, lane: str, beginning: Beginning, seeds: Seeds, fresh: Callable[[], bytes]
) -> bool:
    """Make a lane; False if it was made before. The same call again is harmless.

    Raises:
        Indeterminate: it may have been made; begin it again.
        Unavailable: it was not made; begin it again.
    """
    ref = HeadRef(Incarnation(fresh()), 0, Attempt(fresh()))
    segment = _store(catalog, lane, ref, seeds)
    head = Head(
        ref=ref,
        frontier=beginning.start,
        lane_time_ms=beginning.lane_time_ms,
        topics=beginning.topics,
        writes=beginning.writes,
    )
    seal = Seal(
        ref=ref,
        start=beginning.start,
        end=beginning.start,
        minted_at_ms=0,
        lane_time_ms=beginning.lane_time_ms,
        code=beginning.mark,
        segment=segment,
        inline_segment=catalog.inline(seeds.chunks),
    )
    return _create(catalog, lane, head, seal)


def _store(catalog: Catalog, lane: str, ref: HeadRef, seeds: Seeds) -> BlobRef:
    slot = Slot(lane, ref.incarnation, ref.seq, ref.attempt)
    chunks: Sequence[bytes] = seeds.chunks
    return catalog.put(Blob.SEGMENT, slot, chunks, seeds.count)


def _create(catalog: Catalog, lane: str, head: Head, seal: Seal) -> bool:
    """Create the lane; who may have done so looks whose it is, and does the same again if nobody's."""
    for _ in range(_TRIES_MAX - 1):
        try:
            if catalog.create(lane, head, seal):
                return True
        except (Indeterminate, Unavailable):
            continue
        # SUBTLE: it exists, and maybe by a request of ours whose answer was lost.
        row = catalog.load(lane)
        return row is not None and row.head.incarnation_of(0) == head.ref.incarnation
    return catalog.create(lane, head, seal)
