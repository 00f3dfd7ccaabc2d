"""A change of a stage killed by a real SIGKILL at every named point, over a file, and run again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dedup.catalog.open import open_catalog
from delivery.life import points
from delivery.operate.verification import verify
from delivery.protocol.rest import Kind, rest_of
from tests.unit.house import LANE
from tests.unit.life_child import change
from tests.unit.operate_kit import chained, housed

ROOT = Path(__file__).resolve().parents[2]
CASES = [
    *(("rename", point) for point in points.EVERY if point != points.COLLECTED),
    ("retire", points.COLLECTED),
]


@pytest.mark.parametrize(("verb", "point"), CASES)
def test_it_is_finished_by_running_it_again(tmp_path, verb, point):
    path = tmp_path / "shop.db"
    with housed(path, chained):
        pass
    line = [sys.executable, "-m", "tests.unit.life_child", str(path), verb, point]
    died = subprocess.run(line, cwd=ROOT, check=False, timeout=60, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    change(str(path), verb)
    catalog = open_catalog(f"sqlite:{path}")
    last = Kind.RENAMED if verb == "rename" else Kind.RETIRED
    assert rest_of(catalog.load(LANE).head.state).kind is last
    assert verify(catalog.store, catalog.lanes()).findings == ()
    new = catalog.load("shop/cost/0")
    assert (new is not None and not new.head.state) == (verb == "rename")
    catalog.store.close()


def test_every_point_is_killed_at():
    assert {point for _, point in CASES} == set(points.EVERY)
