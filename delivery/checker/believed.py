"""What a lane had decided before the seals in question, on the word of its catalog.

What it is: `Believed`.
What it must not know: records.

Invariants:
    Every id that the catalog still says was decided before is in it, so that repeats are told.
    What cannot be read is left out: who asks about some seals has seen that it can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dedup.catalog.store import Store
from dedup.model import RecordId, Seal
from delivery.checker.chunks import read_listed, read_parts
from delivery.checker.evidence import Evidence, Findings, Span
from delivery.checker.listed import read_list
from delivery.checker.rows import Book, owner, read_lane
from delivery.checker.world import World


@dataclass(frozen=True, slots=True)
class Believed:
    """Seals before those in question, and of the ids they have decided the last seal of each."""

    seals: dict[int, Seal] = field(default_factory=dict)
    ids: dict[RecordId, int] = field(default_factory=dict)

    @staticmethod
    def before(store: Store, lane: str, span: Span | None) -> Believed:
        """Return what is believed of a lane; nothing if all of it is in question."""
        quiet = Findings()
        if span is None or not span.first:
            return Believed()
        book = read_lane(store, lane, quiet, 0, span.first - 1)
        if book is None:
            return Believed()
        found = Believed(book.seals)
        for record_id, seq in (*_listed(store, book, quiet), *_sealed(store, book, quiet)):
            if seq < span.first:
                found.ids[record_id] = max(seq, found.ids.get(record_id, seq))
        return found


def _listed(store: Store, book: Book, quiet: Findings) -> Iterator[tuple[RecordId, int]]:
    listed = read_list(World(Evidence(store=store, logs={}, lanes={}), quiet), book)
    for slot, part in read_listed(store, listed.slots, quiet):
        if not part.origins:
            yield from ((record_id, slot.seq) for record_id in part)
            continue
        for record_id, index in zip(part, part.indexes().tolist(), strict=True):
            incarnation, seq = part.origins[index]
            if seq <= book.head.ref.seq and owner(book.head, seq) == incarnation:
                yield record_id, seq


def _sealed(store: Store, book: Book, quiet: Findings) -> Iterator[tuple[RecordId, int]]:
    for seq, seal in book.seals.items():
        for part in read_parts(store, book, seal, quiet) or ():
            yield from ((record_id, seq) for record_id in part)
