"""Two workers on all lanes at once: each record once, and most of the work is not in vain."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from delivery.operate.differing import StageDifferences, differences
from tests.acceptance.kit import Trial, Worker, prove, shares
from tests.acceptance.pricing import Pipeline

RECORDS = 4_000
BUNDLE_ROWS = 100
#: For how long records come in when it matters that nobody starves.
MINUTE_SECONDS = 60.0
#: Parts in which they come then.
PARTS = 120
#: What the code of each stage never says twice.
RANDOM = {"price": ("value.nonce", "value.at"), "ship": ("value.parcel",)}


def in_vain(trial: Trial) -> float:
    """Return which share of all stored attempts lost: of a livelock it is nearly one."""
    won, lost = won_and_lost(trial)
    return lost / (won + lost)


def won_and_lost(trial: Trial) -> tuple[int, int]:
    """Return how many attempts were sealed, and how many were stored in vain."""
    store = open_store(trial.pipeline.catalog)
    try:
        catalog = Catalog(store)
        lanes = [lane for lane in store.lanes() if lane.startswith(trial.pipeline.name)]
        rows = [(catalog.load(lane), list(store.losers(lane))) for lane in lanes]
    finally:
        store.close()
    mine = [(row, lost) for row, lost in rows if row is not None]
    return sum(row.head.ref.seq for row, _ in mine), sum(len(lost) for _, lost in mine)


def unlike(trial: Trial) -> dict[str, StageDifferences]:
    """Return what executions of each stage differed in, as an operator is told."""
    store = open_store(trial.pipeline.catalog)
    try:
        lanes = [lane for lane in store.lanes() if lane.startswith(trial.pipeline.name)]
        found = differences(Catalog(store), lanes)
    finally:
        store.close()
    return {one.stage.rpartition("/")[2]: one for one in found}


def counters(worker: Worker) -> dict[str, int]:
    """Return what a worker said of itself at its end."""
    said: dict[str, int] = json.loads(worker.said.read_text().splitlines()[-1])["counters"]
    return said


def test_two_workers_on_all_lanes_neither_double_nor_starve(
    sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    pipeline = replace(sqlite_pipeline, bundle_rows=BUNDLE_ROWS)
    trial = Trial.of(pipeline, tmp_path, seed=23, count=RECORDS)
    trial.send_all()
    workers = [trial.start(name) for name in ("one", "two")]
    for worker in workers:
        worker.ended()
    prove(trial)
    assert sum(counters(worker)["lost"] for worker in workers) > 0, "they met"
    assert in_vain(trial) < 0.5
    told = unlike(trial)
    assert sum(one.unlike for one in told.values()) > 0, "what losers had made is still there"
    for stage, drawn in RANDOM.items():
        one = told[stage]
        assert dict(one.fields) == (dict.fromkeys(drawn, one.unlike) if one.unlike else {})


@pytest.mark.slow
@pytest.mark.parametrize("catalog", ["sqlite", "cassandra"])
def test_two_workers_on_all_lanes_for_a_minute(
    catalog: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made: Pipeline = request.getfixturevalue(f"{catalog}_pipeline")
    trial = Trial.of(replace(made, bundle_rows=BUNDLE_ROWS), tmp_path, seed=29, count=4 * RECORDS)
    workers = [trial.start(name) for name in ("one", "two")]
    began = time.monotonic()
    for number, part in enumerate(shares(trial.traffic.rows, PARTS)):
        trial.send(part)
        wait(began + (number + 1) * MINUTE_SECONDS / PARTS)
    trial.complete.touch()
    for worker in workers:
        worker.ended()
    prove(trial)
    assert in_vain(trial) < 0.5


def wait(moment: float) -> None:
    """Let time pass: records come at a rate, as publishers send them."""
    time.sleep(max(0.0, moment - time.monotonic()))
