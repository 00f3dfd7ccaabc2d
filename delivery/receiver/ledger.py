"""A catalog whose lanes of one group are kept somewhere else: in the user's database.

What it is: `LedgerStore`, a store that sends the rows of some lanes to a ledger and everything else
to the catalog's own store.
What it must not know: what a ledger is made of, bundles.

Invariants:
    What a seal names is on the disk of the catalog BEFORE the ledger is asked to append it.
    The rows of a lane are in one place: nothing falls back to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from dedup.catalog.store import Blob, RawAck, RawLane, Store
from dedup.model import HeadRef, Incarnation, Slot
from delivery.points import At, nowhere
from delivery.receiver.points import SEGMENT_FLUSHED

__all__ = ["LedgerStore", "Rows"]


class Rows(Protocol):
    """The part of a store that keeps heads and entries."""

    def read(self, lane: str) -> RawLane | None:
        """Return the head row."""

    def append(self, lane: str, expected: HeadRef, ref: HeadRef, head: bytes, entry: bytes) -> bool:
        """Move the head and add the entry."""

    def create(self, lane: str, row: RawLane, entry: bytes | None) -> bool:
        """Write the first head row."""

    def acknowledge(self, lane: str, expected: RawAck, ack: RawAck) -> bool:
        """Move the acknowledgement."""

    def raise_collected(
        self, lane: str, incarnation: Incarnation, expected: int, collected: int
    ) -> bool:
        """Raise `collected`."""

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return the entries in [first, last]."""

    def delete_entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int, *, head: Incarnation
    ) -> bool:
        """Delete entries."""


class LedgerStore:
    """A store of which the lanes of one group have their rows in a ledger.

    Args:
        prefix: what the names of these lanes begin with.
        rows: where they are.
        store: the catalog's own.
        name: of the ledger, for the files of this host that are made from it; "": they are the
            catalog's, and so are these.
    """

    concurrent = False

    def __init__(
        self, prefix: str, rows: Rows, store: Store, *, name: str, at: At = nowhere
    ) -> None:
        self.url = f"{store.url} with {name}"
        self._prefix = prefix
        self._rows = rows
        self._store = store
        self._at = at

    def keep_in(self, rows: Rows, name: str) -> None:
        """Keep the group's rows somewhere else from now on; whoever says so has copied them."""
        self._rows = rows
        self.url = f"{self._store.url} with {name}" if name else self._store.url

    def _of(self, lane: str) -> Rows:
        return self._rows if lane.startswith(self._prefix) else self._store

    # Rows of the group ------------------------------------------------------------------------

    def read(self, lane: str) -> RawLane | None:
        """Return the head row."""
        return self._of(lane).read(lane)

    def append(self, lane: str, expected: HeadRef, ref: HeadRef, head: bytes, entry: bytes) -> bool:
        """Move the head and add the entry, AFTER everything they name is on the disk."""
        assert lane.startswith(self._prefix), "a receiver appends to lanes of its group alone"
        self._store.flush()
        self._at(SEGMENT_FLUSHED)
        return self._rows.append(lane, expected, ref, head, entry)

    def create(self, lane: str, row: RawLane, entry: bytes | None) -> bool:
        """Write the first head row."""
        return self._of(lane).create(lane, row, entry)

    def acknowledge(self, lane: str, expected: RawAck, ack: RawAck) -> bool:
        """Move the acknowledgement."""
        return self._of(lane).acknowledge(lane, expected, ack)

    def raise_collected(
        self, lane: str, incarnation: Incarnation, expected: int, collected: int
    ) -> bool:
        """Raise `collected`."""
        return self._of(lane).raise_collected(lane, incarnation, expected, collected)

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return the entries in [first, last]."""
        return self._of(lane).entries(lane, incarnation, first, last)

    def delete_entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int, *, head: Incarnation
    ) -> bool:
        """Delete entries."""
        return self._of(lane).delete_entries(lane, incarnation, first, last, head=head)

    # The catalog's own ------------------------------------------------------------------------

    def import_entries(
        self, lane: str, incarnation: Incarnation, entries: Sequence[tuple[int, bytes]]
    ) -> bool:
        """Add entries of a past incarnation; a restore does this, and never through a ledger."""
        return self._store.import_entries(lane, incarnation, entries)

    def reincarnate(
        self, lane: str, expected: HeadRef, row: RawLane, settled: tuple[int, int] | None = None
    ) -> bool:
        """Put a new incarnation in place; an operator does this, and never through a ledger."""
        return self._store.reincarnate(lane, expected, row, settled)

    def put(self, kind: Blob, slot: Slot, chunks: Sequence[bytes]) -> None:
        """Store the chunks of an attempt."""
        self._store.put(kind, slot, chunks)

    def flush(self) -> None:
        """Make everything put before readable by everybody."""
        self._store.flush()

    def get(self, kind: Blob, slot: Slot) -> list[bytes]:
        """Return the chunks of a slot."""
        return self._store.get(kind, slot)

    def delete(self, kind: Blob, slots: Iterable[Slot]) -> None:
        """Delete the chunks of these slots."""
        self._store.delete(kind, slots)

    def slots(self, kind: Blob, lane: str, *, last: int | None = None) -> Iterator[Slot]:
        """Yield the slots of a lane."""
        return self._store.slots(kind, lane, last=last)

    def read_list(self, lane: str) -> tuple[int, bytes] | None:
        """Return the segment list."""
        return self._store.read_list(lane)

    def replace_list(self, lane: str, expected: int | None, version: int, blob: bytes) -> bool:
        """Replace the segment list."""
        return self._store.replace_list(lane, expected, version, blob)

    def note_loser(self, slot: Slot, digest: bytes) -> None:
        """Remember the digest of a loser."""
        self._store.note_loser(slot, digest)

    def losers(self, lane: str) -> Iterator[tuple[Slot, bytes]]:
        """Yield the losers of a lane."""
        return self._store.losers(lane)

    def forget_losers(self, lane: str, last: int) -> None:
        """Drop losers."""
        self._store.forget_losers(lane, last)

    def lanes(self) -> Iterator[str]:
        """Yield the lanes the catalog knows: those of the group too, which it remembers."""
        return self._store.lanes()

    def setting(self, name: str, value: str) -> str:
        """Store a setting once."""
        return self._store.setting(name, value)

    def find_setting(self, name: str) -> str | None:
        """Return a setting."""
        return self._store.find_setting(name)

    def group(self) -> AbstractContextManager[None]:
        """Return a context that changes nothing: a receiver's seal has a transaction of its own."""
        return nullcontext()

    def close(self) -> None:
        """Leave the catalog's store to whoever opened it."""
