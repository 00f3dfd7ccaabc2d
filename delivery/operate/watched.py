"""Stores that say what was done to them: one that does it, one that only acts as if.

What it is: `Watched`, which forwards every call and adds up what is deleted and written, and
`Rehearsal`, whose writes stay in memory.
What it must not know: who collects or compacts, and why.

Invariants:
    A rehearsal answers as its store would if the same had been done there; the store is not
    written at all.
    Bytes of what is deleted are taken from what the caller knows, else read before they go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from dedup.catalog.store import Blob, RawAck, RawLane, Store
from dedup.model import HeadRef, Incarnation, Slot

__all__ = ["REHEARSED_BYTES_MAX", "Deeds", "Rehearsal", "Watched"]

#: What a rehearsal keeps of what it has written; behind it, it says that it ends early.
REHEARSED_BYTES_MAX = 512 * 1024 * 1024

_Key = tuple[Blob, Slot]


@dataclass(slots=True)
class Deeds:
    """What was done: how many of each kind went, their bytes, and the bytes that were written."""

    counts: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    written: int = 0

    def add(self, what: str, count: int, size: int) -> None:
        """Take down what went."""
        self.counts[what] = self.counts.get(what, 0) + count
        self.sizes[what] = self.sizes.get(what, 0) + size

    @property
    def freed(self) -> int:
        """Bytes that went, less those that were written."""
        return sum(self.sizes.values()) - self.written


class Watched:
    """A store that does what it is told and adds it up.

    Args:
        store: the store.
        sizes: bytes of what may be deleted, as far as they are known.
    """

    def __init__(self, store: Store, sizes: Mapping[_Key, int]) -> None:
        self._store = store
        self._sizes = sizes
        self.concurrent = store.concurrent
        self.url = store.url
        self.deeds = Deeds()

    # What is added up -------------------------------------------------------------------------

    def delete_entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int, *, head: Incarnation
    ) -> bool:
        """Delete entries."""
        gone = self.entries(lane, incarnation, first, last)
        done = self._store.delete_entries(lane, incarnation, first, last, head=head)
        if done:
            self.deeds.add("entries", len(gone), sum(len(entry) for _, entry in gone))
        return done

    def put(self, kind: Blob, slot: Slot, chunks: Sequence[bytes]) -> None:
        """Store chunks."""
        self.deeds.written += sum(map(len, chunks))
        self._store.put(kind, slot, chunks)

    def delete(self, kind: Blob, slots: Iterable[Slot]) -> None:
        """Delete chunks."""
        slots = list(slots)
        self._count(kind, slots)
        self._store.delete(kind, slots)

    def forget_losers(self, lane: str, last: int) -> None:
        """Drop losers."""
        count = sum(slot.seq <= last for slot, _ in self.losers(lane))
        self.deeds.add("losers", count, 0)
        self._store.forget_losers(lane, last)

    def _count(self, kind: Blob, slots: Sequence[Slot]) -> None:
        for slot in slots:
            size = self._sizes.get((kind, slot))
            if size is None:
                size = sum(map(len, self.get(kind, slot)))
            self.deeds.add(kind.value, 1, size)

    # What is passed on ------------------------------------------------------------------------

    def read(self, lane: str) -> RawLane | None:
        """Return the head row."""
        return self._store.read(lane)

    def append(self, lane: str, expected: HeadRef, ref: HeadRef, head: bytes, entry: bytes) -> bool:
        """Append."""
        return self._store.append(lane, expected, ref, head, entry)

    def create(self, lane: str, row: RawLane, entry: bytes | None) -> bool:
        """Create a lane."""
        return self._store.create(lane, row, entry)

    def import_entries(
        self, lane: str, incarnation: Incarnation, entries: Sequence[tuple[int, bytes]]
    ) -> bool:
        """Add entries."""
        return self._store.import_entries(lane, incarnation, entries)

    def reincarnate(
        self, lane: str, expected: HeadRef, row: RawLane, settled: tuple[int, int] | None = None
    ) -> bool:
        """Put a new incarnation in place."""
        return self._store.reincarnate(lane, expected, row, settled)

    def acknowledge(self, lane: str, expected: RawAck, ack: RawAck) -> bool:
        """Move the acknowledgement."""
        return self._store.acknowledge(lane, expected, ack)

    def raise_collected(
        self, lane: str, incarnation: Incarnation, expected: int, collected: int
    ) -> bool:
        """Raise `collected`."""
        return self._store.raise_collected(lane, incarnation, expected, collected)

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return entries."""
        return self._store.entries(lane, incarnation, first, last)

    def flush(self) -> None:
        """Write what is held back."""
        self._store.flush()

    def get(self, kind: Blob, slot: Slot) -> list[bytes]:
        """Return chunks."""
        return self._store.get(kind, slot)

    def slots(self, kind: Blob, lane: str, *, last: int | None = None) -> Iterator[Slot]:
        """Yield slots."""
        return self._store.slots(kind, lane, last=last)

    def read_list(self, lane: str) -> tuple[int, bytes] | None:
        """Return the segment list."""
        return self._store.read_list(lane)

    def replace_list(self, lane: str, expected: int | None, version: int, blob: bytes) -> bool:
        """Replace the segment list."""
        return self._store.replace_list(lane, expected, version, blob)

    def note_loser(self, slot: Slot, digest: bytes) -> None:
        """Note a loser."""
        self._store.note_loser(slot, digest)

    def losers(self, lane: str) -> Iterator[tuple[Slot, bytes]]:
        """Yield losers."""
        return self._store.losers(lane)

    def lanes(self) -> Iterator[str]:
        """Yield the lanes."""
        return self._store.lanes()

    def setting(self, name: str, value: str) -> str:
        """Store a setting once."""
        return self._store.setting(name, value)

    def find_setting(self, name: str) -> str | None:
        """Return a setting."""
        return self._store.find_setting(name)

    def group(self) -> AbstractContextManager[Any]:
        """Return the store's context."""
        return self._store.group()

    def close(self) -> None:
        """Leave the store to whoever opened it."""


class Rehearsal(Watched):
    """A store whose writes by a collection or a compaction stay in memory."""

    def __init__(self, store: Store, sizes: Mapping[_Key, int]) -> None:
        super().__init__(store, sizes)
        self._collected: dict[str, int] = {}
        self._lists: dict[str, tuple[int, bytes]] = {}
        self._put: dict[_Key, tuple[bytes, ...]] = {}
        self._gone: set[_Key] = set()
        self._entries_gone: dict[tuple[str, Incarnation], int] = {}
        self._losers_gone: dict[str, int] = {}

    @property
    def full(self) -> bool:
        """Whether it has written as much as it may keep."""
        return self.deeds.written > REHEARSED_BYTES_MAX

    def read(self, lane: str) -> RawLane | None:
        """Return the head row, with what was collected here."""
        row = self._store.read(lane)
        if row is None:
            return None
        return replace(row, collected=max(row.collected, self._collected.get(lane, 0)))

    def raise_collected(
        self, lane: str, incarnation: Incarnation, expected: int, collected: int
    ) -> bool:
        """Raise `collected` in memory."""
        row = self.read(lane)
        if row is None or (row.ref.incarnation, row.collected) != (incarnation, expected):
            return False
        self._collected[lane] = collected
        return True

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return entries that are not gone."""
        first = max(first, self._entries_gone.get((lane, incarnation), -1) + 1)
        return self._store.entries(lane, incarnation, first, last) if first <= last else []

    def delete_entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int, *, head: Incarnation
    ) -> bool:
        """Let entries be gone; collection deletes from the oldest on."""
        row = self.read(lane)
        if row is None or row.ref.incarnation != head:
            return False
        gone = self.entries(lane, incarnation, first, last)
        self.deeds.add("entries", len(gone), sum(len(entry) for _, entry in gone))
        key = (lane, incarnation)
        self._entries_gone[key] = max(last, self._entries_gone.get(key, -1))
        return True

    def put(self, kind: Blob, slot: Slot, chunks: Sequence[bytes]) -> None:
        """Keep chunks in memory."""
        self.deeds.written += sum(map(len, chunks))
        self._put[kind, slot] = tuple(chunks)
        self._gone.discard((kind, slot))

    def get(self, kind: Blob, slot: Slot) -> list[bytes]:
        """Return chunks that are not gone."""
        key = (kind, slot)
        if key in self._put:
            return list(self._put[key])
        return [] if key in self._gone else self._store.get(kind, slot)

    def delete(self, kind: Blob, slots: Iterable[Slot]) -> None:
        """Let chunks be gone."""
        slots = list(slots)
        self._count(kind, slots)
        for slot in slots:
            self._put.pop((kind, slot), None)
            self._gone.add((kind, slot))

    def slots(self, kind: Blob, lane: str, *, last: int | None = None) -> Iterator[Slot]:
        """Yield slots that are not gone, and those of here."""
        mine = {
            slot
            for stored, slot in self._put
            if (stored, slot.lane) == (kind, lane) and (last is None or slot.seq <= last)
        }
        yield from mine
        for slot in self._store.slots(kind, lane, last=last):
            if slot not in mine and (kind, slot) not in self._gone:
                yield slot

    def read_list(self, lane: str) -> tuple[int, bytes] | None:
        """Return the list of here, else the store's."""
        return self._lists.get(lane) or self._store.read_list(lane)

    def replace_list(self, lane: str, expected: int | None, version: int, blob: bytes) -> bool:
        """Replace the list in memory."""
        found = self.read_list(lane)
        if (found[0] if found else None) != expected:
            return False
        self._lists[lane] = (version, blob)
        return True

    def losers(self, lane: str) -> Iterator[tuple[Slot, bytes]]:
        """Yield losers that are not forgotten."""
        last = self._losers_gone.get(lane, -1)
        return ((slot, digest) for slot, digest in self._store.losers(lane) if slot.seq > last)

    def forget_losers(self, lane: str, last: int) -> None:
        """Let losers be forgotten."""
        self.deeds.add("losers", sum(slot.seq <= last for slot, _ in self.losers(lane)), 0)
        self._losers_gone[lane] = last

    def flush(self) -> None:
        """Nothing is held back: nothing is written."""

    def group(self) -> AbstractContextManager[Any]:
        """Nothing is committed."""
        return nullcontext()
