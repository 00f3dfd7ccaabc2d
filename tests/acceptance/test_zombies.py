"""A worker stands still after it stored; others finish; it wakes, and changes nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dedup.catalog.open import open_store
from delivery.host.killing import PAUSED, VICTIM_SUFFIX
from delivery.points import (
    EMITTED_NOT_ACKNOWLEDGED,
    MID_EMIT,
    SEAL_REPLY_LOST,
    SEALED_NOT_EMITTED,
    STORED_NOT_SEALED,
)
from tests.acceptance.kit import Trial, prove, until
from tests.acceptance.pricing import Pipeline

RECORDS = 200
#: What a sleeper has done already that others do again, byte for byte.
SENT_BEFORE = (MID_EMIT, EMITTED_NOT_ACKNOWLEDGED)


def slept_at(point: str, pipeline: Pipeline, directory: Path) -> None:
    """Let a worker sleep at a point while another does everything; wake it, and judge."""
    trial = Trial.of(pipeline, directory, seed=17, count=RECORDS)
    trial.send_all()
    marker = directory / "asleep"
    marker.with_name(marker.name + VICTIM_SUFFIX).write_text(PAUSED)
    sleeper = trial.start("sleeper", kill_at=f"{point}:{marker}")
    until("the worker sleeps", marker.exists)
    trial.finish()
    before = prove(trial)
    assert (before.copies > 0) == (point in SENT_BEFORE)

    sleeper.process.send_signal(signal.SIGCONT)
    sleeper.ended()
    after = prove(trial)
    assert (after.inputs, after.distinct) == (before.inputs, before.distinct)
    if point == STORED_NOT_SEALED:
        assert _losers(trial) > 0, "its append was refused"


def _losers(trial: Trial) -> int:
    store = open_store(trial.pipeline.catalog)
    try:
        return sum(1 for lane in store.lanes() for _ in store.losers(lane))
    finally:
        store.close()


@pytest.mark.parametrize("point", [STORED_NOT_SEALED, SEALED_NOT_EMITTED])
def test_a_sleeper_wakes_up_too_late(point: str, sqlite_pipeline: Pipeline, tmp_path: Path) -> None:
    slept_at(point, sqlite_pipeline, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("point", [SEAL_REPLY_LOST, MID_EMIT, EMITTED_NOT_ACKNOWLEDGED])
def test_a_sleeper_wakes_up_too_late_anywhere(
    point: str, sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    slept_at(point, sqlite_pipeline, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("point", [STORED_NOT_SEALED, SEALED_NOT_EMITTED, MID_EMIT])
def test_a_sleeper_wakes_up_too_late_with_cassandra(
    point: str, cassandra_pipeline: Pipeline, tmp_path: Path
) -> None:
    slept_at(point, cassandra_pipeline, tmp_path)
