"""The newest ids, in anonymous memory: sorted chunks, one a seal until they are put together.

What it is: `Chunk`, `Chunks` (those of one group) with `Lines` to look through all of them at once,
and `merged`, which also makes what a run is written from.
What it must not know: files, filters, catalogs, heads.

Invariants:
    The ids of a chunk are sorted and unique, and all of one unit.
    An id keeps the seal it came from; of the same id twice, the oldest seal wins.
    There are at most CHUNKS_MAX chunks to look through, however small bundles are, and as many that
    are set aside: of these none is put together with others, and none comes in front of another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids, Mask, Places, from_raw, ordered
from dedup.compiled.kernels import kernels
from dedup.formats.segment import Bucket, Part
from dedup.model import Incarnation

#: Chunks of one group before some are put together: a look-up goes through each.
CHUNKS_MAX = 16
#: So many of the youngest are put together at least, so that it is not done for every bundle.
CHUNKS_AT_ONCE = 8
#: A chunk is put together with younger ones once these are at least half as many ids, so that each
#: id is moved a logarithm of times.
GROWN_TIMES = 2

#: Ids that are sorted at once where chunks are put together: 512 KiB, and as much again for sorting.
MERGED_AT_ONCE = 1 << 15

#: So many chunks are looked through one by one as quickly as all at once.
LINES_FROM = 3
#: Leading bits that decide which line an id stands in: half a megabyte, and with as many ids as an
#: overlay has at most about one in each.
LINE_BITS = 17
#: Ids that somebody chose may all stand in one line: nobody waits longer than this.
LINE_MAX = 32
#: Room for so many more is made at once. What was made stays, so it is made a dozen times in the life of
#: a lane; twice as much each time would be three bytes in ten of all that ids take of the memory.
ROOM_STEP = 1 << 14
#: Nobody stands there.
NOBODY = -1

#: Where an id comes from.
SealOf = tuple[Incarnation, int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sorted ids, and of each the seal and the digest."""

    #: The smallest bucket that covers all of them.
    bucket: Bucket
    ids: Ids
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
        return Chunk(part.bucket, ids, origins, origin_of, digests)

    @property
    def nbytes(self) -> int:
        """What it takes of the memory."""
        parts = (self.ids, self.origin_of, self.digests)
        return sum(part.nbytes for part in parts if part is not None)

    def find(self, ids: Ids) -> Places:
        """Return the row of each id, -1 where it is not there."""
        if not len(self.ids):
            return np.full(len(ids), -1, dtype=np.intp)
        high = np.ascontiguousarray(self.ids[:, 0])
        rows = np.searchsorted(high, ids[:, 0])
        rows[rows == len(high)] = 0  # behind the last: any row will do, it differs
        near = high.take(rows) == ids[:, 0]
        exact = near & (self.ids[:, 1].take(rows) == ids[:, 1])
        # Ids that a stranger chose may agree in the high half; random ones never come here.
        for at in np.flatnonzero(near & ~exact).tolist():
            end = int(np.searchsorted(high, ids[at, 0], side="right"))
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
    """Return one chunk with all ids, oldest chunk first.

    It is made piece by piece of the id space, so that what sorting takes stays in the processor's
    caches, and out of a thread's fresh memory.
    """
    found_in = dict.fromkeys(origin for chunk in chunks for origin in chunk.origins)
    origins = sorted(found_in, key=lambda origin: origin[1])
    index = {origin: at for at, origin in enumerate(origins)}
    numbers = [np.array([index[one] for one in chunk.origins], np.uint32) for chunk in chunks]
    count = sum(len(chunk.ids) for chunk in chunks)
    digested = all(chunk.digests is not None for chunk in chunks)
    ids = np.empty((count, 2), dtype=np.uint64)
    origin_of = np.empty(count, dtype=np.uint32)
    digests = np.empty(count if digested else 0, dtype=np.uint16)
    end = 0
    for rows in _pieces(chunks, count):
        parts = list(zip(chunks, numbers, rows, strict=True))
        some = np.concatenate([chunk.ids[at] for chunk, _, at in parts])
        of = np.concatenate([_origins_of(*part) for part in parts])
        found, tied = ordered(some)
        if len(tied) and (keep := _firsts(some.take(found, axis=0), of.take(found))) is not None:
            found = found.take(keep)
        start, end = end, end + len(found)
        some.take(found, axis=0, out=ids[start:end], mode="clip")
        of.take(found, out=origin_of[start:end], mode="clip")
        if digested:
            digests[start:end] = _digests(parts).take(found)
    return Chunk(
        covering([chunk.bucket for chunk in chunks]),
        ids[:end],
        tuple(origins),
        origin_of[:end],
        digests[:end] if digested else None,
    )


def covering(buckets: Sequence[Bucket]) -> Bucket:
    """Return the smallest bucket that covers these."""
    first = min(bucket.number for bucket in buckets)
    end = max(bucket.number + bucket.span for bucket in buckets)
    return Bucket(buckets[0].origin, first, end - first)


class Lines:
    """Whether ids are in any of some chunks, in one pass: all that share their leading bits queue.

    What it finds it finds exactly; of ids that stand in too long a queue it says so.
    """

    def __init__(self) -> None:
        self._first = np.full(1 << LINE_BITS, NOBODY, dtype=np.int32)
        self._next = np.empty(0, dtype=np.int32)
        #: All ids, in the order they came.
        self._ids: Ids = np.empty((0, 2), dtype=np.uint64)
        self._count = 0

    @property
    def nbytes(self) -> int:
        """What it takes of the memory."""
        return self._first.nbytes + self._next.nbytes + self._ids.nbytes

    def clear(self) -> None:
        """Send everybody away."""
        self._first.fill(NOBODY)
        self._count = 0

    def add(self, ids: Ids) -> None:
        """Let sorted ids queue, in front of those that are there."""
        start, end = self._count, self._count + len(ids)
        if end > len(self._next):
            self._make_room(max(end, len(self._next) + ROOM_STEP))
        self._ids[start:end] = ids
        self._count = end
        if (compiled := kernels()) is not None:
            compiled.lines_add(self._first, self._next, self._ids[:end], start)
            return
        rows = np.arange(start, end, dtype=np.int32)
        line = _line_of(ids[:, 0])
        behind = self._first.take(line)
        # Sorted ids of one line stand beside each other: all but the first are behind the one before.
        same = line[1:] == line[:-1]
        after = np.flatnonzero(same)
        behind[after + 1] = rows.take(after)
        self._next[start:end] = behind
        # Of several in one line the last is written last, and stays.
        self._first[line] = rows

    def ask(self, ids: Ids) -> tuple[Mask, Places]:
        """Tell of each id whether it is there, and of which that is not known."""
        if (compiled := kernels()) is not None:
            return compiled.lines_ask(self._first, self._next, self._ids, LINE_MAX, ids)
        known = np.zeros(len(ids), dtype=np.bool_)
        rows = self._first.take(_line_of(ids[:, 0]))
        at = np.flatnonzero(rows >= 0)
        rows = rows.take(at)
        asked = ids[:, 0].take(at)
        high, low = self._ids.T
        for _ in range(LINE_MAX):
            if not len(at):
                break
            near = np.flatnonzero(high.take(rows) == asked)
            if len(near):
                same = low.take(rows.take(near)) == ids[:, 1].take(at.take(near))
                known[at.take(near[same])] = True
            rows = self._next.take(rows)
            left = np.flatnonzero(rows >= 0)
            at, rows, asked = at.take(left), rows.take(left), asked.take(left)
        return known, at[~known.take(at)]

    def _make_room(self, count: int) -> None:
        following, ids = self._next, self._ids
        # What is not used yet is pages that nobody has touched.
        self._next = np.empty(count, dtype=np.int32)
        self._ids = np.empty((count, 2), dtype=np.uint64)
        self._next[: self._count] = following[: self._count]
        self._ids[: self._count] = ids[: self._count]


def _queued(lines: Lines, chunks: Sequence[Chunk]) -> Lines:
    """Let the ids of chunks queue. Lines that lack somebody would deny him: who fails drops them."""
    for chunk in chunks:
        lines.add(chunk.ids)
    return lines


def _count(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.ids) for chunk in chunks)


def _line_of(high: npt.NDArray[np.uint64]) -> Places:
    return (high >> np.uint64(64 - LINE_BITS)).view(np.int64)


class Chunks:
    """The chunks of one group, oldest first, each of one unit.

    Args:
        unit: chunks of different units are never put together.
        all_: what there is.
    """

    def __init__(self, unit: Callable[[Bucket], int], all_: Sequence[Chunk] = ()) -> None:
        self._unit = unit
        self.all = list(all_)
        #: How many ids are in them.
        self.count = _count(self.all)
        #: How many of them, the oldest, are set aside, and how many ids these have.
        self._aside, self._aside_count = 0, 0
        #: None: nobody has asked yet.
        self._lines: Lines | None = None

    @property
    def nbytes(self) -> int:
        """What they take of the memory."""
        lines = self._lines.nbytes if self._lines is not None else 0
        return sum(chunk.nbytes for chunk in self.all) + lines

    @property
    def pending(self) -> int:
        """How many ids are in those that are not set aside."""
        return self.count - self._aside_count

    def add(self, chunk: Chunk) -> None:
        """Take a chunk, and put some together when there are too many."""
        self.all.append(chunk)
        self.count += len(chunk.ids)
        lines, self._lines = self._lines, None
        if lines is not None:
            self._lines = _queued(lines, [chunk])
        if len(self.all) - self._aside > CHUNKS_MAX:
            self._tidy()

    def set_aside(self) -> None:
        """Leave those that are there now as they are, until they leave."""
        self._aside, self._aside_count = len(self.all), self.count

    def take_back(self) -> None:
        """Have nothing set aside."""
        self._aside, self._aside_count = 0, 0

    def holds(self, chunks: Sequence[Chunk]) -> bool:
        """Tell whether all of these are here still."""
        return {id(chunk) for chunk in chunks} <= {id(chunk) for chunk in self.all}

    def leave(self, gone: Sequence[Chunk]) -> None:
        """Let go of some chunks."""
        names = {id(chunk) for chunk in gone}
        self._aside -= sum(id(chunk) in names for chunk in self.all[: self._aside])
        self.all = [chunk for chunk in self.all if id(chunk) not in names]
        self.count, self._aside_count = _count(self.all), _count(self.all[: self._aside])
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.clear()
            self._lines = _queued(lines, self.all)

    def ask(self, ids: Ids) -> tuple[Mask, Places]:
        """Tell of each id whether it is in any chunk, and of which only a look into each can tell."""
        if len(self.all) < LINES_FROM:
            return np.zeros(len(ids), dtype=np.bool_), np.arange(len(ids))
        if self._lines is None:
            self._lines = _queued(Lines(), self.all)
        return self._lines.ask(ids)

    def by_unit(self) -> dict[int, list[Chunk]]:
        """Return the chunks of each unit."""
        return self._by_unit(self.all)

    def _by_unit(self, all_: Sequence[Chunk]) -> dict[int, list[Chunk]]:
        found: dict[int, list[Chunk]] = {}
        for chunk in all_:
            found.setdefault(self._unit(chunk.bucket), []).append(chunk)
        return found

    def _tidy(self) -> None:
        kept = self.all[: self._aside]
        for chunks in self._by_unit(self.all[self._aside :]).values():
            young = [chunks.pop()]
            count = len(young[0].ids)
            while chunks and (
                len(young) < CHUNKS_AT_ONCE or len(chunks[-1].ids) <= GROWN_TIMES * count
            ):
                young.append(chunks.pop())
                count += len(young[-1].ids)
            kept += chunks
            kept.append(merged(young[::-1]) if len(young) > 1 else young[0])
        self.all, self.count = kept, _count(kept)


#: A chunk, the numbers of its origins among all, and some of its rows.
_Rows = tuple[Chunk, npt.NDArray[np.uint32], slice]


def _pieces(chunks: Sequence[Chunk], count: int) -> Iterator[list[slice]]:
    """Yield the rows of each chunk that lie in one piece of the id space, piece by piece."""
    pieces = -(-count // MERGED_AT_ONCE)
    starts = [0] * len(chunks)
    for piece in range(1, pieces):
        bound = np.uint64((piece << 64) // pieces)
        ends = [bisect_left(chunk.ids[:, 0], bound) for chunk in chunks]
        yield [slice(start, end) for start, end in zip(starts, ends, strict=True)]
        starts = ends
    yield [slice(start, None) for start in starts]


def _origins_of(
    chunk: Chunk, numbers: npt.NDArray[np.uint32], rows: slice
) -> npt.NDArray[np.uint32]:
    if chunk.origin_of is not None:
        return numbers.take(chunk.origin_of[rows])
    return np.full(len(chunk.ids[rows]), numbers[0], dtype=np.uint32)


def _digests(parts: Sequence[_Rows]) -> npt.NDArray[np.uint16]:
    found = [chunk.digests[at] for chunk, _, at in parts if chunk.digests is not None]
    return np.concatenate(found)


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
