"""Killed while they keep a lane's ids on their host, in running pipelines: once for each record."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from dedup.local.steps import STEPS
from tests.acceptance.kit import Trial
from tests.acceptance.pricing import Pipeline
from tests.acceptance.test_killed_spark import CLUSTER, LOCAL, VICTIMS, killed

RECORDS = 900
#: A lane forgets in front of a bundle what the one before has covered.
PIECES = 3
#: A process makes its directory once, and the next one makes it before anybody asks for a kill there.
HOW = {"pieces": PIECES, "together": 2}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_worker_killed_at_every_step_of_its_indexes(
    sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    trial = Trial.of(replace(sqlite_pipeline, tiny=now_ms()), tmp_path, seed=43, count=RECORDS)
    killed(trial, "resident", LOCAL, tuple((step, "worker") for step in STEPS), tmp_path, **HOW)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["resident", "microbatch"])
def test_whoever_is_killed_at_a_step_of_an_index(
    engine: str, cassandra_pipeline: Pipeline, tmp_path: Path
) -> None:
    trial = Trial.of(replace(cassandra_pipeline, tiny=now_ms()), tmp_path, seed=47, count=RECORDS)
    # Each engine begins with another victim.
    victims = VICTIMS if engine == "resident" else reversed(VICTIMS)
    kills = tuple(zip(STEPS, cycle(tuple(victims)), strict=False))
    killed(trial, engine, CLUSTER, kills, tmp_path, **HOW)
