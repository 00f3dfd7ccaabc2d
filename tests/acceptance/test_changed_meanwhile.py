"""What a stage finds changed when it comes back: refused with what is lost, or taken up in full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from tests.acceptance.kit import PARTITIONS, Trial, prove, until
from tests.acceptance.pricing import Pipeline
from tests.acceptance.traffic import Row

RECORDS = 120
#: How a Python program ends that raised.
RAISED = 1
HOUR_MS = 3_600_000


@pytest.fixture
def trial(sqlite_pipeline: Pipeline, tmp_path: Path) -> Trial:
    """A pipeline that has processed everything, and stands still."""
    trial = Trial.of(sqlite_pipeline, tmp_path, seed=43, count=RECORDS)
    trial.send_all()
    trial.finish()
    prove(trial)
    return trial


@pytest.fixture
def admin(trial: Trial) -> AdminClient:
    """What operators change topics with."""
    return AdminClient({"bootstrap.servers": trial.pipeline.kafka})


def refused(trial: Trial, *words: str) -> None:
    """Start a worker, which must end by itself and say why."""
    worker = trial.start()
    worker.ended(RAISED)
    said = worker.said.read_text().splitlines()[-1]
    assert said.startswith("dedup.errors.InvalidUsage: "), said
    assert [word for word in words if word not in said] == [], said


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("raw", "was deleted and created again"),
        ("priced", "an output topic was deleted and created"),
    ],
)
def test_a_topic_that_was_deleted_and_created_again_is_refused(
    which: str, words: str, trial: Trial, admin: AdminClient
) -> None:
    name: str = getattr(trial.pipeline, which)
    admin.delete_topics([name])[name].result()
    with open_client(trial.pipeline.kafka) as client:
        until("the topic is gone", lambda: name not in client.describe([name]))
        client.create(name, TopicSettings(partitions=PARTITIONS))
    refused(trial, words)


def test_records_that_went_before_they_were_read_are_refused_by_their_offsets(
    trial: Trial, admin: AdminClient
) -> None:
    row = Row(1, None, b'{"id": "late"}', (("id", b"late"),))
    trial.send([row] * 10)
    with open_client(trial.pipeline.kafka) as client:
        (_, source) = client.describe([trial.pipeline.raw])[trial.pipeline.raw].sources
        end = client.bounds(trial.pipeline.raw, [source]).high.at(source)
    assert end is not None
    part = TopicPartition(trial.pipeline.raw, 1, end - 3)
    admin.delete_records([part])[part].result()
    refused(trial, f"{end - 10}", f"{end - 3}")


def test_a_partition_that_appeared_is_read_from_its_first_record(
    trial: Trial, admin: AdminClient
) -> None:
    raw = trial.pipeline.raw
    admin.create_partitions([NewPartitions(raw, PARTITIONS + 1)])[raw].result()
    with open_client(trial.pipeline.kafka) as client:
        until("it is there", lambda: client.describe([raw])[raw].partitions == PARTITIONS + 1)
    rows = [
        Row(
            PARTITIONS,
            None,
            json.dumps({"id": f"new-{n}", "n": n}).encode(),
            (("id", b"new-%d" % n),),
        )
        for n in range(50)
    ]
    trial.send([*rows, *rows[:5]])
    trial.traffic.rows += [*rows, *rows[:5]]
    trial.traffic.repeats += 5
    trial.traffic.firsts |= {f"new-{n}": n for n in range(50)}
    trial.finish()
    prove(trial)


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
def test_a_clock_that_is_an_hour_off_on_one_worker_decides_nothing(
    ahead_ms: int, sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    trial = Trial.of(sqlite_pipeline, tmp_path, seed=47, count=4 * RECORDS)
    half = len(trial.traffic.rows) // 2
    trial.send(trial.traffic.rows[:half])
    wrong, right = trial.start("wrong", ahead_ms=ahead_ms), trial.start("right")
    trial.send(trial.traffic.rows[half:])
    trial.complete.touch()
    wrong.ended()
    right.ended()
    prove(trial)
