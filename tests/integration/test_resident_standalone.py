"""Resident tasks on a Spark standalone cluster, as `delivery up --spark` starts it.

Two workers have addresses of their own, and executors get our packages from the driver alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from delivery.resident.cluster import ZIP_NAME
from delivery.services.ephemeral import Services, ephemeral
from tests.integration.resident_kit import Driver, Pipeline, driven, running, until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Services]:
    with ephemeral(kafka=0, spark=True, report=print) as services:
        yield services


@pytest.fixture(scope="module")
def driver(cluster, tmp_path_factory) -> Iterator[Driver]:
    log = tmp_path_factory.mktemp("driver") / "log"
    conf = {"spark.driver.host": "127.0.0.1", "spark.executor.cores": "1"}
    conf |= {"spark.executor.memory": "512m", "spark.ui.enabled": "false"}
    # A job that begins with the first executor has all its tasks on one worker for a while.
    conf |= {"spark.cores.max": "4", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    conf |= {"spark.scheduler.maxRegisteredResourcesWaitingTime": "120s"}
    with driven(cluster.spark.master, log, conf) as driver:
        yield driver


@pytest.fixture
def pipeline(kafka, unique, tmp_path) -> Iterator[Pipeline]:
    pipeline = Pipeline(unique("shop"), kafka.bootstrap, tmp_path)
    yield pipeline
    pipeline.close()


def executors(cluster: Services) -> dict[str, list[psutil.Process]]:
    """Find the JVMs of executors below the workers, by the worker's name."""
    found = {}
    for name in ("spark-2", "spark-3"):
        running = cluster.servers[name].node.process()
        assert running is not None
        below = psutil.Process(running.pid).children(recursive=True)
        found[name] = [p for p in below if p.name() == "java"]
    return found


def test_our_packages_are_shipped_to_both_workers(driver, pipeline):
    pipeline.send(range(100))
    stages = [
        {"call": "where", "reads": pipeline.raw, "writes": [pipeline.out], "id_from": "header:id"}
    ]
    # As many tasks as there are slots, so that both workers have some.
    given = pipeline.given | {"stages": stages, "options": {"tasks": 4}}
    driver.well("start", **given)
    driver.well("deliver", name=pipeline.name)
    driver.well("stop", name=pipeline.name)
    found = pipeline.versions(pipeline.out).values()
    assert len(found) == 100
    assert all(ZIP_NAME in value["from"] for value in found)
    assert {value["host"] for value in found} == {"127.0.0.2", "127.0.0.3"}


def test_an_executor_killed_on_one_worker_is_taken_over(cluster, driver, pipeline, record_property):
    driver.well("start", **pipeline.given)
    with pipeline.traffic(0):
        pipeline.flowing()
        # Of three tasks in four slots each worker has one; one that has not begun is missed by none.
        until(lambda: running(driver, pipeline) == 3)
        for victim in executors(cluster)["spark-2"]:
            victim.kill()
        # Their Python workers notice at their next beat; lanes of other tasks go on meanwhile.
        until(lambda: "is gone without a word" in driver.log.read_text())
        seconds = until(lambda: running(driver, pipeline) == 3)
        record_property("seconds to all tasks", seconds)
    driver.well("deliver", name=pipeline.name)
    driver.well("stop", name=pipeline.name)
    pipeline.check()
