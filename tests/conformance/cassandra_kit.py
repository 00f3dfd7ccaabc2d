"""What the tests of the Cassandra store share: fixtures, and statements that look past our code.

What it is: imported by the conftest beside it.
What it must not know: any single test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cassandra.cluster import Session

from delivery.services.cassandra import Cassandra
from tests.servers import connected


def cassandra_url(cassandra: Cassandra, keyspace: str) -> str:
    """Give the URL of a catalog on the session's nodes."""
    hosts = ",".join(f"{host}:{cassandra.port}" for host in cassandra.contact_points)
    return f"cassandra://{hosts}/{keyspace}"


@pytest.fixture
def cluster_url(cassandra) -> str:
    """Give the URL of the keyspace that all tests share."""
    return cassandra_url(cassandra, "conformance")


@pytest.fixture
def fresh_url(cassandra, unique) -> str:
    """Give the URL of a keyspace that is not there yet."""
    return cassandra_url(cassandra, unique("fresh"))


@pytest.fixture(scope="session")
def admin(cassandra) -> Iterator[Session]:
    """Give a session of the driver that looks past our code."""
    with connected(cassandra.contact_points, cassandra.port) as connection:
        yield connection


def keyspace_of(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


def run(admin: Session, url: str, statement: str, values: tuple[object, ...] = ()):
    """Run a statement past our code; KS stands for the keyspace."""
    return admin.execute(statement.replace("KS", keyspace_of(url)), values)


def contents(admin: Session, url: str) -> object:
    """Everything that opening a catalog could have written into a keyspace."""
    keyspace = keyspace_of(url)
    columns = admin.execute(
        "SELECT table_name, column_name, type FROM system_schema.columns WHERE keyspace_name = %s",
        (keyspace,),
    ).all()
    tables = {row.table_name for row in columns}
    every = {name: f"SELECT * FROM KS.{name}" for name in tables}  # noqa: S608 - Cassandra's names
    rows = {name: run(admin, url, statement).all() for name, statement in every.items()}
    return sorted(columns), rows
