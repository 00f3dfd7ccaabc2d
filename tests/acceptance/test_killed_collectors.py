"""Collectors and compactors die behind each of their steps, beside stages that work under Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dedup.steps import KINDS
from delivery.host.killing import PAUSED
from delivery.operate.dying import Kills
from delivery.points import STORED_NOT_SEALED
from tests.acceptance.kit import END_SECONDS_MAX, Trial, delivered, prove, shares, until
from tests.acceptance.pricing import Pipeline
from tests.acceptance.test_killed_indexes import now_ms
from tests.acceptance.test_killed_spark import CATALOGS, ENGINES, LOCAL, SECONDS_MAX

RECORDS = 600
PARTS = 12

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
    pipeline = replace(pipeline, tiny=now_ms())
    trial = Trial.of(pipeline, tmp_path, seed=53, count=RECORDS)
    kills = Kills(tmp_path / "kills", [STORED_NOT_SEALED])
    driver, collector = trial.drive(engine, LOCAL), trial.collect()
    rival = trial.start(kill_at=kills.kill_at)
    kills.arm(STORED_NOT_SEALED, PAUSED)
    lost = 0
    for part in shares(trial.traffic.rows, PARTS):
        # The ids of one record ride in its seal, those of others are stored apart from the first.
        for piece in (part[:1], part[1:]):
            trial.send(piece)
            delivered(trial, driver, SECONDS_MAX)
        if kills.happened(STORED_NOT_SEALED):
            sleeper = standing_still(kills)
            # Again and again: what is left of it is found only while its rival's seal is kept.
            kills.arm(STORED_NOT_SEALED, PAUSED)
            sleeper.resume()
            lost += 1
    assert lost, "somebody stood still with what it had stored, and another was quicker"
    kills.disarm(STORED_NOT_SEALED)
    if kills.happened(STORED_NOT_SEALED):
        standing_still(kills).resume()
    trial.complete.touch()
    driver.ended(0, SECONDS_MAX)
    rival.ended(0, SECONDS_MAX)
    collector.ended(0, END_SECONDS_MAX)
    died = json.loads(collector.said.read_text())
    assert set(died) == set(KINDS), died
    prove(trial, collected=True)


def standing_still(kills: Kills) -> psutil.Process:
    """Return who stands still, once it does."""
    sleeper = psutil.Process(int(kills.marker(STORED_NOT_SEALED).read_text().split()[1]))
    until("it stands still", lambda: sleeper.status() == psutil.STATUS_STOPPED)
    return sleeper
