"""Collectors and compactors die behind each of their steps, beside stages that work under Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dedup.steps import KINDS
from delivery.host.killing import PAUSED
from delivery.operate.dying import Kills
from delivery.points import STORED_NOT_SEALED
from tests.acceptance.kit import END_SECONDS_MAX, Trial, Worker, delivered, prove, until
from tests.acceptance.pricing import Pipeline
from tests.acceptance.test_killed_indexes import now_ms
from tests.acceptance.test_killed_spark import CATALOGS, ENGINES, LOCAL, SECONDS_MAX

#: More comes in while there is a kind of step behind which nobody died; it takes about a dozen parts.
RECORDS, PART = 2000, 50

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
    # Behind a sleeper that woke up, both go on with the same lanes, and one of them loses each seal.
    lost, sent = False, 0
    rows = trial.traffic.rows
    while sent < len(rows) and not (lost and kinds(collector) == set(KINDS)):
        part = rows[sent : sent + PART]
        sent += len(part)
        # The ids of one record ride in its seal, those of others are stored apart from the first.
        for piece in (part[:1], part[1:]):
            trial.send(piece)
            delivered(trial, driver, SECONDS_MAX)
        if not lost and kills.happened(STORED_NOT_SEALED):
            standing_still(kills).resume()
            lost = True
    assert lost, "somebody stood still with what it had stored, and another was quicker"
    trial.complete.touch()
    driver.ended(0, SECONDS_MAX)
    rival.ended(0, SECONDS_MAX)
    collector.ended(0, END_SECONDS_MAX)
    assert kinds(collector) == set(KINDS)
    trial.traffic = trial.traffic.first(sent)
    prove(trial, collected=True)


def kinds(collector: Worker) -> set[str]:
    """Return the kinds of steps behind which one has died."""
    return set(collector.said.read_text().split())


def standing_still(kills: Kills) -> psutil.Process:
    """Return who stands still, once it does."""
    sleeper = psutil.Process(int(kills.marker(STORED_NOT_SEALED).read_text().split()[1]))
    until("it stands still", lambda: sleeper.status() == psutil.STATUS_STOPPED)
    return sleeper
