"""The same-transaction sink: what a database keeps of a lane, and what an effect may do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from delivery.sinks import (
    Attempt,
    Corrupt,
    HeadRef,
    Incarnation,
    InvalidUsage,
    Kind,
    RawLane,
    Unavailable,
    delivered_with,
    kind_of,
)
from sinks import sql
from sinks.sql import SqliteLedger
from sinks.sql_effect import file_of

LANE = "shop/billing/report-0"
INCARNATION = Incarnation(b"i" * 16)


def ref(seq: int, attempt: bytes = b"a") -> HeadRef:
    return HeadRef(INCARNATION, seq, Attempt(attempt * 16))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "user.db")) as connection:
        connection.execute("CREATE TABLE effect (n INTEGER UNIQUE)")
        connection.commit()
    return tmp_path / "user.db"


@pytest.fixture
def ledger(path: Path):
    with closing(SqliteLedger(path)) as ledger:
        row = RawLane(ref(0), b"head 0", delivered_with(ref(0)), 0)
        assert ledger.create(LANE, row, b"entry 0")
        yield ledger


@pytest.fixture
def user(path: Path):
    with closing(sqlite3.connect(path, timeout=0)) as connection:
        yield connection


def effects(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [n for (n,) in connection.execute("SELECT n FROM effect ORDER BY n")]


def test_the_kind_is_declared():
    assert kind_of(SqliteLedger) is Kind.SAME_TRANSACTION
    with pytest.raises(InvalidUsage, match="does not say why"):
        kind_of(object())


def test_an_effect_and_its_seal_are_one_transaction(ledger, user, path):
    with ledger.within(user) as tx:
        tx.execute("INSERT INTO effect VALUES (1)")
        tx.executemany("INSERT INTO effect VALUES (?)", [(2,), (3,)])
        assert tx.cursor().execute("SELECT count(*) FROM effect").fetchone() == (3,)
        assert effects(path) == []
        assert ledger.append(LANE, ref(0), ref(1), b"head 1", b"entry 1")
        assert effects(path) == [1, 2, 3]
    row = ledger.read(LANE)
    assert (row.ref, row.head, row.ack.seq) == (ref(1), b"head 1", 1)
    assert ledger.entries(LANE, INCARNATION, 0, 9) == [(0, b"entry 0"), (1, b"entry 1")]
    user.execute("INSERT INTO effect VALUES (4)")
    user.commit()
    assert effects(path) == [1, 2, 3, 4], "the connection is the user's again"


def test_whoever_built_on_another_head_is_rolled_back(ledger, user, path):
    with ledger.within(user) as tx:
        tx.execute("INSERT INTO effect VALUES (1)")
        assert not ledger.append(LANE, ref(0, b"x"), ref(1), b"head 1", b"entry 1")
    assert effects(path) == []
    assert ledger.read(LANE).ref == ref(0)


def test_an_effect_without_a_seal_is_rolled_back(ledger, user, path):
    with ledger.within(user) as tx:
        tx.execute("INSERT INTO effect VALUES (1)")
    with pytest.raises(ZeroDivisionError), ledger.within(user) as tx:
        tx.execute("INSERT INTO effect VALUES (?)", (1 // 0,))
    assert effects(path) == []
    assert not user.in_transaction


@pytest.mark.parametrize("level", [None, "", "IMMEDIATE", "EXCLUSIVE"])
def test_however_the_users_connection_begins_transactions(ledger, path, level):
    with closing(sqlite3.connect(path, isolation_level=level)) as user:
        user.row_factory = sqlite3.Row
        with ledger.within(user) as tx:
            tx.execute("INSERT INTO effect VALUES (1)")
            assert ledger.append(LANE, ref(0), ref(1), b"head 1", b"entry 1")
    assert effects(path) == [1]


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "ROLLBACK",
        "END",
        "BEGIN",
        "DELETE FROM delivery_lane",
        "UPDATE delivery_database SET identity = x'00'",
        "INSERT INTO other.effect VALUES (1)",
    ],
)
def test_what_would_part_the_effect_from_its_seal_is_not_authorized(
    ledger, user, path, tmp_path, statement
):
    user.execute("ATTACH ? AS other", (str(tmp_path / "other.db"),))
    user.execute("CREATE TABLE other.effect (n INTEGER)")
    user.commit()
    with ledger.within(user) as tx:
        tx.execute("INSERT INTO effect VALUES (1)")
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            tx.execute(statement)
    assert effects(path) == []


def test_savepoints_and_temporary_tables_are_the_users_own(ledger, user, path):
    with ledger.within(user) as tx:
        tx.execute("CREATE TEMP TABLE staged (n INTEGER)")
        tx.execute("INSERT INTO staged VALUES (7)")
        tx.execute("SAVEPOINT here")
        tx.execute("INSERT INTO effect VALUES (1)")
        tx.execute("ROLLBACK TO here")
        tx.execute("INSERT INTO effect SELECT n FROM staged")
        assert ledger.append(LANE, ref(0), ref(1), b"head 1", b"entry 1")
    assert effects(path) == [7]


def test_a_transaction_that_ended_within_takes_nothing_more(ledger, path):
    """Without a transaction, a connection in autocommit would write for good."""
    with closing(sqlite3.connect(path, isolation_level=None)) as user:
        user.execute("INSERT INTO effect VALUES (1)")
        with ledger.within(user) as tx:
            tx.execute("INSERT INTO effect VALUES (2)")
            with pytest.raises(sqlite3.IntegrityError):
                tx.execute("INSERT OR ROLLBACK INTO effect VALUES (1)")
            for call in (tx.execute, tx.executemany):
                with pytest.raises(InvalidUsage, match="ended the transaction"):
                    call("INSERT INTO effect VALUES (3)", ())
            with pytest.raises(InvalidUsage, match="ended the transaction"):
                ledger.append(LANE, ref(0), ref(1), b"head 1", b"entry 1")
    assert effects(path) == [1]
    assert ledger.read(LANE).ref == ref(0)


def test_a_database_that_is_always_busy_is_told(ledger, user, path, monkeypatch):
    monkeypatch.setattr(sql, "LOCK_SECONDS_MAX", 0.1)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="nothing was written"), ledger.within(user):
            pass
        other.rollback()
    with ledger.within(user) as tx:
        tx.execute("INSERT INTO effect VALUES (1)")
        assert ledger.append(LANE, ref(0), ref(1), b"head 1", b"entry 1")


def test_rows_are_compared_and_collected(ledger):
    other = Incarnation(b"j" * 16)
    row = RawLane(ref(5), b"other", delivered_with(ref(5)), 0)
    assert not ledger.create(LANE, row, b"other"), "it is there"
    assert ledger.append(LANE, ref(0), ref(1), b"head 1", b"entry 1"), "outside of an effect"
    assert not ledger.append(LANE, ref(0), ref(1, b"b"), b"head 1", b"entry 1")
    assert not ledger.raise_collected(LANE, INCARNATION, 1, 2)
    assert ledger.raise_collected(LANE, INCARNATION, 0, 1)
    assert ledger.read(LANE).collected == 1
    assert not ledger.delete_entries(LANE, INCARNATION, 0, 1, head=other)
    assert ledger.delete_entries(LANE, INCARNATION, 0, 0, head=INCARNATION)
    assert ledger.entries(LANE, INCARNATION, 0, 9) == [(1, b"entry 1")]
    assert ledger.read("shop/billing/report-1") is None


def test_the_identity_is_minted_once(ledger, path, tmp_path):
    with closing(SqliteLedger(path)) as again:
        assert again.identity == ledger.identity
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    other.touch()
    with closing(SqliteLedger(other)) as different:
        assert different.identity != ledger.identity


def test_what_is_no_database_of_ours_is_refused(path, tmp_path):
    with pytest.raises(InvalidUsage, match="no such file"):
        SqliteLedger(tmp_path / "gone.db")
    torn = tmp_path / "torn.db"
    torn.write_bytes(b"no database" * 1000)
    with pytest.raises(Corrupt, match="damaged"):
        SqliteLedger(torn)
    SqliteLedger(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE delivery_database SET version = 9")
        connection.commit()
    with pytest.raises(InvalidUsage, match="version 9"):
        SqliteLedger(path)


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_who_only_looks_reads_beside_a_writer_and_writes_nothing(path, user, mode):
    user.execute(f"PRAGMA journal_mode = {mode}")
    with pytest.raises(InvalidUsage, match="no receiver has ever sealed in it"):
        SqliteLedger(path, reading=True)
    with closing(SqliteLedger(path)) as ledger:
        row = RawLane(ref(0), b"head 0", delivered_with(ref(0)), 0)
        assert ledger.create(LANE, row, b"entry 0")
        identity = ledger.identity
    with closing(SqliteLedger(path, reading=True)) as looks:
        user.execute("INSERT INTO effect VALUES (1)")
        assert user.in_transaction
        assert looks.read(LANE).ref == ref(0)
        assert looks.entries(LANE, INCARNATION, 0, 9) == [(0, b"entry 0")]
        user.commit()
        assert looks.identity == identity
        with pytest.raises(Unavailable, match=r"nothing was read .*readonly"):
            looks.append(LANE, ref(0), ref(1), b"head 1", b"entry 1")
    user.close()
    with closing(SqliteLedger(path, reading=True)) as looks:
        assert looks.read(LANE).ref == ref(0)


def test_a_connection_must_be_to_a_file_and_free(path, user):
    with (
        closing(sqlite3.connect(":memory:")) as memory,
        pytest.raises(InvalidUsage, match="memory"),
    ):
        file_of(memory)
    with pytest.raises(InvalidUsage, match="sqlite3"):
        file_of("user.db")
    assert Path(file_of(user)).samefile(path)
    user.execute("INSERT INTO effect VALUES (1)")
    with pytest.raises(InvalidUsage, match="in a transaction already"):
        file_of(user)
