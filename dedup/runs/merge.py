"""Merging sorted ids of any number in bounded memory: of runs into a run, of segments into others.

What it is: `merged`, which goes through the id space piece by piece, and `merge_runs` over files.
What it must not know: where blocks come from, which seals count; `keep` is asked for that.

Invariants:
    Of an id that occurs in several sources the oldest origin wins, whatever the order of sources.
    At most MERGE_IDS_MAX ids are in memory, however many there are, as long as sources keep to it.
    A merge of the same sources writes the same bytes, so a merge that was killed is simply repeated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids
from dedup.errors import InvalidUsage
from dedup.formats.segment import Bucket
from dedup.model import Incarnation
from dedup.runs.run import TOUCHED_BYTES_MAX, Run
from dedup.runs.write import RunWriter, Stop, never

#: Ids in memory at once while runs are merged: 1 MiB of them, and about five times that with what
#: is said about each and what sorting needs. Larger pieces leave the processor's caches.
MERGE_IDS_MAX = 1 << 16
#: A run that is merged lets go of its pages whenever so many of its ids were read.
RESIDENT_IDS = 1 << 17
#: Below this a block is not worth its overhead, so many runs at once take more memory instead.
BLOCK_IDS_MIN = 1 << 10


@dataclass(frozen=True, slots=True)
class Block:
    """Sorted ids, each once, with what is said about them."""

    ids: Ids
    #: Of each id the age of its seal: the lower the older.
    origin: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint16] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def joined(blocks: Sequence[Block]) -> Block:
        """Return blocks one behind the other; without digests unless all have them."""
        if len(blocks) == 1:
            return blocks[0]
        digests = [block.digests for block in blocks if block.digests is not None]
        return Block(
            np.concatenate([block.ids for block in blocks]),
            np.concatenate([block.origin for block in blocks]),
            np.concatenate(digests) if len(digests) == len(blocks) else None,
        )

    def take(self, rows: slice | npt.NDArray[np.generic]) -> Block:
        """Return some of the rows."""
        if isinstance(rows, slice):
            digests = None if self.digests is None else self.digests[rows]
            return Block(self.ids[rows], self.origin[rows], digests)
        # By places, `take` gathers a row of two words at once, three times as fast as indexing.
        places = (
            np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.intp, copy=False)
        )
        digests = None if self.digests is None else self.digests.take(places)
        return Block(self.ids.take(places, axis=0), self.origin.take(places), digests)


def merged(sources: Sequence[Iterator[Block]]) -> Iterator[Block]:
    """Yield the ids of all sources in order, each once, with its oldest origin.

    Each source yields blocks whose ids follow each other. What is yielded has digests only if every
    block that went into it has.
    """
    heads: list[tuple[Block, Iterator[Block]]] = []
    waiting = list(sources)
    while True:
        for source in waiting:
            block = next((block for block in source if len(block)), None)
            if block is not None:
                heads.append((block, source))
        if not heads:
            return
        bound = min((_id_at(block.ids, -1) for block, _ in heads))
        pieces, rest, waiting = [], [], []
        for block, source in heads:
            cut = _upto(block.ids, bound)
            pieces.append(block.take(slice(0, cut)))
            if cut < len(block):
                rest.append((block.take(slice(cut, None)), source))
            else:
                waiting.append(source)
        heads = rest
        yield combined(pieces)


def merge_runs(
    path: Path,
    runs: Sequence[Run],
    keep: Callable[[Incarnation, int], bool],
    *,
    stop: Stop = never,
) -> Run:
    """Write the ids of several runs of a lane as one, and open it.

    Args:
        path: its name; it may be that of one of the runs, which stays readable.
        runs: at least one, all of one lane; of buckets of one origin; the new run covers them and whatever lies between.
        keep: tells whether a seal counts; of one that does not, the ids are dropped.
        stop: asked at every piece, some milliseconds apart, however much there is to merge.

    Raises:
        InvalidUsage: buckets of both origins; nothing was written.
        Stopped: `stop` said so; the runs are as they were, and there is no new one.
    """
    assert len({run.key for run in runs}) == 1, "runs of one lane"
    bucket = _covering([run.bucket for run in runs])
    found = {origin for run in runs for origin in run.origins if keep(*origin)}
    origins = sorted(found, key=lambda origin: (origin[1], origin[0]))
    age = {origin: at for at, origin in enumerate(origins)}
    filled = [run for run in runs if run.count]
    digests = all(run.has_digests for run in filled)
    rows = max(BLOCK_IDS_MIN, MERGE_IDS_MAX // max(1, len(filled)))
    expected = sum(run.count for run in filled)
    writer = RunWriter(
        path,
        runs[0].key,
        bucket,
        expected=expected,
        origins=origins,
        digests=digests and bool(filled),
        stop=stop,
    )
    try:
        few = sum(run.nbytes for run in filled) <= TOUCHED_BYTES_MAX
        sources = [_blocks(run, age, rows, digests=digests, few=few) for run in filled]
        for piece in merged(sources):
            writer.add(piece.ids, piece.origin, piece.digests)
        return writer.finish()
    finally:
        writer.abandon()


def _covering(buckets: Sequence[Bucket]) -> Bucket:
    if len({bucket.origin for bucket in buckets}) != 1:
        raise InvalidUsage(
            "merge runs",
            f"{len(buckets)} buckets",
            "ids of publishers and ids of our own are forgotten by different rules; nothing was "
            "written: merge them apart",
        )
    first = min(bucket.number for bucket in buckets)
    end = max(bucket.number + bucket.span for bucket in buckets)
    return Bucket(buckets[0].origin, first, end - first)


def _blocks(
    run: Run,
    age: dict[tuple[Incarnation, int], int],
    rows: int,
    *,
    digests: bool,
    few: bool,
) -> Iterator[Block]:
    ages = np.array([age.get(origin, -1) for origin in run.origins], dtype=np.int64)
    run.advise(sequential=True)
    try:
        for first in range(0, run.count, rows):
            here = np.arange(first, min(first + rows, run.count), dtype=np.int64)
            origin = ages[run.origin(here)]
            values = run.digest(here) if digests else None
            block = Block(run.ids[here[0] : here[-1] + 1], origin, values)
            yield block if (origin >= 0).all() else block.take(origin >= 0)
            # Read once, and not again soon: a merge of gigabytes must not keep them all resident. But
            # others look ids up here meanwhile, and would have every page mapped anew.
            if not few and first // RESIDENT_IDS != (first + rows) // RESIDENT_IDS:
                run.release()
    finally:
        if not few:
            run.release()
        run.advise(sequential=False)


def _id_at(ids: Ids, row: int) -> tuple[int, int]:
    return int(ids[row, 0]), int(ids[row, 1])


def _upto(ids: Ids, bound: tuple[int, int]) -> int:
    """Return how many ids are at or below the bound."""
    high, low = np.uint64(bound[0]), np.uint64(bound[1])
    first = bisect_left(ids[:, 0], high)
    end = bisect_right(ids[:, 0], high, lo=first)
    return bisect_right(ids[:, 1], low, lo=first, hi=end)


def combined(pieces: Sequence[Block]) -> Block:
    """Return blocks in any order as one, sorted, of each id only the oldest."""
    pieces = [piece for piece in pieces if len(piece)] or list(pieces[:1])
    whole = Block.joined(pieces)
    if len(pieces) == 1:
        return whole
    # Each piece is sorted: a sort that goes by what is sorted already only merges them, in a third of
    # the time that sorting takes.
    high = np.ascontiguousarray(whole.ids[:, 0])
    place = np.argsort(high, kind="stable")
    high = high.take(place)
    if not (high[1:] == high[:-1]).any():
        return whole.take(place)
    # Of equal ids the oldest comes first now, and the others go.
    place = np.lexsort((whole.origin, whole.ids[:, 1], whole.ids[:, 0]))
    return whole.take(place[~_again(whole.ids[place])])


def _again(ids: Ids) -> npt.NDArray[np.bool_]:
    """Tell of each of sorted ids whether it is the one before it again."""
    again = np.zeros(len(ids), dtype=np.bool_)
    # Ids that agree in their first half are rare, and only they need a second look.
    near = np.flatnonzero(ids[1:, 0] == ids[:-1, 0]) + 1
    again[near] = ids[near, 1] == ids[near - 1, 1]
    return again
