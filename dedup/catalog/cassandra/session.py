"""The connection to a cluster: one session per process, every statement bounded in time.

What it is: `Connection`, which prepares and runs the statements of `dedup.catalog.cassandra.cql`.
What it must not know: what the statements mean, or any table's columns.

Invariants:
    A session is made in the process that uses it: one that was inherited through a fork has lost
    the thread that reads its answers, and would wait for ever.
    Nothing is sent twice by the driver: whoever repeats a statement must know that it may have
    happened.
    No request waits longer than `request_seconds`.
    The password is asked for when a session is made, handed to the driver, and kept nowhere else.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    ResponseFuture,
)
from cassandra.connection import ConnectionBusy
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    RoundRobinPolicy,
    TokenAwarePolicy,
)

from dedup.catalog.cassandra.address import Address, Consistency, tls_context
from dedup.catalog.cassandra.cql import Level, Statement
from dedup.catalog.cassandra.errors import Access, connecting, translating
from dedup.errors import InvalidUsage, Unavailable

#: A statement's answer; servers say by themselves that they took too long, in 10 s at most.
REQUEST_SECONDS_MAX = 15.0
#: One connection, the driver's own questions, and agreement of all nodes on a schema.
CONNECT_SECONDS_MAX = 5.0
CONTROL_SECONDS_MAX = 5.0
SCHEMA_SECONDS_MAX = 30.0
#: An idle connection is asked this often whether it is alive; a node that hangs shows in twice that.
HEARTBEAT_SECONDS = 5.0
#: Requests and their bytes that one process has under way; a server takes heap/40 from a client.
IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024
IN_FLIGHT_REQUESTS_MAX = 256
FULL_SECONDS = 0.002  # how soon a full socket is tried again, unless an answer comes first
ASK_SECONDS = 0.1  # the same for a node that does not answer
#: What the driver hands to the socket at once; its own choice, 4 KiB, makes 128 calls of a chunk.
PIECE_BYTES = 256 * 1024
#: The version with checksums on every frame; Cassandra 4.0 and later speak it.
PROTOCOL_VERSION = 5

#: Asked for a password whenever a session is made.
Password = Callable[[], str]


class _Made:
    """The session of one process, and what belongs to it alone."""

    def __init__(self, cluster: Cluster, session: Any) -> None:
        self.pid = os.getpid()
        self.cluster = cluster
        self.session = session
        self.prepared: dict[Statement, Any] = {}
        self._room = threading.Condition()
        self._bytes_free = IN_FLIGHT_BYTES_MAX
        self._requests_free = IN_FLIGHT_REQUESTS_MAX

    def take(self, size: int) -> None:
        """Wait until a request of so many bytes may be under way."""
        size = min(size, IN_FLIGHT_BYTES_MAX)
        with self._room:
            self._room.wait_for(lambda: self._bytes_free >= size and self._requests_free > 0)
            self._bytes_free -= size
            self._requests_free -= 1

    def pause(self, seconds: float) -> None:
        """Wait until a request has ended, or so long."""
        with self._room:
            self._room.wait(seconds)

    def give(self, size: int) -> None:
        """Make room again when it has ended."""
        with self._room:
            self._bytes_free += min(size, IN_FLIGHT_BYTES_MAX)
            self._requests_free += 1
            self._room.notify_all()


class Connection:
    """Runs statements; its threads may share it, and so may forked processes."""

    def __init__(self, address: Address, password: Password | None, request_seconds: float) -> None:
        self.address = address
        self._password = password
        self._request_seconds = request_seconds
        self._made: _Made | None = None
        self._inherited: list[_Made] = []
        self._locks: dict[int, threading.Lock] = {}
        self._closed = False

    # Running statements -----------------------------------------------------------------------

    def rows(self, statement: Statement, values: Sequence[object], subject: str) -> Iterator[Any]:
        """Yield the rows of a query, page by page."""
        with translating(statement.op, subject, Access.READ):
            made = self._here()
            page = iter(self._send(made, self._bound(made, statement, values)).result())
        while True:
            with translating(statement.op, subject, Access.READ):
                row = next(page, None)
            if row is None:
                return
            yield row

    def write(self, statement: Statement, values: Sequence[object], subject: str) -> None:
        """Write without a condition."""
        with translating(statement.op, subject, Access.WRITE):
            made = self._here()
            self._send(made, self._bound(made, statement, values)).result()

    def compare(self, statement: Statement, values: Sequence[object], subject: str) -> Any | None:
        """Compare and write; return None if it applied, else the row that it met."""
        with translating(statement.op, subject, Access.READ):
            made = self._here()
            bound = self._bound(made, statement, values)
        with translating(statement.op, subject, Access.COMPARE):
            row = self._send(made, bound).result().one()
            return None if row.applied else row

    def begin(
        self,
        statement: Statement,
        values: Sequence[object],
        size: int,
        ended: Callable[[object], None],
    ) -> ResponseFuture:
        """Begin a statement as soon as there is room for it; `ended` gets its rows or error.

        The wait is bounded, because every request that takes room away ends in time.
        """
        made = self._here()
        bound = self._bound(made, statement, values)
        made.take(size)
        try:
            future = self._send(made, bound)
        except BaseException:
            made.give(size)
            raise

        def end(result: object) -> None:
            made.give(size)
            ended(result)

        future.add_callbacks(end, end)
        return future

    def ask(self, op: str, statement: str, values: Sequence[object] = (), host: Any = None) -> Any:
        """Read what a statement that is not worth preparing returns, from a given host or any."""
        with translating(op, self.address.url, Access.READ):
            return self._here().session.execute(statement, tuple(values), host=host).all()

    def ask_node(self, op: str, statement: str, host: Any) -> Any | None:
        """Read from one given node; None if it does not answer.

        The driver connects to most nodes behind our back: one that is well may take a moment.
        """
        deadline = time.monotonic() + CONNECT_SECONDS_MAX
        while True:
            try:
                return self.ask(op, statement, host=host)
            except Unavailable:
                if time.monotonic() > deadline:
                    return None
            self._here().pause(ASK_SECONDS)

    def define(self, statement: str) -> None:
        """Change the schema, through the first node that is there: it does one after another.

        Two nodes that create one table at the same moment may create it twice, with two ids.
        """
        with translating("create the schema", self.address.url, Access.WRITE):
            run, (*others, last) = self._here().session.execute, self.hosts()
            for host in others:
                with suppress(NoHostAvailable):  # it is not there (any more), and was sent nothing
                    run(statement, host=host, timeout=SCHEMA_SECONDS_MAX)  # all must agree
                    return
            run(statement, host=last, timeout=SCHEMA_SECONDS_MAX)

    def settle(self) -> None:
        """Wait until all nodes that are up say that they know of the same tables.

        A node says so a moment after it has a table: who misses one still has to ask again.
        """
        with translating("read the schema", self.address.url, Access.READ):
            self._here().cluster.refresh_schema_metadata(SCHEMA_SECONDS_MAX)

    def hosts(self) -> list[Any]:
        """Return the nodes of the cluster, those that are up first, the same order everywhere."""
        with translating("connect", self.address.url, Access.READ):
            found = self._here().cluster.metadata.all_hosts()
        return sorted(found, key=lambda host: (not host.is_up, str(host.host_id)))

    def _send(self, made: _Made, bound: Any) -> ResponseFuture:
        """Hand a request to the driver, waiting while its socket is full.

        SUBTLE: the driver refuses a request while the socket takes no more bytes, even a seal that
        comes behind the chunks of another thread. It has sent nothing of it then, so trying again
        is no repetition.
        """
        deadline = time.monotonic() + self._request_seconds
        while True:
            future: ResponseFuture = made.session.execute_async(bound)
            refused: list[object] = []
            future.add_errback(refused.append)  # called at once if it has failed already
            if not any(map(_socket_full, refused)) or time.monotonic() > deadline:
                return future
            made.pause(FULL_SECONDS)

    # The session ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close this process's session and end its threads; a second call does nothing."""
        self._closed = True
        made, self._made = self._made, None
        if made is not None and made.pid == os.getpid():
            made.cluster.shutdown()

    def _here(self) -> _Made:
        """Return this process's session, making it if it is the first call since a fork."""
        made = self._made
        if made is not None and made.pid == os.getpid():
            return made
        # A lock that was held in the parent stays held in the child, so each process has its own;
        # setdefault is atomic.
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            made = self._made
            if made is None or made.pid != os.getpid():
                made = self._make()
                self._made = made
            return made

    def _make(self) -> _Made:
        address = self.address
        if self._closed:
            raise InvalidUsage(
                "use a catalog",
                address.url,
                "it is closed; nothing happened: open it again, or close it later",
            )
        if self._made is not None:
            self._disown(self._made)
        with connecting(address.url, address.places):
            cluster = self._cluster()
            try:
                return _Made(cluster, self._connect(cluster))
            except BaseException:
                cluster.shutdown()
                raise

    def _connect(self, cluster: Cluster) -> Any:
        try:
            return cluster.connect()
        except NoHostAvailable:
            # Nodes were found, and none is where we may look for them.
            known = {str(host.datacenter) for host in cluster.metadata.all_hosts()} - {"None"}
            self.check_datacenter(known)
            raise

    def check_datacenter(self, known: set[str]) -> None:
        """Refuse an address that names a data centre which is not known."""
        address = self.address
        named = {address.datacenter, *(name for name, _ in address.replication)} - {""}
        if known and named - known:
            raise InvalidUsage(
                "open a catalog",
                address.url,
                f"there is no data centre {', '.join(sorted(named - known))}; nothing was written: "
                f"the cluster has {', '.join(sorted(known))}",
            )

    def _disown(self, made: _Made) -> None:
        """Keep an inherited session from being shut down here, at exit or by the collector.

        Its threads live in the parent, its locks may be held for ever, its sockets are shared.
        """
        made.session.is_shutdown = True
        made.cluster.is_shutdown = True
        self._inherited.append(made)

    def _cluster(self) -> Cluster:
        address = self.address
        balancing = (
            DCAwareRoundRobinPolicy(local_dc=address.datacenter)
            if address.datacenter
            else RoundRobinPolicy()
        )
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(balancing),
            # SUBTLE: the driver's default policy sends a conditional write again to another
            # node, which then answers that we lost, against ourselves.
            retry_policy=FallthroughRetryPolicy(),
            request_timeout=self._request_seconds,
        )
        cluster = Cluster(
            contact_points=list(address.hosts),
            port=address.hosts[0][1],
            protocol_version=PROTOCOL_VERSION,
            # Chunks are compressed before they come here.
            compression=False,
            auth_provider=self._login(),
            ssl_context=tls_context(address),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            # The driver writes a request above 4 KiB in pieces, and without this each piece waits
            # 40 ms for the acknowledgement of the one before.
            sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            connect_timeout=CONNECT_SECONDS_MAX,
            control_connection_timeout=CONTROL_SECONDS_MAX,
            max_schema_agreement_wait=SCHEMA_SECONDS_MAX,
            idle_heartbeat_interval=HEARTBEAT_SECONDS,
            idle_heartbeat_timeout=HEARTBEAT_SECONDS,
        )
        driver = cluster.connection_class
        cluster.connection_class = type(
            driver.__name__, (driver,), {"out_buffer_size": PIECE_BYTES}
        )
        return cluster

    def _login(self) -> PlainTextAuthProvider | None:
        address = self.address
        if not address.user:
            return None
        if self._password is not None:
            return PlainTextAuthProvider(address.user, self._password())
        password = os.environ.get(address.password_env)
        if password is None:
            raise InvalidUsage(
                "log in to Cassandra",
                address.url,
                f"the URL names a user, and the environment has no {address.password_env}; nothing "
                "was opened: set it, name another variable with ?password_env=, or pass "
                "password=callable in code",
            )
        return PlainTextAuthProvider(address.user, password)

    def _bound(self, made: _Made, statement: Statement, values: Sequence[object]) -> Any:
        prepared = made.prepared.get(statement)
        if prepared is None:
            prepared = made.session.prepare(statement.text(self.address.keyspace))
            prepared.consistency_level = self._level(statement.level)
            prepared.serial_consistency_level = self._serial(statement.level)
            prepared.fetch_size = statement.page_rows
            made.prepared[statement] = prepared
        return prepared.bind(tuple(values))

    def _level(self, level: Level) -> int:
        if level is Level.SERIAL_READ:
            return self._serial(level)
        local = self.address.consistency is Consistency.LOCAL_SERIAL
        return int(
            ConsistencyLevel.LOCAL_QUORUM
            if local and level is not Level.EVERYWHERE
            else ConsistencyLevel.QUORUM
        )

    def _serial(self, level: Level) -> int:
        local = self.address.consistency is Consistency.LOCAL_SERIAL
        return int(
            ConsistencyLevel.LOCAL_SERIAL
            if local and level is not Level.EVERYWHERE
            else ConsistencyLevel.SERIAL
        )


def _socket_full(error: object) -> bool:
    """Tell whether every node was passed over because its socket was full."""
    return isinstance(error, NoHostAvailable) and all(
        isinstance(one, ConnectionBusy) for one in error.errors.values()
    )
