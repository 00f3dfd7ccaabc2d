"""The Cassandra store: the statements of the store port, over a `Connection`.

What it is: `CassandraStore`.
What it must not know: how statements are sent, what the bytes mean.

Invariants:
    A lane is one partition: its head in static columns, its entries below. Every change of it is
    one conditional statement that Paxos decides.
    A lost comparison whose head is our own attempt was won: the request was carried out twice.
    The slot of an attempt is noted BEFORE its first chunk, so that what a killed process leaves
    can be found; whoever was slow notes it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dedup.catalog.cassandra import cql
from dedup.catalog.cassandra.address import Address
from dedup.catalog.cassandra.errors import Access
from dedup.catalog.cassandra.schema import ensure, read_setting, setting
from dedup.catalog.cassandra.servers import findings
from dedup.catalog.cassandra.session import REQUEST_SECONDS_MAX, Connection
from dedup.catalog.cassandra.window import Window
from dedup.catalog.store import Blob, RawAck, RawLane, slot_name
from dedup.model import Attempt, HeadRef, Incarnation, Slot

#: How long an emptied slot is looked at again, in case its writer was not done.
EMPTIED_SECONDS = 120
#: A writer notes its slot again before the next chunk, and after the last, when its note is
#: older than this: well below `EMPTIED_SECONDS`, so that it is never forgotten in between.
NOTE_SECONDS_MAX = 30.0

#: The largest bigint.
_SEQ_MAX = (1 << 63) - 1


class CassandraStore:
    """A store in one keyspace; threads may share it, and forked processes too."""

    concurrent = True

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.url = connection.address.url

    @classmethod
    def open(
        cls,
        url: str,
        *,
        create: bool = True,
        password: Callable[[], str] | None = None,
        request_seconds: float = REQUEST_SECONDS_MAX,
    ) -> CassandraStore:
        """Open the catalog at `url`, and make it if the keyspace is new.

        Args:
            url: see `dedup.catalog.cassandra.address.FORM`.
            create: whether it is made; it is refused otherwise.
            password: asked for the password of the URL's user whenever a process connects; the
                environment is, if this is None.
            request_seconds: how long a request may take; afterwards its outcome is unknown.

        Raises:
            InvalidUsage: the URL is malformed, the login is refused, or the keyspace belongs to
                something else, a newer release, or a catalog with other settings.
            Unavailable: no node can be reached now.
        """
        connection = Connection(Address.parse(url), password, request_seconds)
        try:
            ensure(connection, create=create)
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def check(self) -> list[str]:
        """Say what of the servers' settings could lose an acknowledged write."""
        return findings(self._connection)

    # Lanes ------------------------------------------------------------------------------------

    def read(self, lane: str) -> RawLane | None:
        """Return the head row."""
        for row in self._connection.rows(cql.READ, (lane,), lane):
            ref = HeadRef(Incarnation(row.incarnation), row.seq, Attempt(row.attempt))
            ack = RawAck(Incarnation(row.ack_incarnation), row.ack_seq, row.ack)
            return RawLane(ref, row.head, ack, row.collected)
        return None

    def append(self, lane: str, expected: HeadRef, ref: HeadRef, head: bytes, entry: bytes) -> bool:
        """Move the head and add the entry."""
        values = (*_columns(ref), head, lane, *_columns(expected), *_entry(lane, ref, entry))
        met = self._connection.compare(cql.APPEND, values, lane)
        if met is None or _is(met, ref):
            return True
        # The append may have been carried out twice, with somebody's next one in between.
        beyond = getattr(met, "incarnation", None) == ref.incarnation and met.seq > ref.seq
        return beyond and self.entries(lane, ref.incarnation, ref.seq, ref.seq) == [
            (ref.seq, entry)
        ]

    def create(self, lane: str, row: RawLane, entry: bytes | None) -> bool:
        """Write the first head row, and its entry if given."""
        values = (*_lane_columns(row), lane)
        if entry is None:
            met = self._connection.compare(cql.RECREATE, values, lane)
        else:
            values += _entry(lane, row.ref, entry)
            met = self._connection.compare(cql.CREATE, values, lane)
        return met is None or _is(met, row.ref)

    def import_entries(
        self, lane: str, incarnation: Incarnation, entries: Sequence[tuple[int, bytes]]
    ) -> bool:
        """Add entries of a past incarnation, one by one: restoring a lane is rare."""
        for seq, entry in entries:
            values = (entry, lane, incarnation, seq)
            if self._connection.compare(cql.IMPORT_ENTRY, values, lane) is not None:
                return False
        return bool(entries) or self.read(lane) is not None

    def reincarnate(
        self, lane: str, expected: HeadRef, row: RawLane, settled: tuple[int, int] | None = None
    ) -> bool:
        """Put a new incarnation in place."""
        values = (*_lane_columns(row), lane, *_columns(expected), *(settled or ()))
        statement = cql.REINCARNATE_SETTLED if settled else cql.REINCARNATE
        met = self._connection.compare(statement, values, lane)
        return met is None or _is(met, row.ref)

    def acknowledge(self, lane: str, expected: RawAck, ack: RawAck) -> bool:
        """Move the acknowledgement; one like ours may be another's, so nothing is guessed."""
        values = (ack.incarnation, ack.seq, ack.blob, lane, expected.incarnation, expected.seq)
        return self._connection.compare(cql.ACKNOWLEDGE, values, lane) is None

    def raise_collected(
        self, lane: str, incarnation: Incarnation, expected: int, collected: int
    ) -> bool:
        """Raise `collected`."""
        values = (collected, lane, incarnation, expected)
        return self._connection.compare(cql.RAISE_COLLECTED, values, lane) is None

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return the entries in [first, last]."""
        rows = self._connection.rows(cql.ENTRIES, (lane, incarnation, first, last), lane)
        return sorted((row.entry_seq, row.entry) for row in rows)

    def delete_entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int, *, head: Incarnation
    ) -> bool:
        """Delete entries in [first, last]."""
        values = (head, lane, head, lane, incarnation, first, last)
        return self._connection.compare(cql.DELETE_ENTRIES, values, lane) is None

    def lanes(self) -> Iterator[str]:
        """Yield the lanes."""
        rows = self._connection.rows(cql.LANES, (), self.url)
        yield from sorted(row.lane for row in rows)

    # Chunks -----------------------------------------------------------------------------------

    def put(self, kind: Blob, slot: Slot, chunks: Sequence[bytes]) -> None:
        """Store the chunks of an attempt."""
        put = cql.CHUNKS[kind].put
        noted = -NOTE_SECONDS_MAX

        def note() -> None:
            nonlocal noted
            if time.monotonic() - noted >= NOTE_SECONDS_MAX:
                noted = time.monotonic()
                self._connection.write(cql.NOTE_SLOT, _slot_row(kind, slot), slot_name(slot))

        with Window(self._connection, put.op, slot_name(slot), Access.WRITE) as window:
            for at, chunk in enumerate(chunks):
                note()
                values = (slot.lane, slot.incarnation, slot.seq, slot.attempt, at, chunk)
                if not window.send(put, values, len(chunk)):
                    break
        if chunks:
            note()

    def flush(self) -> None:
        """Nothing is held back: `put` waits for every chunk."""

    def get(self, kind: Blob, slot: Slot) -> list[bytes]:
        """Return the chunks of a slot."""
        rows = self._connection.rows(cql.CHUNKS[kind].get, _place(slot), slot_name(slot))
        return [row.data for row in rows]

    def delete(self, kind: Blob, slots: Iterable[Slot]) -> None:
        """Delete the chunks of these slots, and look at the slots again for a while."""
        statement = cql.CHUNKS[kind].delete
        for page in _pages(slots):
            # Chunks FIRST: killed in between, the slot is still noted and is deleted again.
            with Window(self._connection, statement.op, self.url, Access.WRITE) as window:
                for slot in page:
                    window.send(statement, _place(slot))
            with Window(self._connection, statement.op, self.url, Access.WRITE) as window:
                for slot in page:
                    window.send(cql.EMPTY_SLOT, (EMPTIED_SECONDS, *_slot_row(kind, slot)))

    def slots(self, kind: Blob, lane: str, *, last: int | None = None) -> Iterator[Slot]:
        """Yield the slots of a lane."""
        emptied: list[Slot] = []
        upto = _SEQ_MAX if last is None else last
        for row in self._connection.rows(cql.SLOTS, (lane, kind.value, upto), lane):
            slot = Slot(lane, Incarnation(row.incarnation), row.seq, Attempt(row.attempt))
            if row.emptied:
                emptied.append(slot)
            else:
                yield slot
        for page in _pages(emptied):
            yield from self._refilled(kind, page)

    def _refilled(self, kind: Blob, slots: Sequence[Slot]) -> list[Slot]:
        """Return those of the emptied slots whose writers were not done."""
        probe = cql.CHUNKS[kind].probe
        found: list[Slot] = []

        def receiver(slot: Slot) -> Callable[[Any], None]:
            return lambda rows: found.append(slot) if rows.one() is not None else None

        with Window(self._connection, probe.op, self.url, Access.READ) as window:
            for slot in slots:
                window.send(probe, _place(slot), receive=receiver(slot))
        return found

    # Segment lists, losers, settings ----------------------------------------------------------

    def read_list(self, lane: str) -> tuple[int, bytes] | None:
        """Return the segment list."""
        for row in self._connection.rows(cql.READ_LIST, (lane,), lane):
            return row.version, row.list
        return None

    def replace_list(self, lane: str, expected: int | None, version: int, blob: bytes) -> bool:
        """Replace the segment list; one like ours may be another's, so nothing is guessed."""
        if expected is None:
            met = self._connection.compare(cql.CREATE_LIST, (lane, version, blob), lane)
        else:
            met = self._connection.compare(cql.REPLACE_LIST, (version, blob, lane, expected), lane)
        return met is None

    def note_loser(self, slot: Slot, digest: bytes) -> None:
        """Remember the digest of a loser."""
        values = (slot.lane, slot.seq, slot.incarnation, slot.attempt, digest)
        self._connection.write(cql.NOTE_LOSER, values, slot_name(slot))

    def losers(self, lane: str) -> Iterator[tuple[Slot, bytes]]:
        """Yield the losers of a lane."""
        for row in self._connection.rows(cql.LOSERS, (lane,), lane):
            slot = Slot(lane, Incarnation(row.incarnation), row.seq, Attempt(row.attempt))
            yield slot, row.digest

    def forget_losers(self, lane: str, last: int) -> None:
        """Drop losers up to `last`."""
        self._connection.write(cql.FORGET_LOSERS, (lane, last), lane)

    def setting(self, name: str, value: str) -> str:
        """Store a setting once."""
        return setting(self._connection, name, value)

    def find_setting(self, name: str) -> str | None:
        """Return a setting."""
        return read_setting(self._connection, name)

    def group(self) -> AbstractContextManager[None]:
        """Return a context that changes nothing: every write is there when it returns."""
        return nullcontext()

    def close(self) -> None:
        """Close this process's session."""
        self._connection.close()


#: Slots that one pair of windows deletes or looks at.
_SLOTS_PAGE = 256


def _pages(slots: Iterable[Slot]) -> Iterator[list[Slot]]:
    page: list[Slot] = []
    for slot in slots:
        page.append(slot)
        if len(page) == _SLOTS_PAGE:
            yield page
            page = []
    if page:
        yield page


def _is(met: Any, ref: HeadRef) -> bool:
    """Tell whether the head that a comparison met is `ref`; a lane that is not there has none."""
    columns = tuple(getattr(met, name, None) for name in ("incarnation", "seq", "attempt"))
    return columns == _columns(ref)


def _columns(ref: HeadRef) -> tuple[bytes, int, bytes]:
    return (ref.incarnation, ref.seq, ref.attempt)


def _lane_columns(row: RawLane) -> tuple[object, ...]:
    ack = row.ack
    return (*_columns(row.ref), row.head, ack.incarnation, ack.seq, ack.blob, row.collected)


def _entry(lane: str, ref: HeadRef, entry: bytes) -> tuple[object, ...]:
    return (lane, ref.incarnation, ref.seq, entry)


def _place(slot: Slot) -> tuple[object, ...]:
    return (slot.lane, slot.incarnation, slot.seq, slot.attempt)


def _slot_row(kind: Blob, slot: Slot) -> tuple[object, ...]:
    return (slot.lane, kind.value, slot.seq, slot.incarnation, slot.attempt)
