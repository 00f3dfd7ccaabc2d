"""The Cassandra sink: each record becomes a row whose key is the record's id.

What it is: the emitter port over one table.
What it must not know: sources, catalogs.

Keyed: writing a record twice writes the same row twice. An id is made from the attempt that was
sealed, so no two records share one, and no other execution of user code has it.

Invariants:
    The table is made if it is absent, and never changed if it is there.
    Every row of a call is acknowledged by a quorum before the call returns.
    What is under way is bounded in bytes and requests.
"""

from __future__ import annotations

import uuid

from delivery import InvalidUsage
from delivery.cassandra import Access, Statement, Window, connected
from delivery.ports import Emissions, Frontier, Rows, TopicId
from delivery.sinks import Kind, positions, written_by

__all__ = ["CassandraEmitter"]

#: Columns that the sink writes; a table may have more.
COLUMNS = ("id", "key", "value", "headers", "sender", "seq", "ordinal")
_TABLE = (
    "CREATE TABLE IF NOT EXISTS {} (id blob PRIMARY KEY, key blob, value blob,"
    " headers list<frozen<tuple<text, blob>>>, sender text, seq bigint, ordinal int)"
)


class CassandraEmitter:
    """Writes one edge into a table.

    Args:
        target: `cassandra://[user@]host[:port][,host…]/keyspace/table`; options as in a catalog's
            URL. The keyspace is there.

    Raises:
        InvalidUsage: the target is malformed, or the table has not the columns it needs.
        Unavailable: the cluster does not answer.
    """

    kind = Kind.KEYED

    def __init__(self, target: str) -> None:
        table = connected(target)
        self._connection = table.connection
        keyspace = self._connection.address.keyspace
        self._subject = f"{self._connection.address.url}/{table.name}"
        try:
            self._connection.define(_TABLE.format(f"{keyspace}.{table.name}"))
            self.writes: tuple[TopicId, ...] = (self._identity(keyspace, table.name),)
        except BaseException:
            self.close()
            raise
        self._insert = Statement(
            "write a row",
            f"INSERT INTO KS.{table.name} ({', '.join(COLUMNS)})"  # noqa: S608 - the name is checked
            f" VALUES ({', '.join('?' * len(COLUMNS))})",
        )

    def place(self, rows: Rows) -> list[int]:
        """Return the partitions of the parents; rows are spread by their ids in any case."""
        return list(rows.parent_partitions)

    def emit(self, emissions: Emissions) -> Frontier:
        """Write every row, and say how far the bundle is written."""
        if not len(emissions):
            return Frontier()
        written = written_by(emissions)
        sender, seq = (written.lane, written.seq) if written else ("", 0)
        with Window(self._connection, "write rows", self._subject, Access.WRITE) as window:
            for ordinal, one in enumerate(emissions):
                size = len(one.key or b"") + len(one.value or b"")
                headers = list(one.headers)
                values = (one.id, one.key, one.value, headers, sender, seq, ordinal)
                if not window.send(self._insert, values, size):
                    break
        return positions(self.writes[0], emissions, written)

    def close(self) -> None:
        """Let go of the session. May be called twice."""
        self._connection.close()

    def _identity(self, keyspace: str, table: str) -> TopicId:
        """Return Cassandra's own identity of the table, which is never used again."""
        found = self._connection.ask(
            "look at a table",
            "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s",
            (keyspace, table),
        )
        columns = self._connection.ask(
            "look at a table",
            "SELECT column_name FROM system_schema.columns"
            " WHERE keyspace_name = %s AND table_name = %s",
            (keyspace, table),
        )
        missing = set(COLUMNS) - {row.column_name for row in columns}
        if missing or not found:
            raise InvalidUsage(
                "write to a table",
                self._subject,
                f"it has no column {', '.join(sorted(missing))}; nothing was written: name a table "
                "that is not there yet, and it is made",
            )
        identity = found[0].id
        assert isinstance(identity, uuid.UUID), "Cassandra names its tables so"
        return TopicId(identity.bytes)
