"""Spark's workers, executors and drivers are killed under running pipelines: once for each record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.formats.segment import BUCKET_MS
from delivery.host.killing import EXECUTOR
from delivery.operate.dying import Kills
from delivery.points import MID_EMIT, POINTS, SEALED_NOT_EMITTED, STORED_NOT_SEALED
from tests.acceptance.kit import Trial, Worker, prove, shares, until
from tests.acceptance.pricing import Pipeline, hurried
from tests.acceptance.traffic import Row

ENGINES = ("resident", "microbatch")
CATALOGS = ("sqlite", "cassandra")
VICTIMS = ("worker", "executor", "driver")
RECORDS = 400
#: Python workers die alone here; executors and the driver are one process.
LOCAL = "local[3,4]"
#: Executors are processes of their own.
CLUSTER = "local-cluster[2,1,1024]"
#: A session takes six seconds on two idle cores, an executor five to be replaced.
SECONDS_MAX = 240.0

Kill = tuple[str, str]


def killed(
    trial: Trial,
    engine: str,
    master: str,
    kills: tuple[Kill, ...],
    directory: Path,
    *,
    pieces: int = 1,
    together: int = 0,
) -> None:
    """Kill one victim after the other, each while records come in, and judge.

    The records of each come in so many pieces, each when some of the one before are shipped, and in
    other ten minutes where lanes forget by them. The first so many kills are asked for together,
    before records come.
    """
    told = Kills(directory / "kills", [point for point, _ in kills])
    driver = trial.drive(engine, master, told.kill_at)
    for point, victim in kills[:together]:
        told.arm(point, _words(victim, driver))
    parts = shares(trial.traffic.rows, len(kills))
    for number, (part, (point, victim)) in enumerate(zip(parts, kills, strict=True)):
        if number >= together:
            told.arm(point, _words(victim, driver))
        dies = partial(told.happened, point)
        *first, last = shares(part, pieces)
        for piece in first:
            bucket = bucket_now(trial.pipeline)
            piecemeal(trial, piece, dies)
            if trial.pipeline.tiny:
                # However quick the stages are: of what is sealed within them nothing is forgotten.
                until("ten minutes are over", lambda at=bucket: bucket_now(trial.pipeline) > at)
        trial.send(last)
        until(f"a {victim} dies at {point}", dies, SECONDS_MAX, driver)
        if victim == "driver":
            driver.ended(-9)
            driver = trial.drive(engine, master, told.kill_at)
    trial.complete.touch()
    driver.ended(0, SECONDS_MAX)
    prove(trial)


def piecemeal(trial: Trial, piece: Sequence[Row], dies: Callable[[], bool]) -> None:
    """Send some records, and wait until some are shipped, or somebody has died of them."""
    before = shipped(trial)
    trial.send(piece)
    until("they are shipped", lambda: dies() or shipped(trial) > before, SECONDS_MAX)


def bucket_now(pipeline: Pipeline) -> int:
    """Return in which ten minutes of theirs the processes of a trial are."""
    return hurried(pipeline.tiny) // BUCKET_MS if pipeline.tiny else 0


def shipped(trial: Trial) -> int:
    """Count the seals of the second stage."""
    prefix = next(spec.prefix for spec in trial.pipeline.stages if spec.name == "ship")
    with closing(open_store(trial.pipeline.catalog)) as store:
        catalog = Catalog(store)
        rows = [catalog.load(lane) for lane in store.lanes() if lane.startswith(prefix)]
    return sum(row.head.ref.seq for row in rows if row is not None)


def _words(victim: str, driver: Worker) -> str:
    return {"worker": "", "executor": EXECUTOR, "driver": str(driver.process.pid)}[victim]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_killed_at_every_point_of_a_running_pipeline(
    engine: str, sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    trial = Trial.of(sqlite_pipeline, tmp_path, seed=31, count=RECORDS)
    kills = tuple((point, "worker") for point in POINTS)
    killed(trial, engine, LOCAL, kills, tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("catalog", CATALOGS)
def test_an_executor_and_a_driver_killed(
    engine: str, catalog: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pipeline: Pipeline = request.getfixturevalue(f"{catalog}_pipeline")
    trial = Trial.of(pipeline, tmp_path, seed=37, count=RECORDS)
    kills = ((STORED_NOT_SEALED, "executor"), (MID_EMIT, "driver"))
    killed(trial, engine, CLUSTER, kills, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_worker_and_a_driver_killed_behind_re_keying(
    engine: str, catalog: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Repeats come in whatever partition."""
    pipeline: Pipeline = request.getfixturevalue(f"{catalog}_pipeline")
    pipeline = replace(pipeline, rekeyed=True)
    trial = Trial.of(pipeline, tmp_path, seed=61, count=RECORDS)
    kills = ((SEALED_NOT_EMITTED, "worker"), (MID_EMIT, "driver"))
    killed(trial, engine, LOCAL, kills, tmp_path)


#: Every point with every victim, on one of the engines with one of the catalogs each, so that any
#: two of all four meet.
PLACES = tuple((engine, catalog) for engine in ENGINES for catalog in CATALOGS)
PAIRWISE: dict[tuple[str, str], tuple[Kill, ...]] = {
    place: tuple(
        (point, victim)
        for row, point in enumerate(POINTS)
        for column, victim in enumerate(VICTIMS)
        if (row + column) % len(PLACES) == number
    )
    for number, place in enumerate(PLACES)
}


def test_any_two_of_point_victim_catalog_and_engine_meet() -> None:
    rows = [(p, v, c, e) for (e, c), kills in PAIRWISE.items() for p, v in kills]
    every = (POINTS, VICTIMS, CATALOGS, ENGINES)
    for one in range(4):
        for other in range(one):
            met = {(row[one], row[other]) for row in rows}
            assert met == {(a, b) for a in every[one] for b in every[other]}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids="-".join)
def test_points_victims_catalogs_and_engines_pairwise(
    place: tuple[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    engine, catalog = place
    pipeline: Pipeline = request.getfixturevalue(f"{catalog}_pipeline")
    kills = PAIRWISE[place]
    trial = Trial.of(pipeline, tmp_path, seed=41, count=len(kills) * 60)
    killed(trial, engine, CLUSTER, kills, tmp_path)
