"""A process of Spark's stands still after it stored; another driver finishes; it wakes, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path

import psutil
import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.model import Head
from delivery.host.killing import EXECUTOR, PAUSED, WOKEN_SUFFIX
from delivery.operate.dying import Kills, tree
from delivery.points import SEAL_REPLY_LOST, STORED_NOT_SEALED
from tests.acceptance.kit import Trial, Worker, prove, until
from tests.acceptance.pricing import Pipeline

RECORDS = 200
LOCAL = "local[3,4]"
#: In which each may stand still alone: a worker, an executor with its worker, a driver with all it has.
#: Below the last two is one worker: another one, stopped within a commit, would hold an embedded
#: catalog's lock.
MASTERS = {"worker": LOCAL, "executor": "local-cluster[2,1,1024]", "driver": "local[1,4]"}
ENGINES = ("resident", "microbatch")
CATALOGS = ("sqlite", "cassandra")
#: Spark gives nobody up in the meantime: by default it does after two minutes, and machines differ.
PATIENCE = {"spark.network.timeout": "900s"}
#: A session takes six seconds on two idle cores.
SECONDS_MAX = 480.0


def stood_still(victim: str, engine: str, pipeline: Pipeline, directory: Path) -> None:
    """Let a victim stand still that has stored; let another driver finish; wake it, and judge.

    Spark notices nothing: a worker may be slow, an executor has its time, a driver is its own judge.
    """
    trial = Trial.of(pipeline, directory, seed=43, count=RECORDS)
    kills, let_go = Kills(directory / "kills"), directory / "let-go"
    trial.send_all()
    master = MASTERS[victim]
    first = trial.drive(engine, master, kills.kill_at, complete=let_go, conf=PATIENCE)
    words = {"worker": "", "executor": EXECUTOR, "driver": str(first.process.pid)}[victim]
    kills.arm(STORED_NOT_SEALED, f"{PAUSED} {words}")
    with asleep(first.process.pid, first, kills) as sleepers:
        machines = [one for one in sleepers if one.name() == "java"]
        assert bool(machines) == (victim != "worker"), "with all that it has"
        trial.drive(engine, LOCAL).ended(0, SECONDS_MAX)
        before, heads = prove(trial), heads_of(pipeline)
        for sleeper in sleepers:
            sleeper.resume()
        marker = kills.marker(STORED_NOT_SEALED)
        passed = marker.with_name(marker.name + WOKEN_SUFFIX)
        until("the sleeper appends", lambda: SEAL_REPLY_LOST in text_of(passed), of=first)
        let_go.touch()
        first.ended(0, SECONDS_MAX)
    assert heads_of(pipeline) == heads, "what it appended was refused"
    assert prove(trial) == before, "and nothing of it came out"


@contextmanager
def asleep(above: int, driver: Worker, kills: Kills) -> Iterator[list[psutil.Process]]:
    """Wait until a process sleeps at the point, and yield all below another one that sleep.

    Whoever of them still sleeps at the end dies.
    """
    happened = partial(kills.happened, STORED_NOT_SEALED)
    until("somebody stands still", happened, SECONDS_MAX, driver)
    last = psutil.Process(int(kills.marker(STORED_NOT_SEALED).read_text().split()[1]))
    until("it stands still", lambda: last.status() == psutil.STATUS_STOPPED)
    sleepers = [one for one in tree(above) if one.status() == psutil.STATUS_STOPPED]
    assert last in sleepers
    try:
        yield sleepers
    finally:
        for sleeper in sleepers:
            with suppress(psutil.NoSuchProcess):
                if sleeper.status() == psutil.STATUS_STOPPED:
                    sleeper.kill()


def heads_of(pipeline: Pipeline) -> dict[str, Head]:
    """Return the head of every lane."""
    store = open_store(pipeline.catalog)
    try:
        rows = {lane: Catalog(store).load(lane) for lane in store.lanes()}
    finally:
        store.close()
    return {lane: row.head for lane, row in rows.items() if row and lane.startswith(pipeline.name)}


def text_of(file: Path) -> str:
    """Return what a file holds; nothing if there is none."""
    with suppress(FileNotFoundError):
        return file.read_text()
    return ""


OFTEN = (("worker", "resident", "sqlite"), ("driver", "microbatch", "sqlite"))
RARELY = [one for one in product(MASTERS, ENGINES, CATALOGS) if one not in OFTEN]


@pytest.mark.parametrize(
    ("victim", "engine", "catalog"),
    [*OFTEN, *(pytest.param(*one, marks=pytest.mark.slow) for one in RARELY)],
)
def test_a_zombie_of_sparks_wakes_up_too_late(
    victim: str, engine: str, catalog: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    stood_still(victim, engine, request.getfixturevalue(f"{catalog}_pipeline"), tmp_path)
