"""The kit can tell: what is planted in a sound trial is found, and what proves nothing fails."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from delivery.kafka.opening import open_client
from tests.acceptance.kit import Trial, judge, prove, publish
from tests.acceptance.pricing import Pipeline
from tests.acceptance.reading import logs_of
from tests.acceptance.traffic import Row, Traffic, traffic


def test_damage_is_found_and_a_trial_without_repeats_proves_nothing(
    sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    trial = Trial.of(sqlite_pipeline, tmp_path, seed=1, count=60)
    trial.send_all()
    trial.finish()
    shown = prove(trial)
    assert 0 < shown.offered == shown.dropped
    assert shown.copies == 0
    assert shown.inputs == shown.distinct + shown.offered

    with pytest.raises(AssertionError, match="proved"):
        prove(replace(trial, traffic=replace(trial.traffic, repeats=0)))
    more = replace(trial.traffic, firsts={**trial.traffic.firsts, "x": 1})
    assert judge(replace(trial, traffic=more)).lost == 1
    firsts: dict[str, int | None] = dict.fromkeys(trial.traffic.firsts, 7)
    other = judge(replace(trial, traffic=replace(trial.traffic, firsts=firsts)))
    assert other.lost == len(firsts) - (7 in trial.traffic.firsts.values())
    assert other.findings, "there are no dead letters in it"

    # A copy is no harm; another content under the same header is.
    with open_client(trial.pipeline.kafka) as client:
        log = next(log for log in logs_of(client, trial.pipeline.out).values() if log.records)
        sent = log.records[0]
        assert sent is not None
        row = Row(0, sent.key, sent.value, sent.headers)
        publish(client, trial.pipeline.out, [row])
        assert prove(trial).copies == 1
        publish(client, trial.pipeline.out, [row._replace(value=b'{"id": "other"}')])
    shown = judge(trial)
    assert (shown.copies, shown.conflicting) == (1, 0)
    assert [finding.split(": ")[2] for finding in shown.findings[:1]] == ["PAYLOAD"]
    assert "made up: ['other']" in shown.findings
    changed = json.loads(sent.value or b"") | {"nonce": "another"}
    publish(client, trial.pipeline.out, [row._replace(value=json.dumps(changed).encode())])
    with pytest.raises(AssertionError, match="PAYLOAD"):
        prove(trial)
    shown = judge(trial)
    assert shown.conflicting == 1
    name = changed["id"]
    assert f"of another call than their quotes: ['{name}']" in shown.findings


def test_a_worker_that_was_not_killed_fails_its_trial(
    sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    trial = Trial.of(sqlite_pipeline, tmp_path, seed=2, count=0)
    trial.complete.touch()
    with pytest.raises(AssertionError, match="ended with 0"):
        trial.start(kill_at=f"mid-emit:{tmp_path / 'killed'}").ended(-signal.SIGKILL)


@pytest.mark.parametrize("seed", range(20))
def test_traffic_is_made_of_its_seed_and_has_repeats_of_every_kind(seed: int) -> None:
    made = [traffic(seed, 200, partitions=2, lanes="shop/price/raw-") for _ in range(2)]
    assert made[0] == made[1]
    _check(made[0])


def _check(made: Traffic) -> None:
    assert 10 < made.repeats == len(made.rows) - len(made.firsts)
    assert made.conflicts > 0
    assert {row.key is None for row in made.rows} == {True, False}
    # Repeats of a record stay in its partition unless they are scattered.
    assert None in made.firsts.values()
