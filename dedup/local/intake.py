"""Reading the decided ids of a lane out of the catalog, seal by seal and segment by segment.

What it is: `Intake`: what stands between two heads, and what stands behind them all.
What it must not know: where the ids go, files of this host.

Invariants:
    A gap is told, never skipped: an entry that was collected took its ids to the segment list.
    Of a merged segment only the ids whose seal is on the history count.
    One seal's ids, or one chunk's, are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dedup.catalog.catalog import Catalog, segment_place
from dedup.catalog.store import Blob
from dedup.errors import Corrupt
from dedup.formats.segment import Part, decode_segment, whole_segment
from dedup.model import Head, HeadRef, Incarnation, Seal, SegmentList, Slot


class Gap(Exception):
    """What was to be read went into the segment list meanwhile. Never leaves this package."""


class Intake:
    """What the catalog says about one lane's ids."""

    def __init__(self, catalog: Catalog, lane: str) -> None:
        self._catalog = catalog
        self._lane = lane

    def on_history(self, tag: HeadRef, head: Head) -> bool:
        """Tell whether `tag` is an entry, still there, of the history that `head` ends."""
        return kept(head, tag.incarnation, tag.seq) and self._is_entry(tag)

    def beyond(self, tag: HeadRef, head: Head) -> bool:
        """Tell whether `tag` is an entry, still there, that was sealed on top of `head`.

        SUBTLE: entries of one incarnation form one line, so a head of that incarnation is below
        every entry with a higher seq. An append on such a head cannot win any more, so it may be
        told too much, and of buckets that went since then too little.
        """
        same = tag.incarnation == head.ref.incarnation
        return same and tag.seq > head.ref.seq and self._is_entry(tag)

    def seals(self, head: Head, first: int, last: int) -> list[Seal]:
        """Return the entries of [first, last].

        Raises:
            Gap: some are not there.
        """
        found = [
            seal
            for incarnation, begin, end in head.runs(first, last)
            for seal in self._catalog.seals(self._lane, incarnation, begin, end)
        ]
        if len(found) != last - first + 1:
            raise Gap
        return found

    def entries_upto(self, head: Head, first: int, at_once: int) -> Iterator[list[Seal]]:
        """Yield the entries from `first` to the head, some at a time."""
        for begin in range(first, head.ref.seq + 1, at_once):
            yield self.seals(head, begin, min(begin + at_once - 1, head.ref.seq))

    def listed(self) -> SegmentList | None:
        """Return the segment list."""
        return self._catalog.segment_list(self._lane)

    def parts(self, seal: Seal) -> Iterator[Part]:
        """Yield the parts of one seal.

        Raises:
            Gap: they are the list's by now.
            Corrupt: they are gone.
        """
        chunks = self._catalog.get(Blob.SEGMENT, self._lane, seal)
        if chunks is None and self._is_listed(seal.ref.seq):
            raise Gap
        if chunks is None:
            raise Corrupt(
                "read the ids of a seal",
                f"{self._lane} seq {seal.ref.seq}",
                "the seal names a segment that is gone; nothing was written: run "
                "`delivery doctor` and restore this catalog from a backup",
            )
        for chunk in chunks:
            yield from decode_segment(chunk, f"segment of {self._lane} seq {seal.ref.seq}")

    def listed_parts(self, slots: Iterable[Slot], head: Head) -> Iterator[tuple[Slot, Part]]:
        """Yield what counts of listed segments.

        Raises:
            Gap: one went away since the list was read.
        """
        for slot in slots:
            chunks = self._catalog.store.get(Blob.SEGMENT, slot)
            parts = whole_segment(chunks, segment_place(self._catalog, slot))
            if parts is None:
                raise Gap
            for part in parts:
                yield slot, part.of_history(head)

    def _is_entry(self, tag: HeadRef) -> bool:
        entry = self._catalog.seal(self._lane, tag.incarnation, tag.seq)
        return entry is not None and entry.ref == tag

    def _is_listed(self, seq: int) -> bool:
        """Tell whether the ids of a seal are the list's by now, which may have forgotten them.

        SUBTLE: an entry outlives its segment where it is kept for audits, or in the hand of
        whoever read it just before it was collected. A segment goes only after the list has taken
        it over, so a list read AFTER the segment was not found decides.
        """
        listed = self.listed()
        return listed is not None and listed.upto >= seq


def kept(head: Head, incarnation: Incarnation, seq: int) -> bool:
    """Tell whether a seal is on the history that `head` ends."""
    last = head.last_kept(incarnation)
    return last is not None and seq <= last and head.incarnation_of(seq) == incarnation
