"""The records of a lane as columns, and the segment list held against them.

What it is: `Inputs`, `check_list`, `listed_ids`, and the small words that proofs share.
What it must not know: which records should have taken effect.

Invariants:
    Stricter than the checker of records, never laxer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dedup.catalog.store import Store
from dedup.formats.segment import Part
from dedup.model import SegmentList, Slot, Source
from delivery.checker.again import Again
from delivery.checker.chunks import read_listed
from delivery.checker.columns.ground import Doubt, Ground
from delivery.checker.columns.same import ABSENT, Ints, Mask, Words, distinct, firsts, matches
from delivery.checker.evidence import Findings, Kind, LaneInput
from delivery.checker.listed import SEEDS
from delivery.checker.rows import Book, owner

__all__ = [
    "OLD",
    "Inputs",
    "check_list",
    "ids_of",
    "in_hex",
    "listed_ids",
    "listed_parts",
    "raise_first",
]

#: In place of a seal: it was collected, or proved before; ids brought in with the lane are seal 0.
OLD = -1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Inputs:
    """The records of a lane, in the order in which they take effect; `OLD` ones come first.

    Attributes:
        seqs: the seal of each.
        sources: the place of each one's partition in `every`.
        offsets, ids, marks, values: as in columns; no mark where a record counts as external.
        fresh: which took effect. Known ids that are no records stand in front of all.
    """

    every: tuple[Source, ...]
    seqs: Ints
    sources: Ints
    offsets: Ints
    ids: Words
    marks: Ints
    values: Words
    fresh: Mask
    known: int

    @property
    def partitions(self) -> Ints:
        """The number of each one's partition."""
        numbers = np.array([*(source.partition for source in self.every), -1], dtype=np.int64)
        return numbers[self.sources]

    @property
    def old(self) -> Mask:
        """Which took effect by seals that are gone, or proved before."""
        return self.fresh & (self.seqs < 0)


def check_list(
    ground: Ground, book: Book, asked: LaneInput, rows: Inputs, listed: SegmentList
) -> None:
    """Hold the segment list against the first record of every id whose entry may be gone."""
    ids, seqs = listed_ids(ground.world.evidence.store, book, listed.slots)
    if len(ids) and (firsts((ids[:, 0], ids[:, 1])) != np.arange(len(ids))).any():
        raise Doubt(Kind.DECIDED_TWICE, "segment list", "an id is there twice")
    due = np.flatnonzero(rows.fresh)
    found = matches((rows.ids[due, 0], rows.ids[due, 1]), (ids[:, 0], ids[:, 1]))
    if (found == ABSENT).any():
        at = int(np.flatnonzero(found == ABSENT)[0])
        raise Doubt(Kind.NEVER_INPUT, "segment list", f"id {in_hex(ids, at)}")
    sealed = rows.seqs[due[found]]
    if ((seqs != OLD) & (sealed != OLD) & (sealed != seqs)).any() or (sealed > listed.upto).any():
        raise Doubt(Kind.DECIDED_ELSEWHERE, "segment list", "an id is of another seal")
    held = np.zeros(len(due), dtype=np.bool_)
    held[found] = True
    missing = due[~held & (rows.seqs[due] <= listed.upto)]
    if not len(missing):
        return
    marks, sources, sealed = rows.marks[missing], rows.sources[missing], rows.seqs[missing]
    reads = {read.key: read.seq for read in book.head.read_seqs}
    again = Again(book.head, book.seals, asked.window_ms)
    for at in distinct((marks, sources, sealed)).tolist():
        mark = ground.marks.every[int(marks[at])] if marks[at] != ABSENT else None
        if mark is None or mark.kept:
            fine = int(missing[at]) >= rows.known and again.may_by_now(int(sealed[at]))
        else:
            key = (mark.sender, mark.incarnation, rows.every[int(sources[at])].topic)
            fine = reads.get(key, -1) >= mark.seq
        if not fine:
            raise Doubt(
                Kind.NOT_DECIDED, "segment list", f"id {in_hex(rows.ids, int(missing[at]))}"
            )


def listed_ids(store: Store, book: Book, slots: tuple[Slot, ...]) -> tuple[Words, Ints]:
    """Return the listed ids that count, and the seals they came from as far as that is said."""
    ids, seqs = [np.empty((0, 2), dtype=np.uint64)], [np.empty(0, dtype=np.int64)]
    for _, found, origins in listed_parts(store, book, slots):
        ids.append(found)
        seqs.append(origins)
    return np.concatenate(ids), np.concatenate(seqs)


def listed_parts(
    store: Store, book: Book, slots: tuple[Slot, ...], upto: int | None = None
) -> Iterator[tuple[Part, Words, Ints]]:
    """Yield the listed parts, of each the ids that count and the seals they came from.

    Args:
        store: where they are.
        book: the lane.
        slots: those that are listed.
        upto: of later seals none are wanted; None: of none that is in question.
    """
    quiet, head = Findings(), book.head
    if upto is None and book.cut:
        upto = head.ref.seq
    last = head.ref.seq if upto is None else upto
    for slot, part in read_listed(store, slots, quiet):
        found = ids_of(part)
        if not part.origins:
            if upto is not None and slot.seq > upto:
                continue
            yield part, found, np.full(len(found), SEEDS if slot.seq == SEEDS else OLD)
            continue
        kept = [
            seq <= last and owner(head, seq) == incarnation for incarnation, seq in part.origins
        ]
        origins = np.array([seq for _, seq in part.origins], dtype=np.int64)[part.indexes()]
        mask = np.array(kept, dtype=np.bool_)[part.indexes()]
        yield part, found[mask], origins[mask]
    raise_first(quiet)


def ids_of(part: Part) -> Words:
    """Return the ids of a part."""
    found: Words = np.frombuffer(part.ids, dtype=">u8").reshape(-1, 2).astype(np.uint64)
    return found


def raise_first(quiet: Findings) -> None:
    """Doubt what was found already."""
    if quiet.found:
        one = quiet.found[0]
        raise Doubt(one.kind, one.subject, one.text)


def in_hex(ids: Words, at: int) -> str:
    """Return one id in hex."""
    return f"{int(ids[at, 0]):016x}{int(ids[at, 1]):016x}"
