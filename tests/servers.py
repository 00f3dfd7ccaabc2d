"""Real servers for tests: one broker and one node per pytest session, names of one's own per test.

What it is: a pytest plugin. tests/integration loads it through its conftest; another directory
that needs servers imports the fixtures it wants into its own conftest in the same way.
What it must not know: any single test.

Invariants:
    The servers die with the pytest process, however it dies.
    No two tests share a topic or a keyspace.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from delivery.services.cassandra import Cassandra
from delivery.services.ephemeral import Services, ephemeral
from delivery.services.kafka import Kafka


@pytest.fixture(scope="session")
def kafka_services() -> Iterator[Services]:
    with ephemeral(kafka=1, cassandra=0, report=print) as services:
        yield services


@pytest.fixture(scope="session")
def cassandra_services() -> Iterator[Services]:
    with ephemeral(kafka=0, cassandra=1, report=print) as services:
        yield services


@pytest.fixture(scope="session")
def kafka(kafka_services: Services) -> Kafka:
    """One broker: `kafka.bootstrap`."""
    return kafka_services.kafka


@pytest.fixture(scope="session")
def cassandra(cassandra_services: Services) -> Cassandra:
    """One node: `cassandra.contact_points` and `cassandra.port`."""
    return cassandra_services.cassandra


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Make names that no other test uses, valid as topic, keyspace and group."""
    return lambda name: f"{name}_{uuid.uuid4().hex[:12]}"
