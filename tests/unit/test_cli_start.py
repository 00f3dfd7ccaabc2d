"""Verbs that answer at once load what they need: a start is most of what an answer takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.operate_kit import chained, housed

#: What runs stages and receivers, and what watches them: no look at a catalog needs any of it.
RUNNING = (
    "delivery.api",
    "delivery.host",
    "delivery.receiver",
    "delivery.resident",
    "delivery.watch",
)
ENGINES = ("pyspark", "cassandra", "dedup.local", "pyarrow.compute")
CODE = """
import sys
from delivery.cli import main
sys.argv = ["delivery", *sys.argv[1:]]
try:
    main()
finally:
    print("loaded", *sorted(sys.modules))
"""


@pytest.mark.parametrize(
    "line",
    [
        ("catalog", "inspect"),
        ("catalog", "lookup", "--offset", "in/0/3"),
        ("catalog", "lookup", "--name", "r0-0"),
        ("catalog", "verify"),
        # Nobody is there to answer: it has come as far as asking Kafka.
        ("explain", "--offset", "in/0/3", "--kafka", "127.0.0.1:1"),
    ],
    ids=" ".join,
)
def test_a_look_at_a_catalog_loads_nothing_that_runs_stages(
    tmp_path: Path, line: tuple[str, ...]
) -> None:
    with housed(tmp_path / "shop.db", chained):
        pass
    asked = [sys.executable, "-c", CODE, *line, f"sqlite:{tmp_path / 'shop.db'}"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    assert said.returncode == (3 if line[0] == "explain" else 0), said.stderr
    loaded = said.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded"
    found = [
        name
        for name in loaded
        if any(name == one or name.startswith(f"{one}.") for one in (*RUNNING, *ENGINES))
    ]
    assert found == []
