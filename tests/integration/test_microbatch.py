"""The micro-batch engine on a real broker: every record once, whatever dies and whatever Spark forgot."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from delivery.points import POINTS, SEALED_NOT_EMITTED
from delivery.services.kafka import Kafka
from tests.acceptance.kit import Trial, prove, until
from tests.acceptance.pricing import Pipeline
from tests.integration.kafka_kit import lag_seen
from tests.integration.microbatch_kit import JOB_SECONDS_MAX, ended, job, progress

RECORDS = 200


@pytest.fixture
def pipeline(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Pipeline:
    return Pipeline(
        name=unique("batch"),
        kafka=kafka.bootstrap,
        catalog=f"sqlite:{tmp_path / 'catalog.db'}",
        home=str(tmp_path / "home"),
    )


def test_workers_killed_at_every_point_of_a_running_query(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Spark tries the task again; where it gives up, the query begins again from the frontiers."""
    trial = Trial.of(pipeline, tmp_path, seed=21, count=RECORDS)
    markers = {point: tmp_path / point for point in POINTS}
    trial.send_all()
    ended(job(trial, ",".join(f"{point}:{marker}" for point, marker in markers.items())))
    assert [point for point, marker in markers.items() if not marker.exists()] == []
    prove(trial)


def driver_killed_at(point: str, pipeline: Pipeline, directory: Path) -> None:
    trial = Trial.of(pipeline, directory, seed=POINTS.index(point), count=RECORDS)
    trial.send_all()
    marker = directory / "killed"
    doomed = job(trial, f"{point}:{marker}", doomed=True)
    doomed.ended(-signal.SIGKILL, JOB_SECONDS_MAX)
    assert marker.read_text().startswith(f"{point} "), "it died where it was told to"
    ended(job(trial))
    prove(trial)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point == SEALED_NOT_EMITTED else pytest.mark.slow)
        for point in POINTS
    ],
)
def test_a_driver_killed_at_every_point(point: str, pipeline: Pipeline, tmp_path: Path) -> None:
    driver_killed_at(point, pipeline, tmp_path)


def test_engines_take_turns_on_a_live_pipeline(pipeline: Pipeline, tmp_path: Path) -> None:
    """A resident worker, then micro-batches, then a worker again: each goes on where it stood."""
    trial = Trial.of(pipeline, tmp_path, seed=5, count=3 * RECORDS)
    rows = trial.traffic.rows
    first, second = len(rows) // 3, 2 * len(rows) // 3
    trial.send(rows[:first])
    trial.complete.touch()
    trial.finish()
    trial.send(rows[first:second])
    batches = job(trial)
    ended(batches)
    assert progress(batches)["counters"]["fresh"] > 0, "it found something to do"
    trial.send(rows[second:])
    trial.finish()
    prove(trial)


def test_two_drivers_at_once_share_the_work_and_double_nothing(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """They are told to keep their checkpoints in one place, and do not meet there."""
    trial = Trial.of(pipeline, tmp_path, seed=6, count=2 * RECORDS)
    shared = tmp_path / "checkpoint"
    one, other = (job(trial, checkpoint=str(shared)) for _ in range(2))
    try:
        both = 2 * len(pipeline.stages)
        until("both run", lambda: len(list(shared.glob("*/metadata"))) >= both, JOB_SECONDS_MAX)
        trial.send_all()
        ended(one)
        ended(other)
    finally:
        one.kill()
        other.kill()
    prove(trial)


def test_everything_available_now_goes_through_all_stages_and_the_query_ends(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    trial = Trial.of(pipeline, tmp_path, seed=7, count=RECORDS)
    shared = tmp_path / "checkpoint"
    rows = trial.traffic.rows
    trial.send(rows[: len(rows) // 2])
    trial.complete.touch()
    bounded = {
        "trigger": {"availableNow": True},
        "checkpoint": str(shared),
        "source": {"maxOffsetsPerTrigger": 60},
        "live": True,
    }
    first = job(trial, **bounded)
    ended(first)
    assert progress(first)["lag"] == 0
    seen = [one for one in first.said.read_text().split("\r") if " rows/s " in one]
    assert "lag 0" in seen[-1]
    assert list(shared.iterdir()) == [], "Spark's memory was scratch, and is gone"
    trial.send(rows[len(rows) // 2 :])
    ended(job(trial, **bounded))
    for stage in pipeline.stages:
        assert set(lag_seen(pipeline.kafka, stage.group, stage.reads).values()) == {0}
    prove(trial)
