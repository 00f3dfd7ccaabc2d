"""The micro-batch engine on a real broker: every record once, whatever dies and whatever Spark forgot."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from delivery.points import POINTS, SEALED_NOT_EMITTED
from delivery.services.kafka import Kafka
from tests.acceptance.kit import PARTITIONS, ROOT, Trial, prove, until
from tests.acceptance.pricing import Pipeline
from tests.integration.kafka_kit import lag_seen
from tests.integration.microbatch_kit import JOB_SECONDS_MAX, ended, job, progress
from tests.integration.resident_kit import driven

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


def test_who_listens_or_reads_logs_finds_what_became_of_each_batch(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    trial = Trial.of(pipeline, tmp_path, seed=8, count=RECORDS)
    trial.send_all()
    log = tmp_path / "driver.log"
    lanes = [
        f"{spec.prefix}{spec.reads}-{partition}"
        for spec in pipeline.stages
        for partition in range(PARTITIONS)
    ]
    with driven("local[2,4]", log, {"spark.executorEnv.PYTHONPATH": str(ROOT)}) as driver:
        driver.well("listen")
        driver.well("talk", logger="delivery")
        driver.well("begin", pipeline=asdict(pipeline), engine="microbatch")
        driver.well("deliver", name=pipeline.name)
        told = driver.well("recent", name=pipeline.name)["progress"]
        mine = {(one["query"], one["batchId"]): one["batch"]["read"] for one in told}

        def heard() -> bool:
            events = driver.well("heard")["events"]
            return mine == {(q, n): rows for q, n, rows in events if (q, n) in mine}

        until("the listener heard of the same batches", heard, JOB_SECONDS_MAX)
        status = driver.well("stop", name=pipeline.name)["status"]
        assert (status["message"], status["waitingFor"]) == ("stopped", [])
        # A stage's figures are with each of its batches.
        read, fresh = (
            sum(one["batch"][name] for one in told if one["stage"] == "price")
            for name in ("read", "fresh")
        )
        assert (read, fresh) == (len(trial.traffic.rows), len(trial.traffic.firsts))
        assert told[-1]["message"] == "price: running; ship: running"
        driver.well("begin", pipeline=asdict(pipeline), engine="resident")
        for logger in ("delivery.microbatch.query", "delivery.resident.control"):
            until(f"{logger} tells of each lane", partial(tells, log, logger, lanes))
        driver.well("stop", name=pipeline.name)
        # Spark's own query goes on waiting when its session is gone.
        driver.well("begin", pipeline=asdict(pipeline), engine="microbatch")
        driver.well("deliver", name=pipeline.name)
        driver.well("leave")
        answer = driver.do("wait", name=pipeline.name, timeout=JOB_SECONDS_MAX)
        assert answer.get("error") == "Unavailable", answer
        assert "the Spark session was stopped under it" in answer["text"]
    prove(trial)


def tells(log: Path, logger: str, lanes: list[str]) -> bool:
    """Tell whether a log has a line of a logger with each lane and its seq."""
    said = log.read_text()
    return all(re.search(rf"{logger}: {lane} seq \d+ at \d+, lag \d+\n", said) for lane in lanes)


@pytest.mark.slow
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
