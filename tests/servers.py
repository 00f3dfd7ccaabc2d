"""Real servers for tests: one broker and one node per pytest session, names of one's own per test.

What it is: a pytest plugin. tests/integration loads it through its conftest; another directory
that needs servers imports the fixtures it wants into its own conftest in the same way.
What it must not know: any single test.

Invariants:
    The servers die with the pytest process, however it dies.
    No two tests share a topic or a keyspace.
"""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import FallthroughRetryPolicy, RoundRobinPolicy
from cassandra.query import ConsistencyLevel

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


@contextlib.contextmanager
def connected(
    contact_points: Sequence[str], port: int, *, no_delay: bool = True
) -> Iterator[Session]:
    """Connect with cassandra-driver as the library must; `no_delay=False` shows why."""
    cluster = Cluster(
        contact_points,
        port=port,
        # Without it every request above the driver's 4096-byte buffer waits 40 ms (Nagle).
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(no_delay))],
        execution_profiles={
            EXEC_PROFILE_DEFAULT: ExecutionProfile(
                load_balancing_policy=RoundRobinPolicy(),
                retry_policy=FallthroughRetryPolicy(),
                serial_consistency_level=ConsistencyLevel.SERIAL,
            )
        },
        protocol_version=5,
    )
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()
