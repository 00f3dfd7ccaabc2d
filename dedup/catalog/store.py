"""The store port: the raw rows of a catalog, and the few conditional writes the law rests on.

What it is: the protocol every store implements (memory, SQLite, Cassandra), and its raw row type.
What it must not know: what the bytes mean; `dedup.catalog.catalog.Catalog` encodes and decodes.

Invariants every store keeps (one conformance suite proves them):
    `append`, `reincarnate`, `acknowledge`, `raise_collected` and `replace_list` are linearizable
    compare-and-set operations on ONE row; `read` is linearizable with them.
    `append` compares incarnation, seq and attempt of the head, never the absence of an entry, and
    writes neither the acknowledgement nor `collected`.
    What was `put` through one store object is readable by everybody once a later `append`,
    `create` or `replace_list` of that object has won, or `flush` has returned. A store may keep it
    back until then.
    A method that returned did happen; `Unavailable` means it did not; `Indeterminate` means it may
    have, and may yet. A lost comparison is the return value False.
    Nothing expires by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dedup.model import Attempt, HeadRef, Incarnation, Slot

#: Largest chunk a store must take; Cassandra is happiest well below a mebibyte.
CHUNK_BYTES_MAX = 512 * 1024 + 4096


class Blob(StrEnum):
    """The kinds of chunks that attempts store."""

    OUTPUTS = "outputs"
    SEGMENT = "segment"
    #: Offsets that took no effect; they live as long as the entry that accounts for them.
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class RawAck:
    """The acknowledgement column: what is compared, and the bytes."""

    incarnation: Incarnation
    seq: int
    blob: bytes


@dataclass(frozen=True, slots=True)
class RawLane:
    """The head row of a lane as one linearizable read returns it."""

    ref: HeadRef
    head: bytes
    ack: RawAck
    collected: int


class Store(Protocol):
    """Where a catalog keeps its rows. One instance serves one process."""

    #: Whether calls from several threads are under way at once, instead of one after the other.
    concurrent: bool
    #: The URL it was opened by, without credentials; every message names it.
    url: str

    def read(self, lane: str) -> RawLane | None:
        """Return the head row, linearizably; None for a lane that never was."""

    def append(self, lane: str, expected: HeadRef, ref: HeadRef, head: bytes, entry: bytes) -> bool:
        """Move the head from `expected` to `ref` and add the entry, both or neither."""

    def create(self, lane: str, row: RawLane, entry: bytes | None) -> bool:
        """Write the first head row of a lane, and its entry if given; False if the lane exists."""

    def import_entries(
        self, lane: str, incarnation: Incarnation, entries: Sequence[tuple[int, bytes]]
    ) -> bool:
        """Add entries of a past incarnation to a lane; False if it has none of that name.

        Only a restore does this, into a lane that it has just created.
        """

    def reincarnate(
        self, lane: str, expected: HeadRef, row: RawLane, settled: tuple[int, int] | None = None
    ) -> bool:
        """Put a new incarnation in place of `expected`: head, acknowledgement, `collected`.

        Args:
            lane: which.
            expected: the head that is there.
            row: what comes in its place.
            settled: acknowledged seq and `collected` that are there, compared as well if given: so
                that neither is put back to an older value, beside whoever moves it.
        """

    def acknowledge(self, lane: str, expected: RawAck, ack: RawAck) -> bool:
        """Move the acknowledgement if (incarnation, seq) are still those of `expected`."""

    def raise_collected(
        self, lane: str, incarnation: Incarnation, expected: int, collected: int
    ) -> bool:
        """Raise `collected` if the incarnation and its old value are as given."""

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return the entries of one incarnation in [first, last] by seq; gaps where collected."""

    def delete_entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int, *, head: Incarnation
    ) -> bool:
        """Delete entries of `incarnation`, if the head's incarnation is still `head`."""

    def put(self, kind: Blob, slot: Slot, chunks: Sequence[bytes]) -> None:
        """Store the chunks of an attempt under its slot; the same call again is harmless."""

    def flush(self) -> None:
        """Make everything put through this object before readable by everybody.

        For lanes whose head lives in a user's own database: what wins there is no row of this
        store, and so nothing else would tell it when. A restore ends with it for the same reason.
        """

    def get(self, kind: Blob, slot: Slot) -> list[bytes]:
        """Return the chunks stored under a slot, in order; empty if there are none."""

    def delete(self, kind: Blob, slots: Iterable[Slot]) -> None:
        """Delete the chunks of these slots; absent ones are fine."""

    def slots(self, kind: Blob, lane: str, *, last: int | None = None) -> Iterator[Slot]:
        """Yield every slot of a lane that holds chunks, up to seq `last`, in no order."""

    def read_list(self, lane: str) -> tuple[int, bytes] | None:
        """Return (version, bytes) of the segment list, linearizably; None if there is none."""

    def replace_list(self, lane: str, expected: int | None, version: int, blob: bytes) -> bool:
        """Replace the segment list if its version is `expected` (None: if there is none)."""

    def note_loser(self, slot: Slot, digest: bytes) -> None:
        """Remember the digest of an attempt that lost; for reports only."""

    def losers(self, lane: str) -> Iterator[tuple[Slot, bytes]]:
        """Yield the losers noted for a lane."""

    def forget_losers(self, lane: str, last: int) -> None:
        """Drop the losers noted for positions up to `last`."""

    def lanes(self) -> Iterator[str]:
        """Yield the name of every lane, sorted."""

    def setting(self, name: str, value: str) -> str:
        """Store a setting once for the whole catalog and return what is stored."""

    def find_setting(self, name: str) -> str | None:
        """Return a setting; None if it was never stored."""

    def group(self) -> AbstractContextManager[None]:
        """Return a context in which conditional writes may share one commit.

        What they answer inside is true once the context has ended without an error. Where it ends
        with one, each of them may have happened or not: nobody may act on the answers.
        """

    def close(self) -> None:
        """Release what is open; a second call does nothing."""


def slot_name(slot: Slot) -> str:
    """Return the words by which messages name a slot."""
    return f"{slot.lane} seq {slot.seq} attempt {slot.attempt.hex()[:8]}"


def same(ref: HeadRef, incarnation: bytes, seq: int, attempt: bytes) -> bool:
    """Compare a head with the columns of a row, all three."""
    return ref == HeadRef(Incarnation(incarnation), seq, Attempt(attempt))
