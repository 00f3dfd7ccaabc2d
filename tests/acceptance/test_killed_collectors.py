"""Collectors and compactors die behind each of their steps, beside stages that work under Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.kit import END_SECONDS_MAX, Trial, delivered, prove, shares
from tests.acceptance.pricing import Pipeline
from tests.acceptance.test_killed_spark import CATALOGS, ENGINES, LOCAL, SECONDS_MAX

RECORDS = 600
PARTS = 12
#: A plan for one lane has a handful of steps, and there are eight lanes.
DEAD_MIN = 10

PLACES = [(engine, catalog) for engine in ENGINES for catalog in CATALOGS]


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(one, marks=() if one == ("resident", "sqlite") else pytest.mark.slow)
        for one in PLACES
    ],
    ids="-".join,
)
def test_collectors_die_behind_every_step_beside_a_running_pipeline(
    place: tuple[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    engine, catalog = place
    pipeline: Pipeline = request.getfixturevalue(f"{catalog}_pipeline")
    trial = Trial.of(pipeline, tmp_path, seed=53, count=RECORDS)
    driver, collector = trial.drive(engine, LOCAL), trial.collect()
    for part in shares(trial.traffic.rows, PARTS):
        trial.send(part)
        delivered(trial, driver, SECONDS_MAX)
    trial.complete.touch()
    driver.ended(0, SECONDS_MAX)
    collector.ended(0, END_SECONDS_MAX)
    assert int(collector.said.read_text()) >= DEAD_MIN
    prove(trial, collected=True)
