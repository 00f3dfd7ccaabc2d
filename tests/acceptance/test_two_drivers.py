"""A second Spark driver joins one that works, and leaves: each record once, and no livelock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.acceptance.kit import Trial, Worker, delivered, prove, until
from tests.acceptance.pricing import Pipeline
from tests.acceptance.test_two_workers import in_vain, won_and_lost
from tests.acceptance.traffic import Row

pytestmark = pytest.mark.slow

#: What keeps a driver busy for minutes, and for about a minute: each record is asked a price for.
RECORDS, FEWER = 64_000, 16_000
ANSWER_SECONDS = 0.005
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


@pytest.mark.parametrize(
    ("place", "records"),
    [
        (("resident", "sqlite"), RECORDS),
        (("resident", "cassandra"), FEWER),
        (("microbatch", "sqlite"), FEWER),
        (("microbatch", "cassandra"), FEWER),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, tuple) else str(one),
)
def test_two_drivers_are_at_least_half_as_fast_as_one(
    place: tuple[str, str],
    records: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    engine, catalog = place
    made: Pipeline = request.getfixturevalue(f"{catalog}_pipeline")
    pipeline = replace(made, bundle_rows=BUNDLE_ROWS, answer_seconds=ANSWER_SECONDS)
    trial = Trial.of(pipeline, tmp_path, seed=67, count=records)
    rows, quarter = trial.traffic.rows, records // 4
    first, let_go = begun(trial, engine, trial.complete), tmp_path / "let-go"
    # One works alone before and after: what else the machine does weighs on both alike.
    alone = seconds_for(trial, rows[:quarter], first)
    # Nearly always none: a reply of a busy server may be lost, and its task run again.
    _, lost_alone = won_and_lost(trial)
    second = begun(trial, engine, let_go)
    together = seconds_for(trial, rows[quarter : 3 * quarter], first)
    _, lost = won_and_lost(trial)
    assert lost > lost_alone, "they met"
    let_go.touch()
    second.ended(0, SECONDS_MAX)
    alone += seconds_for(trial, rows[3 * quarter :], first)
    trial.complete.touch()
    first.ended(0, SECONDS_MAX)
    prove(trial)
    record_property("seconds alone and together", [alone, together, in_vain(trial)])
    assert alone / together >= RATIO_MIN, f"alone {alone:.0f} s, together {together:.0f} s"
