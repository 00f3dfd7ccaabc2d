"""A worker is killed at each place where it may die, and the next one goes on: once for each record."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from delivery.operate.dying import Kills
from delivery.points import POINTS
from tests.acceptance.kit import Trial, prove, shares
from tests.acceptance.pricing import Pipeline

RECORDS = 200


def killed_at(point: str, pipeline: Pipeline, directory: Path) -> None:
    """Kill a worker at a point and let another one finish; then judge."""
    trial = Trial.of(pipeline, directory, seed=POINTS.index(point), count=RECORDS)
    trial.send_all()
    marker = directory / "killed"
    trial.start(kill_at=f"{point}:{marker}").ended(-signal.SIGKILL)
    assert marker.read_text().startswith(f"{point} "), "it died where it was told to"
    trial.finish()
    prove(trial)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_nothing_is_lost_or_doubled(
    point: str, sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    killed_at(point, sqlite_pipeline, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_with_cassandra(
    point: str, cassandra_pipeline: Pipeline, tmp_path: Path
) -> None:
    killed_at(point, cassandra_pipeline, tmp_path)


def test_killed_at_every_point_of_a_running_pipeline_with_three_stages(
    sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    """A process is killed while records come in; each next one is killed somewhere else."""
    pipeline = replace(sqlite_pipeline, rekeyed=True)
    trial = Trial.of(pipeline, tmp_path, seed=11, count=3 * RECORDS)
    kills = Kills(tmp_path / "kills")
    worker = trial.start(kill_at=kills.kill_at)
    for part, point in zip(shares(trial.traffic.rows, len(POINTS)), POINTS, strict=True):
        kills.arm(point)
        trial.send(part)
        worker.ended(-signal.SIGKILL)
        assert kills.happened(point), "it died where it was told to"
        worker = trial.start(kill_at=kills.kill_at)
    trial.complete.touch()
    worker.ended()
    assert prove(trial).copies > 0, "some record went out before its acknowledgement, and again"
