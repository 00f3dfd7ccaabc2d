"""Everything that is stored of a lane, copied from one store into another and compared.

What it is: `copy`, `compare` and `amount`, over the raw rows of stores.
What it must not know: what the bytes mean, heads, who may run a lane.

Invariants:
    The same again changes nothing. What the source has no more is taken away in the target.
    What is compared is read back from both.
"""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob, Store
from dedup.errors import Corrupt
from dedup.model import Incarnation, Slot
from delivery.operate.migration.places import OP

__all__ = ["amount", "compare", "copy"]

#: Entries that are copied together.
ENTRIES_AT_ONCE = 256


def copy(source: Store, target: Store, lane: str) -> None:
    """Copy what is stored of a lane. The same again changes nothing."""
    there = {kind: set(target.slots(kind, lane)) for kind in Blob}
    for kind in Blob:
        here = set(source.slots(kind, lane))
        for slot in sorted(here):
            chunks = source.get(kind, slot)
            if slot not in there[kind] or target.get(kind, slot) != chunks:
                target.put(kind, slot, chunks)
        target.delete(kind, sorted(there[kind] - here))
    target.flush()
    for incarnation, entries in _entries(source, lane):
        target.import_entries(lane, incarnation, entries)
    for slot, digest in source.losers(lane):
        target.note_loser(slot, digest)
    listed, known = source.read_list(lane), target.read_list(lane)
    if listed is not None and listed != known:
        target.replace_list(lane, known[0] if known else None, *listed)


def _entries(store: Store, lane: str) -> Iterator[tuple[Incarnation, list[tuple[int, bytes]]]]:
    """Yield the entries of a lane, of every incarnation that it had, some at a time."""
    row = Catalog(store).load(lane)
    assert row is not None, "a lane is never deleted"
    past = [one.incarnation for one in row.head.past]
    for incarnation in dict.fromkeys((*past, row.head.ref.incarnation)):
        for first in range(0, row.head.ref.seq + 1, ENTRIES_AT_ONCE):
            found = store.entries(lane, incarnation, first, first + ENTRIES_AT_ONCE - 1)
            if found:
                yield incarnation, found


def compare(source: Store, target: Store, lane: str) -> None:
    """Refuse a copy that is not what it is a copy of."""
    if _digest(source, lane) != _digest(target, lane):
        raise Corrupt(
            OP,
            lane,
            "what was copied is not what is there; nothing was fenced, and the source is as it was: "
            "stop whatever still writes it, and run this again; if it comes back, the target's disk "
            "is damaged",
        )


def _digest(store: Store, lane: str) -> bytes:
    """Return a digest of everything that is stored of a lane, but for its head row."""
    digest = xxhash.xxh3_128()

    def take(*parts: bytes) -> None:
        for part in parts:
            digest.update(b"%d:" % len(part) + part)

    for incarnation, entries in _entries(store, lane):
        for seq, entry in entries:
            take(incarnation, b"%d" % seq, entry)
    for kind in Blob:
        slots: list[Slot] = sorted(store.slots(kind, lane))
        for slot in slots:
            place = (slot.incarnation, b"%d" % slot.seq, slot.attempt)
            take(kind.value.encode(), *place, *store.get(kind, slot))
    listed = store.read_list(lane)
    take(*((b"%d" % listed[0], listed[1]) if listed else ()))
    for slot, lost in sorted(store.losers(lane)):
        take(slot.incarnation, b"%d" % slot.seq, slot.attempt, lost)
    return digest.digest()


def amount(store: Store, lane: str) -> tuple[int, int, int]:
    """Return entries, chunks and bytes of a lane."""
    entries = chunks = size = 0
    for _, found in _entries(store, lane):
        entries += len(found)
        size += sum(len(entry) for _, entry in found)
    for kind in Blob:
        for slot in store.slots(kind, lane):
            found_chunks = store.get(kind, slot)
            chunks += len(found_chunks)
            size += sum(map(len, found_chunks))
    return entries, chunks, size
