"""All decided ids of a lane as this process holds them, and the head that they are exact for.

What it is: `Contents`: the groups, who belongs to which, what is asked of them and when they go.
What it must not know: where ids are read from, manifests, locks.

Invariants:
    Every id sealed up to `tag` is in a group, unless no record can repeat it any more. While `tag`
    is None, nothing may be asked.
    External ids are one group: each may be in any bucket of the window. An internal id is in the
    bucket of its minted-at and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids, Mask
from dedup.expiry import forgettable, outlived
from dedup.formats.segment import Bucket, Origin, Part
from dedup.local.group import EXTERNAL, Found, Group, Held, Lens, unit_buckets
from dedup.local.limits import Limits
from dedup.local.overlay import Chunk, SealOf
from dedup.local.shared import Recipe, SharedFilter
from dedup.local.stats import Counters
from dedup.model import Head, HeadRef

#: The bucket that says of an id that it is external.
NO_BUCKET = -1


class Contents:
    """The groups of a lane.

    Args:
        recipe: how filters are made.
        window_ms: how long external ids are held.
        fresh: returns a path for a new file.
        bare: make no filters yet; a rebuild makes them at its end, of the right size.
    """

    def __init__(
        self,
        recipe: Recipe,
        window_ms: int,
        limits: Limits,
        fresh: Callable[[str], Path],
        *,
        bare: bool = False,
    ) -> None:
        self.tag: HeadRef | None = None
        #: Up to here every id is in a run.
        self.flushed: HeadRef | None = None
        self.groups: dict[Bucket, Group] = {}
        #: The seq of the last head by which something was forgotten.
        self.forgotten = -1
        self.bare = bare
        #: Seals whose ids came into the overlay since it was last written or set aside.
        self.seals = 0
        self._recipe = recipe
        self._window_ms = window_ms
        self._limits = limits
        self._fresh = fresh

    @property
    def chunked(self) -> int:
        """How many ids are in anonymous memory."""
        return sum(group.chunked for group in self.groups.values())

    @property
    def pending(self) -> int:
        """How many of them are not being written."""
        return sum(group.chunks.pending for group in self.groups.values())

    @property
    def full(self) -> bool:
        """Whether the overlay is to be written."""
        limits = self._limits
        if self.bare:
            return self.pending >= limits.rebuild_ids
        share = int(self.count * limits.overlay_share)
        bound = max(limits.overlay_ids_min, min(limits.overlay_ids_max, share))
        return self.pending >= bound or self.seals >= limits.overlay_seals_max

    @property
    def count(self) -> int:
        """How many ids are held."""
        return sum(group.count for group in self.groups.values())

    @property
    def runs(self) -> list[Held]:
        """All runs."""
        return [held for group in self.groups.values() for held in group.runs]

    def apart(self, base: int) -> bool:
        """Whether enough is in runs that no manifest names; `base`: the seq of the last manifest."""
        limits, runs = self._limits, self.runs
        news = sum(held.run.count for held in runs if not held.placed)
        ids = sum(held.run.count for held in runs)
        enough = min(limits.apart_ids_max, int(limits.apart_share * ids))
        seals = 0 if self.flushed is None else self.flushed.seq - base
        return news >= enough or seals >= limits.overlay_seals_max

    def new_group(self, bucket: Bucket) -> Group:
        """Return a group without a filter, and do not remember it."""
        return Group(bucket, unit_buckets(self._window_ms), None)

    def new_filter(self, bucket: Bucket, expected: int) -> SharedFilter:
        """Make an empty filter with room for more ids than expected."""
        capacity = max(self._limits.first_ids, int(expected * self._limits.filter_room))
        return SharedFilter.create(self._recipe, self._fresh("filter"), bucket, capacity)

    def add(self, part: Part, seal: SealOf | None) -> None:
        """Take the ids of a part, plain (of `seal`) or merged (None)."""
        group = self._group(part.bucket)
        group.see(part.seen)
        if part.count:
            chunk = Chunk.of(part, seal)
            if group.filter is not None:
                group.filter.add(chunk.ids)
            group.chunks.add(chunk)

    def ask(
        self, ids: Ids, buckets: npt.NDArray[np.int64] | None, lens: Lens, counters: Counters
    ) -> Mask:
        """Tell of each id whether it was decided."""
        counters.probes += len(ids)
        external = self.groups.get(EXTERNAL)
        if buckets is None or (buckets == NO_BUCKET).all():
            if external is None:
                return np.zeros(len(ids), dtype=np.bool_)
            return external.ask(ids, lens, counters)
        known = np.zeros(len(ids), dtype=np.bool_)
        for number in np.unique(buckets).tolist():
            at = np.flatnonzero(buckets == number)
            some = ids.take(at, axis=0)
            for group in [external] if number == NO_BUCKET else self._covering(number):
                if group is not None:
                    known[at] |= group.ask(some, lens, counters)
        return known

    def find(self, ids: Ids, lens: Lens, counters: Counters, *, seals: bool) -> Found:
        """Find ids in every group, with the seals they came from or with their digests."""
        found = Found.empty(len(ids), seals=seals, digests=not seals)
        for group in self.groups.values():
            at = np.flatnonzero(~found.known)
            if group.filter is not None:
                at = at[group.filter.maybe(ids.take(at, axis=0))]
            if len(at):
                part = Found.empty(len(at), seals=seals, digests=not seals)
                group.look_up(ids.take(at, axis=0), part, lens, counters)
                found.put(at, part)
        return found

    def fill_filters(self) -> None:
        """Make a filter for every group that has none, of the right size."""
        for group in self.groups.values():
            if group.filter is None:
                made = self.new_filter(group.bucket, group.count)
                for held in group.runs:
                    for ids in held.pieces():
                        made.add(ids)
                for chunk in group.chunks.all:
                    made.add(chunk.ids)
                group.filter = made
        self.bare = False

    def forget(self, head: Head) -> bool:
        """Let go of what no record can repeat any more; tell whether anything went."""
        went = False
        for bucket, group in list(self.groups.items()):
            if group.external:
                went |= group.forget(lambda one: outlived(one, head.lane_time_ms, self._window_ms))
            elif forgettable(group.bounds(), head, self._window_ms):
                went |= group.count > 0
                del self.groups[bucket]
                if group.filter is not None:
                    group.filter.close()
        if went:
            self.forgotten = head.ref.seq
        return went

    def close(self) -> None:
        """Let go of every file."""
        for group in self.groups.values():
            if group.filter is not None:
                group.filter.close()
        self.groups = {}
        self.tag = None

    def _group(self, bucket: Bucket) -> Group:
        name = EXTERNAL if bucket.origin is Origin.EXTERNAL else bucket
        group = self.groups.get(name)
        if group is None:
            group = self.new_group(name)
            if not self.bare:
                group.filter = self.new_filter(name, self._expected(name))
            self.groups[name] = group
        return group

    def _expected(self, bucket: Bucket) -> int:
        """Guess the size of an internal bucket from the one before it."""
        before = [group for group in self.groups.values() if group.bucket.origin is bucket.origin]
        return max(before, key=lambda group: group.bucket).count if before else 0

    def _covering(self, number: int) -> Iterator[Group]:
        for bucket, group in self.groups.items():
            if not group.external and bucket.number <= number < bucket.number + bucket.span:
                yield group
