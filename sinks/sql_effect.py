"""An effect on a user's own SQLite connection: what it is written with, and what it may not do.

What it is: `Transaction`, the checks of a connection, and the authorizer that guards it.
What it must not know: lanes, seals.

Invariants:
    Whatever would part an effect from its seal is refused by SQLite itself, so also where the user
    calls the connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from delivery import InvalidUsage

__all__ = ["OURS", "Transaction", "authorized", "file_of", "is_open"]

#: What the names of our tables begin with; an effect may not write them.
OURS = "delivery_"
_WRITES = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)


def file_of(connection: Any) -> str:
    """Return the path of the database a connection writes to.

    Raises:
        InvalidUsage: it is no connection of `sqlite3`, in a transaction, or to no file.
    """
    if not isinstance(connection, sqlite3.Connection):
        raise InvalidUsage(
            "write an effect",
            type(connection).__name__,
            "bundle.once() takes a connection of Python's sqlite3; nothing was written: for another "
            "database make the effect idempotent and call bundle.done() after it",
        )
    cursor = connection.cursor()
    cursor.row_factory = None
    path = next((row[2] for row in cursor.execute("PRAGMA database_list") if row[1] == "main"), "")
    if not path:
        raise InvalidUsage(
            "write an effect",
            "a database in memory",
            "it would forget the effect and the seal with the process; nothing was written: connect "
            "to a file",
        )
    if connection.in_transaction:
        raise InvalidUsage(
            "write an effect",
            str(path),
            "the connection is in a transaction already, whose statements are not this bundle's; "
            "nothing was written: commit or roll back before bundle.once(), and connect without "
            "autocommit=False",
        )
    return str(path)


class Transaction:
    """What a user writes an effect with: one open transaction that the seal will end."""

    def __init__(self, connection: sqlite3.Connection, url: str) -> None:
        self._connection = connection
        self._url = url

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self._open("execute").execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any]) -> sqlite3.Cursor:
        """Run one statement with many rows."""
        return self._open("executemany").executemany(sql, parameters)

    def cursor(self) -> sqlite3.Cursor:
        """Return a cursor of the connection, for libraries that ask for one."""
        return self._open("cursor").cursor()

    def executescript(self, _script: str) -> None:
        """Refuse: a script commits before it begins."""
        raise self._refusal("executescript", "a script commits what is open before it begins")

    def commit(self) -> None:
        """Refuse: the seal commits."""
        raise self._refusal("commit", "the seal commits, when the `with` block ends")

    def rollback(self) -> None:
        """Refuse: an exception rolls back."""
        raise self._refusal("rollback", "raise an exception, and nothing of the bundle is written")

    def _open(self, call: str) -> sqlite3.Connection:
        if not is_open(self._connection):
            # By an ON CONFLICT ROLLBACK, or by SQLite itself when its disk is full.
            raise self._refusal(call, "a statement before it ended the transaction")
        return self._connection

    def _refusal(self, call: str, why: str) -> InvalidUsage:
        return InvalidUsage(
            f"call tx.{call}", self._url, f"{why}; nothing of this bundle was written"
        )


def is_open(connection: sqlite3.Connection) -> bool:
    """Tell whether a connection is there and in a transaction."""
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:  # it was closed
        return False


def authorized(
    action: int, first: str | None, _second: str | None, database: str | None, _inner: str | None
) -> int:
    """Say what a statement of an effect may do; SQLite asks when it prepares one."""
    if action == sqlite3.SQLITE_TRANSACTION:
        return sqlite3.SQLITE_DENY
    if action in _WRITES:
        # In a database attached beside it the effect would be committed apart from the seal.
        elsewhere = database not in ("main", "temp", None)
        if elsewhere or (first or "").startswith(OURS):
            return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
