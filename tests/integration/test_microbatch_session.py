"""Micro-batches in a session that outlasts them: what is stopped in the middle, put back, or grows."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from delivery.kafka.opening import open_client
from delivery.microbatch.options import DRAIN_SECONDS
from delivery.services.kafka import Kafka
from tests.integration.kafka_kit import Sent, emissions
from tests.integration.resident_kit import Driver, Pipeline, driven, until

#: Long behind its patience, and before what it would wait by default.
STOPPED_SECONDS_MAX = DRAIN_SECONDS - 10


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driven("local[3,4]", tmp_path_factory.mktemp("session") / "driver.log") as driver:
        yield driver


@pytest.fixture
def pipeline(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Pipeline]:
    with closing(Pipeline(unique("batches"), kafka.bootstrap, tmp_path)) as pipeline:
        yield pipeline


def given(pipeline: Pipeline, **options: Any) -> dict[str, Any]:
    return pipeline.given | {"options": {"engine": "micro-batch", **options}}


def delivered(driver: Driver, pipeline: Pipeline, told: dict[str, Any]) -> None:
    """Run a pipeline until all that is there is delivered."""
    driver.well("start", **told)
    driver.well("deliver", name=pipeline.name)
    assert driver.well("stop", name=pipeline.name)["exception"] == "None"


def test_a_stop_that_outlasts_its_patience_cancels_the_batch_which_is_run_again(
    driver: Driver, pipeline: Pipeline
) -> None:
    gate = pipeline.directory / "gate"
    gate.touch()
    row = Sent(0, value=json.dumps({"id": 1, "gate": str(gate)}).encode(), headers=(("id", b"1"),))
    pipeline.producer.emit([pipeline.topic(pipeline.raw)], emissions([row, row]))
    stage = {"call": "stuck", "reads": pipeline.raw, "writes": [pipeline.out]}
    told = given(pipeline, drain_seconds=1.0)
    told["stages"] = [stage | {"id_from": "header:id"}]
    driver.well("start", **told)
    until(gate.with_name("reached").exists)
    began = time.monotonic()
    stopped = driver.well("stop", name=pipeline.name)
    assert time.monotonic() - began < STOPPED_SECONDS_MAX
    assert (stopped["active"], stopped["exception"]) == (False, "None")
    assert pipeline.ends(pipeline.out) == 0
    gate.unlink()
    delivered(driver, pipeline, told)
    # The one that was cancelled may wake up beside it: by identity there is one.
    effects = dict(pipeline.records(pipeline.out))
    assert [value["id"] for value in effects.values()] == [1]


def test_sparks_memory_may_be_put_back_from_an_old_copy_or_be_gone(
    driver: Driver, pipeline: Pipeline, tmp_path: Path
) -> None:
    """As it was while the pipeline ran, behind which its lanes are by now."""
    memory, copy = tmp_path / "memory", tmp_path / "copy"
    told = given(pipeline, checkpoint=memory.as_uri())
    pipeline.send(range(100))
    driver.well("start", **told)
    driver.well("deliver", name=pipeline.name)
    shutil.copytree(memory, copy)
    assert len(list(copy.glob("*/offsets/0"))) == len(told["stages"]), "Spark's, of each stage"
    pipeline.send(range(100, 200))
    driver.well("deliver", name=pipeline.name)
    driver.well("stop", name=pipeline.name)
    shutil.rmtree(memory)
    copy.replace(memory)
    pipeline.send(range(200, 300))
    delivered(driver, pipeline, told)
    assert list(memory.glob("*/offsets/0")), "nobody looked at what was put back"
    shutil.rmtree(memory)
    pipeline.send(range(300, 400))
    delivered(driver, pipeline, told)
    pipeline.check()


def test_partitions_that_appear_have_lanes_at_once_and_are_read_from_their_first_records(
    driver: Driver, pipeline: Pipeline
) -> None:
    """Of two, one stays empty: nothing is due there, and whoever waits for everything is told so."""
    told = given(pipeline)
    told["stages"][0]["start"] = "latest"
    driver.well("start", **told)
    pipeline.send(range(50))
    driver.well("deliver", name=pipeline.name)
    admin = AdminClient({"bootstrap.servers": pipeline.kafka})
    admin.create_partitions([NewPartitions(pipeline.raw, 6)])[pipeline.raw].result()
    until(lambda: pipeline.topic(pipeline.raw).partitions == 6)
    fresh = [
        Sent(5, value=b'{"id": %d}' % n, headers=(("id", b"%d" % n),)) for n in range(1000, 1010)
    ]
    # A producer of before does not know of the partition for minutes.
    with open_client(pipeline.kafka) as client, closing(client.producer()) as producer:
        producer.emit([pipeline.topic(pipeline.raw)], emissions([*fresh, fresh[0]]))
    pipeline.sent |= dict.fromkeys(range(1000, 1010), 1) | {1000: 2}
    driver.well("deliver", name=pipeline.name)
    assert f"reads {pipeline.raw}: partitions appeared (" in driver.log.read_text()
    driver.well("stop", name=pipeline.name)
    pipeline.check()


def test_repeats_in_other_partitions_are_re_keyed_through_topics_that_are_made(
    driver: Driver, pipeline: Pipeline
) -> None:
    """Each order comes in one partition, and again in another."""
    pipeline.send(range(40))
    again = [
        Sent((n + 1) % 4, value=b'{"id": %d}' % n, headers=(("id", b"%d" % n),)) for n in range(40)
    ]
    pipeline.producer.emit([pipeline.topic(pipeline.raw)], emissions(again))
    made = f"{pipeline.name}.made"
    told = given(pipeline, create_topics=True)
    told["stages"] = [
        {"call": "price", "reads": pipeline.raw, "writes": [made], "id_from": "header:id"},
        {"call": "ship", "reads": made, "writes": [pipeline.out]},
    ]
    told["stages"][0]["dedup"] = "topic"
    delivered(driver, pipeline, told)
    assert sorted(pipeline.versions(made)) == list(range(40))
    assert sorted(pipeline.versions(pipeline.out)) == list(range(40))
