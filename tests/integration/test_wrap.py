"""Wrapped jobs on a real broker: any plan, each record once, whenever the driver dies."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

import psutil
import pytest

from delivery.host.killing import PAUSED, VICTIM_SUFFIX
from delivery.operate.dying import EXECUTOR, PYTHON_WORKER, below, kill_one
from delivery.points import (
    ACKNOWLEDGED,
    MID_EMIT,
    POINTS,
    SEALED_NOT_EMITTED,
    STORED_NOT_SEALED,
)
from delivery.services.cassandra import Cassandra
from delivery.services.ephemeral import Services, ephemeral
from tests.acceptance.kit import ROOT, Worker, until
from tests.conformance.cassandra_kit import cassandra_url
from tests.integration.wrap_job import GO_ON, STRAGGLER, TASKS
from tests.integration.wrap_kit import (
    JOB_SECONDS_MAX,
    Job,
    closing,
    counted_exactly,
    each_once,
    make,
    pairs_once,
    summed_exactly,
    traffic,
    windows_exact,
)

__all__ = ["make"]

RECORDS = 200
#: Executors are processes of their own.
CLUSTER = "local-cluster[2,1,1024]"
#: On two machines, or Spark copied nothing.
SPECULATION = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.cores.max": "4",
    "spark.ui.enabled": "false",
    "spark.locality.wait": "0s",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    # The attempt whose copy was quicker is killed later than it wakes up.
    "spark.python.task.killTimeout": "300s",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Services]:
    with ephemeral(kafka=0, spark=True, report=print) as services:
        yield services


def killed_at(job: Job, point: str) -> None:
    """Let the driver die at a point, with all of its Spark, and start it again."""
    marker = job.directory / "killed"
    job.run(-signal.SIGKILL, f"{point}:{marker}")
    assert marker.read_text().startswith(f"{point} "), "it died where it was told to"
    job.run()


#: What becomes of records, where it is not one effect for each.
JUDGES = {
    "windows": windows_exact,
    "pairs": pairs_once,
    "counted": counted_exactly,
    "summed": summed_exactly,
}


def exact(job: Job) -> None:
    """Judge what came of `RECORDS` records."""
    job.prove()
    JUDGES.get(job.kind, each_once)(job, RECORDS)


@contextmanager
def started(job: Job, kill_at: str = "") -> Iterator[Worker]:
    """Start a driver that does not outlive the test."""
    driver = job.start(kill_at)
    try:
        yield driver
    finally:
        if driver.process.poll() is None:
            driver.kill()


@contextmanager
def two_at_once(job: Job) -> Iterator[tuple[Worker, Worker]]:
    """Start a driver that stands still when it has stored, and wakes when another one has sealed."""
    marker = job.directory / "asleep"
    marker.with_name(marker.name + VICTIM_SUFFIX).write_text(PAUSED)
    with started(job, f"{STORED_NOT_SEALED}:{marker}") as first:
        until("it has stored", marker.exists, JOB_SECONDS_MAX, first)
        process = psutil.Process(first.process.pid)
        until("it stands still", lambda: process.status() == psutil.STATUS_STOPPED)
        with started(job) as second:
            until("the other has sealed it", lambda: job.seq() > 0, JOB_SECONDS_MAX, second)
            process.resume()
            yield first, second


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point == STORED_NOT_SEALED else pytest.mark.slow)
        for point in POINTS
    ],
)
def test_a_job_of_nondeterministic_code_whose_driver_is_killed(
    point: str, make: Callable[[str], Job]
) -> None:
    job = make("plain")
    job.send(traffic(0, RECORDS))
    killed_at(job, point)
    exact(job)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point == ACKNOWLEDGED else pytest.mark.slow)
        for point in POINTS
    ],
)
def test_windows_are_exact_although_the_driver_is_killed(
    point: str, make: Callable[[str], Job]
) -> None:
    """Sealed and not noted as done, a batch is entered again: the state moves on, nothing is sent."""
    job = make("windows")
    job.send([*traffic(0, RECORDS), *closing()])
    killed_at(job, point)
    exact(job)


@pytest.mark.parametrize(
    ("point", "kind"),
    [
        pytest.param(point, kind, marks=() if point == MID_EMIT else pytest.mark.slow)
        for point, kind in zip(POINTS, cycle(("plain", "summed")), strict=False)
    ],
)
def test_a_bounded_run_whose_driver_is_killed(
    point: str, kind: str, make: Callable[..., Job]
) -> None:
    """The second run is the one that dies; the third goes on behind it, over what came since, too."""
    job = make(kind, bounded=True)
    job.send(traffic(0, RECORDS // 4))
    job.run()
    job.send(traffic(RECORDS // 4, RECORDS // 2))
    marker = job.directory / "killed"
    job.run(-signal.SIGKILL, f"{point}:{marker}")
    assert marker.read_text().startswith(f"{point} "), "it died where it was told to"
    job.send([*traffic(0, 10), *traffic(RECORDS // 2, RECORDS)])
    job.run()
    exact(job)


@pytest.mark.slow
@pytest.mark.parametrize("point", [STORED_NOT_SEALED, ACKNOWLEDGED])
@pytest.mark.parametrize("kind", ["pairs", "counted"])
def test_other_state_is_exact_although_the_driver_is_killed(
    kind: str, point: str, make: Callable[[str], Job]
) -> None:
    """State that drops repeats by itself, and state that user code in Python counts on."""
    job = make(kind)
    job.send(traffic(0, RECORDS))
    killed_at(job, point)
    exact(job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "kind"),
    [
        *zip(POINTS, cycle(("plain", "windows")), strict=False),
        *((point, "summed") for point in (STORED_NOT_SEALED, SEALED_NOT_EMITTED)),
    ],
)
def test_on_cassandra_as_well(
    point: str, kind: str, make: Callable[..., Job], cassandra: Cassandra
) -> None:
    job = make(kind, catalog=cassandra_url(cassandra, "wrapped"), bounded=kind == "summed")
    job.send([*traffic(0, RECORDS), *(closing() if kind == "windows" else ())])
    killed_at(job, point)
    exact(job)


@pytest.mark.slow
@pytest.mark.parametrize("bounded", [False, True], ids=["stream", "bounded"])
@pytest.mark.parametrize(
    ("kind", "catalog"),
    [("mixed", "sqlite"), ("spread", "sqlite"), ("mixed", "cassandra"), ("spread", "cassandra")],
)
def test_an_executor_that_dies_behind_a_shuffle_takes_the_run_with_it(
    kind: str,
    catalog: str,
    bounded: bool,  # noqa: FBT001 - pytest passes it by name
    make: Callable[..., Job],
    request: pytest.FixtureRequest,
) -> None:
    """What its map task had written is written anew, and one task has read what it was before.

    Where Spark sees by its checksums that it is not the same, it ends its job itself.
    """
    url = ""
    if catalog == "cassandra":
        url = cassandra_url(request.getfixturevalue("cassandra"), "wrapped")
    job = make(kind, catalog=url, master=CLUSTER, bounded=bounded)
    job.send(traffic(0, RECORDS))
    with started(job) as driver:
        waiting = [job.directory / f"reached.{number}" for number in range(1, TASKS)]

        def wait() -> bool:
            return all(one.exists() for one in waiting)

        until("all but the first task wait", wait, JOB_SECONDS_MAX, driver)
        assert kill_one(driver.process.pid, EXECUTOR, random.Random(7))
        (job.directory / "open").touch()
        driver.ended(0, JOB_SECONDS_MAX)
    said = driver.said.read_text()
    assert re.search("a run of its plan does not count: stage .* more than once", said)
    exact(job)


@pytest.mark.slow
@pytest.mark.parametrize("bounded", [False, True], ids=["stream", "bounded"])
@pytest.mark.parametrize("kind", ["gated", "spread"])
def test_a_worker_that_dies_in_user_code_is_replaced(
    kind: str,
    bounded: bool,  # noqa: FBT001 - pytest passes it by name
    make: Callable[..., Job],
) -> None:
    """In the tasks that read, whose verdicts are told once more, and in those behind a shuffle."""
    job = make(kind, bounded=bounded)
    job.send(traffic(0, RECORDS))
    reached = job.directory / "reached.1"
    with started(job) as driver:
        until("a task waits", reached.exists, JOB_SECONDS_MAX, driver)
        reached.unlink()
        for worker in below(driver.process.pid, PYTHON_WORKER):
            worker.kill()
        until("it runs once more", reached.exists, JOB_SECONDS_MAX, driver)
        (job.directory / "open").touch()
        driver.ended(0, JOB_SECONDS_MAX)
    exact(job)


@pytest.mark.slow
def test_spark_copies_a_straggler_and_one_of_both_counts(
    cluster: Services, make: Callable[..., Job]
) -> None:
    """All that Spark takes of the first attempt is that it was slow; it wakes when it is too late."""
    job = make("straggling", master=cluster.spark.master, conf=SPECULATION)
    job.send(traffic(0, RECORDS))
    with started(job) as driver:
        until("it is sealed", lambda: job.seq() > 0, JOB_SECONDS_MAX, driver)
        straggler = (job.directory / STRAGGLER).read_text()
        task, _, _ = straggler.rpartition(".")
        assert len(list(job.directory.glob(f"attempt.{task}.*"))) == 2
        (job.directory / GO_ON).touch()
        driver.ended(0, JOB_SECONDS_MAX)
    exact(job)


@pytest.mark.slow
@pytest.mark.parametrize("bounded", [False, True], ids=["stream", "bounded"])
def test_two_drivers_at_once_of_a_job_without_state(
    bounded: bool,  # noqa: FBT001 - pytest passes it by name
    make: Callable[..., Job],
) -> None:
    """One that has stored a batch wakes up when it is sealed; both go on, and each loses races."""
    job = make("plain", bounded=bounded)
    job.send(traffic(0, RECORDS))
    with two_at_once(job) as (first, second):
        second.ended(0, JOB_SECONDS_MAX)
        first.ended(0, JOB_SECONDS_MAX)
    exact(job)


@pytest.mark.slow
def test_a_second_driver_of_a_job_with_state_stops_one_of_the_two(
    make: Callable[..., Job],
) -> None:
    job = make("windows")
    job.send([*traffic(0, RECORDS), *closing()])
    with two_at_once(job) as (first, second):
        first.ended(1, JOB_SECONDS_MAX)
        second.ended(0, JOB_SECONDS_MAX)
    said = first.said.read_text()
    assert "another driver sealed it first" in said
    assert "stop one of the two" in said
    exact(job)
