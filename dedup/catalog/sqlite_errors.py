"""What SQLite's errors mean for the data: the one place where the driver's exceptions become ours.

What it is: `translated`, and the refusals that the SQLite store raises itself.
What it must not know: any statement.

Invariants:
    What fails before COMMIT did not happen; what fails in COMMIT may have.
    What is listed nowhere may have happened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from dedup.errors import Corrupt, DeliveryError, Indeterminate, InvalidUsage, Unavailable

#: What SQLite says when it could not do a thing now; before COMMIT, then, it did not happen.
_TRANSIENT = frozenset(
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
    )
)
#: What it says of bytes or rows that contradict each other. Our statements are constants, so an
#: error in one of them (SQLITE_ERROR: no such column) is damage in the schema.
_BROKEN = frozenset(
    (
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_NOTADB,
    )
)
#: What it says when it may not write.
_REFUSED = frozenset((sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY))
_PRIMARY = 0xFF


@contextmanager
def translated(op: str, subject: str, *, committing: bool = False) -> Iterator[None]:
    """Turn what the driver raises into our kinds: the only place that does."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, op, subject, committing=committing) from error
    except UnicodeDecodeError as error:  # the driver's way of quoting a damaged schema
        raise damaged(op, subject, str(error)) from error


def translate(error: sqlite3.Error, op: str, subject: str, *, committing: bool) -> DeliveryError:
    """Return what an exception of the driver means for the data."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # raised by the driver, not by SQLite
        undecodable = isinstance(error, sqlite3.OperationalError)
        code = sqlite3.SQLITE_CORRUPT if undecodable else sqlite3.SQLITE_MISUSE
    code &= _PRIMARY
    if code == sqlite3.SQLITE_NOTADB:
        return damaged(op, subject, f"{error}; if it never was a catalog, mend its path")
    if code in _BROKEN:
        return damaged(op, subject, str(error))
    if committing or code not in _TRANSIENT | _REFUSED:
        return Indeterminate(
            op, subject, f"it may have happened ({error}): read the lane, then repeat the same call"
        )
    if code in _REFUSED:
        return InvalidUsage(
            op,
            subject,
            f"SQLite may not write ({error}); nothing was written: give this user write access to "
            "the file and its directory",
        )
    advice = "free some disk space, then " if code == sqlite3.SQLITE_FULL else ""
    return Unavailable(op, subject, f"nothing was written ({error}): {advice}try again")


def damaged(op: str, subject: str, what: str) -> Corrupt:
    """Say that bytes or rows of the file contradict each other."""
    return Corrupt(
        op,
        subject,
        f"SQLite's file is damaged ({what}): stop, keep a copy of the file with its -wal and "
        "restore this catalog from a backup",
    )


def unusable(url: str, what: str, op: str = "open the catalog") -> InvalidUsage:
    """Refuse a file, or a use of it, before anything is written."""
    return InvalidUsage(op, url, f"{what}; nothing was written")
