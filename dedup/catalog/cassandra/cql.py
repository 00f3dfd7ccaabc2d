"""Every statement of the store, as data.

What it is: the CQL, and of each statement what messages call it, how consistent it is and how
many rows a page of it has.
What it must not know: the driver, and which values are bound.

Invariants:
    `lanes` and `lists` are changed by conditional statements only, never by plain ones: client
    clocks would decide between the two, silently.
    `outputs`, `segments`, `slots` and `losers` are changed by plain statements only.
    No statement binds an optional value: an absent one would be written as a tombstone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from dedup.catalog.store import Blob


class Level(Enum):
    """How many replicas must agree."""

    #: Paxos, reading: linearizable with every comparison.
    SERIAL_READ = auto()
    #: A quorum; for a conditional statement a serial one, and a quorum learns of it.
    QUORUM = auto()
    #: As QUORUM, but of all data centres even if the catalog lives in one: for what is read
    #: before we know whether it does.
    EVERYWHERE = auto()


#: Rows of a page: small rows, entries of about 1 KiB, chunks of up to 516 KiB.
ROWS_PAGE = 1000
ENTRIES_PAGE = 64
CHUNKS_PAGE = 4


@dataclass(frozen=True, slots=True)
class Statement:
    """One prepared statement; `KS` stands for the keyspace."""

    op: str
    cql: str
    level: Level = Level.QUORUM
    page_rows: int = ROWS_PAGE

    def text(self, keyspace: str) -> str:
        """Return the CQL for a keyspace."""
        return self.cql.replace("KS.", f"{keyspace}.")


READ = Statement(
    "read a lane",
    # DISTINCT, because a linearizable read of the static columns alone returns nothing once the
    # lane has no entries.
    "SELECT DISTINCT lane, incarnation, seq, attempt, head, ack_incarnation, ack_seq, ack,"
    " collected FROM KS.lanes WHERE lane = ?",
    Level.SERIAL_READ,
)
CREATE = Statement(
    "create a lane",
    "BEGIN BATCH"
    " UPDATE KS.lanes SET incarnation = ?, seq = ?, attempt = ?, head = ?, ack_incarnation = ?,"
    " ack_seq = ?, ack = ?, collected = ? WHERE lane = ?"
    " IF incarnation = null AND seq = null AND attempt = null;"
    " INSERT INTO KS.lanes (lane, entry_incarnation, entry_seq, entry) VALUES (?, ?, ?, ?);"
    " APPLY BATCH",
)
RECREATE = Statement(
    "restore a lane",
    "UPDATE KS.lanes SET incarnation = ?, seq = ?, attempt = ?, head = ?, ack_incarnation = ?,"
    " ack_seq = ?, ack = ?, collected = ? WHERE lane = ?"
    " IF incarnation = null AND seq = null AND attempt = null",
)
#: The condition asks for a lane, any lane: nothing else writes entries of a past incarnation.
IMPORT_ENTRY = Statement(
    "import an entry",
    "UPDATE KS.lanes SET entry = ? WHERE lane = ? AND entry_incarnation = ? AND entry_seq = ?"
    " IF attempt != null",
)
APPEND = Statement(
    "append a seal",
    "BEGIN BATCH"
    " UPDATE KS.lanes SET incarnation = ?, seq = ?, attempt = ?, head = ? WHERE lane = ?"
    " IF incarnation = ? AND seq = ? AND attempt = ?;"
    " INSERT INTO KS.lanes (lane, entry_incarnation, entry_seq, entry) VALUES (?, ?, ?, ?);"
    " APPLY BATCH",
)
REINCARNATE = Statement(
    "fence a lane",
    "UPDATE KS.lanes SET incarnation = ?, seq = ?, attempt = ?, head = ?, ack_incarnation = ?,"
    " ack_seq = ?, ack = ?, collected = ? WHERE lane = ?"
    " IF incarnation = ? AND seq = ? AND attempt = ?",
)
REINCARNATE_SETTLED = Statement(
    REINCARNATE.op,
    f"{REINCARNATE.cql} AND ack_seq = ? AND collected = ?",
)
ACKNOWLEDGE = Statement(
    "acknowledge",
    "UPDATE KS.lanes SET ack_incarnation = ?, ack_seq = ?, ack = ? WHERE lane = ?"
    " IF ack_incarnation = ? AND ack_seq = ?",
)
RAISE_COLLECTED = Statement(
    "raise the collected mark",
    "UPDATE KS.lanes SET collected = ? WHERE lane = ? IF incarnation = ? AND collected = ?",
)
ENTRIES = Statement(
    "read the entries of a lane",
    "SELECT entry_seq, entry FROM KS.lanes"
    " WHERE lane = ? AND entry_incarnation = ? AND entry_seq >= ? AND entry_seq <= ?",
    Level.SERIAL_READ,
    ENTRIES_PAGE,
)
#: The head's part writes what it compares: a batch that deletes rows may only be conditional
#: together with an UPDATE.
DELETE_ENTRIES = Statement(
    "delete entries",
    "BEGIN BATCH"
    " UPDATE KS.lanes SET incarnation = ? WHERE lane = ? IF incarnation = ?;"
    " DELETE FROM KS.lanes"
    " WHERE lane = ? AND entry_incarnation = ? AND entry_seq >= ? AND entry_seq <= ?;"
    " APPLY BATCH",
)
LANES = Statement("list the lanes", "SELECT DISTINCT lane FROM KS.lanes")

READ_LIST = Statement(
    "read a segment list",
    "SELECT version, list FROM KS.lists WHERE lane = ?",
    Level.SERIAL_READ,
)
CREATE_LIST = Statement(
    "create a segment list",
    "INSERT INTO KS.lists (lane, version, list) VALUES (?, ?, ?) IF NOT EXISTS",
)
REPLACE_LIST = Statement(
    "replace a segment list",
    "UPDATE KS.lists SET version = ?, list = ? WHERE lane = ? IF version = ?",
)

NOTE_SLOT = Statement(
    "note a slot",
    "UPDATE KS.slots SET emptied = false"
    " WHERE lane = ? AND kind = ? AND seq = ? AND incarnation = ? AND attempt = ?",
)
#: The row goes by itself after a while, unless its writer notes it again.
EMPTY_SLOT = Statement(
    "empty a slot",
    "UPDATE KS.slots USING TTL ? SET emptied = true"
    " WHERE lane = ? AND kind = ? AND seq = ? AND incarnation = ? AND attempt = ?",
)
SLOTS = Statement(
    "list slots",
    "SELECT seq, incarnation, attempt, emptied FROM KS.slots"
    " WHERE lane = ? AND kind = ? AND seq <= ?",
)

NOTE_LOSER = Statement(
    "note a loser",
    "INSERT INTO KS.losers (lane, seq, incarnation, attempt, digest) VALUES (?, ?, ?, ?, ?)",
)
LOSERS = Statement(
    "list losers", "SELECT seq, incarnation, attempt, digest FROM KS.losers WHERE lane = ?"
)
FORGET_LOSERS = Statement("forget losers", "DELETE FROM KS.losers WHERE lane = ? AND seq <= ?")

READ_SETTING = Statement(
    "read a setting", "SELECT value FROM KS.settings WHERE name = ?", Level.EVERYWHERE
)
STORE_SETTING = Statement(
    "store a setting",
    "INSERT INTO KS.settings (name, value) VALUES (?, ?) IF NOT EXISTS",
    Level.EVERYWHERE,
)


@dataclass(frozen=True, slots=True)
class ChunkStatements:
    """The statements of one table of chunks."""

    put: Statement
    get: Statement
    probe: Statement
    delete: Statement


_PUT = (
    "INSERT INTO KS.CHUNKS (lane, incarnation, seq, attempt, chunk, data) VALUES (?, ?, ?, ?, ?, ?)"
)
_GET = "SELECT data FROM KS.CHUNKS WHERE lane = ? AND incarnation = ? AND seq = ? AND attempt = ?"
_PROBE = (
    "SELECT chunk FROM KS.CHUNKS"
    " WHERE lane = ? AND incarnation = ? AND seq = ? AND attempt = ? LIMIT 1"
)
_DELETE = "DELETE FROM KS.CHUNKS WHERE lane = ? AND incarnation = ? AND seq = ? AND attempt = ?"


def _chunks(kind: Blob, table: str) -> ChunkStatements:
    def of(verb: str, cql: str, page_rows: int = ROWS_PAGE) -> Statement:
        return Statement(f"{verb} {kind.value}", cql.replace("CHUNKS", table), page_rows=page_rows)

    return ChunkStatements(
        put=of("store", _PUT),
        get=of("read", _GET, CHUNKS_PAGE),
        probe=of("list", _PROBE),
        delete=of("delete", _DELETE),
    )


CHUNKS = {
    Blob.OUTPUTS: _chunks(Blob.OUTPUTS, "outputs"),
    Blob.SEGMENT: _chunks(Blob.SEGMENT, "segments"),
    Blob.DROPPED: _chunks(Blob.DROPPED, "dropped"),
}
