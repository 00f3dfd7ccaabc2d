"""Houses for lanes, on the two stores that need no server, with both indexes of ids."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup.catalog.open import open_store
from dedup.local import Home
from tests.unit.house import House

#: Without a C compiler there is no library to test, which is no fault; with one it has to be there.
COMPILER = shutil.which(shlex.split(os.environ.get("CC") or "cc")[0])
collect_ignore = [] if COMPILER else ["test_compiled.py"]


@pytest.fixture(params=["memory", "sqlite", "memory-home", "sqlite-home"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """Give a house on each store, with ids kept exactly and with ids kept in files of this host."""
    store, _, home = request.param.partition("-")
    url = "memory:" if store == "memory" else f"sqlite:{tmp_path / 'catalog.db'}"
    made = House(open_store(url), home=Home(tmp_path / "home") if home else None)
    yield made
    made.close()
