"""A pipeline changes its engine while it is alive, with something owed: the next one goes on where it stood."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from delivery.operate.dying import Kills, tree
from delivery.points import SEALED_NOT_EMITTED
from tests.acceptance.kit import Trial, prove, shares, until
from tests.acceptance.pricing import Pipeline

pytestmark = pytest.mark.slow

RECORDS = 400
LOCAL = "local[3,4]"
TURNS = ("resident", "microbatch", "resident")
#: A session takes six seconds on two idle cores.
SECONDS_MAX = 300.0


@pytest.mark.parametrize("catalog", ["sqlite", "cassandra"])
def test_each_engine_delivers_what_the_one_before_it_sealed_and_goes_on(
    catalog: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pipeline: Pipeline = request.getfixturevalue(f"{catalog}_pipeline")
    trial = Trial.of(pipeline, tmp_path, seed=73, count=RECORDS)
    kills = Kills(tmp_path / "kills")
    died = partial(kills.happened, SEALED_NOT_EMITTED)
    parts = shares(trial.traffic.rows, len(TURNS))
    for engine, part in zip(TURNS[:-1], parts[:-1], strict=True):
        driver = trial.drive(engine, LOCAL, kills.kill_at)
        running = partial(machine_of, driver.process.pid)
        until("there is a machine", running, SECONDS_MAX, driver)
        # It dies as well, before it has another worker deliver what this one could not.
        kills.arm(SEALED_NOT_EMITTED, f"{running()} {driver.process.pid}")
        trial.send(part)
        until(f"{engine} dies with something owed", died, SECONDS_MAX, driver)
        driver.ended(-9, SECONDS_MAX)
        assert owed(pipeline) != []
    trial.send(parts[-1])
    trial.complete.touch()
    trial.drive(TURNS[-1], LOCAL).ended(0, SECONDS_MAX)
    assert owed(pipeline) == []
    prove(trial)


def machine_of(driver: int) -> str:
    """Return the process in which Spark runs; nothing before there is one."""
    return " ".join(str(one.pid) for one in tree(driver) if one.name() == "java")


def owed(pipeline: Pipeline) -> list[str]:
    """Name the lanes that have sealed what they have not delivered."""
    store = open_store(pipeline.catalog)
    try:
        rows = {lane: Catalog(store).load(lane) for lane in store.lanes()}
    finally:
        store.close()
    mine = {lane: row for lane, row in rows.items() if row and lane.startswith(pipeline.name)}
    assert mine
    return [lane for lane, row in mine.items() if row.settled < row.head.ref.seq]
