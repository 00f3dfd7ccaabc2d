"""The newest ids, in anonymous memory: sorted chunks, one a seal until they are put together.

What it is: `Chunk`, `Chunks` (those of one group), and `merged`, which also makes what a run is
written from.
What it must not know: files, filters, catalogs, heads.

Invariants:
    The ids of a chunk are sorted and unique, and all of one unit.
    An id keeps the seal it came from; of the same id twice, the oldest seal wins.
    There are at most CHUNKS_MAX chunks to look through, however small bundles are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids, Mask, Places, from_raw, order
from dedup.formats.segment import Bucket, Part
from dedup.model import Incarnation

#: Chunks of one group before some are put together: a look-up goes through each.
CHUNKS_MAX = 16
#: So many of the youngest are put together at least, so that it is not done for every bundle.
CHUNKS_AT_ONCE = 8
#: A chunk is put together with younger ones once these are at least half as many ids, so that each
#: id is moved a logarithm of times.
GROWN_TIMES = 2

#: Where an id comes from.
SealOf = tuple[Incarnation, int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sorted ids, and of each the seal and the digest."""

    #: The smallest bucket that covers all of them.
    bucket: Bucket
    ids: Ids
    #: The high halves side by side, for searching.
    high: npt.NDArray[np.uint64]
    origins: tuple[SealOf, ...]
    #: For each id an index into `origins`; None: there is only one.
    origin_of: npt.NDArray[np.uint32] | None
    #: None: the stage does not ask for digests.
    digests: npt.NDArray[np.uint16] | None

    @staticmethod
    def of(part: Part, seal: SealOf | None) -> Chunk:
        """Take the ids of a part, plain (of `seal`) or merged (None: it says so itself)."""
        ids = from_raw(part.ids)
        origin_of = None
        if part.origins:
            origins = part.origins
            origin_of = part.indexes().astype(np.uint32)
        else:
            assert seal is not None, "a plain part is of one seal"
            origins = (seal,)
        digests = np.frombuffer(part.digests, dtype="<u2") if part.digests else None
        return Chunk(part.bucket, ids, np.ascontiguousarray(ids[:, 0]), origins, origin_of, digests)

    @property
    def nbytes(self) -> int:
        """What it takes of the memory."""
        parts = (self.ids, self.high, self.origin_of, self.digests)
        return sum(part.nbytes for part in parts if part is not None)

    def find(self, ids: Ids) -> Places:
        """Return the row of each id, -1 where it is not there."""
        if not len(self.high):
            return np.full(len(ids), -1, dtype=np.intp)
        rows = np.searchsorted(self.high, ids[:, 0])
        rows[rows == len(self.high)] = 0  # behind the last: any row will do, it differs
        near = self.high.take(rows) == ids[:, 0]
        exact = near & (self.ids[:, 1].take(rows) == ids[:, 1])
        # Ids that a stranger chose may agree in the high half; random ones never come here.
        for at in np.flatnonzero(near & ~exact).tolist():
            end = int(np.searchsorted(self.high, ids[at, 0], side="right"))
            low = self.ids[rows[at] : end, 1]
            place = int(np.searchsorted(low, ids[at, 1]))
            if place < len(low) and low[place] == ids[at, 1]:
                rows[at] += place
                exact[at] = True
        rows[~exact] = -1
        return rows

    def origin(self, rows: Places) -> npt.NDArray[np.uint32]:
        """Return the index into `origins` for rows."""
        if self.origin_of is None:
            return np.zeros(len(rows), dtype=np.uint32)
        return self.origin_of.take(rows)

    def digest(self, rows: Places) -> npt.NDArray[np.uint16] | None:
        """Return the digests of rows."""
        return None if self.digests is None else self.digests.take(rows)


def merged(chunks: Sequence[Chunk]) -> Chunk:
    """Return one chunk with all ids, oldest chunk first."""
    ids = np.concatenate([chunk.ids for chunk in chunks])
    index: dict[SealOf, int] = {}
    columns = []
    for chunk in chunks:
        numbers = np.array(
            [index.setdefault(origin, len(index)) for origin in chunk.origins], dtype=np.uint32
        )
        if chunk.origin_of is None:
            columns.append(np.full(len(chunk.ids), numbers[0], dtype=np.uint32))
        else:
            columns.append(numbers.take(chunk.origin_of))
    origins = sorted(index, key=lambda origin: origin[1])
    if origins != list(index):
        renumbered = np.empty(len(index), dtype=np.uint32)
        for number, origin in enumerate(origins):
            renumbered[index[origin]] = number
        columns = [renumbered.take(column) for column in columns]
    found = order(ids)
    ids = ids.take(found, axis=0)
    origin_of = np.concatenate(columns).take(found)
    digests = _digests(chunks)
    digests = None if digests is None else digests.take(found)
    keep = _firsts(ids, origin_of)
    if keep is not None:
        ids, origin_of = ids.take(keep, axis=0), origin_of.take(keep)
        digests = None if digests is None else digests.take(keep)
    return Chunk(
        covering([chunk.bucket for chunk in chunks]),
        ids,
        np.ascontiguousarray(ids[:, 0]),
        tuple(origins),
        origin_of,
        digests,
    )


def covering(buckets: Sequence[Bucket]) -> Bucket:
    """Return the smallest bucket that covers these."""
    first = min(bucket.number for bucket in buckets)
    end = max(bucket.number + bucket.span for bucket in buckets)
    return Bucket(buckets[0].origin, first, end - first)


@dataclass(slots=True)
class Chunks:
    """The chunks of one group, oldest first, each of one unit."""

    #: Chunks of different units are never put together.
    unit: Callable[[Bucket], int]
    all: list[Chunk] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Take a chunk, and put some together when there are too many."""
        self.all.append(chunk)
        if len(self.all) > CHUNKS_MAX:
            self._tidy()

    def by_unit(self) -> dict[int, list[Chunk]]:
        """Return the chunks of each unit."""
        found: dict[int, list[Chunk]] = {}
        for chunk in self.all:
            found.setdefault(self.unit(chunk.bucket), []).append(chunk)
        return found

    def _tidy(self) -> None:
        kept: list[Chunk] = []
        for chunks in self.by_unit().values():
            young = [chunks.pop()]
            count = len(young[0].ids)
            while chunks and (
                len(young) < CHUNKS_AT_ONCE or len(chunks[-1].ids) <= GROWN_TIMES * count
            ):
                young.append(chunks.pop())
                count += len(young[-1].ids)
            kept += chunks
            kept.append(merged(young[::-1]) if len(young) > 1 else young[0])
        self.all = kept


def _digests(chunks: Sequence[Chunk]) -> npt.NDArray[np.uint16] | None:
    """Return all digests, or None as soon as some ids have none."""
    found = [chunk.digests for chunk in chunks]
    if any(column is None for column in found):
        return None
    return np.concatenate([column for column in found if column is not None])


def _firsts(ids: Ids, origin_of: npt.NDArray[np.uint32]) -> Places | None:
    """Return the rows to keep of sorted ids, one an id, or None if that is all."""
    again: Mask = (ids[1:, 0] == ids[:-1, 0]) & (ids[1:, 1] == ids[:-1, 1])
    if not again.any():
        return None
    starts = np.flatnonzero(np.concatenate(([True], ~again)))
    oldest = np.minimum.reduceat(origin_of, starts)
    ends = np.append(starts[1:], len(ids))
    best = starts.copy()
    for at in np.flatnonzero(ends - starts > 1).tolist():
        rows = range(int(starts[at]), int(ends[at]))
        best[at] = next(row for row in rows if origin_of[row] == oldest[at])
    return best
