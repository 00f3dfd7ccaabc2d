"""Which ids a lane has decided: exact, caught up from the segments of its seals.

What it is: the index a lane asks for every id that is not a remnant. This one keeps the ids
themselves; it is the reference that filters are measured against.
What it must not know: where records come from, or what their marks mean.

Invariants:
    The index is exact for `tag`, a head on the lane's history. A tag that is not on it, or whose
    entry was collected, is worth nothing: everything is built anew from the catalog.
    The tag moves to a head only AFTER the segment of every seal up to it is in, whoever won them.
    Losing the index costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dedup import arrays
from dedup.catalog.catalog import Catalog, segment_place
from dedup.catalog.store import Blob
from dedup.errors import Corrupt, Unavailable
from dedup.expiry import forgettable
from dedup.formats.segment import Bucket, Part, decode_segment, whole_segment
from dedup.model import (
    IDENTITY_BYTES,
    Head,
    HeadRef,
    Incarnation,
    ReadSeq,
    RecordId,
    Seal,
    Slot,
    TopicId,
)

#: A rebuild reads the segment list and then the entries behind it; a collector may move an entry
#: into the list in between, and then it is all read again.
REBUILDS_MAX = 10


@dataclass(slots=True)
class Ids:
    """The ids of one bucket, and the highest seq seen of each of their senders."""

    ids: set[RecordId] = field(default_factory=set)
    seen: dict[tuple[str, Incarnation, TopicId], int] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        """Take over the ids of a part."""
        self.ids.update(part)
        for read in part.seen:
            self.seen[read.key] = max(read.seq, self.seen.get(read.key, -1))

    def bounds(self, bucket: Bucket) -> Part:
        """Return what decides whether it may be forgotten: all of a part but its ids."""
        return Part(bucket, b"", tuple(ReadSeq(*key, seq) for key, seq in self.seen.items()))


@dataclass(slots=True)
class Memo:
    """What an index keeps between bundles, and hosts between processes: a cache."""

    tag: HeadRef | None = None
    buckets: dict[Bucket, Ids] = field(default_factory=dict)


class ExactIndex:
    """The decided ids of one lane.

    Args:
        catalog: where the segments are.
        lane: whose ids.
        window_ms: how long external ids are held, along lane time.
        memo: what an earlier index left; it is checked before it is trusted.
    """

    def __init__(
        self, catalog: Catalog, lane: str, window_ms: int, memo: Memo | None = None
    ) -> None:
        self._catalog = catalog
        self._lane = lane
        self._window_ms = window_ms
        self.memo = memo if memo is not None else Memo()

    def catch_up(self, head: Head) -> None:
        """Make the index exact for `head`.

        Raises:
            Corrupt: ids that must be there are not.
            Unavailable: the catalog did not answer.
        """
        if self.memo.tag == head.ref:
            self._forget(head)
        elif not self._follow(head):
            self._rebuild(head)

    def took(self, seal: Seal, parts: Sequence[Part]) -> bool:
        """Take the ids of a seal that this process has WON; False if they are to be read instead."""
        tag, ref = self.memo.tag, seal.ref
        if tag is None or (tag.incarnation, tag.seq + 1) != (ref.incarnation, ref.seq):
            return False
        for part in parts:
            self._add(part)
        self.memo.tag = ref
        return True

    def holds(self, record_id: RecordId) -> bool:
        """Tell whether the id was decided at or before the tag."""
        return any(record_id in held.ids for held in self.memo.buckets.values())

    def decided(self, ids: arrays.Ids, _buckets: npt.NDArray[np.int64]) -> arrays.Mask:
        """Tell of each id whether it was decided at or before the tag."""
        raw = arrays.to_raw(ids)
        names = (raw[at : at + IDENTITY_BYTES] for at in range(0, len(raw), IDENTITY_BYTES))
        return np.array([self.holds(RecordId(name)) for name in names], dtype=np.bool_)

    def digests_of(self, ids: arrays.Ids) -> tuple[arrays.Mask, npt.NDArray[np.uint16]]:
        """Return that no digest is known: this index keeps ids alone."""
        return np.zeros(len(ids), dtype=np.bool_), np.zeros(len(ids), dtype=np.uint16)

    def first_seen(self, ids: arrays.Ids) -> list[None]:
        """Return that nobody knows where: this index keeps ids alone."""
        return [None] * len(ids)

    def _follow(self, head: Head) -> bool:
        """Add the segments between tag and head; False if the tag is not on the history."""
        tag = self.memo.tag
        if tag is None or not self._on_history(tag, head):
            return False
        seals = self._catalog.history(self._lane, head, tag.seq + 1)
        return len(seals) == head.ref.seq - tag.seq and self._take(head, seals)

    def _on_history(self, tag: HeadRef, head: Head) -> bool:
        last = head.last_kept(tag.incarnation)
        if last is None or tag.seq > last or head.incarnation_of(tag.seq) != tag.incarnation:
            return False
        entry = self._catalog.seal(self._lane, tag.incarnation, tag.seq)
        return entry is not None and entry.ref == tag

    def _rebuild(self, head: Head) -> None:
        for _ in range(REBUILDS_MAX):
            self.memo.tag = None
            self.memo.buckets = {}
            listed = self._catalog.segment_list(self._lane)
            upto = listed.upto if listed else -1
            seals = self._catalog.history(self._lane, head, upto + 1)
            # SUBTLE: list first, entries after it. An entry that a collector moves into the list
            # in between is missing from both; a gap shows it. Entries first would be as blind, and
            # one read over both tables is not to be had in every store.
            if upto > head.ref.seq or len(seals) == head.ref.seq - upto:
                parts = self._listed_parts(listed.slots if listed else (), head)
                if parts is not None:
                    for part in parts:
                        self._add(part)
                    if self._take(head, seals):
                        return
        raise Unavailable(
            "rebuild the ids of a lane",
            self._lane,
            "entries went away faster than they could be read, or the catalog was put back under this "
            "lane; nothing was written: run again",
        )

    def _listed_parts(self, slots: Iterable[Slot], head: Head) -> list[Part] | None:
        """Return what counts of listed segments, or None if one went away since the list was read."""
        parts: list[Part] = []
        for slot in slots:
            chunks = self._catalog.store.get(Blob.SEGMENT, slot)
            found = whole_segment(chunks, segment_place(self._catalog, slot))
            if found is None:
                return None
            parts += [part.of_history(head) for part in found]
        return parts

    def _take(self, head: Head, seals: list[Seal]) -> bool:
        """Add the ids of these seals and move the tag; False if some of them were forgotten."""
        parts: list[Part] = []
        for seal in seals:
            chunks = self._catalog.get(Blob.SEGMENT, self._lane, seal)
            if chunks is None and self._listed(seal.ref.seq):
                return False
            if chunks is None:
                raise Corrupt(
                    "read the ids of a seal",
                    f"{self._lane} seq {seal.ref.seq}",
                    "the seal names a segment that is gone; nothing was written: run "
                    "`delivery doctor` and restore this catalog from a backup",
                )
            for chunk in chunks:
                parts += decode_segment(chunk, f"segment of {self._lane} seq {seal.ref.seq}")
        for part in parts:
            self._add(part)
        self.memo.tag = head.ref
        self._forget(head)
        return True

    def _forget(self, head: Head) -> None:
        for bucket, held in list(self.memo.buckets.items()):
            if forgettable(held.bounds(bucket), head, self._window_ms):
                del self.memo.buckets[bucket]

    def _listed(self, seq: int) -> bool:
        """Tell whether the ids of a seal are the list's by now, which may have forgotten them.

        SUBTLE: an entry outlives its segment where it is kept for audits, or in the hand of
        whoever read it just before it was collected. A segment goes only after the list has taken
        it over, so a list read AFTER the segment was not found decides.
        """
        listed = self._catalog.segment_list(self._lane)
        return listed is not None and listed.upto >= seq

    def _add(self, part: Part) -> None:
        self.memo.buckets.setdefault(part.bucket, Ids()).add(part)
