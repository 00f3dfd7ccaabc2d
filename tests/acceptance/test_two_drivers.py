"""A second Spark driver joins one that works, and leaves: each record once, and no livelock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.acceptance.kit import Trial, Worker, delivered, prove, shares, until
from tests.acceptance.pricing import Pipeline
from tests.acceptance.test_two_workers import in_vain, won_and_lost
from tests.acceptance.traffic import Row

pytestmark = pytest.mark.slow

#: More than two drivers get through while they run together: each record is asked a price for.
RECORDS = 64_000
ANSWER_SECONDS = 0.005
#: Records come in backlogs of so many. One driver alone has three of them before, and three after.
BACKLOG, ALONE = 2_000, 3
#: For how long both are busy with one backlog after the other.
TOGETHER_SECONDS = 120.0
#: Small, so that drivers race for a thousand appends.
BUNDLE_ROWS = 20
#: Of a livelock it is nearly nothing. Whoever loses did the same work, in vain, on the same cores.
RATIO_MIN = 0.5
LOCAL = "local[3,4]"
#: What a driver has said once all of it works. Of three slots one is left to other jobs.
WORKS = {
    "resident": ("task 0 runs on", "task 1 runs on"),
    "microbatch": ("price: running; ship: running",),
}
SECONDS_MAX = 900.0


def begun(trial: Trial, engine: str, let_go: Path, kill_at: str = "") -> Worker:
    """Start a driver that ends when it is let go, and wait until it works."""
    driver = trial.drive(engine, LOCAL, kill_at, complete=let_go)

    def works() -> bool:
        said = driver.said.read_text()
        return all(line in said for line in WORKS[engine])

    until("it works", works, SECONDS_MAX, driver)
    return driver


def seconds_for(trial: Trial, rows: Sequence[Row], driver: Worker) -> float:
    """Return how long a backlog takes those who run."""
    began = time.monotonic()
    trial.send(rows)
    delivered(trial, driver, SECONDS_MAX)
    return time.monotonic() - began


@pytest.mark.parametrize("engine", ["resident", "microbatch"])
@pytest.mark.parametrize("catalog", ["sqlite", "cassandra"])
def test_two_drivers_are_at_least_half_as_fast_as_one_for_minutes(
    engine: str,
    catalog: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    made: Pipeline = request.getfixturevalue(f"{catalog}_pipeline")
    pipeline = replace(made, bundle_rows=BUNDLE_ROWS, answer_seconds=ANSWER_SECONDS)
    trial = Trial.of(pipeline, tmp_path, seed=67, count=RECORDS)
    backlogs = shares(trial.traffic.rows, RECORDS // BACKLOG)
    first, let_go = begun(trial, engine, trial.complete), tmp_path / "let-go"
    # One works alone before and after: what else the machine does weighs on both alike.
    alone = [seconds_for(trial, backlog, first) for backlog in backlogs[:ALONE]]
    # Nearly always none: a reply of a busy server may be lost, and its task run again.
    _, lost_alone = won_and_lost(trial)
    second = begun(trial, engine, let_go)
    together: list[float] = []
    while sum(together) < TOGETHER_SECONDS:
        assert second.process.poll() is None, "both run"
        together.append(seconds_for(trial, backlogs[ALONE + len(together)], first))
    _, lost = won_and_lost(trial)
    assert lost > lost_alone, "they met"
    let_go.touch()
    second.ended(0, SECONDS_MAX)
    until_now = ALONE + len(together)
    last = backlogs[until_now : until_now + ALONE]
    assert len(last) == ALONE, "there are records left for who is alone again"
    alone += [seconds_for(trial, backlog, first) for backlog in last]
    trial.complete.touch()
    first.ended(0, SECONDS_MAX)
    trial.traffic = trial.traffic.first(sum(map(len, backlogs[: until_now + ALONE])))
    prove(trial)
    record_property("seconds for a backlog alone", alone)
    record_property("seconds for a backlog together, and in vain", [together, in_vain(trial)])
    ratio = (sum(alone) / len(alone)) / (sum(together) / len(together))
    assert ratio >= RATIO_MIN, f"alone {alone} s, together {together} s for {BACKLOG} records each"
