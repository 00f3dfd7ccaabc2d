"""What a wrapped job finds when it starts: its memory lost, topics changed, records of any kind, all in one session."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from delivery import Delivery
from delivery.header import NAME
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.services.kafka import Kafka
from tests.acceptance.reading import logs_of
from tests.acceptance.traffic import Row
from tests.integration.holes_kit import ABORTED, compacted_topic, transact, transactional
from tests.integration.kafka_kit import ARRIVAL_SECONDS_MAX, lag_seen
from tests.integration.resident_kit import Driver, driven
from tests.integration.test_remade import delete_records
from tests.integration.wrap_job import BATCH_ROWS, CONF
from tests.integration.wrap_kit import (
    FIRST,
    PARTITIONS,
    WINDOW_SECONDS,
    Job,
    closing,
    each_once,
    make,
    row,
    traffic,
    windows_exact,
)

__all__ = ["make"]

RECORDS = 100
HALF = RECORDS // 2
KINDS = ("plain", "windows")
MEBIBYTE = 1024 * 1024
#: What the topic and the publisher allow.
MESSAGE_BYTES_MAX = 2 * MEBIBYTE
#: A store that Hadoop reaches in no way but the old one.
OLD_STORE = {"spark.hadoop.fs.old.impl": "org.apache.hadoop.fs.RawLocalFileSystem"}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    log = tmp_path_factory.mktemp("meanwhile") / "driver.log"
    with driven("local[2,4]", log, CONF | OLD_STORE) as driver:
        yield driver


def run(driver: Driver, job: Job) -> dict[str, int]:
    """Run what is available to its end; return what became of the records."""
    counted: dict[str, int] = driver.well("wrapped", **job.settings)["counted"]
    return counted


def closed(driver: Driver, job: Job) -> None:
    """Let all windows close. Sent before, a partition's last record could outrun another's others."""
    job.send(closing())
    run(driver, job)


def refused(driver: Driver, job: Job) -> str:
    """Return what a job is refused with."""
    answer = driver.do("wrapped", **job.settings)
    assert answer.get("error") == "InvalidUsage", answer
    text: str = answer["text"]
    return text


def exact(job: Job, last: int) -> None:
    job.prove()
    (windows_exact if job.kind == "windows" else each_once)(job, last)


def test_a_job_without_state_needs_no_memory_of_spark_s(
    driver: Driver, make: Callable[..., Job]
) -> None:
    job = make("plain")
    job.send(traffic(0, RECORDS))
    run(driver, job)
    assert not job.checkpoint.exists(), "it has one of its own at each start"
    old = job.checkpoint / "offsets" / "0"
    old.parent.mkdir(parents=True)
    old.write_text("of another time")
    job.send(traffic(RECORDS, 2 * RECORDS))
    driver.well("talk", logger="delivery.wrap")
    run(driver, job)
    logged = rf"{job.name}/report/all seq \d+: batch \d+, (\d+) fresh of \d+"
    assert sum(map(int, re.findall(logged, driver.log.read_text()))) == RECORDS
    assert old.read_text() == "of another time", "nobody looks at what was put back"
    lags = lag_seen(job.kafka, f"{job.name}.report", f"{job.name}.in")
    assert lags == dict.fromkeys(range(PARTITIONS), 0)
    job.prove()
    each_once(job, 2 * RECORDS)


def test_another_payload_in_another_partition_stops_a_job_until_it_is_told_to_go_on(
    driver: Driver, make: Callable[..., Job]
) -> None:
    """Nothing of the batch is sealed, and what is in Spark's own state is not ahead of it."""
    job = make("windows")
    other = json.dumps({"id": 4, "at": FIRST + 4, "note": "another"}).encode()
    job.send([*traffic(0, WINDOW_SECONDS), row(4, 1)._replace(value=other), *closing()])
    said = driver.do("wrapped", **replace(job, conflicts="error").settings)["text"]
    assert re.search(f"{job.name}/report/all: offset .* of partition 1: its id .* was seen", said)
    assert job.seq() == 0
    assert job.effects() == []
    run(driver, job)
    exact(job, WINDOW_SECONDS)


def test_state_that_is_lost_or_old_is_refused_until_somebody_says_what_is_meant(
    driver: Driver,
    make: Callable[..., Job],
) -> None:
    job = make("windows")
    job.send(traffic(0, HALF))
    run(driver, job)
    old = job.directory / "old"
    shutil.copytree(job.checkpoint, old)
    job.send(traffic(HALF, RECORDS))
    run(driver, job)
    closed(driver, job)
    windows_exact(job, RECORDS)
    shutil.rmtree(job.checkpoint)
    shutil.copytree(old, job.checkpoint)
    assert "was put back from a copy" in refused(driver, job)
    shutil.rmtree(job.checkpoint)
    assert "d.forget_state(stage='report', checkpoint=...)" in refused(driver, job)
    windows_exact(job, RECORDS)
    shutil.rmtree(job.checkpoint)
    d = Delivery(catalog=job.catalog, kafka=job.kafka, pipeline=job.name)
    d.forget_state(stage="report", checkpoint=str(job.checkpoint))
    run(driver, job)
    windows_exact(job, RECORDS)
    job.prove()


def test_the_state_that_the_next_start_reads_is_that_of_the_run_that_counted(
    driver: Driver, make: Callable[..., Job]
) -> None:
    """A repeat in two partitions makes a micro-batch run twice, and the first run had it."""
    job = make("windows")
    job.send([row(0, 0), row(0, 1), row(1)])
    run(driver, job)
    job.send([row(2)])
    run(driver, job)
    closed(driver, job)
    exact(job, 3)


def test_state_is_not_kept_where_the_run_that_does_not_count_would_stay(
    driver: Driver, make: Callable[..., Job]
) -> None:
    job = make("windows")
    job.send(traffic(0, HALF))
    there = job.settings | {"checkpoint": f"old:{job.checkpoint}"}
    said = driver.do("wrapped", **there)
    assert said.get("error") == "InvalidUsage", said
    assert "keep the checkpoint where Hadoop has a FileContext" in said["text"]
    assert not job.checkpoint.exists()
    assert job.seq() == 0


@pytest.mark.parametrize("bounded", [False, True], ids=["stream", "bounded"])
def test_a_plan_that_lost_its_state_is_another_job(
    bounded: bool,  # noqa: FBT001 - pytest passes it by name
    driver: Driver,
    make: Callable[..., Job],
) -> None:
    job = make("windows")
    job.send(traffic(0, HALF))
    run(driver, job)
    sealed = job.seq()
    said = refused(driver, replace(job, kind="plain", bounded=bounded))
    assert "it kept state before, and its plan has none now" in said
    assert "a stage name of its own" in said
    assert job.seq() == sealed


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_that_appears_is_read_from_its_first_record(
    kind: str, driver: Driver, make: Callable[..., Job]
) -> None:
    """What comes there again is known from the others."""
    job = make(kind)
    job.send(traffic(0, RECORDS))
    run(driver, job)
    admin = AdminClient({"bootstrap.servers": job.kafka})
    topic = f"{job.name}.in"
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result()
    again = [row(number, PARTITIONS) for number in (RECORDS - 1, RECORDS - 2, RECORDS - 2)]
    fresh = [row(number, PARTITIONS) for number in range(RECORDS, RECORDS + 10)]
    job.send([*again, *fresh, *traffic(RECORDS + 10, RECORDS + 30)])
    assert run(driver, job)["duplicate"] >= len(again)
    if kind == "windows":
        closed(driver, job)
    exact(job, RECORDS + 30)


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_that_was_made_anew_is_refused(
    kind: str, driver: Driver, make: Callable[..., Job]
) -> None:
    job = make(kind)
    job.send(traffic(0, RECORDS))
    run(driver, job)
    before = job.effects()
    topic = f"{job.name}.in"
    admin = AdminClient({"bootstrap.servers": job.kafka})
    with open_client(job.kafka) as client:
        admin.delete_topics([topic])[topic].result()
        while client.describe([topic]):
            pass
        client.create(topic, TopicSettings(partitions=PARTITIONS))
    job.send(traffic(0, RECORDS))
    said = refused(driver, job)
    assert f"topic {topic} was deleted and created again" in said
    assert "delivery stage accept-topic" in said
    assert job.effects() == before


@pytest.mark.parametrize("kind", KINDS)
def test_records_that_retention_took_unread_are_named(
    kind: str, driver: Driver, make: Callable[..., Job]
) -> None:
    job = make(kind)
    job.send([row(number, 0) for number in range(RECORDS)])
    run(driver, job)
    before = job.effects()
    job.send([row(number, 0) for number in range(RECORDS, 2 * RECORDS)])
    lost = RECORDS + 7
    delete_records(job.kafka, f"{job.name}.in", {0: lost})
    said = refused(driver, job)
    assert f"offsets {RECORDS} to {lost} of partition 0 are gone unread" in said
    assert job.effects() == before


def test_windows_go_on_with_state_and_offsets_of_the_job_as_it_was(
    driver: Driver, make: Callable[..., Job]
) -> None:
    """What was open in its state is closed by the wrapped one, with all that is in it."""
    job = make("windows")
    with open_client(job.kafka) as client:
        client.create(job.settings["unwrapped"], TopicSettings(partitions=1))
    job.send([row(number) for number in range(RECORDS)])
    run(driver, replace(job, kind="unwrapped"))
    job.send(traffic(RECORDS, 2 * RECORDS))
    assert run(driver, job)["fresh"] == RECORDS, "of what was read before nothing is read again"
    closed(driver, job)
    with open_client(job.kafka) as client:
        logs = logs_of(client, job.settings["unwrapped"])
    earlier = [json.loads(one.value or b"") for log in logs.values() for one in log.records if one]
    assert earlier, "some windows were closed before"
    windows_exact(job, 2 * RECORDS, earlier)
    job.prove()


@pytest.mark.parametrize("bounded", [False, True], ids=["stream", "bounded"])
def test_whatever_a_record_holds_it_counts_once(
    bounded: bool,  # noqa: FBT001 - pytest passes it by name
    driver: Driver,
    make: Callable[..., Job],
    kafka: Kafka,
) -> None:
    """Three topics at once: of poison, of aborted transactions, and one that compaction went over."""
    compacted = compacted_topic(kafka, keep=True)
    job = make("places", bounded=bounded)
    aborted, poisoned = f"{job.name}.aborted", f"{job.name}.poisoned"
    with open_client(job.kafka) as client:
        for name in (aborted, poisoned):
            wide = {"max.message.bytes": str(MESSAGE_BYTES_MAX)}
            client.create(name, TopicSettings(partitions=1, more=wide))
    publisher = transactional(kafka, job.name)
    transact(publisher, aborted, [b"%d" % n for n in range(20)], commit=True)
    transact(publisher, aborted, [b"never"] * ABORTED, commit=False)
    transact(publisher, aborted, [b"%d" % n for n in range(20, 90)], commit=True)
    transact(publisher, aborted, [b"never"] * ABORTED, commit=False)
    # And everything again, as from a publisher who lost an answer.
    poison = [*POISON, *POISON]
    sent = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": MESSAGE_BYTES_MAX})
    for one in poison:
        sent.produce(poisoned, one.value, one.key, partition=0, headers=list(one.headers))
    assert sent.flush(ARRIVAL_SECONDS_MAX) == 0
    job.send(traffic(0, RECORDS))
    job = replace(job, beside=(compacted, aborted, poisoned))
    counted = run(driver, job)
    job.prove()
    with open_client(job.kafka) as client:
        held = {
            name: [record for log in logs_of(client, name).values() for record in log.records]
            for name in (compacted, aborted)
        }
    assert held[compacted][0].offset > 0, "compaction took the first ones"
    assert held[aborted][-1].offset > 20 + ABORTED > 2 * BATCH_ROWS, "whole batches hold nothing"
    told = Counter((effect["topic"], effect["offset"]) for effect in job.effects())
    assert {count for (topic, _), count in told.items() if topic != f"{job.name}.in"} == {1}
    for name, records in held.items():
        assert {at for topic, at in told if topic == name} == {record.offset for record in records}
    first = {number for number, one in enumerate(poison) if number < len(POISON) or not named(one)}
    assert {at for topic, at in told if topic == poisoned} == first
    fresh = sum(told.values())
    assert fresh == RECORDS + sum(map(len, held.values())) + len(first)
    assert counted["fresh"] == fresh


def named(one: Row) -> bool:
    return any(key == "id" for key, _ in one.headers)


#: What no publisher should send.
POISON = [
    Row(0, None, value, (*more, ("id", b"%d" % number)))
    for number, (value, more) in enumerate(
        [
            (None, ()),
            (b"", ()),
            (b"{", ()),
            (b'{"id": "\xff\xfe"}', ((NAME, b"forged"),)),
            (b"\xc3\x28", ((NAME, b""), (NAME, b"\x00" * 100))),
            (b"\xff" * MEBIBYTE, ()),
            (b"{}", tuple((f"h{n}", b"x") for n in range(1000))),
        ]
    )
] + [Row(0, b"k", b"nameless", ()), Row(0, None, None, ())]
