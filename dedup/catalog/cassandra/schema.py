"""The tables of a catalog in a keyspace: made when they are missing, checked when they are there.

What it is: the tables as data, and `ensure`.
What it must not know: rows of lanes, outputs or segments.

Invariants:
    A keyspace that belongs to something else, to a newer release, or to a catalog with another
    consistency is refused, and nothing is written to it.
    The version is stored AFTER the last table, so a version says that all tables are there.
    Nothing in a table expires by itself but the marks of emptied slots.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from dedup.catalog.cassandra.address import Address
from dedup.catalog.cassandra.cql import READ_SETTING, STORE_SETTING
from dedup.catalog.cassandra.session import Connection
from dedup.errors import InvalidUsage, Unavailable

#: Of the tables below. A change of their meaning needs a new one, and a migration.
VERSION = 1
VERSION_SETTING = "schema"
CONSISTENCY_SETTING = "consistency"
#: Copies of a new keyspace, where there are as many nodes.
REPLICAS_DEFAULT = 3
#: How long deletions of chunks are remembered. A replica that missed one for longer brings chunks
#: back that nobody refers to: wasted space, never a wrong answer.
CHUNKS_GRACE_SECONDS = 24 * 3600
#: The same for slots, which come and go like the items of a queue: whoever lists them reads over
#: every deletion that is still remembered, and Cassandra gives up at 100,000.
SLOTS_GRACE_SECONDS = 3600
#: How long a node may not have heard of a table that another one has, and how often it is asked.
HEARSAY_SECONDS_MAX, HEARSAY_SECONDS = 3.0, 0.1

_UNIFIED = "compaction = {'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'T4'}"
_CHUNK_OPTIONS = (
    f"compression = {{'enabled': false}} AND {_UNIFIED}"
    f" AND gc_grace_seconds = {CHUNKS_GRACE_SECONDS}"
)

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table. Columns are (name, type), in the order of the key where they belong to it."""

    name: str
    partition: tuple[tuple[str, str], ...]
    clustering: tuple[tuple[str, str], ...] = ()
    static: tuple[tuple[str, str], ...] = ()
    regular: tuple[tuple[str, str], ...] = ()
    #: The clustering column that is kept in descending order, if one is.
    newest_first: str = ""
    options: str = ""

    def statement(self, keyspace: str) -> str:
        """Return the statement that creates it."""
        columns = [*self.partition, *self.clustering, *self.static, *self.regular]
        static = {name for name, _ in self.static}
        defined = [f"{n} {t}{' STATIC' if n in static else ''}" for n, t in columns]
        partition = ", ".join(name for name, _ in self.partition)
        key = ", ".join((f"({partition})", *(name for name, _ in self.clustering)))
        order = [f"{n} {'DESC' if n == self.newest_first else 'ASC'}" for n, _ in self.clustering]
        options = [f"CLUSTERING ORDER BY ({', '.join(order)})"] if order else []
        options += [self.options] if self.options else []
        with_ = f" WITH {' AND '.join(options)}" if options else ""
        body = ", ".join([*defined, f"PRIMARY KEY ({key})"])
        return f"CREATE TABLE IF NOT EXISTS {keyspace}.{self.name} ({body}){with_}"

    def columns(self) -> set[tuple[str, str, str, int, str]]:
        """Return what Cassandra's own tables say of ours: name, type, kind, position, order."""
        return {
            *((n, t, "partition_key", at, "none") for at, (n, t) in enumerate(self.partition)),
            *(
                (n, t, "clustering", at, "desc" if n == self.newest_first else "asc")
                for at, (n, t) in enumerate(self.clustering)
            ),
            *((n, t, "static", -1, "none") for n, t in self.static),
            *((n, t, "regular", -1, "none") for n, t in self.regular),
        }


_SLOT = (("seq", "bigint"), ("incarnation", "blob"), ("attempt", "blob"))


def _chunk_table(name: str) -> Table:
    return Table(
        name=name,
        partition=(("lane", "text"), ("incarnation", "blob"), ("seq", "bigint")),
        clustering=(("attempt", "blob"), ("chunk", "int")),
        regular=(("data", "blob"),),
        options=_CHUNK_OPTIONS,
    )


#: `settings` comes first: a keyspace that has it is ours, or was about to be.
SETTINGS = Table(
    name="settings", partition=(("name", "text"),), regular=(("value", "text"),), options=_UNIFIED
)
TABLES = (
    SETTINGS,
    Table(
        name="lanes",
        partition=(("lane", "text"),),
        clustering=(("entry_incarnation", "blob"), ("entry_seq", "bigint")),
        static=(
            ("incarnation", "blob"),
            ("seq", "bigint"),
            ("attempt", "blob"),
            ("head", "blob"),
            ("collected", "bigint"),
            ("ack_incarnation", "blob"),
            ("ack_seq", "bigint"),
            ("ack", "blob"),
        ),
        regular=(("entry", "blob"),),
        # SUBTLE: a comparison of static columns reads the first live entry as well. In ascending
        # order it would walk over every collected one that compaction has not yet removed.
        newest_first="entry_seq",
        options=_UNIFIED,
    ),
    Table(
        name="lists",
        partition=(("lane", "text"),),
        regular=(("version", "bigint"), ("list", "blob")),
        options=_UNIFIED,
    ),
    _chunk_table("outputs"),
    _chunk_table("segments"),
    _chunk_table("dropped"),
    Table(
        name="slots",
        partition=(("lane", "text"), ("kind", "text")),
        clustering=_SLOT,
        regular=(("emptied", "boolean"),),
        options=f"{_UNIFIED} AND gc_grace_seconds = {SLOTS_GRACE_SECONDS}",
    ),
    Table(
        name="losers",
        partition=(("lane", "text"),),
        clustering=_SLOT,
        regular=(("digest", "blob"),),
        options=_UNIFIED,
    ),
)


def ensure(connection: Connection, *, create: bool = True) -> None:
    """Check the keyspace and its tables; make what a new catalog lacks, or refuse to.

    Raises:
        InvalidUsage: it belongs to something else, to a newer release, or to a catalog that was
            opened with other settings; nothing was written.
    """
    address = connection.address
    connection.check_datacenter({str(host.datacenter) for host in connection.hosts()})
    keyspace = keyspace_of(connection)
    if keyspace is not None:
        _check_keyspace(address, keyspace)
    found = _columns(connection)
    if found and SETTINGS.name not in found:
        raise _refused(
            address,
            f"this keyspace holds other tables ({', '.join(sorted(found)[:3])}) and no catalog",
            "name another keyspace; a catalog makes its own",
        )
    version = None
    if SETTINGS.name in found:
        _check_table(address, SETTINGS, found)
        version = _version(connection)
        _check_version(address, version)
        agreed = _patiently(connection, lambda: read_setting(connection, CONSISTENCY_SETTING))
        _check_agreement(address, agreed)
    # Once there is a version, a table that is missing was lost with all it held: making it anew
    # would forget what has been decided.
    if version is None:
        if not create:
            raise _refused(
                address,
                "there is no catalog in this keyspace",
                "mend its name in the URL; whatever runs a stage makes a new one",
            )
        if keyspace is None:
            _create_keyspace(connection)
        for table in TABLES:
            statement = table.statement(address.keyspace)
            _patiently(connection, partial(connection.define, statement))
    _patiently(connection, lambda: _check_tables(connection))
    agreed = _patiently(
        connection, lambda: setting(connection, CONSISTENCY_SETTING, address.agreement)
    )
    _check_agreement(address, agreed)
    version = _patiently(connection, lambda: setting(connection, VERSION_SETTING, str(VERSION)))
    _check_version(address, version)


def _create_keyspace(connection: Connection) -> None:
    copies = connection.address.replication or (("", _default_copies(connection)),)
    options = ", ".join(f"'{name or 'replication_factor'}': {number}" for name, number in copies)
    connection.define(
        f"CREATE KEYSPACE IF NOT EXISTS {connection.address.keyspace} WITH replication ="
        f" {{'class': 'NetworkTopologyStrategy', {options}}} AND durable_writes = true"
    )


def _default_copies(connection: Connection) -> int:
    """Three, or as many as the smallest data centre has nodes."""
    sizes: dict[str, int] = {}
    for host in connection.hosts():
        sizes[host.datacenter] = sizes.get(host.datacenter, 0) + 1
    return min(REPLICAS_DEFAULT, *sizes.values())


def keyspace_of(connection: Connection) -> Any | None:
    """Return how the keyspace is kept; None if there is none."""
    rows = connection.ask(
        "read the schema",
        "SELECT durable_writes, replication FROM system_schema.keyspaces WHERE keyspace_name = %s",
        (connection.address.keyspace,),
    )
    return rows[0] if rows else None


def _columns(connection: Connection) -> dict[str, set[tuple[str, str, str, int, str]]]:
    """Return the columns of every table of the keyspace."""
    found: dict[str, set[tuple[str, str, str, int, str]]] = {}
    rows = connection.ask(
        "read the schema",
        "SELECT table_name, column_name, type, kind, position, clustering_order"
        " FROM system_schema.columns WHERE keyspace_name = %s",
        (connection.address.keyspace,),
    )
    for table, *column in rows:
        name, kind_of_value, kind, position, order = column
        found.setdefault(table, set()).add((name, kind_of_value, kind, position, order))
    return found


def copies_of(keyspace: Any | None) -> dict[str, int]:
    """Return the copies per data centre; "" where the strategy names none."""
    if keyspace is None:
        return {}
    options = dict(keyspace.replication)
    options.pop("class", None)
    return {
        "" if name == "replication_factor" else name: int(text)
        for name, text in options.items()
        if str(text).isdecimal()
    }


def _check_keyspace(address: Address, keyspace: Any) -> None:
    if not keyspace.durable_writes:
        raise _refused(
            address,
            "this keyspace has durable_writes = false: what it acknowledges is lost in a crash",
            "ALTER KEYSPACE ... WITH durable_writes = true, or name another keyspace",
        )
    copies = copies_of(keyspace)
    wanted = dict(address.replication)
    if "" in wanted:
        agreed = set(copies.values()) == {wanted[""]}
    else:
        agreed = not wanted or copies == wanted
    if not agreed:
        raise _refused(
            address,
            f"this keyspace is replicated as {copies}, and the URL says {wanted}",
            "leave replication= out, or ALTER KEYSPACE and run `nodetool repair --full` first",
        )
    datacenter = address.datacenter
    if datacenter and "" not in copies and not copies.get(datacenter):
        raise _refused(
            address,
            f"this keyspace has no copy in data centre {datacenter}",
            "correct dc=, or ALTER KEYSPACE and repair",
        )


def _check_table(
    address: Address, table: Table, found: dict[str, set[tuple[str, str, str, int, str]]]
) -> None:
    missing = table.columns() - found.get(table.name, set())
    if missing:
        raise _refused(
            address,
            f"table {table.name} is not as this release made it: {min(missing)} is missing",
            "restore the schema from your backup, or name another keyspace",
        )


def _check_tables(connection: Connection) -> None:
    found = _columns(connection)
    for table in TABLES:
        _check_table(connection.address, table, found)


def _version(connection: Connection) -> str | None:
    """Return the version that is stored; None while the catalog is being made.

    SUBTLE: a table is in the node's books a moment before the node knows it. Whoever looks in
    that moment asks for the table too, and has it when the node is done with who came first.
    """
    try:
        return read_setting(connection, VERSION_SETTING)
    except (InvalidUsage, Unavailable):
        connection.define(SETTINGS.statement(connection.address.keyspace))
        return _patiently(connection, lambda: read_setting(connection, VERSION_SETTING))


def _patiently(connection: Connection, ask: Callable[[], _Answer]) -> _Answer:
    """Ask again while nodes may not have heard of a table or keyspace that another one has made.

    That they agree proves nothing: a node tells of its tables a moment after it has them.
    """
    deadline = time.monotonic() + HEARSAY_SECONDS_MAX
    while True:
        try:
            return ask()
        except (InvalidUsage, Unavailable):
            if time.monotonic() > deadline:
                raise
        connection.settle()
        time.sleep(HEARSAY_SECONDS)


def _check_version(address: Address, stored: str | None) -> None:
    if stored in (None, str(VERSION)):
        return
    newer = stored.isdecimal() and int(stored) > VERSION
    raise _refused(
        address,
        f"its schema has version {stored}, and this release knows version {VERSION}",
        "install the release that made it, or a newer one"
        if newer
        else "name another keyspace, or restore the catalog from a backup",
    )


def _check_agreement(address: Address, stored: str | None) -> None:
    if stored in (None, address.agreement):
        return
    raise _refused(
        address,
        f"this catalog lives with consistency {stored}, and the URL asks for {address.agreement}; "
        "seals of the two would not see each other",
        "write ?consistency=" + stored.replace(":", "&dc="),
    )


def read_setting(connection: Connection, name: str) -> str | None:
    """Return a setting; None if it is not stored."""
    for row in connection.rows(READ_SETTING, (name,), name):
        return str(row.value)
    return None


def setting(connection: Connection, name: str, value: str) -> str:
    """Store a setting unless it is stored, and return what is stored.

    SUBTLE: always decided by all data centres, because whoever disagrees about the catalog's own
    data centre must still find out. A setting never changes, so a plain read that finds it is
    enough.
    """
    stored = read_setting(connection, name)
    if stored is not None:
        return stored
    row = connection.compare(STORE_SETTING, (name, value), name)
    return value if row is None else str(row.value)


def _refused(address: Address, what: str, remedy: str) -> InvalidUsage:
    return InvalidUsage("open a catalog", address.url, f"{what}; nothing was written: {remedy}")
