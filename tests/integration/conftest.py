"""Every test in this directory runs on real servers, shared by the whole session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import (
    cassandra,
    cassandra_services,
    kafka,
    kafka_services,
    unique,
)

__all__ = ["cassandra", "cassandra_services", "kafka", "kafka_services", "unique"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is collected here, so that no test can forget it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.integration)
