"""Outputs that were never stored, made again by another process on a real Kafka.

A process is killed as `kill -9` does once it has sealed a bundle; what it had sealed is another one's
to send.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from dedup.catalog.open import open_catalog
from dedup.catalog.store import Blob
from dedup.errors import Corrupt, InvalidUsage
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings, awaited
from delivery.points import MID_EMIT, SEALED_NOT_EMITTED
from tests.integration.remade_child import declared
from tests.integration.resident_kit import until
from tests.integration.work_kit import Bench, named

PROGRAM = Path(__file__).with_name("remade_child.py")
#: The child connects, reads and seals; on a busy machine each takes its time.
DEATH_SECONDS_MAX = 120.0
NAMES = ("a", "b", "a", "c", "d", "b", "e")


@pytest.fixture
def told(kafka, unique, tmp_path) -> dict[str, str]:
    pipeline = unique("remade")
    return {
        "catalog": f"sqlite:{tmp_path / 'shop.db'}",
        "home": str(tmp_path / "home"),
        "kafka": kafka.bootstrap,
        "pipeline": pipeline,
        "reads": f"{pipeline}.in",
        "writes": f"{pipeline}.out",
        "call": "steady",
    }


@pytest.fixture
def bench(told):
    with open_client(told["kafka"]) as client:
        bench = Bench(client, declared(told))
        bench.create(told["reads"], 2)
        bench.create(told["writes"], 3)
        bench.publish(told["reads"], [*named(0, *NAMES), *named(1, "x", "y", "x")])
        yield bench


def killed(told: dict[str, str], point: str, directory: Path) -> None:
    """Run the stage in a process of its own until it dies at a point."""
    marker = directory / f"died-{point}"
    environment = os.environ | {"DELIVERY_KILL_AT": f"{point}:{marker}"}
    child = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(told)],
        env=environment | {"PYTHONPATH": str(PROGRAM.parents[2])},
        timeout=DEATH_SECONDS_MAX,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert marker.exists()


def owed(told: dict[str, str]) -> int:
    """Count the outputs that are sealed and not acknowledged; none of them is stored."""
    catalog = open_catalog(told["catalog"])
    rows = 0
    for lane in catalog.lanes():
        row = catalog.load(lane)
        assert row is not None
        rows += sum(s.outputs.rows for s in catalog.history(lane, row.head, row.ack.seq + 1))
        assert list(catalog.store.slots(Blob.OUTPUTS, lane)) == []
    catalog.store.close()
    return rows


@pytest.mark.parametrize("point", [SEALED_NOT_EMITTED, MID_EMIT])
def test_what_a_killed_process_sealed_is_made_again_byte_for_byte(bench, told, tmp_path, point):
    killed(told, point, tmp_path)
    assert owed(told) > 0
    before = bench.records(told["writes"])
    assert bool(before) == (point == MID_EMIT), "half of a bundle was sent, or nothing"
    bench.work()
    copies = defaultdict(list)
    for record in bench.records(told["writes"]):
        same = (record.key, record.value, record.headers, record.source)
        copies[dict(record.headers)["delivery"]].append(same)
    assert sorted(value for held in copies.values() for _, value, _, _ in held[:1]) == sorted(
        b"%d of value of %s" % (part, name)
        for part in range(2)
        for name in (b"a", b"b", b"c", b"d", b"e", b"x", b"y")
    )
    assert {len(set(held)) for held in copies.values()} == {1}
    repeated = sum(len(held) > 1 for held in copies.values())
    assert repeated == len(before), "what was sent before came again, and nothing else"
    assert bench.proved() == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("drawn", "run twice just now, the code made two different things of offset"),
        ("here", "run twice here, the code made the same twice"),
    ],
)
def test_a_stage_that_is_not_deterministic_is_caught_before_anything_is_sent(
    bench, told, tmp_path, call, words
):
    told["call"] = call
    killed(told, SEALED_NOT_EMITTED, tmp_path)
    bench.delivery = declared(told)
    with pytest.raises(Corrupt, match="make sealed outputs again") as caught:
        bench.work()
    assert words in str(caught.value)
    assert f"of lane {told['pipeline']}/remade/{told['reads']}-" in str(caught.value)
    assert bench.records(told["writes"]) == []


def test_a_stage_of_another_name_goes_on_where_outputs_cannot_be_made(bench, told, tmp_path):
    """As the error says: seeded with what came before, it takes what was sealed and never sent."""
    bench.work()
    bench.publish(told["reads"], named(0, "f", "a", "g"))
    killed(told | {"call": "drawn"}, SEALED_NOT_EMITTED, tmp_path)
    bench.delivery = declared(told | {"call": "drawn"})
    with pytest.raises(Corrupt, match="offsets 7 to 10 of partition 0"):
        bench.work()
    bench.delivery = declared(told | {"name": "again"})
    bench.delivery.seed("again", topic=told["reads"], start={0: 7, 1: 3})
    bench.work()
    assert sorted(record.value for record in bench.records(told["writes"])) == sorted(
        b"%d of value of %s" % (part, name)
        for part in range(2)
        for name in (b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"x", b"y")
    )


def test_changed_code_waits_until_the_code_of_before_has_delivered(bench, told, tmp_path):
    killed(told, SEALED_NOT_EMITTED, tmp_path)
    bench.delivery = declared(told | {"code": "v2"})
    with pytest.raises(InvalidUsage, match="they were made by code 'v1', and this is 'v2'"):
        bench.work()
    assert bench.records(told["writes"]) == []
    bench.delivery = declared(told)
    bench.work()
    bench.publish(told["reads"], named(0, "f"))
    bench.delivery = declared(told | {"code": "v2"})
    bench.work()
    assert bench.proved() == []


def test_an_output_topic_that_grew_meanwhile_gets_what_was_sealed_where_it_was_meant(
    bench, told, kafka, tmp_path
):
    killed(told, MID_EMIT, tmp_path)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (grown,) = admin.create_partitions([NewPartitions(told["writes"], 7)]).values()
    grown.result()
    # A worker waits for partitions that nobody leads yet by being started again; this one is not.
    until(lambda: awaited(bench.client, told["writes"]).partitions == 7)
    bench.work()
    copies = defaultdict(set)
    for record in bench.records(told["writes"]):
        copies[dict(record.headers)["delivery"]].add(record.source)
    assert {len(places) for places in copies.values()} == {1}
    assert bench.proved() == []


def test_inputs_that_were_deleted_are_named_and_nothing_is_made_up(bench, told, kafka, tmp_path):
    killed(told, SEALED_NOT_EMITTED, tmp_path)
    delete_records(kafka.bootstrap, told["reads"], {0: 3, 1: 2})
    with pytest.raises(Corrupt, match="retention has deleted the records that they were made of"):
        bench.work()
    assert bench.records(told["writes"]) == []


def delete_records(bootstrap: str, topic: str, offsets: dict[int, int]) -> None:
    """Delete the records below some offsets, as retention does."""
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - one helper alone

    admin = AdminClient({"bootstrap.servers": bootstrap})
    below = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
    for answer in admin.delete_records(below).values():
        answer.result()


def test_a_compacted_input_is_refused_before_anything_is_read(told):
    with open_client(told["kafka"]) as client:
        client.create(told["reads"], TopicSettings(more={"cleanup.policy": "compact"}))
        client.create(told["writes"], TopicSettings())
        with pytest.raises(InvalidUsage, match="the topic is compacted, and outputs of a determ"):
            Bench(client, declared(told)).work()
