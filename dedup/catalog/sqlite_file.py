"""The SQLite file under a catalog: opened safely, written in short transactions, checkpointed.

What it is: everything about the file that is not a statement of the store port: settings, schema
and its version, the lock round every write, checkpoints.
What it must not know: what the rows mean.

Invariants:
    A write transaction, a checkpoint and a close hold the file lock; a read holds nothing.
    A transaction that returned is on the disk (WAL, synchronous=FULL).
    A connection is used only by the process that opened it.
    Nobody opens the database file but SQLite: closing such a descriptor would drop its locks.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from dedup.catalog.flock import FileLock
from dedup.catalog.sqlite_errors import damaged, translated, unusable
from dedup.errors import Corrupt, Unavailable

#: "XDca", in the database's header: this file is a catalog of ours.
APPLICATION_ID = 0x58446361
#: Version of the tables below, in the database's `user_version`.
SCHEMA_VERSION = 1
#: The oldest SQLite that knows STRICT tables.
SQLITE_VERSION_MIN = (3, 37, 0)
#: Measured: blobs go in 1.5 times as fast as with pages of 4096, and appends cost the same.
PAGE_BYTES = 16384
#: A transaction waits this long for the lock; its holders need milliseconds, a checkpoint less
#: than a second. Only a stopped process (SIGSTOP, a debugger) holds it longer.
LOCK_SECONDS_MAX = 30.0
#: Backstop behind the lock, for strangers such as a shell with the database open.
BUSY_MS_MAX = 10_000
#: A process checkpoints when it has written this much since its last checkpoint. A checkpoint
#: waits for the disk twice: after every 4 MiB it cost a tenth of the speed of blobs.
CHECKPOINT_BYTES = 16 * 1024 * 1024
#: Above this size of the log a checkpoint also waits for readers and cuts it off.
WAL_BYTES_MAX = 64 * 1024 * 1024
#: How long that checkpoint waits for readers; if in vain, the next one tries again.
TRUNCATE_MS_MAX = 200

#: File systems on which locks or shared memory do not reach every user of the file.
NETWORK_FILE_SYSTEMS = frozenset(
    [
        "9p",
        "afpfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs3",
        "nfs4",
        "orangefs",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
        "webdav",
        "fuse.cephfs",
        "fuse.davfs2",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "fuse.vmhgfs-fuse",
        "fuse.weed",
    ]
)

_SCHEMA = (
    """CREATE TABLE lane (
        lane TEXT NOT NULL PRIMARY KEY,
        incarnation BLOB NOT NULL, seq INTEGER NOT NULL, attempt BLOB NOT NULL, head BLOB NOT NULL,
        ack_incarnation BLOB NOT NULL, ack_seq INTEGER NOT NULL, ack BLOB NOT NULL,
        collected INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE entry (
        lane TEXT NOT NULL, incarnation BLOB NOT NULL, seq INTEGER NOT NULL, entry BLOB NOT NULL,
        PRIMARY KEY (lane, incarnation, seq)
    ) STRICT, WITHOUT ROWID""",
    # With row ids, unlike the others: measured, blobs go in 1.2 to 1.6 times as fast as into the
    # leaves of the key's own tree, which split in the middle. Listing slots reads the key alone.
    """CREATE TABLE chunk (
        kind TEXT NOT NULL, lane TEXT NOT NULL, seq INTEGER NOT NULL, incarnation BLOB NOT NULL,
        attempt BLOB NOT NULL, ordinal INTEGER NOT NULL, bytes BLOB NOT NULL,
        PRIMARY KEY (kind, lane, seq, incarnation, attempt, ordinal)
    ) STRICT""",
    """CREATE TABLE segment_list (
        lane TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL, list BLOB NOT NULL
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE loser (
        lane TEXT NOT NULL, seq INTEGER NOT NULL, incarnation BLOB NOT NULL,
        attempt BLOB NOT NULL, digest BLOB NOT NULL,
        PRIMARY KEY (lane, seq, incarnation, attempt)
    ) STRICT, WITHOUT ROWID""",
    "CREATE TABLE setting (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_SETTINGS = (
    f"PRAGMA busy_timeout = {BUSY_MS_MAX}",
    f"PRAGMA page_size = {PAGE_BYTES}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # macOS: fsync alone does not reach the disk there
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA wal_autocheckpoint = 0",
    f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}",
    "PRAGMA mmap_size = 0",
    "PRAGMA cell_size_check = ON",
    "PRAGMA secure_delete = OFF",  # some builds overwrite what is deleted, page by page
)

Column: TypeAlias = str | int | bytes
#: The types of a row, by column.
Shape: TypeAlias = tuple[type[Column], ...]
#: Runs one statement and returns how many rows it changed.
Write: TypeAlias = Callable[[str, Sequence[Column]], int]


class SqliteFile:
    """One open catalog file, for one process; its threads take turns."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:{path}"
        self._path = path
        _check_place(path, self.url)
        self._pid = os.getpid()
        self._turn = threading.RLock()
        self._written = 0
        #: What is to be done once a group is on the disk; None outside of one.
        self._after: list[Callable[[], None]] | None = None
        #: What went wrong inside a group: it must not be committed.
        self._failure: BaseException | None = None
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            with translated("open the catalog", self.url):
                self._recognise()  # BEFORE a lock file is made beside somebody else's database
            self._lock = FileLock(path.with_name(f"{path.name}-lock"))
        except (OSError, sqlite3.Error) as error:
            raise unusable(
                self.url,
                f"it cannot be opened ({error}): see whether this user may write in {path.parent}, "
                "where SQLite keeps files beside it, or name a path elsewhere",
            ) from None
        self._prepare()

    @contextmanager
    def exclusive(self, op: str, subject: str) -> Iterator[None]:
        """Hold the thread's turn and the file lock."""
        with self.turn(op):
            if not self._lock.acquire(LOCK_SECONDS_MAX):
                raise Unavailable(
                    op,
                    subject,
                    f"another process has held {self._lock.path} for {LOCK_SECONDS_MAX:.0f} s; "
                    "nothing was written: find the stopped process with `fuser` on that file, "
                    "let it go on or end it, and try again",
                )
            try:
                yield
            finally:
                self._lock.release()

    @contextmanager
    def turn(self, op: str) -> Iterator[None]:
        """Hold the thread's turn, in the process that opened the file and before `close`."""
        if os.getpid() != self._pid:  # BEFORE the turn: a lock copied by a fork may stay taken
            raise unusable(
                self.url,
                f"process {self._pid} opened it and this is process {os.getpid()}; SQLite does not "
                "survive a fork: open the catalog after the fork, once in each process",
                op,
            )
        with self._turn:
            if self._lock.closed:
                raise unusable(self.url, "it was closed: open the catalog again", op)
            yield

    @contextmanager
    def write(self, op: str, subject: str) -> Iterator[Write]:
        """Run the body as one transaction; what it changed is on the disk when it returns.

        Inside a group it is on the disk when the group returns.
        """
        if self._after is not None:
            with self.turn(op):
                try:
                    with translated(op, subject):
                        yield self._execute
                except BaseException as error:
                    self._failure = error
                    raise
            return
        with self.exclusive(op, subject):
            with translated(op, subject):
                self._checkpoint_if_due()
                self._connection.execute("BEGIN IMMEDIATE")
            try:
                with translated(op, subject):
                    yield self._execute
                with translated(op, subject, committing=True):
                    self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    @contextmanager
    def group(self, op: str, subject: str) -> Iterator[None]:
        """Make all writes of the body one transaction.

        Raises:
            DeliveryError: it failed, or one of the writes did: nothing of the body is there.
        """
        after: list[Callable[[], None]] = []
        with self.write(op, subject):
            self._after, self._failure = after, None
            try:
                yield
            finally:
                self._after = None
            if self._failure is not None:
                raise self._failure
        for done in after:
            done()

    def once_written(self, done: Callable[[], None]) -> None:
        """Call `done` when what was just written is on the disk: at once, or behind the group."""
        if self._after is None:
            done()
        else:
            self._after.append(done)

    def read(
        self, op: str, subject: str, sql: str, columns: Sequence[Column], shape: Shape
    ) -> list[Any]:
        """Return all rows of one statement, as of the last commit before it began.

        Raises:
            Corrupt: a row has not the types of `shape`, which no writer of ours can have done.
        """
        with self.turn(op), translated(op, subject):
            rows = self._connection.execute(sql, columns).fetchall()
        for row in rows:
            if tuple(map(type, row)) != shape:
                raise damaged(op, subject, "a row has other types than its table")
        return rows

    def close(self) -> None:
        """Checkpoint and close; a second call does nothing."""
        if os.getpid() != self._pid or self._lock.closed:
            return
        with self._turn:
            # Closing the last connection of all checkpoints, hence the lock.
            with self.exclusive("close the catalog", self.url):
                self._connection.close()
            self._lock.close()

    def _execute(self, sql: str, columns: Sequence[Column]) -> int:
        self._written += PAGE_BYTES + sum(len(it) for it in columns if not isinstance(it, int))
        return self._connection.execute(sql, columns).rowcount

    def _checkpoint_if_due(self) -> None:
        """Move the log into the file; BEFORE a transaction, whose own outcome is then clear."""
        if self._written < CHECKPOINT_BYTES:
            return
        self._written = 0
        ((_, frames, _),) = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if frames * PAGE_BYTES > WAL_BYTES_MAX:
            self._connection.execute(f"PRAGMA busy_timeout = {TRUNCATE_MS_MAX}")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_MS_MAX}")

    def _prepare(self) -> None:
        """Apply the settings; create the tables of a new file, recognise those of an old one."""
        op = "open the catalog"
        with self.exclusive(op, self.url), translated(op, self.url):
            self._recognise()  # again: somebody may have created it in between
            for setting in _SETTINGS:
                self._connection.execute(setting).fetchall()
            if self._pragma("application_id") == 0:
                self._connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    self._connection.execute(statement)
                self._connection.execute("COMMIT")

    def _recognise(self) -> None:
        """Refuse a file that is not ours, before anything about it is changed."""
        application, version = self._pragma("application_id"), self._pragma("user_version")
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application == 0 and tables == 0:
            return
        if application != APPLICATION_ID:
            raise unusable(
                self.url, "this SQLite database belongs to another program: name another path"
            )
        if version > SCHEMA_VERSION:
            raise unusable(
                self.url,
                f"its tables have version {version} and this release knows up to {SCHEMA_VERSION}: "
                "install the release that wrote it, or a newer one",
            )
        if version < 1:
            raise Corrupt(
                "open the catalog",
                self.url,
                f"its tables have version {version}, which no release ever wrote; nothing was "
                "written: keep a copy and restore this catalog from a backup",
            )

    def _pragma(self, name: str) -> int:
        (value,) = self._connection.execute(f"PRAGMA {name}").fetchone()
        assert isinstance(value, int), "the pragma is a number"
        return value


def _check_place(path: Path, url: str) -> None:
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        wanted = ".".join(map(str, SQLITE_VERSION_MIN))
        raise unusable(url, f"this Python has SQLite {sqlite3.sqlite_version}: {wanted} is needed")
    if path.is_dir():
        raise unusable(url, "the path is a directory: add a file name, like sqlite:shop.db")
    if not path.parent.is_dir():
        raise unusable(url, f"the directory {path.parent} does not exist: create it first")
    mounts = [(it.mountpoint, it.fstype) for it in psutil.disk_partitions(all=True)]
    found = network_file_system(path.resolve(), mounts)
    if found:
        raise unusable(
            url,
            f"the path is on a network file system ({found}), where SQLite's locks do not hold: "
            "name a path on a local disk, or use cassandra://host:port/keyspace for a cluster",
        )


def network_file_system(path: Path, mounts: Sequence[tuple[str, str]]) -> str | None:
    """Return the type of the file system `path` is on, if it is a network one.

    Args:
        path: absolute and free of symbolic links.
        mounts: mount point and type of every file system; of two on one point the later counts.
    """
    holding = [(len(point), kind) for point, kind in mounts if path.is_relative_to(point)]
    longest = max((length for length, _ in holding), default=0)
    kind = next((kind for length, kind in reversed(holding) if length == longest), "")
    return kind if kind.lower() in NETWORK_FILE_SYSTEMS else None
