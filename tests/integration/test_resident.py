"""Stages in resident tasks on a real Spark and a real Kafka, as a user sees them.

One session serves all tests here; each has topics and a catalog of its own.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from dedup.catalog.open import open_catalog
from dedup.catalog.store import Blob
from dedup.model import Attempt, HeadRef, Incarnation, Kept, LaneRow
from delivery.kafka.opening import open_client
from delivery.resident.options import GROWTH_SECONDS
from tests.integration.kafka_kit import Sent, emissions, lag_seen
from tests.integration.resident_kit import Driver, Pipeline, driven, until

#: What a worker that is killed may cost: ten times what it does on two busy cores.
SILENCE_SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Iterator[Driver]:
    with driven("local[3,4]", tmp_path_factory.mktemp("driver") / "log") as driver:
        yield driver


@pytest.fixture
def pipeline(kafka, unique, tmp_path) -> Iterator[Pipeline]:
    pipeline = Pipeline(unique("shop"), kafka.bootstrap, tmp_path)
    yield pipeline
    pipeline.close()


def test_every_order_comes_out_once_and_the_query_says_how_it_goes(driver, pipeline):
    pipeline.send(range(2000))
    driver.well("start", **pipeline.given)
    driver.well("deliver", name=pipeline.name)
    pipeline.check()

    def look():
        return driver.well("look", name=pipeline.name)

    # What tasks tell is up to a second old.
    until(lambda: look()["progress"]["counters"]["fresh"] == 4000)
    until(lambda: look()["progress"]["lag"] == 0)
    seen = look()
    assert seen["active"] is True
    assert seen["status"]["tasks"] == seen["status"]["running"] == 2
    assert seen["status"]["message"] == "2 tasks run"
    progress = seen["progress"]
    assert progress["counters"]["duplicate"] == sum(pipeline.sent.values()) - 2000
    assert {lane["lane"] for lane in progress["lanes"]} == {
        f"{pipeline.name}/{stage}-{number}"
        for stage in (f"price/{pipeline.raw}", f"ship/{pipeline.priced}")
        for number in range(4)
    }
    # As a hint, for whoever watches consumer groups.
    group = f"{pipeline.name}.price"
    until(lambda: set(lag_seen(pipeline.kafka, group, pipeline.raw).values()) == {0})
    stopped = driver.well("stop", name=pipeline.name)
    assert (stopped["active"], stopped["exception"]) == (False, "None")
    assert driver.well("wait", name=pipeline.name, timeout=0) == {"ended": True}


def test_workers_that_are_killed_under_load_change_nothing(driver, pipeline, record_property):
    pipeline.send(range(500))
    driver.well("start", **pipeline.given)
    driver.well("deliver", name=pipeline.name)
    with pipeline.traffic(500):
        for _ in range(3):
            pipeline.flowing()
            victims = driver.workers()
            assert victims, "somebody runs the lanes"
            for victim in victims:
                victim.kill()
            _, alive = psutil.wait_procs(victims, timeout=10)
            assert not alive
            seconds = pipeline.flowing()
            record_property("seconds to new output", seconds)
            assert seconds < SILENCE_SECONDS_MAX
    driver.well("deliver", name=pipeline.name)
    assert driver.well("stop", name=pipeline.name)["exception"] == "None"
    pipeline.check()


def test_a_deterministic_stage_stores_nothing_and_loses_nothing_on_either_engine(
    driver, pipeline, tmp_path
):
    stage = {"call": "steady", "reads": pipeline.raw, "writes": [pipeline.out]}
    stage |= {"id_from": "header:id", "deterministic": True}
    given = pipeline.given | {"stages": [stage]}
    pipeline.send(range(500))
    driver.well("start", **given)
    driver.well("deliver", name=pipeline.name)
    with pipeline.traffic(500):
        for _ in range(3):
            pipeline.flowing()
            victims = driver.workers()
            for victim in victims:
                victim.kill()
            _, alive = psutil.wait_procs(victims, timeout=10)
            assert not alive
    driver.well("deliver", name=pipeline.name)
    assert driver.well("stop", name=pipeline.name)["exception"] == "None"
    options = {"engine": "micro-batch", "checkpoint": str(tmp_path / "checkpoint")}
    pipeline.send(range(200_000, 200_500))
    driver.well("start", **pipeline.given | {"stages": [stage], "options": options})
    driver.well("deliver", name=pipeline.name)
    driver.well("stop", name=pipeline.name)
    marked = pipeline.versions(pipeline.out)
    assert sorted(marked) == sorted(pipeline.sent)
    assert all(value["mark"] == number * 3 for number, value in marked.items())
    with closing(open_catalog(pipeline.given["catalog"]).store) as store:
        assert [slot for lane in store.lanes() for slot in store.slots(Blob.OUTPUTS, lane)] == []


def test_a_record_that_user_code_refuses_ends_the_query_and_is_named(driver, pipeline):
    pipeline.send(range(20))
    stages = [{"call": "picky", "reads": pipeline.raw, "writes": [pipeline.out]}]
    driver.well("start", **pipeline.given | {"stages": stages})
    answer = driver.do("wait", name=pipeline.name, timeout=60)
    assert answer["error"] == "StoppedByRecordError"
    assert f"{pipeline.name}/picky/{pipeline.raw}-1 behind seq" in answer["text"]
    place = r"offset 3 of partition 1 of \S+ \(ValueError: unlucky, (\S+):(\d+) in picky\)"
    file, line = re.search(place, answer["text"]).groups()
    assert "raise ValueError" in Path(file).read_text().splitlines()[int(line) - 1]
    assert f"--offset {pipeline.raw}/1/3" in answer["text"]
    assert f'File "{file}", line {line}, in picky' in answer["notes"]
    assert "delivery/stage.py" not in answer["notes"]
    seen = driver.well("look", name=pipeline.name)
    assert seen["active"] is False
    assert seen["status"]["message"].startswith("failed: ")


def test_user_code_that_does_not_come_back_is_cancelled_and_run_again(driver, pipeline):
    gate = pipeline.directory / "gate"
    gate.touch()
    value = json.dumps({"id": 1, "gate": str(gate)}).encode()
    row = Sent(0, value=value, headers=(("id", b"1"),))
    pipeline.producer.emit([pipeline.topic(pipeline.raw)], emissions([row, row]))
    stages = [
        {"call": "stuck", "reads": pipeline.raw, "writes": [pipeline.out], "id_from": "header:id"}
    ]
    given = pipeline.given | {"stages": stages, "options": {"drain_seconds": 1.0}}
    driver.well("start", **given)
    until(gate.with_name("reached").exists)
    assert driver.well("stop", name=pipeline.name)["active"] is False
    assert pipeline.ends(pipeline.out) == 0
    gate.unlink()
    driver.well("start", **given)
    driver.well("deliver", name=pipeline.name)
    driver.well("stop", name=pipeline.name)
    # The one that was cancelled wakes up beside the one that was started: whoever seals, both may
    # send the sealed bytes. By identity there is one.
    effects = dict(pipeline.records(pipeline.out))
    assert [value["id"] for value in effects.values()] == [1]


def test_a_stage_that_begins_at_the_latest_record_skips_nothing_after_that(driver, pipeline):
    pipeline.send(range(100))
    pipeline.sent.clear()
    given = pipeline.given
    given["stages"][0]["start"] = "latest"
    driver.well("start", **given)
    pipeline.send(range(100, 200))
    driver.well("deliver", name=pipeline.name)
    driver.well("stop", name=pipeline.name)
    pipeline.send(range(200, 300))
    driver.well("start", **given)
    driver.well("deliver", name=pipeline.name)
    driver.well("stop", name=pipeline.name)
    pipeline.check()


def test_a_partition_that_appears_is_read_from_its_first_offset(driver, pipeline, record_property):
    pipeline.send(range(50))
    given = pipeline.given
    given["stages"][0]["start"] = "latest"
    driver.well("start", **given)
    client = AdminClient({"bootstrap.servers": pipeline.kafka})
    client.create_partitions([NewPartitions(pipeline.raw, 6)])[pipeline.raw].result()
    until(lambda: pipeline.topic(pipeline.raw).partitions == 6)
    pipeline.sent.clear()
    rows = [
        Sent(5, value=b'{"id": %d}' % n, headers=(("id", b"%d" % n),)) for n in range(1000, 1010)
    ]
    # A producer of before does not know of the partition for minutes.
    with open_client(pipeline.kafka) as fresh, closing(fresh.producer()) as producer:
        producer.emit([pipeline.topic(pipeline.raw)], emissions([*rows, rows[0]]))
    pipeline.sent = dict.fromkeys(range(1000, 1010), 1) | {1000: 2}
    seconds = until(lambda: pipeline.ends(pipeline.out) >= 10)
    record_property("seconds to a new partition", seconds)
    assert seconds < 10 * GROWTH_SECONDS
    assert f"reads {pipeline.raw}: partitions appeared (" in driver.log.read_text()
    driver.well("deliver", name=pipeline.name)
    driver.well("stop", name=pipeline.name)
    pipeline.check()


def test_what_cannot_work_is_refused_before_anything_is_started(driver, pipeline):
    given = pipeline.given
    refusals = {
        "each task would have a catalog of its own": given | {"catalog": "memory:"},
        "there are none of these names": given
        | {"stages": [{"call": "price", "reads": "no-such-topic", "writes": [pipeline.out]}]},
        "its function cannot be sent to executors": given
        | {"stages": [{"call": "locked", "reads": pipeline.raw, "writes": [pipeline.out]}]},
        "did you mean tasks? It takes tasks": given | {"options": {"task": 3}},
        "say at least 1": given | {"options": {"tasks": 0}},
    }
    for expected, wrong in refusals.items():
        answer = driver.do("start", **wrong)
        assert answer["error"] == "InvalidUsage"
        assert expected in answer["text"]
    assert not (pipeline.directory / "catalog.db").exists()


def test_pipelines_of_one_session_share_its_slots(driver, pipeline, kafka, unique, tmp_path):
    def tasks(name: str) -> tuple[int, int]:
        status = driver.well("look", name=name)["status"]
        return status["tasks"], status["running"]

    other = Pipeline(unique("other"), kafka.bootstrap, tmp_path)
    with closing(other):
        driver.well("start", **pipeline.given)
        until(lambda: tasks(pipeline.name) == (2, 2))
        driver.well("start", **other.given)
        until(lambda: tasks(other.name) == (1, 1))
        for one in (pipeline, other):
            one.send(range(20))
            driver.well("deliver", name=one.name)
        driver.well("stop", name=pipeline.name)
        until(lambda: tasks(other.name) == (2, 2))
        other.send(range(20, 40))
        driver.well("deliver", name=other.name)
        driver.well("stop", name=other.name)
        for one in (pipeline, other):
            one.check()


def test_lanes_that_are_restored_under_it_are_followed(driver, pipeline):
    pipeline.send(range(50))
    driver.well("start", **pipeline.given)
    driver.well("deliver", name=pipeline.name)
    catalog = open_catalog(pipeline.given["catalog"])
    with closing(catalog.store):
        for lane in list(catalog.lanes()):
            row = catalog.load(lane)
            assert row is not None
            assert catalog.reincarnate(lane, row.head.ref, anew(row))
    pipeline.send(range(50, 100))
    driver.well("deliver", name=pipeline.name)
    assert driver.well("stop", name=pipeline.name)["exception"] == "None"
    assert "Fenced" in driver.log.read_text()
    pipeline.check()


def anew(row: LaneRow) -> LaneRow:
    """Return the row of a lane as a restore writes it."""
    incarnation = Incarnation(uuid.uuid4().bytes)
    ref = HeadRef(incarnation, row.head.ref.seq, Attempt(uuid.uuid4().bytes))
    past = (*row.head.past, Kept(row.head.ref.incarnation, row.head.ref.seq))
    head = replace(row.head, ref=ref, past=past)
    return replace(row, head=head, ack=replace(row.ack, incarnation=incarnation))


def test_outputs_are_created_if_that_is_asked_for(driver, pipeline):
    pipeline.send(range(20))
    made = f"{pipeline.name}.made"
    stages = [
        {"call": "price", "reads": pipeline.raw, "writes": [made], "id_from": "header:id"},
        {"call": "ship", "reads": made, "writes": [pipeline.out], "dedup": "topic"},
    ]
    options = {"create_topics": True, "tasks": 1}
    driver.well("start", **pipeline.given | {"stages": stages, "options": options})
    driver.well("deliver", name=pipeline.name)
    driver.well("stop", name=pipeline.name)
    assert pipeline.topic(made).partitions == 4
    assert sorted(pipeline.versions(pipeline.out)) == list(range(20))
