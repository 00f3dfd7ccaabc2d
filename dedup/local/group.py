"""Ids that are asked for together: one bucket of internal ids, or all external ids of a lane.

What it is: `Group`: one filter, the newest ids in chunks, all others in runs; its look-ups.
What it must not know: catalogs, heads, locks, manifests.

Invariants:
    The filter has the bits of every id in chunks and runs, so its No is exact.
    Chunks are asked before runs, and runs in the order of their success, each only for what was not
    found before.
    An id counts only if the seal it came from does (`Counts`), whatever file it is in.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids, Mask, Places
from dedup.compiled.kernels import kernels
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part
from dedup.local.overlay import Chunk, Chunks, SealOf
from dedup.local.shared import SharedFilter
from dedup.local.stats import BucketStats, Counters
from dedup.model import Incarnation, ReadSeq, TopicId
from dedup.runs import Run

#: The name of the group of all external ids: they share a filter, whatever their bucket.
EXTERNAL = Bucket(Origin.EXTERNAL, 0)
#: Runs of external ids never cross a border of such a share of the window, so that they can go.
UNITS_PER_WINDOW = 4
#: Ids of a run that are handed on at once.
PIECE_IDS = 1 << 20

#: Runs of all groups of a process up to this size together may stay resident wherever look-ups have
#: touched them: those of about 17 million ids.
RESIDENT_BYTES_MAX = 384 << 20
#: Beyond it a group lets go of its own once an id was asked for with every so many of their bytes.
#: Without it a few strangers a bundle, let through by the filter, make all of them resident, since
#: the system maps 64 KiB and more around each; with it about half. What was let go of costs a fault
#: of a page, a microsecond, when it is touched again: oftener, and it is half the time of a look-up.
BYTES_PER_ASKED = 1 << 10

#: What a look-up leaves of the success that earlier ones had.
HITS_KEPT = 0.9

#: Tells of a seal whether its ids count; None: all of them do.
Counts = Callable[[Incarnation, int], bool]


@dataclass(slots=True)
class Held:
    """A run, and where its file is."""

    run: Run
    path: Path
    #: The highest seq that it holds ids of.
    seq: int
    #: Whether a manifest names it; otherwise the file is in this process's workshop.
    placed: bool = False
    #: How much was found here lately; the past counts less and less.
    hits: float = 0.0
    #: Which of its origins count, and for which question that was found out.
    _mask: npt.NDArray[np.bool_] | None = None
    _mask_of: object = None

    def pieces(self) -> Iterator[Ids]:
        """Yield all its ids, some at a time; each piece is to be used before the next is asked for."""
        for first in range(0, self.run.count, PIECE_IDS):
            end = min(first + PIECE_IDS, self.run.count)
            yield np.asarray(self.run.ids[first:end], dtype=np.uint64)
            if crowded():
                self.run.release(first, end)

    def counts(self, rows: Places, question: object, counts: Counts) -> Mask:
        """Tell of each row whether its seal counts; found out once for all origins."""
        if self._mask is None or self._mask_of != question:
            origins = self.run.origins
            told = (counts(*origin) for origin in origins)
            self._mask = np.fromiter(told, dtype=np.bool_, count=len(origins))
            self._mask_of = question
        return self._mask.take(self.run.origin(rows))


@dataclass(slots=True)
class Found:
    """Where ids were found: of each id whether, and on demand its seal or its digest."""

    known: Mask
    seals: list[SealOf | None] | None = None
    digested: Mask | None = None
    digests: npt.NDArray[np.uint16] | None = None

    @staticmethod
    def empty(count: int, *, seals: bool = False, digests: bool = False) -> Found:
        """Nothing found yet."""
        return Found(
            np.zeros(count, dtype=np.bool_),
            [None] * count if seals else None,
            np.zeros(count, dtype=np.bool_) if digests else None,
            np.zeros(count, dtype=np.uint16) if digests else None,
        )

    @property
    def plain(self) -> bool:
        """Whether nothing is asked but whether."""
        return self.seals is None and self.digests is None

    def put(self, at: Places, part: Found) -> None:
        """Take over what was found for the ids at these places."""
        self.known[at] = part.known
        if self.seals is not None and part.seals is not None:
            for place, seal in zip(at.tolist(), part.seals, strict=True):
                self.seals[place] = seal
        if self.digests is not None and part.digests is not None:
            self.digests[at] = part.digests
        if self.digested is not None and part.digested is not None:
            self.digested[at] = part.digested

    def note(self, at: Places, where: Chunk | Run, rows: Places) -> None:
        """Take down that the ids at these places are in those rows."""
        self.known[at] = True
        if self.seals is not None:
            for place, index in zip(at.tolist(), where.origin(rows).tolist(), strict=True):
                origin = (
                    where.origins[index] if isinstance(where, Chunk) else where.origin_at(index)
                )
                self.seals[place] = origin
        if self.digests is not None and self.digested is not None:
            if isinstance(where, Chunk):
                digests = where.digest(rows)
            else:
                digests = where.digest(rows) if where.has_digests else None
            if digests is not None:
                self.digested[at] = True
                self.digests[at] = digests


@dataclass(frozen=True, slots=True)
class Lens:
    """Which seals count just now. `question` is equal for equal answers; None: all count."""

    question: object = None
    counts: Counts | None = None


class Group:
    """One filter and what is behind it.

    Args:
        bucket: of internal ids the bucket; `EXTERNAL` for all external ones.
        unit_buckets: how many buckets a run of external ids may cover.
        filter_: None while a rebuild goes on, which makes filters at its end.
    """

    def __init__(self, bucket: Bucket, unit_buckets: int, filter_: SharedFilter | None) -> None:
        self.bucket = bucket
        self.filter = filter_
        self.runs: list[Held] = []
        self.seen: dict[tuple[str, Incarnation, TopicId], int] = {}
        self._unit_buckets = unit_buckets
        #: Ids asked for since the pages of runs were let go of.
        self._asked = 0
        self.chunks = Chunks(self.unit)
        _everybody.add(self)

    @property
    def external(self) -> bool:
        """Whether it is the group of all external ids."""
        return self.bucket.origin is Origin.EXTERNAL

    @property
    def count(self) -> int:
        """How many ids it holds."""
        return self.chunked + sum(held.run.count for held in self.runs)

    @property
    def mapped(self) -> int:
        """How many bytes its runs have."""
        return sum(held.run.nbytes for held in self.runs)

    @property
    def chunked(self) -> int:
        """How many of them are in anonymous memory."""
        return self.chunks.count

    def unit(self, bucket: Bucket) -> int:
        """Return what a run must not reach beyond: ids of one unit may share a run."""
        return bucket.number // self._unit_buckets if self.external else 0

    def bounds(self) -> Part:
        """Return what decides whether an internal bucket may be forgotten."""
        seen = tuple(ReadSeq(*key, seq) for key, seq in sorted(self.seen.items()))
        return Part(self.bucket, b"", seen)

    def see(self, seen: tuple[ReadSeq, ...]) -> None:
        """Raise the highest seq seen of each sender."""
        for read in seen:
            self.seen[read.key] = max(read.seq, self.seen.get(read.key, -1))

    def ask(self, ids: Ids, lens: Lens, counters: Counters) -> Mask:
        """Tell of each id whether it is here: the filter first, then exactly."""
        known = np.zeros(len(ids), dtype=np.bool_)
        if self.filter is None:
            maybe = np.arange(len(ids))
        else:
            maybe = np.flatnonzero(self.filter.maybe(ids))
        counters.positives += len(maybe)
        if len(maybe):
            found = Found.empty(len(maybe))
            self.look_up(ids.take(maybe, axis=0), found, lens, counters)
            known[maybe] = found.known
            counters.false_positives += len(maybe) - int(found.known.sum())
        self._rest(len(ids))
        return known

    def look_up(self, ids: Ids, found: Found, lens: Lens, counters: Counters) -> None:
        """Find ids exactly, those that are not found yet."""
        at = self._look_up_young(ids, found, lens)
        if not len(at):
            return
        # What repeats is young where publishers retry, and anywhere where they replay.
        runs = sorted(self.runs, key=_hits, reverse=True)
        if runs and found.plain and lens.counts is None and (compiled := kernels()) is not None:
            mapped = [held.run.mapped for held in runs]
            known, asked, had = compiled.runs_hold(mapped, ids.take(at, axis=0))
            found.known[at] = known
            counters.local_reads += sum(asked)
            for held, count, hits in zip(runs, asked, had, strict=True):
                if count:  # who was not asked has not become colder
                    held.hits = held.hits * HITS_KEPT + hits
            return
        for held in runs:
            counters.local_reads += len(at)
            left = _take_down(held.run, ids, at, found, _run_counts(held, lens))
            held.hits = held.hits * HITS_KEPT + (len(at) - len(left))
            at = left
            if not len(at):
                return

    def _look_up_young(self, ids: Ids, found: Found, lens: Lens) -> Places:
        """Find ids in chunks; return the places of those that are in none."""
        at = np.flatnonzero(~found.known)
        if lens.counts is None and found.plain:
            known, unsure = self.chunks.ask(ids if len(at) == len(ids) else ids.take(at, axis=0))
            found.known[at[known]] = True
            at = at[~known]
            if not len(unsure):
                return at
        for chunk in reversed(self.chunks.all):
            at = _take_down(chunk, ids, at, found, _chunk_counts(chunk, lens))
            if not len(at):
                break
        return at

    def _rest(self, asked: int) -> None:
        """Let go of the pages of runs, now and then: they are copies in the system's cache."""
        self._asked += asked
        if self._asked * BYTES_PER_ASKED >= self.mapped:
            self._asked = 0
            if crowded():
                for held in self.runs:
                    held.run.release()

    def news(self) -> Iterator[Ids]:
        """Yield the ids that no manifest names."""
        for held in self.runs:
            if not held.placed:
                yield from held.pieces()
        for chunk in self.chunks.all:
            yield chunk.ids

    def forget(self, forgotten: Callable[[Bucket], bool]) -> bool:
        """Let go of external ids whose bucket may be forgotten; tell whether any went."""
        runs = [held for held in self.runs if not forgotten(held.run.bucket)]
        chunks = [chunk for chunk in self.chunks.all if not forgotten(chunk.bucket)]
        if len(runs) == len(self.runs) and len(chunks) == len(self.chunks.all):
            return False
        self.runs, self.chunks = runs, Chunks(self.unit, chunks)
        return True

    def stats(self) -> BucketStats | None:
        """Say how large and how full it is."""
        if self.filter is None:
            return None
        return BucketStats(
            bucket=self.bucket,
            ids=self.count - self.chunked,
            runs=len(self.runs),
            fill=self.filter.filter.fill(),
            rate=self.filter.filter.rate(),
            filter_bytes=self.filter.filter.nbytes,
            saturated=self.filter.saturated,
        )


class _Everybody:
    """The groups of this process, of whatever lane and thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: weakref.WeakSet[Group] = weakref.WeakSet()

    def add(self, group: Group) -> None:
        """Take note of one; it leaves by itself."""
        with self._lock:
            self._groups.add(group)

    @property
    def mapped(self) -> int:
        """How many bytes the runs of all of them have."""
        with self._lock:
            groups = list(self._groups)
        return sum(group.mapped for group in groups)


_everybody = _Everybody()


def crowded() -> bool:
    """Tell whether the runs of this process are more than may stay resident."""
    return _everybody.mapped > RESIDENT_BYTES_MAX


def unit_buckets(window_ms: int) -> int:
    """Return how many buckets a run of external ids may cover."""
    return max(1, window_ms // UNITS_PER_WINDOW // BUCKET_MS)


#: Tells of rows whether they count.
_Rows = Callable[[Places], Mask]


def _hits(held: Held) -> float:
    return held.hits


def _take_down(
    where: Chunk | Run, ids: Ids, at: Places, found: Found, counts: _Rows | None
) -> Places:
    """Look for the ids at some places; return the places that are left."""
    rows = where.find(ids if len(at) == len(ids) else ids.take(at, axis=0))
    hit = rows >= 0
    if counts is not None and hit.any():
        hit[hit] = counts(rows[hit])
    if not hit.any():
        return at
    found.note(at[hit], where, rows[hit])
    return at[~hit]


def _chunk_counts(chunk: Chunk, lens: Lens) -> _Rows | None:
    counts = lens.counts
    if counts is None:
        return None
    told = np.array([counts(*origin) for origin in chunk.origins], dtype=np.bool_)
    return lambda rows: told.take(chunk.origin(rows))


def _run_counts(held: Held, lens: Lens) -> _Rows | None:
    counts = lens.counts
    if counts is None:
        return None
    return lambda rows: held.counts(rows, lens.question, counts)
