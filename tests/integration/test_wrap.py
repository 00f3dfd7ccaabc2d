"""Wrapped jobs on a real broker: any plan, each record once, whenever the driver dies."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import closing as ending
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from delivery import Delivery
from delivery.points import ACKNOWLEDGED, POINTS, STORED_NOT_SEALED
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import lag_seen
from tests.integration.wrap_kit import FIRST, PARTITIONS, WINDOW_SECONDS, Job, closing, row, traffic

RECORDS = 200


@pytest.fixture
def make(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Callable[[str], Job]:
    return lambda kind: Job(
        name=unique("wrap"), kafka=kafka.bootstrap, directory=tmp_path, kind=kind
    )


def killed_at(job: Job, point: str) -> None:
    """Let the driver die at a point, with all of its Spark, and start it again."""
    marker = job.directory / "killed"
    job.run(-signal.SIGKILL, f"{point}:{marker}")
    assert marker.read_text().startswith(f"{point} "), "it died where it was told to"
    job.run()


def each_once(job: Job, last: int) -> None:
    found = Counter(effect["id"] for effect in job.effects())
    assert found == Counter(range(last))


def windows_exact(job: Job, last: int) -> None:
    """Hold every window to the distinct records in it."""
    expected: dict[int, list[int]] = {}
    for number in range(last):
        start = (FIRST + number) // WINDOW_SECONDS * WINDOW_SECONDS
        expected.setdefault(start, []).append(number)
    found: list[dict[str, Any]] = sorted(job.effects(), key=lambda effect: effect["start"])
    assert found == [
        {"start": start, "n": len(ids), "s": sum(ids)} for start, ids in sorted(expected.items())
    ]


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
    job.prove()
    each_once(job, RECORDS)


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
    job.prove()
    windows_exact(job, RECORDS)


def test_another_payload_in_another_partition_stops_a_job_until_it_is_told_to_go_on(
    make: Callable[[str], Job],
) -> None:
    """Nothing of the batch is sealed, and what is in Spark's own state is not ahead of it."""
    job = make("windows")
    other = json.dumps({"id": 4, "at": FIRST + 4, "note": "another"}).encode()
    job.send([*traffic(0, WINDOW_SECONDS), row(4, 1)._replace(value=other), *closing()])
    said = replace(job, conflicts="error").run(expected=1)
    assert re.search(f"{job.name}/report/all: offset .* of partition 1: its id .* was seen", said)
    with ending(open_store(job.catalog)) as store:
        found = Catalog(store).load(f"{job.name}/report/all")
        assert found is not None
        assert found.head.ref.seq == 0
    assert job.effects() == []
    job.run()
    job.prove()
    windows_exact(job, WINDOW_SECONDS)


def test_a_job_without_state_needs_no_memory_of_spark_s(make: Callable[[str], Job]) -> None:
    job = make("plain")
    job.send(traffic(0, RECORDS))
    job.run()
    assert not job.checkpoint.exists(), "it has one of its own at each start"
    job.send(traffic(RECORDS, 2 * RECORDS))
    said = job.run()
    logged = rf"{job.name}/report/all seq \d+: batch \d+, (\d+) fresh of \d+"
    assert sum(map(int, re.findall(logged, said))) == RECORDS
    lags = lag_seen(job.kafka, f"{job.name}.report", f"{job.name}.in")
    assert lags == dict.fromkeys(range(PARTITIONS), 0)
    job.prove()
    each_once(job, 2 * RECORDS)


def test_state_that_is_lost_or_old_is_refused_until_somebody_says_what_is_meant(
    make: Callable[[str], Job],
) -> None:
    job = make("windows")
    job.send(traffic(0, RECORDS // 2))
    job.run()
    old = job.directory / "old"
    shutil.copytree(job.checkpoint, old)
    job.send([*traffic(RECORDS // 2, RECORDS), *closing()])
    job.run()
    windows_exact(job, RECORDS)
    shutil.rmtree(job.checkpoint)
    shutil.copytree(old, job.checkpoint)
    assert "was put back from a copy" in job.run(expected=1)
    shutil.rmtree(job.checkpoint)
    assert "forget_state" in job.run(expected=1)
    windows_exact(job, RECORDS)
    shutil.rmtree(job.checkpoint)
    d = Delivery(catalog=job.catalog, kafka=job.kafka, pipeline=job.name)
    d.forget_state(stage="report", checkpoint=str(job.checkpoint))
    job.run()
    windows_exact(job, RECORDS)
