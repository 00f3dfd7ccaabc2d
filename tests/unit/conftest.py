"""Houses for lanes, on the two stores that need no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup.catalog.open import open_store
from tests.unit.house import House


@pytest.fixture(params=["memory", "sqlite"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """Give a house whose catalog is in memory, and one whose catalog is a file."""
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'catalog.db'}"
    store = open_store(url)
    yield House(store)
    store.close()
