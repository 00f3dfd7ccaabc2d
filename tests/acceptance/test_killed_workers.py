"""A worker is killed at each place where it may die, and the next one goes on: once for each record."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

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
    """A marker that is there stays a kill; the next is taken away while records come in."""
    pipeline = replace(sqlite_pipeline, rekeyed=True)
    trial = Trial.of(pipeline, tmp_path, seed=11, count=3 * RECORDS)
    markers = {point: tmp_path / point for point in POINTS}
    for marker in markers.values():
        marker.touch()
    kill_at = ",".join(f"{point}:{marker}" for point, marker in markers.items())
    worker = trial.start(kill_at=kill_at)
    for part, point in zip(shares(trial.traffic.rows, len(POINTS)), POINTS, strict=True):
        markers[point].unlink()
        trial.send(part)
        worker.ended(-signal.SIGKILL)
        assert markers[point].read_text().startswith(f"{point} "), "it died where it was told to"
        worker = trial.start(kill_at=kill_at)
    trial.complete.touch()
    worker.ended()
    assert prove(trial).copies > 0, "some record went out before its acknowledgement, and again"
