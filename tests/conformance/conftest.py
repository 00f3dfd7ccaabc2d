"""One suite for every store: what a catalog is opened on.

What it is: `store_factory` (one more store object on the same rows, each call), `shared_url` (a
catalog that several processes can open), and `lane` (a name that no other test uses).
What it must not know: any single test.

Invariants:
    No test assumes that a catalog is empty: some stores keep one for the whole session.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore, Tables
from dedup.catalog.open import open_store
from dedup.catalog.store import Store
from tests.conformance.cassandra_kit import admin, cassandra_url, cluster_url, fresh_url
from tests.servers import cassandra, cassandra_services, unique

__all__ = ["admin", "cassandra", "cassandra_services", "cluster_url", "fresh_url", "unique"]

#: Every store passes this suite.
STORES = ("memory", "sqlite", "cassandra")
#: Those that several processes can open at once.
SHARED = ("sqlite", "cassandra")

StoreFactory = Callable[[], Store]


def url_of(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Give the URL of a catalog of one kind; a server is started only for whom needs it."""
    assert kind in SHARED, "a store that has a place"
    if kind == "cassandra":
        return cassandra_url(request.getfixturevalue("cassandra"), "conformance")
    return f"{kind}:{tmp_path / 'catalog.db'}"


@pytest.fixture(params=STORES)
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreFactory]:
    """Open one more store object on the same rows, each call."""
    opened: list[Store] = []
    if request.param == "memory":
        open_one: StoreFactory = partial(MemoryStore, Tables())
    else:
        open_one = partial(open_store, url_of(request.param, tmp_path, request))

    def factory() -> Store:
        opened.append(open_one())
        return opened[-1]

    yield factory
    for store in opened:
        store.close()


@pytest.fixture
def store(store_factory: StoreFactory) -> Store:
    """Give one store object."""
    return store_factory()


@pytest.fixture
def catalog(store: Store) -> Catalog:
    """Give a catalog on that store."""
    return Catalog(store)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of a catalog that several processes can open."""
    return url_of(request.param, tmp_path, request)


@pytest.fixture
def lane() -> str:
    """Name a lane that no other test uses."""
    return f"shop/price/{uuid.uuid4().hex}"
