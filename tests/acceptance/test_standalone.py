"""On a cluster of two machines Spark copies slow tasks: one attempt counts, and lanes go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dedup.catalog.open import open_store
from delivery.services.ephemeral import Services, ephemeral
from tests.acceptance.kit import Trial, Worker, delivered, prove, shares, until
from tests.acceptance.pricing import GO_ON, STRAGGLER, Pipeline
from tests.acceptance.test_zombies_spark import heads_of

pytestmark = pytest.mark.slow

RECORDS = 200
SECONDS_MAX = 480.0
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.locality.wait": "0s",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    # A straggler whose copy was quicker is killed later than it wakes up.
    "spark.python.task.killTimeout": "120s",
}
#: Spark copies every task that has run for so long, also those that run for ever: if one executor has
#: slots for all of them, so there is one. Three slots are left for its copies.
IMPATIENCE = {"spark.speculation.task.duration.threshold": "3s", "tasks": "1"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Services]:
    with ephemeral(kafka=0, spark=True, report=print) as services:
        yield services


@pytest.mark.parametrize("catalog", ["sqlite", "cassandra"])
def test_spark_copies_a_straggler_and_one_of_both_counts(
    catalog: str, cluster: Services, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pipeline: Pipeline = request.getfixturevalue(f"{catalog}_pipeline")
    place = tmp_path / "straggling"
    place.mkdir()
    trial = Trial.of(replace(pipeline, straggling=str(place)), tmp_path, seed=47, count=RECORDS)
    trial.send_all()
    let_go = tmp_path / "let-go"
    driver = trial.drive(
        "microbatch", cluster.spark.master, complete=let_go, conf=CONF | SPECULATION
    )
    until("somebody straggles", (place / STRAGGLER).exists, SECONDS_MAX, driver)
    delivered(trial, driver, SECONDS_MAX)
    # All of it, while the first attempt still waits: so another one ran beside it.
    straggler = (place / STRAGGLER).read_text()
    task, _, _ = straggler.rpartition(".")
    attempts = {file.name for file in place.iterdir() if file.name.startswith(f"{task}.")}
    assert len(attempts) == 2
    before, heads = prove(trial), heads_of(trial.pipeline)

    (place / GO_ON).touch()
    until("the straggler's append is refused", lambda: losers(trial) > 0, of=driver)
    let_go.touch()
    driver.ended(0, SECONDS_MAX)
    assert heads_of(trial.pipeline) == heads
    assert prove(trial) == before


def losers(trial: Trial) -> int:
    """Count attempts that found out that another had won."""
    store = open_store(trial.pipeline.catalog)
    try:
        lanes = [lane for lane in store.lanes() if lane.startswith(trial.pipeline.name)]
        return sum(1 for lane in lanes for _ in store.losers(lane))
    finally:
        store.close()


def test_resident_tasks_that_spark_copies_go_on(
    cluster: Services, sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    """They never end, so to Spark they are slow: a copy takes the lanes over, and goes on."""
    trial = Trial.of(sqlite_pipeline, tmp_path, seed=59, count=RECORDS)
    conf = CONF | SPECULATION | IMPATIENCE
    driver = trial.drive("resident", cluster.spark.master, conf=conf)
    for starts, part in enumerate(shares(trial.traffic.rows, 2), 1):
        enough = partial(begun, driver, starts)
        until(f"a task is started {starts} times", enough, SECONDS_MAX, driver)
        trial.send(part)
        delivered(trial, driver, SECONDS_MAX)
    trial.complete.touch()
    driver.ended(0, SECONDS_MAX)
    prove(trial)
    # A task that was replaced and ended well would take its copy along, and in the end the job.
    assert "its tasks returned" not in driver.said.read_text()


def begun(driver: Worker, times: int) -> bool:
    """Tell whether Spark has started one task so many times."""
    lines = [line for line in driver.said.read_text().splitlines() if " runs on " in line]
    tasks = Counter(line.split(" runs on ")[0].split()[-1] for line in lines)
    return max(tasks.values(), default=0) >= times
