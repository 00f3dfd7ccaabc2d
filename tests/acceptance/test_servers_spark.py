"""Brokers and nodes die, stand still and come back under engines on Spark that nobody starts again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from delivery.kafka.opening import open_client
from delivery.operate.dying import PYTHON_WORKER, below
from delivery.services.ephemeral import Services
from tests.acceptance.driver import SEEN
from tests.acceptance.kit import Trial, Worker, delivered, prove, publish, shares, until
from tests.acceptance.test_servers import (
    PARTS,
    PUBLISHER,
    RECOVERY_SECONDS_MAX,
    WARM,
    cluster,
    heavy,
    pipeline,
    standing_still,
    swamped,
    trial,
)
from tests.acceptance.test_two_drivers import begun

__all__ = ["cluster", "heavy", "pipeline", "trial"]

pytestmark = pytest.mark.slow

ENGINES = ("resident", "microbatch")
SECONDS_MAX = 240.0
#: Pauses grow: without a catalog there is one as long as this soon.
PAUSE_GROWN_SECONDS = 8.0


def endured(engine: str, trial: Trial, hurt: Callable[[], None], heal: Callable[[], None]) -> None:
    """Send everything in parts; hurt a server early, heal it late, and judge.

    What was sent before it is healed comes out without it.
    """
    driver = begun(trial, engine, trial.complete)
    parts = shares(trial.traffic.rows, PARTS)
    with open_client(trial.pipeline.kafka, PUBLISHER) as client:
        for number, part in enumerate(parts):
            if number == PARTS // 4:
                hurt()
            if number == 3 * PARTS // 4:
                delivered(trial, driver, RECOVERY_SECONDS_MAX)
                heal()
            publish(client, trial.pipeline.raw, part)
    came_to_its_end(trial, driver)


def came_to_its_end(trial: Trial, driver: Worker, *, stories: bool = True) -> None:
    """Let a driver finish that was never started again, and judge."""
    trial.complete.touch()
    driver.ended(0, RECOVERY_SECONDS_MAX)
    assert "submitted again" not in driver.said.read_text(), "its tasks outlasted it"
    prove(trial, stories=stories)


def seen(driver: Worker) -> list[dict[str, Any]]:
    """Return what users of the query saw, each time that it said something else of itself."""
    lines = driver.said.read_text().splitlines()
    return [json.loads(line.split(SEEN, 1)[1]) for line in lines if SEEN in line]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["kafka-2", "cassandra-2"])
def test_a_server_killed_and_started_again(
    name: str, engine: str, cluster: Services, trial: Trial
) -> None:
    server = cluster.servers[name]
    endured(engine, trial, server.kill, server.restart)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["kafka-2", "cassandra-2"])
def test_a_server_that_stands_still(
    name: str, engine: str, cluster: Services, trial: Trial
) -> None:
    with standing_still(cluster.servers[name]) as (pause, goes_on):
        endured(engine, trial, pause, goes_on)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_any_catalog_it_waits_says_so_and_holds_no_more(
    engine: str, cluster: Services, heavy: Trial
) -> None:
    driver = begun(heavy, engine, heavy.complete)

    def processes() -> list[psutil.Process]:
        above = psutil.Process(driver.process.pid)
        return [above, *below(above.pid, PYTHON_WORKER)]

    heavy.send(heavy.traffic.rows[:WARM])
    delivered(heavy, driver, RECOVERY_SECONDS_MAX)
    assert len(processes()) > 1, "there is a task"
    with swamped(heavy, processes, cluster):
        until("it says so", lambda: says_so(seen(driver)[-1]), SECONDS_MAX, driver)
        assert driver.process.poll() is None, "it waits"
        last = seen(driver)[-1]
        assert last["status"]["message"].startswith("waiting: ")
        assert last["lastProgress"]["message"].startswith("waiting: ")
        until("pauses grow", lambda: longest_pause(driver) >= PAUSE_GROWN_SECONDS, of=driver)
    delivered(heavy, driver, RECOVERY_SECONDS_MAX)
    until("it says that it goes on", lambda: not waits(seen(driver)[-1]), of=driver)
    came_to_its_end(heavy, driver, stories=False)
    # Cassandra's and Spark's own libraries tell of what they see as they like.
    said = driver.said.read_text()
    tellers = [before.splitlines()[-1] for before in said.split("Traceback ")[:-1]]
    assert [line for line in tellers if not re.search(r" (cassandra|py4j)\.", line)] == []


def longest_pause(driver: Worker) -> float:
    """Return how long it waited before it tried again, at most, as its log says."""
    pauses = re.findall(r"; again in ([\d.]+) s", driver.said.read_text())
    return max(map(float, pauses), default=0.0)


def waits(what: dict[str, Any]) -> list[str]:
    """Return what a query waited for."""
    found: list[str] = what["status"]["waitingFor"]
    return found


def says_so(what: dict[str, Any]) -> bool:
    """Tell whether a query says that the catalog does not answer."""
    lost, never_there = "NoHostAvailable", "nothing takes connections"
    return any("Unavailable" in one and (lost in one or never_there in one) for one in waits(what))
