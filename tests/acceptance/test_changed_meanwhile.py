"""What a stage finds changed when it comes back: refused with what is lost, or taken up in full."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from tests.acceptance.kit import PARTITIONS, ROOT, Trial, prove, until
from tests.acceptance.pricing import ASKED, STRAY, Pipeline
from tests.acceptance.traffic import Row
from tests.integration.kafka_kit import ARRIVAL_SECONDS_MAX
from tests.integration.resident_kit import Driver, driven

RECORDS = 120
#: How a Python program ends that raised.
RAISED = 1
HOUR_MS = 3_600_000
HOURS_APART = 6
ENGINES = ("resident", "microbatch")
REFUSED_SECONDS_MAX = 120.0


@dataclass(frozen=True)
class Worker:
    """Lanes in a process of Python."""

    def refusal(self, trial: Trial) -> str:
        """Start it; it must end by itself: return what it refused."""
        worker = trial.start()
        worker.ended(RAISED)
        said = worker.said.read_text().splitlines()[-1]
        assert said.startswith("dedup.errors.InvalidUsage: "), said
        return said

    def finish(self, trial: Trial) -> None:
        """Let it come to the end of its input."""
        trial.finish()


@dataclass(frozen=True)
class OnSpark:
    """An engine in a session that all tests share."""

    driver: Driver
    engine: str

    def begin(self, trial: Trial) -> None:
        """Start it."""
        self.driver.well("begin", pipeline=asdict(trial.pipeline), engine=self.engine)

    def refusal(self, trial: Trial) -> str:
        """Start it; it must be refused, or end by itself: return what it refused."""
        answer = self.driver.do("begin", pipeline=asdict(trial.pipeline), engine=self.engine)
        if "error" in answer:
            assert answer["error"] == "InvalidUsage", answer
            return str(answer["text"])
        waiting = {"name": trial.pipeline.name, "timeout": REFUSED_SECONDS_MAX}
        answer = self.driver.do("wait", **waiting)
        assert answer.get("error") == "InvalidUsage", answer
        return str(answer["text"])

    def finish(self, trial: Trial) -> None:
        """Let it come to the end of its input."""
        self.begin(trial)
        self.end(trial)

    def end(self, trial: Trial) -> None:
        """Let what was begun come to the end of its input."""
        for what in ("deliver", "stop"):
            self.driver.well(what, name=trial.pipeline.name)


Host = Worker | OnSpark


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    conf = {"spark.executorEnv.PYTHONPATH": str(ROOT)}
    log = tmp_path_factory.mktemp("meanwhile") / "driver.log"
    with driven("local[3,4]", log, conf) as driver:
        yield driver


@pytest.fixture(params=["worker", *(pytest.param(one, marks=pytest.mark.slow) for one in ENGINES)])
def host(request: pytest.FixtureRequest) -> Host:
    """Who comes back."""
    if request.param == "worker":
        return Worker()
    return OnSpark(request.getfixturevalue("driver"), request.param)


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


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("raw", ("raw was deleted and created again",)),
        # By the start of the stage that writes it, by a lane of it, or by the one that reads it.
        (
            "priced",
            (
                "priced deleted and created again, and is that meant?",
                "an output topic was deleted and created",
                "priced was deleted and created",
            ),
        ),
    ],
)
def test_a_topic_that_was_deleted_and_created_again_is_refused(
    which: str, words: tuple[str, ...], host: Host, trial: Trial, admin: AdminClient
) -> None:
    name: str = getattr(trial.pipeline, which)
    admin.delete_topics([name])[name].result()
    with open_client(trial.pipeline.kafka) as client:
        until("the topic is gone", lambda: name not in client.describe([name]))
        client.create(name, TopicSettings(partitions=PARTITIONS))
    said = host.refusal(trial)
    assert any(word in said for word in words), said


def test_records_that_went_before_they_were_read_are_refused_by_their_offsets(
    host: Host, trial: Trial, admin: AdminClient
) -> None:
    row = Row(1, None, b'{"id": "late"}', (("id", b"late"),))
    trial.send([row] * 10)
    with open_client(trial.pipeline.kafka) as client:
        (_, source) = client.describe([trial.pipeline.raw])[trial.pipeline.raw].sources
        end = client.bounds(trial.pipeline.raw, [source]).high.at(source)
    assert end is not None
    part = TopicPartition(trial.pipeline.raw, 1, end - 3)
    admin.delete_records([part])[part].result()
    said = host.refusal(trial)
    assert [lost for lost in (f"{end - 10}", f"{end - 3}") if lost not in said] == [], said


def test_a_partition_that_appeared_is_read_from_its_first_record(
    host: Host, trial: Trial, admin: AdminClient
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
    host.finish(trial)
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


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
def test_a_clock_that_is_an_hour_off_in_one_of_sparks_workers_decides_nothing(
    ahead_ms: int, engine: str, driver: Driver, sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    pipeline = replace(sqlite_pipeline, astray=str(tmp_path), ahead_ms=ahead_ms)
    trial = Trial.of(pipeline, tmp_path, seed=47, count=4 * RECORDS)
    half = len(trial.traffic.rows) // 2
    spark = OnSpark(driver, engine)
    spark.begin(trial)
    trial.send(trial.traffic.rows[:half])
    until("somebody's clock is wrong", (tmp_path / STRAY).exists)
    trial.send(trial.traffic.rows[half:])
    spark.end(trial)
    prove(trial)
    assert (tmp_path / ASKED).exists(), "by those who asked it"


def test_publishers_that_send_everything_again_hours_later(
    host: Host, sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    """In whatever partition: to workers whose clocks, and to lanes whose time, have moved on as well."""
    trial = Trial.of(replace(sqlite_pipeline, rekeyed=True), tmp_path, seed=71, count=2 * RECORDS)
    now, ago_ms = time.time_ns() // 1_000_000, HOURS_APART * HOUR_MS
    early, late = trial.traffic.rows[:RECORDS], trial.traffic.rows[RECORDS:]
    stamped(trial, early, now - ago_ms)
    trial.complete.touch()
    trial.start(ahead_ms=-ago_ms).ended()
    # Lane time has come to now in each of them: with a window below the hours between, their
    # buckets would have gone, and with them what is known of the first ones.
    stamped(trial, late, now)
    host.finish(trial)
    prove(trial)
    # What nothing names is another record when it comes again.
    again = [row for row in early if any(name == "id" for name, _ in row.headers)]
    moved = [
        row if row.key else row._replace(partition=(row.partition + 1) % PARTITIONS)
        for row in again
    ]
    assert moved != again
    stamped(trial, moved, now)
    trial.traffic.rows += moved
    trial.traffic.repeats += len(moved)
    host.finish(trial)
    prove(trial)


def stamped(trial: Trial, rows: Sequence[Row], at_ms: int) -> None:
    """Send records as if it were that time."""
    producer = Producer({"bootstrap.servers": trial.pipeline.kafka})
    for row in rows:
        to = {"partition": row.partition, "timestamp": at_ms, "headers": list(row.headers)}
        producer.produce(trial.pipeline.raw, row.value, row.key, **to)
    assert producer.flush(ARRIVAL_SECONDS_MAX) == 0
