"""Which ids a lane has decided, at array speed: filters first, then runs on this host's disk.

What it is: `LaneIndex`, the columnar successor of `dedup.index.ExactIndex`, which stays what it is
measured against.
What it must not know: where records come from, or what their marks mean.

Invariants:
    The index is exact for `tag`, a head on the lane's history. A tag that is not on it, or whose
    entry was collected, is worth nothing: everything is built anew from the catalog.
    The tag moves to a seal only AFTER the ids of every seal up to it are in, whoever won them.
    A filter's No is exact; its Yes is looked up. So losing filters, runs, all of this host's files,
    costs time, never correctness.
    One process uses one object; objects and processes of a host share files, and never wait for
    each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids, Mask, pack
from dedup.catalog.catalog import Catalog
from dedup.errors import Unavailable
from dedup.filters import Filters
from dedup.formats.segment import Part
from dedup.local.alarm import END_BYTES, Alarm
from dedup.local.group import Lens
from dedup.local.home import At, Home, nowhere
from dedup.local.intake import Gap, Intake, kept
from dedup.local.keeper import Keeper
from dedup.local.limits import LIMITS, Limits
from dedup.local.manifest import Manifest
from dedup.local.overlay import SealOf
from dedup.local.shared import Recipe
from dedup.local.stats import Counters, Stats
from dedup.model import Head, HeadRef, RecordId, Seal

#: A rebuild reads the segment list and then the entries behind it; a collector may move an entry
#: into the list in between, and then it is all read again.
REBUILDS_MAX = 10

#: How filters are made unless a user chooses.
FILTERS = Filters()


class LaneIndex:
    """The decided ids of one lane.

    Args:
        catalog: where the segments are.
        lane: whose ids.
        window_ms: how long external ids are held, along lane time.
        home: where this host keeps them between processes; None: this process alone has them.
        filters: how filters are made; files of others are made anew from the runs beside them.
        limits: how much is kept where.
        at: is told each step that must survive being killed; for tests.
    """

    def __init__(
        self,
        catalog: Catalog,
        lane: str,
        *,
        window_ms: int,
        home: Home | None = None,
        filters: Filters = FILTERS,
        limits: Limits = LIMITS,
        at: At = nowhere,
    ) -> None:
        self._lane = lane
        self._limits = limits
        self._intake = Intake(catalog, lane)
        place = None if home is None else home.place(catalog.store.url, lane, at)
        recipe = Recipe(lane=lane, filters=filters)
        self._keeper = Keeper(recipe, window_ms, limits, place, at)
        self._head: Head | None = None
        self._lens = Lens()
        self._alarm = Alarm(lane)
        #: Flushes at the last look at the filters.
        self._flushes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def tag(self) -> HeadRef | None:
        """The head that the index is exact for."""
        return self._keeper.contents.tag

    def close(self) -> None:
        """Leave everything to the next process of this host, and no thread. May be called twice."""
        if self._head is not None:
            groups = self._keeper.contents.groups.values()
            self._alarm.look(groups, self.counters, spare_bytes=END_BYTES)
        self._keeper.close(self._fits)
        self._head = None

    def settle(self) -> None:
        """Wait until nothing is left to merge: for whoever measures what comes after it."""
        while self._keeper.upkeep(self._fits, wait=True):
            pass

    # Catching up ------------------------------------------------------------------------------

    def catch_up(self, head: Head) -> None:
        """Make the index exact for `head`.

        Raises:
            Corrupt: ids that must be there are not.
            Unavailable: the catalog or this host's disk did not answer; call again.
        """
        before, self._head = self._head, head
        if self.tag is None:
            self._keeper.load(self._fits)
        if self.tag != head.ref and not self._follow(head):
            # Another process may have left files of this very history.
            self._keeper.begin()
            if not (self._keeper.load(self._fits) and self._follow(head)):
                self._rebuild(head)
        if before != head and not self._is_beyond(head):
            self._keeper.forget(head)
        self._look(head)
        self._upkeep(head)

    def took(self, seal: Seal, parts: Sequence[Part]) -> bool:
        """Take the ids of a seal that this process has WON; False if they are to be read instead.

        Args:
            seal: the entry that was appended.
            parts: all of what its segment holds.

        SUBTLE: only the direct successor of the tag, in its incarnation. There is one entry at
        that place for ever, and the caller won it; so nothing lies between, and nothing else can
        lie there. For any other seal somebody else's ids may lie between: `catch_up` reads them.
        """
        tag = self.tag
        if tag is None or self._head is None:
            return False
        if (seal.ref.incarnation, seal.ref.seq) != (tag.incarnation, tag.seq + 1):
            return False
        assert sum(part.count for part in parts) == seal.segment.rows, "all parts, and no others"
        self._add(parts, seal)
        # Of the new head what decides which seals count is known; what is forgotten waits for it.
        self._head = replace(self._head, ref=seal.ref)
        self._write_if_full()
        self._look(self._head)
        return True

    def _follow(self, head: Head) -> bool:
        """Add the segments between tag and head; False if the tag is not on the history."""
        tag = self.tag
        if tag is None:
            return False
        if self._intake.beyond(tag, head):
            return True
        if not self._intake.on_history(tag, head):
            return False
        far = head.ref.seq - tag.seq > self._limits.far_seals
        if far and self._keeper.ahead(tag.seq):
            self._keeper.load(self._fits)
        try:
            # Publishing may move the tag: another process may have been quicker.
            while (tag := self.tag) is not None and tag.seq < head.ref.seq:
                last = min(tag.seq + self._limits.seals_at_once, head.ref.seq)
                for seal in self._intake.seals(head, tag.seq + 1, last):
                    if self.tag is None or seal.ref.seq != self.tag.seq + 1:
                        break
                    self._add(self._intake.parts(seal), seal)
                    self._keeper.counters.catalog_reads += 1
                    self._write_if_full()
        except Gap:
            return False
        return True

    def _rebuild(self, head: Head) -> None:
        self._keeper.counters.rebuilds += 1
        for _ in range(REBUILDS_MAX):
            self._keeper.begin(bare=True)
            try:
                self._read_all(head)
            except Gap:
                continue
            contents = self._keeper.contents
            self._keeper.forget(head)
            contents.fill_filters()
            contents.tag = head.ref
            self._keeper.flush()
            self._keeper.publish(self._fits)
            return
        raise Unavailable(
            "rebuild the ids of a lane",
            self._lane,
            "entries went away faster than they could be read, or the catalog was put back under this "
            "lane; nothing was written: run again",
        )

    def _read_all(self, head: Head) -> None:
        """Read the segment list, and the entries behind it."""
        listed = self._intake.listed()
        upto = listed.upto if listed else -1
        # SUBTLE: list first, entries after it. An entry that a collector moves into the list
        # in between is missing from both; a gap shows it. Entries first would be as blind, and
        # one read over both tables is not to be had in every store.
        for slot, part in self._intake.listed_parts(listed.slots if listed else (), head):
            self._take(part, None if part.origins else (slot.incarnation, slot.seq))
            self._keeper.counters.catalog_reads += 1
            self._write_if_full()
        first = upto + 1
        for seals in self._intake.entries_upto(head, first, self._limits.seals_at_once):
            for seal in seals:
                for part in self._intake.parts(seal):
                    self._take(part, _seal_of(seal))
                self._keeper.counters.catalog_reads += 1
                self._write_if_full()

    def _add(self, parts: Iterable[Part], seal: Seal) -> None:
        for part in parts:
            self._take(part, _seal_of(seal))
        contents = self._keeper.contents
        contents.seals += 1
        contents.tag = seal.ref

    def _take(self, part: Part, seal: SealOf | None) -> None:
        self._keeper.contents.add(part, seal)
        self._alarm.unseen += part.count

    def _write_if_full(self) -> None:
        if self._keeper.write() and self.tag is not None:
            self._keeper.share(self._fits)
            assert self._head is not None, "ids come after a head"
            self._upkeep(self._head)

    def _upkeep(self, head: Head) -> None:
        """Adopt and do what is due, unless another process is ahead, and does it."""
        if not self._is_beyond(head):
            busy = self._keeper.upkeep(self._fits)
            self._look(head)
            flushes = self.counters.flushes
            # A larger filter may be on its way.
            if not busy and flushes != self._flushes:
                self._flushes = flushes
                self._alarm.look(self._keeper.contents.groups.values(), self.counters)

    def _fits(self, manifest: Manifest) -> bool:
        head = self._head
        if head is None:
            return False
        tag = manifest.tag
        return self._intake.on_history(tag, head) or self._intake.beyond(tag, head)

    def _is_beyond(self, head: Head) -> bool:
        return self.tag is not None and self.tag.seq > head.ref.seq

    def _look(self, head: Head) -> None:
        """Choose which seals count: all, unless there is a reason to ask each."""
        beyond = self._is_beyond(head)
        if head.past or beyond:
            question = (head.ref.incarnation, head.ref.seq if beyond else None)
            self._lens = Lens(question, partial(kept, head))
        else:
            self._lens = Lens()

    # Asking -----------------------------------------------------------------------------------

    def decided(self, ids: Ids, buckets: npt.NDArray[np.int64] | None = None) -> Mask:
        """Tell of each id whether it was decided at or before the head caught up with.

        Args:
            ids: any ids, repeats included.
            buckets: of each internal id its bucket's number, -1 for an external id; None: all are
                external.
        """
        keeper = self._keeper
        assert keeper.contents.tag is not None, "catch up before asking"
        return keeper.contents.ask(ids, buckets, self._lens, keeper.counters)

    def holds(self, record_id: RecordId) -> bool:
        """Tell whether the id was decided, whatever its bucket."""
        return self.first_seen(pack([record_id]))[0] is not None

    def first_seen(self, ids: Ids) -> list[SealOf | None]:
        """Return for each id, whatever its bucket, the seal that decided it."""
        keeper = self._keeper
        found = keeper.contents.find(ids, self._lens, keeper.counters, seals=True)
        assert found.seals is not None, "seals were asked for"
        return found.seals

    def digests_of(self, ids: Ids) -> tuple[Mask, npt.NDArray[np.uint16]]:
        """Return for each id whether its payload's digest is known, and the digest."""
        keeper = self._keeper
        found = keeper.contents.find(ids, self._lens, keeper.counters, seals=False)
        assert found.digested is not None, "digests were asked for"
        assert found.digests is not None, "digests were asked for"
        return found.digested, found.digests

    @property
    def counters(self) -> Counters:
        """What the index has done."""
        return self._keeper.counters

    @property
    def stats(self) -> Stats:
        """What the index is and has done. Reads every filter: ask now and then, not per bundle."""
        contents = self._keeper.contents
        buckets = [group.stats() for group in contents.groups.values()]
        groups = contents.groups.values()
        return Stats(
            counters=self.counters,
            buckets=tuple(one for one in buckets if one is not None),
            overlay_ids=contents.chunked,
            anonymous_bytes=sum(
                group.chunks.nbytes + (group.filter.anonymous_bytes if group.filter else 0)
                for group in groups
            ),
            filter_bytes=sum(group.filter.filter.nbytes for group in groups if group.filter),
            run_bytes=sum(group.mapped for group in groups),
        )


def _seal_of(seal: Seal) -> SealOf:
    return seal.ref.incarnation, seal.ref.seq
