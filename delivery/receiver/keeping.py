"""Where the lanes of a receiver's group are kept: in the catalog, or in the user's database.

What it is: `Keeping`, which finds out, decides it for a new group, and refuses what contradicts
what the catalog remembers.
What it must not know: Kafka, bundles, how a database keeps rows.

Invariants:
    It is decided once, with the first bundle that is sealed; before that the lanes begin in this
    process's memory alone, and nothing is lost with them.
    The catalog has a row of each lane that is kept in a database: its incarnation, its starting
    frontier and the database's identity. It is written BEFORE the database's row, and the database
    takes over that very row.
    A database is refused that is not the one the catalog remembers, that is of another history, or
    that is older than what was collected behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.catalog.store import RawAck, RawLane
from dedup.errors import InvalidUsage
from dedup.formats.lane import decode_head, decode_seal, encode_head
from dedup.model import (
    IDENTITY_BYTES,
    Ack,
    Attempt,
    Head,
    HeadRef,
    Incarnation,
    Kept,
    LaneRow,
)
from delivery.host.adapters import open_ledger
from delivery.points import At, nowhere
from delivery.ports import Clock
from delivery.receiver.ledger import LedgerStore, Rows
from delivery.receiver.points import CATALOG_TOLD, IDENTITY_MINTED, LANES_COPIED
from delivery.sinks import Ledger

__all__ = ["Keeping", "Place", "contradiction"]

#: What the state of a lane's row in the catalog begins with if the lane is kept in a database; the
#: database's identity and its path follow.
_IN_DATABASE = b"database\x01"
_OP = "open a receiver"
_ANOTHER = "it is not the database that this group's effects went into"


class Place(Enum):
    """Where a group's lanes are."""

    #: Nothing was ever sealed: the first bundle decides.
    UNDECIDED = "undecided"
    CATALOG = "catalog"
    DATABASE = "database"


class Keeping:
    """Where the lanes of one group are kept.

    Args:
        catalog: what has been decided; segments are there in any case.
        prefix: what the names of the group's lanes begin with.
        database: where the user's database is, if not where the catalog remembers it.
        at: is told each place at which a test may let the process die.
    """

    def __init__(
        self, catalog: Catalog, prefix: str, database: str | None = None, at: At = nowhere
    ) -> None:
        self._main = catalog
        self._prefix = prefix
        self._database = database
        self._at = at
        self._memory = MemoryStore()
        self._store = LedgerStore(prefix, self._memory, catalog.store, name="no database", at=at)
        self.place = Place.UNDECIDED
        #: Lanes that began here in memory, and that somebody else had begun before.
        self.stale: set[str] = set()
        self.ledger: Ledger | None = None
        #: The catalog as the lanes of this group are to see it.
        self.catalog = Catalog(self._store)

    def close(self) -> None:
        """Let go of the database. May be called twice."""
        if self.ledger is not None:
            self.ledger.close()

    # Finding out ------------------------------------------------------------------------------

    def find(self, lanes: Iterable[str]) -> bool:
        """Look whether it is decided by now; False if it is not.

        Raises:
            InvalidUsage: the database is not there, or not the one that the catalog remembers.
        """
        if self.place is not Place.UNDECIDED:
            return True
        rows = [row for lane in lanes if (row := self._main.load(lane)) is not None]
        if not rows:
            return False
        state = rows[0].head.state
        if not state.startswith(_IN_DATABASE):
            self._use(Place.CATALOG, self._main.store, "")
            return True
        identity, path = _split(state)
        ledger = self._opened(self._database or path)
        if ledger.identity != identity:
            ledger.close()
            raise self._other(ledger.path)
        self._take(ledger)
        return True

    def check(self, lane: str) -> None:
        """Refuse a lane that contradicts what the catalog remembers of it.

        Raises:
            InvalidUsage: an operator must say what is meant; nothing was read or written.
        """
        if self.ledger is None:
            return
        why = contradiction(self._main, self.ledger, lane)
        if why is not None:
            raise self._refused(self.ledger.path if why == _ANOTHER else lane, why)

    # Deciding ---------------------------------------------------------------------------------

    def decide_catalog(self) -> None:
        """Keep the lanes of a new group in the catalog."""
        assert self.place is Place.UNDECIDED, "it is decided once"
        self._copy(self._main.store)
        self._use(Place.CATALOG, self._main.store, "")
        for lane in self._memory.lanes():
            known = self._main.load(lane)
            if known is not None and known.head.state.startswith(_IN_DATABASE):
                raise self._refused(lane, "another process keeps this group in a database")

    def decide_database(self, path: str) -> None:
        """Keep the lanes of a new group in a database.

        Raises:
            InvalidUsage: the database has lanes that this catalog does not know, or another
                process decided otherwise meanwhile.
        """
        assert self.place is Place.UNDECIDED, "it is decided once"
        ledger = self._opened(path)
        self._at(IDENTITY_MINTED)
        self._take(ledger)
        for lane in self._memory.lanes():
            self.check(lane)
        self._copy(_Remembered(ledger, self._main, self._at))
        self._at(LANES_COPIED)

    def accept(self, path: str, lanes: Iterable[str], clock: Clock) -> None:
        """Take a database as it is for this group's, and fence everybody from before.

        SUBTLE: seqs go on above everything that was ever collected, because the segment list
        stands for all ids up to there; ids of seals that this database does not have do not count
        any more, because its history ends below them.
        """
        ledger = self._opened(path)
        try:
            for lane in lanes:
                self._accept(ledger, lane, clock)
        finally:
            ledger.close()

    # Inside -----------------------------------------------------------------------------------

    def _accept(self, ledger: Ledger, lane: str, clock: Clock) -> None:
        raw, known = ledger.read(lane), self._main.load(lane)
        if raw is None and known is None:
            return
        if known is not None and not known.head.state.startswith(_IN_DATABASE):
            raise self._refused(lane, "the catalog keeps this lane itself")
        before, entry = self._history(ledger, lane, raw, known)
        listed = self._main.segment_list(lane)
        seq = max(before.ref.seq, listed.upto if listed else 0)
        ref = HeadRef(Incarnation(clock.fresh()), seq, Attempt(clock.fresh()))
        kept = Kept(before.ref.incarnation, before.ref.seq)
        head = replace(before, ref=ref, past=(*before.past, kept), state=b"")
        collected = raw.collected if raw else 0
        ack = RawAck(ref.incarnation, seq, b"")
        ledger.put(lane, RawLane(ref, encode_head(head), ack, collected), entry)
        # The catalog goes on remembering where the lane began: a database that is begun anew
        # begins there.
        begun = replace(known.head if known else head, ref=ref, past=head.past)
        row = LaneRow(
            head=replace(begun, state=_state(ledger)), ack=Ack(ref.incarnation, seq), collected=0
        )
        if known is None:
            self._main.recreate(lane, row)
        elif not self._main.reincarnate(lane, known.head.ref, row):
            raise self._refused(lane, "somebody else changed it meanwhile; run it again")

    def _history(
        self, ledger: Ledger, lane: str, raw: RawLane | None, known: LaneRow | None
    ) -> tuple[Head, tuple[Incarnation, bytes] | None]:
        """Return the last head whose effects a database has, and the entry it lacks, if one.

        A database that has nothing of a lane has what stood at its beginning: seq 0, and no id
        that was decided after it.
        """
        if raw is not None:
            return decode_head(raw.head, f"head of {lane} in {ledger.url}"), None
        assert known is not None, "one of the two is there"
        first = known.head.incarnation_of(0)
        entries = self._main.store.entries(lane, first, 0, 0)
        ref = HeadRef(first, 0, known.head.ref.attempt)
        head = replace(known.head, ref=ref, past=())
        return head, (first, entries[0][1]) if entries else None

    def _opened(self, path: str) -> Ledger:
        return open_ledger(path, self._at)

    def _take(self, ledger: Ledger) -> None:
        self.ledger = ledger
        rows = _Remembered(ledger, self._main, self._at)
        self._use(Place.DATABASE, rows, f"database {ledger.identity.hex()}")

    def _use(self, place: Place, rows: Rows, name: str) -> None:
        self.place = place
        self._store.keep_in(rows, name)

    def _copy(self, rows: Rows) -> None:
        """Let the lanes that began in memory begin where they are to be kept.

        Whatever is there already was begun by somebody else, who is followed.
        """
        for lane in self._memory.lanes():
            raw = self._memory.read(lane)
            assert raw is not None, "a lane that is listed is there"
            (entry,) = self._memory.entries(lane, raw.ref.incarnation, 0, 0)
            if not rows.create(lane, raw, entry[1]):
                self.stale.add(lane)

    def _other(self, path: str) -> InvalidUsage:
        return self._refused(path, _ANOTHER)

    def _refused(self, subject: str, why: str) -> InvalidUsage:
        return InvalidUsage(
            _OP,
            subject,
            f"{why}; nothing was read or written: open the right database and catalog, or say that "
            "the database counts as it is, with receiver.accept(PATH): what it lacks is then done "
            "again, and what it has is not",
        )


def contradiction(catalog: Catalog, ledger: Ledger, lane: str) -> str | None:
    """Say what of a lane in a database is not as the catalog remembers it; None: nothing."""
    raw, known = ledger.read(lane), catalog.load(lane)
    listed = catalog.segment_list(lane)
    upto = listed.upto if listed else 0
    if known is None:
        return None if raw is None else "the catalog does not know this lane: is it another one?"
    if not known.head.state.startswith(_IN_DATABASE):
        return "the catalog keeps this lane itself"
    if _split(known.head.state)[0] != ledger.identity:
        return _ANOTHER
    if raw is None:
        return "the database has nothing of a lane whose ids were collected" if upto else None
    if raw.ref.incarnation != known.head.ref.incarnation:
        return "catalog or database were restored: their histories differ"
    below = f"the database stands at seq {raw.ref.seq}, below {upto} that was collected"
    return below if raw.ref.seq < upto else None


class _Remembered:
    """Rows in a ledger, each lane of which the catalog is told of before it begins."""

    def __init__(self, ledger: Ledger, main: Catalog, at: At) -> None:
        self._ledger = ledger
        self._main = main
        self._at = at
        self.read = ledger.read
        self.append = ledger.append
        self.entries = ledger.entries
        self.raise_collected = ledger.raise_collected
        self.delete_entries = ledger.delete_entries

    def create(self, lane: str, row: RawLane, entry: bytes | None) -> bool:
        """Tell the catalog, and write the first row; False if somebody else did, whose row it is."""
        assert entry is not None, "a lane begins with an entry"
        head, seal = decode_head(row.head, lane), decode_seal(entry, lane)
        told = self._main.create(lane, replace(head, state=_state(self._ledger)), seal)
        self._at(CATALOG_TOLD)
        if told:
            return self._ledger.create(lane, row, entry)
        known = self._main.load(lane)
        assert known is not None, "who is refused meets a row"
        if _split(known.head.state)[0] != self._ledger.identity:
            raise InvalidUsage(
                "begin a lane",
                lane,
                "another process keeps this group somewhere else; nothing was written: use the same "
                "database everywhere, or another group",
            )
        self._ledger.create(lane, *self._row_of(lane, known.head))
        return False

    def acknowledge(self, _lane: str, _expected: RawAck, _ack: RawAck) -> bool:
        """Do nothing: what is sealed here is delivered, and its row says so by itself."""
        return True

    def _row_of(self, lane: str, head: Head) -> tuple[RawLane, bytes | None]:
        """Return the row and entry that the catalog remembers a lane to begin with."""
        entries = self._main.store.entries(lane, head.ref.incarnation, head.ref.seq, head.ref.seq)
        ack = RawAck(head.ref.incarnation, head.ref.seq, b"")
        row = RawLane(head.ref, encode_head(replace(head, state=b"")), ack, 0)
        return row, entries[0][1] if entries else None


def _state(ledger: Ledger) -> bytes:
    return _IN_DATABASE + ledger.identity + ledger.path.encode()


def _split(state: bytes) -> tuple[bytes, str]:
    """Return the identity and the path of the database that a row names."""
    rest = state.removeprefix(_IN_DATABASE)
    return rest[:IDENTITY_BYTES], rest[IDENTITY_BYTES:].decode()
