"""A catalog as it was when its rows were read, while others go on writing it.

What it is: `Snapshot`, a store whose heads and lists stand still, and `moved`, which says whether
something was taken away under it.
What it must not know: what it is read for.

Invariants:
    Entries, heads, acknowledgements and lists are those of one moment a lane: the row is read
    first, and nothing above its head is shown but what no later head explains.
    Chunks do not change while they are there; that they may go is what `moved` is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dedup.catalog.store import Blob, RawLane, Store
from dedup.model import Incarnation, Slot
from delivery.operate.watched import Watched

__all__ = ["Reading", "Snapshot"]


@dataclass(slots=True)
class Reading:
    """How much was read."""

    entries: int = 0
    chunks: int = 0
    size: int = 0


class Snapshot(Watched):
    """A store whose lanes stand still.

    Args:
        store: the store, which is only read.
        lanes: the lanes whose rows are read now, in this order; others are passed on as they are.
    """

    def __init__(self, store: Store, lanes: Iterable[str]) -> None:
        super().__init__(store, {})
        self.reading = Reading()
        self._rows: dict[str, RawLane | None] = {}
        self._lists: dict[str, tuple[int, bytes] | None] = {}
        for lane in lanes:
            self._rows[lane] = store.read(lane)
            self._lists[lane] = store.read_list(lane)

    def read(self, lane: str) -> RawLane | None:
        """Return the head row as it was."""
        return self._rows[lane] if lane in self._rows else self._store.read(lane)

    def read_list(self, lane: str) -> tuple[int, bytes] | None:
        """Return the segment list as it was."""
        return self._lists[lane] if lane in self._lists else self._store.read_list(lane)

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return the entries that were there, and those that nobody can have sealed since."""
        row = self.read(lane)
        found = self._store.entries(lane, incarnation, first, last)
        if row is not None and found and found[-1][0] > row.ref.seq:
            # Head and entry are one write, so what is above the head of AFTER is nobody's.
            now = self._store.read(lane)
            if now is not None and now.ref.incarnation == incarnation == row.ref.incarnation:
                later = range(row.ref.seq + 1, now.ref.seq + 1)
                found = [(seq, entry) for seq, entry in found if seq not in later]
        self.reading.entries += len(found)
        self.reading.size += sum(len(entry) for _, entry in found)
        return found

    def get(self, kind: Blob, slot: Slot) -> list[bytes]:
        """Return chunks."""
        chunks = self._store.get(kind, slot)
        self.reading.chunks += len(chunks)
        self.reading.size += sum(map(len, chunks))
        return chunks

    def lanes(self) -> Iterator[str]:
        """Yield the lanes whose rows were read."""
        yield from self._rows

    def sealed_since(self, lane: str) -> tuple[int, int] | None:
        """Return the seq of a lane's head as it was, and as it is; None if its history changed."""
        before, now = self._rows.get(lane), self._store.read(lane)
        if before is None or now is None or before.ref.incarnation != now.ref.incarnation:
            return None
        return before.ref.seq, now.ref.seq

    def moved(self, lane: str) -> bool:
        """Tell whether something of a lane may have been taken away since its row was read."""
        before, now = self._rows[lane], self._store.read(lane)
        if before is None or now is None:
            return before is not now
        listed = self._store.read_list(lane)
        return (
            before.ref.incarnation != now.ref.incarnation
            or before.collected != now.collected
            or (self._lists[lane] or (0, b""))[0] != (listed or (0, b""))[0]
        )
