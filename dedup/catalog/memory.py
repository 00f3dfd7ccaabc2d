"""The memory store: a catalog that lives and dies with the process that made it.

What it is: the smallest implementation of the store port, for tests, for users' own unit tests
and for the explorer, which saves and restores it at every step.
What it must not know: anything but the rows.

Invariants:
    Every value in the tables is immutable, so a shallow copy of a table is a snapshot.
    Threads may share the tables: what compares or iterates does so in one turn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from dedup.catalog.store import Blob, RawAck, RawLane
from dedup.model import HeadRef, Incarnation, Slot

#: One for all tables, so that these stay plain values that can be copied and compared.
_TURN = threading.RLock()


@dataclass(slots=True)
class Tables:
    """The rows, by key. Copy with `copy`, compare with `frozen`."""

    lanes: dict[str, RawLane] = field(default_factory=dict)
    entries: dict[tuple[str, Incarnation, int], bytes] = field(default_factory=dict)
    chunks: dict[tuple[Blob, Slot], tuple[bytes, ...]] = field(default_factory=dict)
    lists: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    losers: dict[Slot, bytes] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Tables:
        """Return a snapshot."""
        return Tables(
            dict(self.lanes),
            dict(self.entries),
            dict(self.chunks),
            dict(self.lists),
            dict(self.losers),
            dict(self.settings),
        )

    def frozen(self) -> tuple[frozenset[tuple[object, object]], ...]:
        """Return a hashable picture of all rows."""
        return tuple(
            frozenset(table.items())
            for table in (
                self.lanes,
                self.entries,
                self.chunks,
                self.lists,
                self.losers,
                self.settings,
            )
        )


class MemoryStore:
    """A store in this process's memory."""

    url = "memory:"

    concurrent = False

    def __init__(self, tables: Tables | None = None) -> None:
        self.tables = tables if tables is not None else Tables()

    def read(self, lane: str) -> RawLane | None:
        """Return the head row."""
        return self.tables.lanes.get(lane)

    def append(self, lane: str, expected: HeadRef, ref: HeadRef, head: bytes, entry: bytes) -> bool:
        """Move the head and add the entry."""
        with _TURN:
            row = self.tables.lanes.get(lane)
            if row is None or row.ref != expected:
                return False
            self.tables.lanes[lane] = replace(row, ref=ref, head=head)
            self.tables.entries[lane, ref.incarnation, ref.seq] = entry
            return True

    def create(self, lane: str, row: RawLane, entry: bytes | None) -> bool:
        """Write the first head row and entry."""
        with _TURN:
            if lane in self.tables.lanes:
                return False
            self.tables.lanes[lane] = row
            if entry is not None:
                self.tables.entries[lane, row.ref.incarnation, row.ref.seq] = entry
            return True

    def import_entries(
        self, lane: str, incarnation: Incarnation, entries: Sequence[tuple[int, bytes]]
    ) -> bool:
        """Add entries of a past incarnation."""
        with _TURN:
            if lane not in self.tables.lanes:
                return False
            for seq, entry in entries:
                self.tables.entries[lane, incarnation, seq] = entry
            return True

    def reincarnate(
        self, lane: str, expected: HeadRef, row: RawLane, settled: tuple[int, int] | None = None
    ) -> bool:
        """Put a new incarnation in place."""
        with _TURN:
            current = self.tables.lanes.get(lane)
            if current is None or current.ref != expected:
                return False
            if settled is not None and settled != (current.ack.seq, current.collected):
                return False
            self.tables.lanes[lane] = row
            return True

    def acknowledge(self, lane: str, expected: RawAck, ack: RawAck) -> bool:
        """Move the acknowledgement."""
        with _TURN:
            row = self.tables.lanes.get(lane)
            if row is None:
                return False
            if (row.ack.incarnation, row.ack.seq) != (expected.incarnation, expected.seq):
                return False
            self.tables.lanes[lane] = replace(row, ack=ack)
            return True

    def raise_collected(
        self, lane: str, incarnation: Incarnation, expected: int, collected: int
    ) -> bool:
        """Raise `collected`."""
        with _TURN:
            row = self.tables.lanes.get(lane)
            if row is None or (row.ref.incarnation, row.collected) != (incarnation, expected):
                return False
            self.tables.lanes[lane] = replace(row, collected=collected)
            return True

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return the entries in [first, last]."""
        with _TURN:
            return sorted(
                (seq, entry)
                for (name, owner, seq), entry in self.tables.entries.items()
                if name == lane and owner == incarnation and first <= seq <= last
            )

    def delete_entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int, *, head: Incarnation
    ) -> bool:
        """Delete entries in [first, last]."""
        with _TURN:
            row = self.tables.lanes.get(lane)
            if row is None or row.ref.incarnation != head:
                return False
            for seq, _ in self.entries(lane, incarnation, first, last):
                del self.tables.entries[lane, incarnation, seq]
            return True

    def put(self, kind: Blob, slot: Slot, chunks: Sequence[bytes]) -> None:
        """Store the chunks of an attempt."""
        self.tables.chunks[kind, slot] = tuple(chunks)

    def flush(self) -> None:
        """Nothing is held back."""

    def get(self, kind: Blob, slot: Slot) -> list[bytes]:
        """Return the chunks of a slot."""
        return list(self.tables.chunks.get((kind, slot), ()))

    def delete(self, kind: Blob, slots: Iterable[Slot]) -> None:
        """Delete the chunks of these slots."""
        for slot in slots:
            self.tables.chunks.pop((kind, slot), None)

    def slots(self, kind: Blob, lane: str, *, last: int | None = None) -> Iterator[Slot]:
        """Yield the slots of a lane."""
        for stored, slot in sorted(self.tables.chunks):
            if stored == kind and slot.lane == lane and (last is None or slot.seq <= last):
                yield slot

    def read_list(self, lane: str) -> tuple[int, bytes] | None:
        """Return the segment list."""
        return self.tables.lists.get(lane)

    def replace_list(self, lane: str, expected: int | None, version: int, blob: bytes) -> bool:
        """Replace the segment list."""
        with _TURN:
            current = self.tables.lists.get(lane)
            if (current[0] if current else None) != expected:
                return False
            self.tables.lists[lane] = (version, blob)
            return True

    def note_loser(self, slot: Slot, digest: bytes) -> None:
        """Remember the digest of a loser."""
        self.tables.losers[slot] = digest

    def losers(self, lane: str) -> Iterator[tuple[Slot, bytes]]:
        """Yield the losers of a lane."""
        noted = sorted(self.tables.losers.items())
        yield from (item for item in noted if item[0].lane == lane)

    def forget_losers(self, lane: str, last: int) -> None:
        """Drop losers up to `last`."""
        with _TURN:
            for slot, _ in list(self.losers(lane)):
                if slot.seq <= last:
                    del self.tables.losers[slot]

    def lanes(self) -> Iterator[str]:
        """Yield the lanes."""
        yield from sorted(self.tables.lanes)

    def setting(self, name: str, value: str) -> str:
        """Store a setting once."""
        return self.tables.settings.setdefault(name, value)

    def find_setting(self, name: str) -> str | None:
        """Return a setting."""
        return self.tables.settings.get(name)

    def group(self) -> AbstractContextManager[None]:
        """Return a context that changes nothing: every write is there when it returns."""
        return nullcontext()

    def close(self) -> None:
        """Nothing is open."""
