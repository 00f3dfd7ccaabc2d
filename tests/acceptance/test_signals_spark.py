"""SIGTERM and Ctrl-C end a real query as `stop` does; the second one does not wait."""

from __future__ import annotations

import signal
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.acceptance.kit import ROOT, Trial, prove, until
from tests.acceptance.pricing import STRAGGLER, Pipeline
from tests.acceptance.test_engines_in_turn import owed
from tests.integration.resident_kit import SECONDS_MAX, driven

pytestmark = pytest.mark.slow

RECORDS = 120
LOCAL = "local[3,4]"


@pytest.mark.parametrize("engine", ["resident", "microbatch"])
def test_the_first_ends_a_query_cleanly_and_a_second_at_once(
    engine: str, sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    trial = Trial.of(sqlite_pipeline, tmp_path, seed=79, count=RECORDS)
    stuck = replace(sqlite_pipeline, straggling=str(tmp_path))
    name, rows = sqlite_pipeline.name, trial.traffic.rows
    conf = {"spark.executorEnv.PYTHONPATH": str(ROOT)}
    with driven(LOCAL, tmp_path / "driver.log", conf) as driver:
        driver.well("begin", pipeline=asdict(sqlite_pipeline), engine=engine)
        trial.send(rows[: RECORDS // 2])
        driver.well("deliver", name=name)
        driver.well("signals", name=name)
        driver.process.send_signal(signal.SIGTERM)
        until("it has ended", lambda: not driver.well("look", name=name)["active"], SECONDS_MAX)
        assert driver.well("look", name=name)["exception"] == "None"
        assert driver.well("look", name=name)["status"]["message"] == "stopped"
        assert owed(sqlite_pipeline) == []

        driver.well("begin", pipeline=asdict(stuck), engine=engine)
        trial.send(rows[RECORDS // 2 :])
        until("a record takes its time", (tmp_path / STRAGGLER).exists, SECONDS_MAX)
        driver.well("signals", name=name)
        driver.process.send_signal(signal.SIGINT)
        assert driver.well("look", name=name)["active"], "it waits for the record"
        driver.process.send_signal(signal.SIGINT)
        assert driver.process.wait(SECONDS_MAX) == -signal.SIGINT
    trial.complete.touch()
    trial.finish()
    prove(trial)
