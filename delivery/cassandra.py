"""Statements to a Cassandra cluster, for sinks: the connection of catalogs, without their tables.

What it is: names that `dedup` has, and the splitting of a table's URL.
What it must not know: any table.

Invariants:
    Needs the extra `cassandra`: import it only where a cluster is written to.
"""

from __future__ import annotations

from typing import NamedTuple

from dedup.catalog.cassandra.address import Address
from dedup.catalog.cassandra.cql import Statement
from dedup.catalog.cassandra.errors import Access
from dedup.catalog.cassandra.session import REQUEST_SECONDS_MAX, Connection
from dedup.catalog.cassandra.window import Window
from dedup.errors import InvalidUsage

__all__ = ["Access", "Connection", "Statement", "Table", "Window", "connected"]


class Table(NamedTuple):
    """A table, and how its cluster is reached."""

    connection: Connection
    name: str


def connected(url: str) -> Table:
    """Return the table that a URL names: `cassandra://[user@]host[:port][,host…]/keyspace/table`.

    Options and passwords are those of a catalog's URL. Nothing is sent yet.

    Raises:
        InvalidUsage: it is malformed.
    """
    head, mark, options = url.partition("?")
    keyspace, _, name = head.rpartition("/")
    address = Address.parse(f"{keyspace}{mark}{options}")
    if not name.replace("_", "").isalnum() or not name[0].isalpha() or name != name.lower():
        raise InvalidUsage(
            "write to a table",
            address.url,
            "a table's name is a letter and then a-z, 0-9 and _; nothing was written: write "
            "cassandra://host:9042/keyspace/table",
        )
    return Table(Connection(address, None, REQUEST_SECONDS_MAX), name)
