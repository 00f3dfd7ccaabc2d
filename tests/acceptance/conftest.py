"""Every test in this directory runs on real servers, shared by the whole session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delivery.services.cassandra import Cassandra
from delivery.services.kafka import Kafka
from tests.acceptance.lifeline import LIFELINES
from tests.acceptance.pricing import Pipeline
from tests.conformance.cassandra_kit import cassandra_url
from tests.servers import (
    cassandra,
    cassandra_services,
    kafka,
    kafka_services,
    unique,
)

__all__ = ["cassandra", "cassandra_services", "kafka", "kafka_services", "unique"]

#: Pipelines differ by name; making a keyspace takes seconds.
KEYSPACE = "acceptance"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is collected here, so that no test can forget it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    """End what a test that failed has left running."""
    yield
    LIFELINES.cut()


@pytest.fixture
def sqlite_pipeline(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Pipeline:
    """A pipeline of two stages with an embedded catalog."""
    return Pipeline(
        name=unique("shop"),
        kafka=kafka.bootstrap,
        catalog=f"sqlite:{tmp_path / 'catalog.db'}",
        home=str(tmp_path / "home"),
    )


@pytest.fixture
def cassandra_pipeline(
    kafka: Kafka, cassandra: Cassandra, unique: Callable[[str], str], tmp_path: Path
) -> Pipeline:
    """A pipeline of two stages with a catalog on a node of Cassandra's."""
    return Pipeline(
        name=unique("shop"),
        kafka=kafka.bootstrap,
        catalog=cassandra_url(cassandra, KEYSPACE),
        home=str(tmp_path / "home"),
    )
