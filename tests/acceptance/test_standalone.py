"""On a cluster of two machines Spark copies slow tasks, and a machine joins and leaves: lanes go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from dedup.catalog.open import open_store
from dedup.errors import Unavailable
from delivery.host.killing import PAUSED, WOKEN_SUFFIX
from delivery.operate.dying import Kills
from delivery.points import SEAL_REPLY_LOST, STORED_NOT_SEALED
from delivery.services.ephemeral import Services, ephemeral
from tests.acceptance.kit import Trial, Worker, delivered, prove, shares, until
from tests.acceptance.pricing import GO_ON, STRAGGLER, Pipeline
from tests.acceptance.test_zombies_spark import asleep, heads_of, text_of
from tests.acceptance.traffic import Row

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
#: Spark gives up within seconds whom it does not hear of. One task at a time: another one, stopped
#: within a commit, would hold an embedded catalog's lock.
GIVEN_UP = {
    "spark.cores.max": "1",
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "15s",
    "spark.network.timeoutInterval": "1s",
}

#: The machine that stays; the one that joins and leaves, and what its tasks call it.
HOST, GUEST, GUEST_HOST = "spark-2", "spark-3", "127.0.0.3"


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
    # Spark may have copied others as well: who loses just now is told of a moment later.
    before, heads = prove(trial, stories=False), heads_of(trial.pipeline)

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


@pytest.mark.parametrize("catalog", ["sqlite", "cassandra"])
def test_a_machine_that_joins_is_given_lanes_and_one_that_leaves_gives_them_back(
    catalog: str, cluster: Services, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made: Pipeline = request.getfixturevalue(f"{catalog}_pipeline")
    place = tmp_path / "attempts"
    place.mkdir()
    (place / STRAGGLER).touch()  # nobody waits
    trial = Trial.of(replace(made, straggling=str(place)), tmp_path, seed=71, count=3 * RECORDS)
    before, beside, behind = shares(trial.traffic.rows, 3)
    guest = cluster.servers[GUEST]
    guest.kill()
    until("it is alone", lambda: workers(cluster) == 1, SECONDS_MAX)
    try:
        driver = trial.drive("resident", cluster.spark.master, conf=CONF)
        sent(trial, before, driver)
        assert hosts(place) == {"127.0.0.2"}
        told = anew(driver)
    finally:
        guest.restart()
    until("another machine is given lanes", lambda: anew(driver) > told, SECONDS_MAX, driver)
    until("all tasks run", lambda: all_run(driver, 3), SECONDS_MAX, driver)
    sent(trial, beside, driver)
    assert GUEST_HOST in hosts(place), "the newcomer works"
    (told, tasks), attempts = (anew(driver), 1), {file.name for file in place.iterdir()}
    guest.kill()
    try:
        until("lanes are shared out anew", lambda: anew(driver) > told, SECONDS_MAX, driver)
        until("all tasks run", lambda: all_run(driver, tasks), SECONDS_MAX, driver)
        sent(trial, behind, driver)
        trial.complete.touch()
        driver.ended(0, SECONDS_MAX)
    finally:
        guest.restart()
    later = [file for file in place.iterdir() if file.name not in attempts]
    assert {file.read_text() for file in later} == {"127.0.0.2"}
    prove(trial)


def sent(trial: Trial, rows: Sequence[Row], driver: Worker) -> None:
    """Send some records, and wait until they have gone through every stage."""
    trial.send(rows)
    delivered(trial, driver, SECONDS_MAX)


def workers(cluster: Services) -> int:
    """Return how many machines the master knows."""
    for count in range(cluster.spark.nodes):
        with suppress(Unavailable):
            replace(cluster.spark, nodes=count + 1).check_together()
            return count
    return -1


def hosts(place: Path) -> set[str]:
    """Return the machines on which prices were asked for."""
    return {file.read_text() for file in place.iterdir() if file.name != STRAGGLER}


def anew(driver: Worker) -> int:
    """Count how often lanes were shared out anew."""
    return driver.said.read_text().count("lanes are shared out anew")


def all_run(driver: Worker, count: int) -> bool:
    """Tell whether so many tasks have begun since lanes were last shared out anew."""
    _, _, since = driver.said.read_text().rpartition("lanes are shared out anew")
    return len({line for line in since.splitlines() if " runs on " in line}) >= count


@pytest.mark.parametrize("engine", ["resident", "microbatch"])
@pytest.mark.parametrize("catalog", ["sqlite", "cassandra"])
def test_a_zombie_whose_executor_spark_has_replaced_wakes_up_too_late(
    engine: str,
    catalog: str,
    cluster: Services,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """A whole machine stands still, as in a partition: no order of Spark's reaches what is there."""
    trial = Trial.of(
        request.getfixturevalue(f"{catalog}_pipeline"), tmp_path, seed=73, count=RECORDS
    )
    kills, let_go = Kills(tmp_path / "kills"), tmp_path / "let-go"
    other, running = cluster.servers[HOST], cluster.servers[GUEST].node.process()
    assert running is not None
    frozen = running.pid
    other.kill()
    until("the machine to freeze is alone", lambda: workers(cluster) == 1, SECONDS_MAX)
    trial.send_all()
    try:
        driver = trial.drive(
            engine, cluster.spark.master, kills.kill_at, complete=let_go, conf=CONF | GIVEN_UP
        )
        kills.arm(STORED_NOT_SEALED, f"{PAUSED} {frozen}")
        with asleep(frozen, driver, kills) as sleepers:
            other.restart()
            # What was begun there, another executor does: so Spark has given that one up.
            delivered(trial, driver, SECONDS_MAX)
            before, heads = prove(trial), heads_of(trial.pipeline)
            marker = kills.marker(STORED_NOT_SEALED)
            # It wakes before what is above it, which would end it.
            psutil.Process(int(marker.read_text().split()[1])).resume()
            passed = marker.with_name(marker.name + WOKEN_SUFFIX)
            until("the sleeper appends", lambda: SEAL_REPLY_LOST in text_of(passed), of=driver)
            for sleeper in sleepers:
                with suppress(psutil.NoSuchProcess):
                    sleeper.resume()
            let_go.touch()
            driver.ended(0, SECONDS_MAX)
    finally:
        if workers(cluster) < 2:
            other.restart()
    assert heads_of(trial.pipeline) == heads, "what it appended was refused"
    assert prove(trial) == before, "and nothing of it came out"
