"""A filter file that several processes of a host set bits in, each for ids it has seen sealed.

What it is: `SharedFilter`: the mapped filter, the lock on its bits, and a filter at its side for
bits that could not be set because somebody else held that lock.
What it must not know: runs, manifests, what the ids are.

Invariants:
    Bits are set under a lock on the file ITSELF, so that whoever maps the same bits meets the same
    lock, whatever has been deleted or replaced around it. Setting a bit reads, changes and writes a
    word; two processes at once would lose bits, and that is the one thing a filter may not do.
    `maybe` is never False for an id that was added here.
    Bits that are in no manifest yet, or never will be, are harmless: they cost a look-up.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dedup.arrays import Ids, Mask
from dedup.filters import Filter, Filters, create_filter, new_filter, open_filter, saturated
from dedup.formats.segment import Bucket
from dedup.model import HeadRef

#: Ids that the filter at the side is made for; with twice as many everything gets a file of its own.
SIDE_IDS = 1 << 18

#: A larger filter takes time to make, and ids come in meanwhile.
FULL_SHARE = 0.95
#: A filter with so many times the ids that it was made for waits in vain for a larger one.
OVERFULL_TIMES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the filters of a lane are made."""

    lane: str
    filters: Filters


class SharedFilter:
    """A filter file, and who may set its bits."""

    def __init__(self, recipe: Recipe, path: Path, filter_: Filter, lock: int) -> None:
        self.path = path
        self.filter = filter_
        self._recipe = recipe
        self._lock = lock
        self._side: Filter | None = None

    @staticmethod
    def create(recipe: Recipe, path: Path, bucket: Bucket, capacity: int) -> SharedFilter:
        """Make an empty one."""
        made = create_filter(
            path,
            capacity,
            lane=recipe.lane,
            bucket=bucket,
            engine=recipe.filters.engine,
            rate=recipe.filters.rate,
            key=recipe.filters.key,
        )
        return SharedFilter(recipe, path, made, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    @staticmethod
    def open(recipe: Recipe, path: Path, bucket: Bucket) -> SharedFilter | None:
        """Map one that is there, or None."""
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        found = open_filter(
            path, lane=recipe.lane, bucket=bucket, engine=recipe.filters.engine, writable=True
        )
        if found is None:
            os.close(lock)
            return None
        return SharedFilter(recipe, path, found, lock)

    @property
    def beside(self) -> bool:
        """Tell whether some bits are only in the filter at the side."""
        return self._side is not None

    @property
    def full(self) -> bool:
        """Tell whether it is about to hold more than it was made for."""
        return self.filter.count > FULL_SHARE * self.filter.capacity

    @property
    def saturated(self) -> bool:
        """Tell whether it has become a burden, and is not about to be made larger; reads every bit."""
        growing = self.full and self.filter.count < OVERFULL_TIMES * self.filter.capacity
        return not growing and saturated(self.filter)

    @property
    def overrun(self) -> bool:
        """Tell whether the filter at the side has taken twice what it was made for."""
        return self._side is not None and self._side.count > 2 * self._side.capacity

    @property
    def anonymous_bytes(self) -> int:
        """What it takes of anonymous memory."""
        return 0 if self._side is None else self._side.nbytes

    def add(self, ids: Ids) -> None:
        """Set the bits of ids, at the side if it must be."""
        with self._bits() as held:
            if held:
                self.filter.add(ids)
                return
        if self._side is None:
            how = self._recipe.filters
            self._side = new_filter(SIDE_IDS, engine=how.engine, rate=how.rate, key=how.key)
        self._side.add(ids)

    def maybe(self, ids: Ids) -> Mask:
        """Tell of each id whether it may have been added."""
        found = self.filter.maybe(ids)
        if self._side is not None:
            found |= self._side.maybe(ids)
        return found

    def settle(self, tag: HeadRef, ids: Iterable[Ids]) -> bool:
        """Set every bit that is only at the side, and the tag; False if the lock is not to be had.

        `ids`: at least those that were added and are in no manifest.
        """
        with self._bits() as held:
            if not held:
                return False
            if self._side is not None:
                for some in ids:
                    self.filter.add(some)
                self._side.close()
                self._side = None
            self.filter.set_tag(tag)
            return True

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        self.filter.close()
        if self._side is not None:
            self._side.close()
            self._side = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextmanager
    def _bits(self) -> Iterator[bool]:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
