"""What only the SQLite store promises: its settings, its locks, its file, its refusals."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dedup.catalog import sqlite as module
from dedup.catalog import sqlite_file
from dedup.catalog.sqlite import SqliteStore
from dedup.catalog.sqlite_errors import translate
from dedup.catalog.sqlite_file import network_file_system
from dedup.catalog.store import Blob
from dedup.errors import Corrupt, Indeterminate, InvalidUsage, Unavailable
from tests.conformance.values import attempt, incarnation, raw_lane, slot, successor

WAIT_SECONDS = 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalog.db"


@pytest.fixture
def file_store(path):
    with closing(SqliteStore(path)) as store:
        yield store


def pragma(store, name):
    return store._file._pragma(name)


def append(store, lane, ref, *, size=0):
    following = successor(ref)
    if size:
        store.put(Blob.OUTPUTS, slot(lane, following), [os.urandom(size)])
    assert store.append(lane, ref, following, b"head", b"entry")
    return following


def test_a_commit_is_on_the_disk(file_store):
    (mode,) = file_store._file._connection.execute("PRAGMA journal_mode").fetchone()
    assert mode == "wal"
    assert pragma(file_store, "synchronous") == 2
    assert pragma(file_store, "wal_autocheckpoint") == 0
    assert pragma(file_store, "mmap_size") == 0
    assert pragma(file_store, "busy_timeout") == sqlite_file.BUSY_MS_MAX
    assert pragma(file_store, "page_size") == sqlite_file.PAGE_BYTES


def test_a_bundle_is_one_transaction(file_store, lane):
    """Chunks wait for the append, so that a bundle costs one commit, hence one fsync."""
    row = raw_lane()
    file_store.create(lane, row, b"entry")
    said = []
    file_store._file._connection.set_trace_callback(said.append)
    append(file_store, lane, row.ref, size=10_000)
    file_store._file._connection.set_trace_callback(None)
    assert [line for line in said if line in ("BEGIN IMMEDIATE", "COMMIT")] == [
        "BEGIN IMMEDIATE",
        "COMMIT",
    ]


def test_chunks_beyond_the_limit_are_written_at_once(path, file_store, lane):
    place = slot(lane, raw_lane().ref)
    chunks = [os.urandom(512 * 1024) for _ in range(module.HELD_BYTES_MAX // (512 * 1024))]
    file_store.put(Blob.OUTPUTS, place, chunks)
    with closing(SqliteStore(path)) as reader:
        assert reader.get(Blob.OUTPUTS, place) == [], "held back: nothing asked for it yet"
        file_store.put(Blob.SEGMENT, place, [b"the last straw"])
        flushed = reader.get(Blob.OUTPUTS, place) == chunks
        assert flushed, "what is too much to hold back is written"
        assert reader.get(Blob.SEGMENT, place) == [b"the last straw"]
    assert file_store._held == {}


def test_a_lost_append_writes_nothing_and_keeps_what_is_held_back(path, file_store, lane):
    row = raw_lane()
    file_store.create(lane, row, b"entry")
    lost = successor(successor(row.ref))
    file_store.put(Blob.OUTPUTS, slot(lane, lost), [b"x"])
    assert not file_store.append(lane, successor(row.ref), lost, b"head", b"entry")
    with closing(SqliteStore(path)) as reader:
        assert list(reader.slots(Blob.OUTPUTS, lane)) == []
    assert file_store.get(Blob.OUTPUTS, slot(lane, lost)) == [b"x"]


def test_the_log_stays_bounded(path, file_store, lane, monkeypatch):
    monkeypatch.setattr(sqlite_file, "CHECKPOINT_BYTES", 2 * 1024 * 1024)
    row = raw_lane()
    file_store.create(lane, row, b"entry")
    ref, largest = row.ref, 0
    for _ in range(40):
        ref = append(file_store, lane, ref, size=400_000)
        largest = max(largest, path.with_name("catalog.db-wal").stat().st_size)
    assert largest < 3 * sqlite_file.CHECKPOINT_BYTES


def test_a_reader_that_never_ends_cannot_grow_the_log_for_ever(path, file_store, lane, monkeypatch):
    """It keeps the log while it reads; with its end the next checkpoint cuts the log off."""
    monkeypatch.setattr(sqlite_file, "CHECKPOINT_BYTES", 2 * 1024 * 1024)
    monkeypatch.setattr(sqlite_file, "WAL_BYTES_MAX", 2 * sqlite_file.CHECKPOINT_BYTES)
    monkeypatch.setattr(sqlite_file, "TRUNCATE_MS_MAX", 1)
    row = raw_lane()
    file_store.create(lane, row, b"entry")
    wal = path.with_name("catalog.db-wal")
    ref = row.ref
    with closing(sqlite3.connect(path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN")
        stranger.execute("SELECT count(*) FROM lane").fetchall()
        for _ in range(40):
            ref = append(file_store, lane, ref, size=400_000)
        assert wal.stat().st_size > sqlite_file.WAL_BYTES_MAX
        stranger.execute("COMMIT")
    for _ in range(20):
        ref = append(file_store, lane, ref, size=400_000)
    assert wal.stat().st_size < 2 * sqlite_file.CHECKPOINT_BYTES


def test_closing_leaves_one_file_and_its_lock(path, lane):
    store = SqliteStore(path)
    store.create(lane, raw_lane(), b"entry")
    store.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["catalog.db", "catalog.db-lock"]


# Refusals ---------------------------------------------------------------------------------------


def test_a_closed_store_says_so(file_store, lane):
    file_store.close()
    with pytest.raises(InvalidUsage, match="it was closed"):
        file_store.read(lane)


def test_a_newer_version_is_refused_and_untouched(path, file_store):
    file_store.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {sqlite_file.SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(InvalidUsage, match="install the release that wrote it"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_version_that_never_was_is_corrupt(path, file_store):
    file_store.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 0")
    with pytest.raises(Corrupt, match="no release ever wrote"):
        SqliteStore(path)


def test_another_programs_database_is_refused_and_untouched(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE users (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(InvalidUsage, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_is_no_database_is_corrupt_and_untouched(path):
    path.write_bytes(b"order,price\n" * 1000)
    with pytest.raises(Corrupt, match="restore this catalog from a backup"):
        SqliteStore(path)
    assert path.read_bytes() == b"order,price\n" * 1000


def test_a_torn_file_is_corrupt(path, file_store, lane):
    ref = raw_lane().ref
    file_store.create(lane, raw_lane(ref), b"entry")
    for _ in range(20):
        ref = append(file_store, lane, ref, size=50_000)
    file_store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])

    def read_everything():
        with closing(SqliteStore(path)) as torn:
            for place in torn.slots(Blob.OUTPUTS, lane):
                torn.get(Blob.OUTPUTS, place)

    with pytest.raises(Corrupt, match="restore this catalog from a backup"):
        read_everything()


@pytest.mark.parametrize(
    ("mounts", "path", "found"),
    [
        ([("/", "ext4")], "/var/shop.db", None),
        ([("/", "ext4"), ("/mnt/nas", "nfs4")], "/mnt/nas/shop.db", "nfs4"),
        ([("/", "ext4"), ("/mnt/nas", "nfs4")], "/mnt/nasty/shop.db", None),
        ([("/mnt/nas", "cifs"), ("/", "nfs")], "/mnt/nas/shop.db", "cifs"),
        ([("/mnt/nas", "nfs"), ("/mnt/nas/disk", "xfs")], "/mnt/nas/disk/shop.db", None),
        ([("/home", "nfs"), ("/home", "ext4")], "/home/shop.db", None),
        ([("/home", "ext4"), ("/home", "fuse.sshfs")], "/home/shop.db", "fuse.sshfs"),
        ([("/mnt/c", "9p")], "/mnt/c/shop.db", "9p"),
        ([("/Volumes/x", "SMBFS")], "/Volumes/x/shop.db", "SMBFS"),
        ([("/", "overlay"), ("/data", "fuseblk")], "/data/shop.db", None),
        ([], "/shop.db", None),
    ],
)
def test_network_file_systems_are_recognised(mounts, path, found):
    assert network_file_system(Path(path), mounts) == found


def test_a_network_file_system_is_refused(path, monkeypatch):
    mount = type("Mount", (), {"mountpoint": str(path.parent.resolve()), "fstype": "nfs4"})
    monkeypatch.setattr(sqlite_file.psutil, "disk_partitions", lambda **_: [mount])
    with pytest.raises(InvalidUsage, match=r"nfs4.*cassandra://"):
        SqliteStore(path)
    assert list(path.parent.iterdir()) == []


# Failures ---------------------------------------------------------------------------------------


def failure(code):
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "before", "committing"),
    [
        (sqlite3.SQLITE_BUSY, Unavailable, Indeterminate),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Unavailable, Indeterminate),
        (sqlite3.SQLITE_FULL, Unavailable, Indeterminate),
        (sqlite3.SQLITE_IOERR_FSYNC, Unavailable, Indeterminate),
        (sqlite3.SQLITE_READONLY, InvalidUsage, Indeterminate),
        (sqlite3.SQLITE_CORRUPT, Corrupt, Corrupt),
        (sqlite3.SQLITE_NOTADB, Corrupt, Corrupt),
        (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, Corrupt, Corrupt),
        (sqlite3.SQLITE_ERROR, Corrupt, Corrupt),
        (sqlite3.SQLITE_MISMATCH, Indeterminate, Indeterminate),
    ],
)
def test_what_a_failure_means_depends_on_commit(code, before, committing):
    assert type(translate(failure(code), "append", "lane", committing=False)) is before
    assert type(translate(failure(code), "append", "lane", committing=True)) is committing


def test_a_failure_without_a_code_may_have_happened():
    error = sqlite3.ProgrammingError("unknown")
    assert type(translate(error, "append", "lane", committing=False)) is Indeterminate


def test_a_full_disk_did_not_happen_and_a_freed_one_goes_on(file_store, lane):
    """SQLite's own limit on pages fails as a full disk does."""
    row = raw_lane()
    file_store.create(lane, row, b"entry")
    pages = pragma(file_store, "page_count")
    file_store._file._connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    ref = successor(row.ref)
    file_store.put(Blob.OUTPUTS, slot(lane, ref), [os.urandom(400_000)])
    with pytest.raises(Unavailable, match="free some disk space"):
        file_store.append(lane, row.ref, ref, b"head", b"entry")
    assert file_store.read(lane) == row
    file_store._file._connection.execute("PRAGMA max_page_count = 1000000").fetchall()
    assert file_store.append(lane, row.ref, ref, b"head", b"entry")
    assert len(file_store.get(Blob.OUTPUTS, slot(lane, ref))[0]) == 400_000


def test_a_failed_commit_may_have_happened_and_the_same_append_settles_it(file_store, lane):
    row = raw_lane()
    file_store.create(lane, row, b"entry")
    ref = successor(row.ref)
    file_store.put(Blob.OUTPUTS, slot(lane, ref), [b"outputs"])

    def deny_commit(action, name, _third, _database, _trigger):
        denied = action == sqlite3.SQLITE_TRANSACTION and name == "COMMIT"
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    file_store._file._connection.set_authorizer(deny_commit)
    with pytest.raises(Indeterminate, match="read the lane, then repeat the same call"):
        file_store.append(lane, row.ref, ref, b"head", b"entry")
    file_store._file._connection.set_authorizer(None)
    assert file_store.read(lane) == row
    assert file_store.append(lane, row.ref, ref, b"head", b"entry")
    assert file_store.get(Blob.OUTPUTS, slot(lane, ref)) == [b"outputs"]


def test_a_lock_held_by_a_stranger_did_not_happen(path, file_store, lane):
    row = raw_lane()
    file_store.create(lane, row, b"entry")
    file_store._file._connection.execute("PRAGMA busy_timeout = 1").fetchall()
    with closing(sqlite3.connect(path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            append(file_store, lane, row.ref)
        stranger.execute("ROLLBACK")
    append(file_store, lane, row.ref)


def test_a_read_only_file_is_refused_with_what_to_do(file_store, lane):
    file_store.create(lane, raw_lane(), b"entry")
    file_store._file._connection.execute("PRAGMA query_only = ON").fetchall()
    with pytest.raises(InvalidUsage, match="write access"):
        file_store.create(f"{lane}/other", raw_lane(), b"entry")


def test_an_exception_in_a_transaction_undoes_it(file_store, lane):
    def interrupted():
        with file_store._file.write("test", lane) as write:
            write("INSERT INTO setting VALUES (?, ?)", (lane, "undone"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file_store.setting(lane, "kept") == "kept"


# Locks and processes ----------------------------------------------------------------------------


def test_a_lock_that_is_never_released_ends_the_wait(path, file_store, lane, monkeypatch):
    monkeypatch.setattr(sqlite_file, "LOCK_SECONDS_MAX", 0.05)
    row = raw_lane()
    file_store.create(lane, row, b"entry")
    with (path.with_name("catalog.db-lock")).open("r+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match=r"catalog\.db-lock"):
            append(file_store, lane, row.ref)
        assert file_store.read(lane) == row, "readers need no lock"
    append(file_store, lane, row.ref)


def _child(store, lane, results):
    try:
        store.read(lane)
    except InvalidUsage as refused:
        results.put(str(refused))
    else:
        results.put("read after a fork")
    store.close()


def test_a_forked_child_is_refused_and_harms_nobody(file_store, lane):
    row = raw_lane()
    file_store.create(lane, row, b"entry")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_child, args=(file_store, lane, results))
    child.start()
    said = results.get(timeout=WAIT_SECONDS)
    child.join(WAIT_SECONDS)
    assert "open the catalog after the fork" in said
    assert child.exitcode == 0
    append(file_store, lane, row.ref)


def test_an_entry_where_none_may_stand_is_corrupt(file_store, lane):
    row = raw_lane()
    file_store.create(lane, row, b"entry")
    ref = successor(row.ref)
    with file_store._file.write("plant an entry", lane) as write:
        write("INSERT INTO entry VALUES (?, ?, ?, ?)", (lane, ref.incarnation, ref.seq, b"?"))
    with pytest.raises(Corrupt, match="keep a copy"):
        file_store.append(lane, row.ref, ref, b"head", b"entry")
    assert file_store.read(lane) == row


def test_identities_of_other_lanes_never_mix(file_store, lane):
    """Prefixes of names, and one incarnation used twice, stay apart."""
    owner = incarnation()
    for name in (lane, f"{lane}0"):
        ref = successor(raw_lane().ref)
        file_store.put(Blob.OUTPUTS, slot(name, ref), [name.encode()])
        row = raw_lane()
        file_store.create(name, row, b"entry")
        file_store.note_loser(slot(name, ref), attempt())
    assert len(list(file_store.slots(Blob.OUTPUTS, lane))) == 1
    assert len(list(file_store.losers(lane))) == 1
    assert file_store.entries(lane, owner, 0, 9) == []
