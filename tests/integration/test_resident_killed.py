"""Drivers and executors that are killed, and drivers that run the same stages at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psutil
import pytest

from dedup.catalog.open import open_catalog
from tests.integration.resident_kit import SECONDS_MAX, Pipeline, driven, running, until

#: A driver that takes over is there already; ten times what it takes on two busy cores.
SILENCE_SECONDS_MAX = 30.0


@pytest.fixture
def pipeline(kafka, unique, tmp_path) -> Iterator[Pipeline]:
    pipeline = Pipeline(unique("shop"), kafka.bootstrap, tmp_path)
    yield pipeline
    pipeline.close()


def owed(pipeline: Pipeline) -> list[str]:
    """Name the lanes that have sealed what they have not delivered."""
    catalog = open_catalog(pipeline.given["catalog"])
    rows = {lane: catalog.load(lane) for lane in catalog.lanes()}
    catalog.store.close()
    assert rows
    return [lane for lane, row in rows.items() if row is None or row.settled < row.head.ref.seq]


def test_two_drivers_at_once_and_one_that_is_killed(pipeline, tmp_path, record_property):
    pipeline.send(range(2000))
    with (
        driven("local[2,4]", tmp_path / "a.log") as one,
        driven("local[2,4]", tmp_path / "b.log") as two,
    ):
        for driver in (one, two):
            driver.well("start", **pipeline.given)
        for driver in (one, two):
            driver.well("deliver", name=pipeline.name)
        with pipeline.traffic(2000):
            pipeline.flowing()
            one.kill()
            seconds = pipeline.flowing()
            record_property("seconds to new output, another driver there", seconds)
            assert seconds < SILENCE_SECONDS_MAX
        two.well("deliver", name=pipeline.name)
        two.well("signals", name=pipeline.name)
        two.process.send_signal(signal.SIGTERM)
        until(lambda: not two.well("look", name=pipeline.name)["active"])
        assert two.well("look", name=pipeline.name)["exception"] == "None"
        assert owed(pipeline) == []
        two.well("start", **pipeline.given)
        until(lambda: running(two, pipeline) == 1)
        two.well("leave")
        answer = two.do("wait", name=pipeline.name, timeout=60)
        assert answer["error"] == "Unavailable"
        assert "the Spark session was stopped under it" in answer["text"]
    assert owed(pipeline) == []
    pipeline.check()


def test_a_driver_that_is_killed_under_load_and_started_again(pipeline, tmp_path, record_property):
    # The second session is there before the first is killed: how long Spark takes to start says
    # nothing about the engine.
    with (
        driven("local[2,4]", tmp_path / "a.log") as first,
        driven("local[2,4]", tmp_path / "b.log") as again,
    ):
        first.well("start", **pipeline.given)
        with pipeline.traffic(0):
            pipeline.flowing()
            first.kill()
            again.well("start", **pipeline.given)
            seconds = pipeline.flowing()
            record_property("seconds to new output, started again", seconds)
            assert seconds < SECONDS_MAX
        again.well("deliver", name=pipeline.name)
    pipeline.check()


@pytest.mark.slow
def test_an_executor_that_is_killed_under_load(pipeline, tmp_path, record_property):
    """Without a spare slot: the task waits for the executor that replaces the one that died."""
    with driven("local-cluster[2,1,1024]", tmp_path / "log") as driver:
        driver.well("start", **pipeline.given | {"options": {"tasks": 2}})
        with pipeline.traffic(0):
            pipeline.flowing()
            # A task that has not begun is missed by none.
            until(lambda: running(driver, pipeline) == 2)
            victim = driver.executors()[0]
            victim.kill()
            psutil.wait_procs([victim], timeout=30)
            until(lambda: "is gone without a word" in driver.log.read_text())
            until(lambda: len(driver.executors()) == 2)
            seconds = until(lambda: running(driver, pipeline) == 2)
            record_property("seconds from the new executor to all tasks", seconds)
            pipeline.flowing()
        driver.well("deliver", name=pipeline.name)
        driver.well("stop", name=pipeline.name)
    pipeline.check()
