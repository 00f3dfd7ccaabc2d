"""The same-transaction sink: a lane's head and entries in the user's own SQLite database.

What it is: `SqliteLedger`, the ledger port over one file.
What it must not know: sources, catalogs, what the bytes of a head or an entry mean.

Invariants:
    The effect and the seal are one transaction on the user's connection, and only `append` commits
    it: a commit, a rollback, a script or a second transaction inside it is refused by SQLite's own
    authorizer, so also where the user calls the connection itself.
    Everything else goes over a connection of the ledger's own, which is never inside a transaction
    between two calls.
    The identity is minted inside the database, once, and never changes: a copy of the file has it
    too, another database never.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from delivery.points import At, nowhere
from delivery.receiver.points import SEAL_WRITTEN
from delivery.sinks import (
    IDENTITY_BYTES,
    Attempt,
    Corrupt,
    HeadRef,
    Incarnation,
    Indeterminate,
    InvalidUsage,
    Kind,
    RawLane,
    Unavailable,
    delivered_with,
)
from sinks.sql_effect import OURS, Transaction, authorized, file_of, is_open

__all__ = ["SqliteLedger"]

#: Version of the tables below.
VERSION = 1
#: How long a transaction waits for whoever else writes the database.
LOCK_SECONDS_MAX = 60.0
#: Between two tries on a connection whose own timeout is shorter.
LOCK_PAUSE_SECONDS = 0.02
#: How long the ledger's own connection waits: a claim or a head that is not to be had now is not
#: worth more.
BUSY_SECONDS = 2.0
#: Entries that one transaction deletes.
DELETE_ROWS_MAX = 256

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS delivery_database (
        one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
        identity BLOB NOT NULL, version INTEGER NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS delivery_lane (
        lane TEXT NOT NULL PRIMARY KEY, incarnation BLOB NOT NULL, seq INTEGER NOT NULL,
        attempt BLOB NOT NULL, head BLOB NOT NULL, collected INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS delivery_entry (
        lane TEXT NOT NULL, incarnation BLOB NOT NULL, seq INTEGER NOT NULL, entry BLOB NOT NULL,
        PRIMARY KEY (lane, incarnation, seq)
    ) WITHOUT ROWID""",
)
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY = 0xFF

Column = str | int | bytes


class SqliteLedger:
    """Lanes in one SQLite file; see `delivery.sinks.Ledger`.

    Args:
        path: the user's database.
        at: is told each place at which a test may let the process die.
        reading: nothing is written, not even an identity: whoever looks is no receiver.

    Raises:
        InvalidUsage: it cannot be opened, or its tables are of a later release, or it is only to be
            read and no receiver ever wrote it.
        Unavailable: it cannot be read now.
    """

    kind = Kind.SAME_TRANSACTION

    def __init__(self, path: str | Path, at: At = nowhere, *, reading: bool = False) -> None:
        self.path = str(Path(path).absolute())
        self.url = f"sqlite database {self.path}"
        self._at = at
        self._reading = reading
        self._user: sqlite3.Connection | None = None
        if not Path(self.path).is_file():
            raise InvalidUsage(
                "open the database of a receiver",
                self.path,
                "there is no such file; nothing was read or written: say database=PATH if it was "
                "moved, and put it back from a backup if it is lost",
            )
        with self._translated("open the database of a receiver"):
            self._own = sqlite3.connect(
                f"{Path(self.path).as_uri()}?mode={'ro' if reading else 'rw'}",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._own.execute("PRAGMA synchronous = FULL")
        try:
            self.identity = self._identity()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the own connection. May be called twice."""
        self._own.close()

    # The effect -------------------------------------------------------------------------------

    @contextmanager
    def within(self, connection: Any) -> Iterator[Transaction]:
        """Open the transaction of one effect; whatever has not ended it by `append` rolls it back.

        Raises:
            InvalidUsage: the connection is to another database, or in a transaction already.
            Unavailable: somebody else writes the database for longer than `LOCK_SECONDS_MAX`.
        """
        found = file_of(connection)
        if not Path(found).samefile(self.path):
            raise InvalidUsage(
                "write an effect",
                found,
                f"this group writes its effects into {self.path}; nothing was written: connect to "
                "that file, or read with another group",
            )
        self._begin(connection)
        connection.set_authorizer(authorized)
        self._user = connection
        try:
            yield Transaction(connection, self.url)
        finally:
            self._user = None
            # The block may have closed the connection, which rolled back what was open.
            if is_open(connection):
                connection.set_authorizer(None)
                connection.execute("ROLLBACK")
            with suppress(sqlite3.ProgrammingError):
                connection.set_authorizer(None)

    def _begin(self, connection: sqlite3.Connection) -> None:
        deadline = time.monotonic() + LOCK_SECONDS_MAX
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if _code(error) not in _LOCKED or time.monotonic() > deadline:
                    raise self._failure("write an effect", error) from error
                time.sleep(LOCK_PAUSE_SECONDS)  # its own timeout may be nothing
            else:
                return

    # Rows -------------------------------------------------------------------------------------

    def read(self, lane: str) -> RawLane | None:
        """Return the head row; what its effects are is delivered with it."""
        rows = self._rows(
            "SELECT incarnation, seq, attempt, head, collected FROM delivery_lane WHERE lane = ?",
            (lane,),
        )
        for incarnation, seq, attempt, head, collected in rows:
            ref = HeadRef(Incarnation(incarnation), seq, Attempt(attempt))
            return RawLane(ref, head, delivered_with(ref), collected)
        return None

    def append(self, lane: str, expected: HeadRef, ref: HeadRef, head: bytes, entry: bytes) -> bool:
        """Move the head, add the entry and commit, on the user's connection if an effect is open."""
        connection = self._user
        if connection is None:
            with self._writing("append a seal") as own:
                return _append(own, lane, expected, ref, head=head, entry=entry)
        if not is_open(connection):
            raise InvalidUsage(
                "append a seal",
                f"{lane} in {self.url}",
                "a statement of the effect ended the transaction (ON CONFLICT ROLLBACK?), or closed "
                "the connection; nothing of this bundle was sealed",
            )
        connection.set_authorizer(None)
        with self._translated("append a seal"):
            moved = _append(connection, lane, expected, ref, head=head, entry=entry)
        self._at(SEAL_WRITTEN)
        if not moved:
            connection.execute("ROLLBACK")
            return False
        try:
            with self._translated("append a seal", committing=True):
                connection.execute("COMMIT")
        except Indeterminate:
            # Whatever is still open was not committed; a lane that is looked into must find it so.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return True

    def create(self, lane: str, row: RawLane, entry: bytes | None) -> bool:
        """Write the first head row, and its entry."""
        with self._writing("create a lane") as own:
            made = own.execute(
                "INSERT INTO delivery_lane VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (lane, *_columns(row.ref), row.head, row.collected),
            ).rowcount
            if made == 1 and entry is not None:
                _add_entry(own, lane, row.ref, entry)
        return made == 1

    def put(self, lane: str, row: RawLane, first: tuple[Incarnation, bytes] | None) -> None:
        """Write a head row in place of whatever is there, and the entry of seq 0 if it is given."""
        with self._writing("fence a lane") as own:
            own.execute(
                "INSERT OR REPLACE INTO delivery_lane VALUES (?, ?, ?, ?, ?, ?)",
                (lane, *_columns(row.ref), row.head, row.collected),
            )
            if first is not None:
                own.execute("INSERT INTO delivery_entry VALUES (?, ?, 0, ?)", (lane, *first))

    def raise_collected(
        self, lane: str, incarnation: Incarnation, expected: int, collected: int
    ) -> bool:
        """Raise `collected`."""
        with self._writing("raise the collected mark") as own:
            raised = own.execute(
                "UPDATE delivery_lane SET collected = ?"
                " WHERE lane = ? AND incarnation = ? AND collected = ?",
                (collected, lane, incarnation, expected),
            ).rowcount
        return raised == 1

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return the entries in [first, last]."""
        return self._rows(
            "SELECT seq, entry FROM delivery_entry"
            " WHERE lane = ? AND incarnation = ? AND seq BETWEEN ? AND ? ORDER BY seq",
            (lane, incarnation, first, last),
        )

    def delete_entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int, *, head: Incarnation
    ) -> bool:
        """Delete entries in [first, last], a page to a transaction so that effects get a turn."""
        while True:
            with self._writing("delete entries") as own:
                current = self.read(lane)
                if current is None or current.ref.incarnation != head:
                    return False
                deleted = own.execute(
                    "DELETE FROM delivery_entry WHERE lane = ? AND incarnation = ? AND seq IN ("
                    "SELECT seq FROM delivery_entry WHERE lane = ? AND incarnation = ?"
                    " AND seq BETWEEN ? AND ? ORDER BY seq LIMIT ?)",
                    (lane, incarnation, lane, incarnation, first, last, DELETE_ROWS_MAX),
                ).rowcount
            if deleted < DELETE_ROWS_MAX:
                return True

    # Inside -----------------------------------------------------------------------------------

    def _identity(self) -> bytes:
        """Return the database's identity, minting it in a database that has none."""
        known = self._rows("SELECT 1 FROM sqlite_schema WHERE name = ?", (f"{OURS}database",))
        if not known and self._reading:
            raise InvalidUsage(
                "read the database of a receiver",
                self.path,
                "no receiver has ever sealed in it; nothing was read: name the one of the group",
            )
        if not known:
            with self._writing("open the database of a receiver") as own:
                for statement in _SCHEMA:
                    own.execute(statement)
                own.execute(
                    "INSERT INTO delivery_database VALUES (1, ?, ?) ON CONFLICT DO NOTHING",
                    (os.urandom(IDENTITY_BYTES), VERSION),
                )
        ((identity, version),) = self._rows("SELECT identity, version FROM delivery_database", ())
        if version != VERSION:
            raise InvalidUsage(
                "open the database of a receiver",
                self.url,
                f"its tables have version {version} and this release knows {VERSION}; nothing was "
                "read: install the release that wrote them",
            )
        return bytes(identity)

    def _rows(self, sql: str, columns: Sequence[Column]) -> list[Any]:
        with self._translated("read the database of a receiver"):
            return self._own.execute(sql, columns).fetchall()

    @contextmanager
    def _writing(self, op: str) -> Iterator[sqlite3.Connection]:
        with self._translated(op):
            self._own.execute("BEGIN IMMEDIATE")
        try:
            with self._translated(op):
                yield self._own
            with self._translated(op, committing=True):
                self._own.execute("COMMIT")
        finally:
            if self._own.in_transaction:
                self._own.execute("ROLLBACK")

    @contextmanager
    def _translated(self, op: str, *, committing: bool = False) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._failure(op, error, committing=committing) from error

    def _failure(
        self, op: str, error: sqlite3.Error, *, committing: bool = False
    ) -> Corrupt | Indeterminate | Unavailable:
        """Return what an exception of the driver means for the data."""
        if _code(error) in _BROKEN:
            return Corrupt(
                op,
                self.url,
                f"the database is damaged ({error}): stop, keep a copy, put a backup of it back and "
                "let the receiver accept it",
            )
        if committing:
            return Indeterminate(op, self.url, f"it may have happened ({error}): read the lane")
        done = "read" if self._reading else "written"
        return Unavailable(
            op, self.url, f"nothing was {done} ({error}): see that the file may be {done}"
        )


def _append(
    connection: sqlite3.Connection,
    lane: str,
    expected: HeadRef,
    ref: HeadRef,
    *,
    head: bytes,
    entry: bytes,
) -> bool:
    moved = connection.execute(
        "UPDATE delivery_lane SET incarnation = ?, seq = ?, attempt = ?, head = ?"
        " WHERE lane = ? AND incarnation = ? AND seq = ? AND attempt = ?",
        (*_columns(ref), head, lane, *_columns(expected)),
    ).rowcount
    if moved == 1:
        _add_entry(connection, lane, ref, entry)
    return moved == 1


def _add_entry(connection: sqlite3.Connection, lane: str, ref: HeadRef, entry: bytes) -> None:
    connection.execute(
        "INSERT INTO delivery_entry VALUES (?, ?, ?, ?)", (lane, ref.incarnation, ref.seq, entry)
    )


def _columns(ref: HeadRef) -> tuple[Column, ...]:
    return (ref.incarnation, ref.seq, ref.attempt)


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & _PRIMARY
