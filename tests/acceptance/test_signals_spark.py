"""SIGTERM and Ctrl-C end a real query as `stop` does; the second one does not wait."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from delivery.host.killing import PAUSED, WOKEN_SUFFIX
from delivery.operate.dying import Kills
from delivery.points import ACKNOWLEDGED, SEALED_NOT_EMITTED
from tests.acceptance.driver import STOPPED
from tests.acceptance.kit import ROOT, Trial, Worker, prove, shares, until
from tests.acceptance.pricing import STRAGGLER, Pipeline
from tests.acceptance.test_engines_in_turn import owed
from tests.acceptance.test_two_drivers import begun
from tests.integration.resident_kit import SECONDS_MAX, driven

pytestmark = pytest.mark.slow

RECORDS = 120
#: Records that come in, a few at a time, until the process has ended, and are not all by then.
MANY, PIECES = 6_000, 600
#: How long a drain may take: what `stop` gives to what is under way, and the end of a session.
DRAIN_SECONDS_MAX = 60.0
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


@pytest.mark.parametrize("engine", ["resident", "microbatch"])
def test_a_signal_while_something_is_owed_has_it_delivered_before_the_end(
    engine: str, sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    """Whoever has sealed stands still in front of the emission until the signal has come."""
    trial = Trial.of(sqlite_pipeline, tmp_path, seed=83, count=MANY)
    kills = Kills(tmp_path / "kills", [SEALED_NOT_EMITTED])
    marker = kills.marker(SEALED_NOT_EMITTED)
    driver = begun(trial, engine, trial.complete, kills.kill_at)
    kills.arm(SEALED_NOT_EMITTED, PAUSED)
    with published_meanwhile(trial, driver) as sent:
        until("it has sealed", lambda: kills.happened(SEALED_NOT_EMITTED), SECONDS_MAX, driver)
        assert owed(sqlite_pipeline) != []
        driver.process.send_signal(signal.SIGTERM)
        until("it has heard", lambda: "stopping" in driver.said.read_text(), SECONDS_MAX, driver)
        assert owed(sqlite_pipeline) != [], "it stops with something owed"
        os.kill(int(marker.read_text().split()[1]), signal.SIGCONT)
        driver.ended(STOPPED, DRAIN_SECONDS_MAX)
        assert len(sent) < PIECES, "records came in all the while"
    assert owed(sqlite_pipeline) == []
    woken = marker.with_name(marker.name + WOKEN_SUFFIX)
    assert ACKNOWLEDGED in woken.read_text().split(), "who stood still went on to the end"
    trial.send([row for piece in shares(trial.traffic.rows, PIECES)[len(sent) :] for row in piece])
    trial.complete.touch()
    trial.drive(engine, LOCAL).ended(0, SECONDS_MAX)
    prove(trial)


@contextmanager
def published_meanwhile(trial: Trial, driver: Worker) -> Iterator[list[int]]:
    """Publish while a process runs; yield the numbers of the pieces that are sent."""
    sent: list[int] = []

    def send() -> None:
        for number, piece in enumerate(shares(trial.traffic.rows, PIECES)):
            if driver.process.poll() is not None:
                return
            trial.send(piece)
            sent.append(number)

    publishing = threading.Thread(target=send)
    publishing.start()
    try:
        yield sent
    finally:
        publishing.join()
