"""The promise, asked of real servers: input written, processes started and killed, evidence judged.

What it is: `Trial`, one pipeline with its traffic on a broker and a catalog, and `prove`, which reads
raw input, raw catalog and raw output and says whether every record took effect exactly once.
What it must not know: which engine ran the stages, where they were killed.

Invariants:
    Nothing that a stage says of itself is evidence.
    A trial in which no repeat was offered proves nothing, and fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from connectors.kafka import KafkaReader
from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.catalog.store import Store
from dedup.model import Counts, Source
from delivery.batch import Emissions
from delivery.checker import Evidence, LaneInput, Log, check
from delivery.header import NAME, decode_header
from delivery.host.killing import VARIABLE, VICTIM_SUFFIX
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, TopicSettings
from delivery.points import POINTS
from delivery.records import Record
from tests.acceptance.pricing import Pipeline
from tests.acceptance.traffic import Row, Traffic, traffic

ROOT = Path(__file__).resolve().parents[2]
#: Partitions of the topics between stages; dead letters have one.
PARTITIONS = 2
#: How long a trial's processes may take to come to the end of their input.
END_SECONDS_MAX = 120.0
POLL_SECONDS = 0.02
#: Records sent at once.
SENT_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What a trial showed: figures, all of which were asserted where they must be something."""

    inputs: int
    distinct: int
    #: Repeats that publishers sent.
    offered: int
    #: Repeats that were dropped, those that the pipeline made itself included.
    dropped: int
    #: Records in the output topics that are copies of others.
    copies: int


@dataclass(slots=True, kw_only=True)
class Trial:
    """One pipeline on real servers.

    Attributes:
        pipeline: it.
        traffic: what publishers send.
        directory: of its own.
    """

    pipeline: Pipeline
    traffic: Traffic
    directory: Path

    @staticmethod
    def of(pipeline: Pipeline, directory: Path, *, seed: int, count: int) -> Trial:
        """Make a trial: create its topics and traffic, and send nothing yet."""
        made = traffic(
            seed,
            count,
            partitions=PARTITIONS,
            lanes=f"{pipeline.stages[0].prefix}{pipeline.raw}-",
            scattered=pipeline.rekeyed,
        )
        with open_client(pipeline.kafka) as client:
            for topic in pipeline.topics:
                single = topic == pipeline.dead
                client.create(topic, TopicSettings(partitions=1 if single else PARTITIONS))
        return Trial(pipeline=pipeline, traffic=made, directory=directory)

    # Input ------------------------------------------------------------------------------------

    @property
    def complete(self) -> Path:
        """The file that says that no more records come in."""
        return self.directory / "complete"

    def send(self, rows: Sequence[Row] | None = None) -> None:
        """Send all records, or some of them, as their publishers would."""
        with open_client(self.pipeline.kafka) as client:
            publish(client, self.pipeline.raw, self.traffic.rows if rows is None else rows)

    def send_all(self) -> None:
        """Send all records, and say that no more come in."""
        self.send()
        self.complete.touch()

    # Processes --------------------------------------------------------------------------------

    def start(self, name: str = "worker", kill_at: str = "") -> Worker:
        """Start a worker process over every lane."""
        return self._started(name, "tests.acceptance.worker", (), kill_at)

    def drive(self, engine: str, master: str, kill_at: str = "") -> Worker:
        """Start a Spark driver over every lane."""
        return self._started("driver", "tests.acceptance.driver", (engine, master), kill_at)

    def _started(self, name: str, program: str, how: tuple[str, ...], kill_at: str) -> Worker:
        text = json.dumps(asdict(self.pipeline))
        command = [sys.executable, "-m", program, text, *how, str(self.complete)]
        environment = {key: text for key, text in os.environ.items() if "PYSPARK" not in key}
        environment |= {"PYTHONPATH": str(ROOT)} | ({VARIABLE: kill_at} if kill_at else {})
        said = self.directory / f"{name}.{time.monotonic_ns()}.log"
        with said.open("wb") as file:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
        return Worker(process, said)

    def finish(self) -> None:
        """Let a worker come to the end."""
        self.start().ended()


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process, or a Spark driver with what it started."""

    process: subprocess.Popen[bytes]
    said: Path

    def ended(self, expected: int = 0, seconds_max: float = END_SECONDS_MAX) -> None:
        """Wait for its end, and hold it to how it must end."""
        try:
            code = self.process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        assert code == expected, f"ended with {code}: {self.said.read_text()[-4000:]}"

    def kill(self) -> None:
        """End it as `kill -9` does, wherever it is."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def shares(rows: Sequence[Row], count: int) -> list[Sequence[Row]]:
    """Cut rows into so many parts of about one size."""
    size = -(-len(rows) // count)
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def until(what: str, holds: Callable[[], bool], seconds_max: float = END_SECONDS_MAX) -> None:
    """Wait for something to hold; fail with what it was if it does not."""
    deadline = time.monotonic() + seconds_max
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds_max} s in vain for: {what}"
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Kills:
    """One kill for each point, each when it is asked for.

    A marker that is there prevents a kill; taken away, it lets the next process die that comes past.
    """

    directory: Path

    def __post_init__(self) -> None:
        """Let nobody die yet."""
        self.directory.mkdir()
        for point in POINTS:
            self.marker(point).touch()

    def marker(self, point: str) -> Path:
        """Return the file that prevents a point's kill, or says who died."""
        return self.directory / point

    @property
    def kill_at(self) -> str:
        """What processes are told."""
        return ",".join(f"{point}:{self.marker(point)}" for point in POINTS)

    def arm(self, point: str, victim: str = "") -> None:
        """Let whoever passes a point die there, and a victim with it."""
        marker = self.marker(point)
        marker.with_name(marker.name + VICTIM_SUFFIX).write_text(victim)
        marker.unlink()

    def happened(self, point: str) -> bool:
        """Tell whether somebody has died at a point since it was armed."""
        marker = self.marker(point)
        return marker.exists() and marker.read_text().startswith(f"{point} ")


def publish(client: Client, topic: str, rows: Sequence[Row]) -> None:
    """Send records to the partitions they name."""
    known, producer = client.describe([topic])[topic], client.producer()
    for first in range(0, len(rows), SENT_AT_ONCE):
        part = rows[first : first + SENT_AT_ONCE]
        emissions = Emissions(
            edges=[0] * len(part),
            partitions=[row.partition for row in part],
            keys=[row.key for row in part],
            values=[row.value for row in part],
            headers=[row.headers for row in part],
            ids=np.zeros((len(part), 2), dtype=np.uint64),
        )
        producer.emit([known], emissions)
    producer.close()


# Judging --------------------------------------------------------------------------------------


def prove(trial: Trial) -> Effects:
    """Judge the raw input, the raw catalog and the raw output; fail with everything wrong."""
    pipeline = trial.pipeline
    with open_client(pipeline.kafka) as client:
        topics = {name: logs_of(client, name) for name in pipeline.topics}
    store = open_store(pipeline.catalog)
    try:
        logs = {source: log for found in topics.values() for source, log in found.items()}
        lanes = {
            spec.lane(source): LaneInput(id_from=spec.id_of())
            for spec in pipeline.stages
            for source in topics[spec.reads]
        }
        findings = check(Evidence(store=store, logs=logs, lanes=lanes, finished=True))
        assert not findings, "\n".join(map(str, findings))
        counts = {
            spec.name: _counts(store, [spec.lane(source) for source in topics[spec.reads]])
            for spec in pipeline.stages
        }
    finally:
        store.close()
    copies = _one_version_each(trial.traffic, topics[pipeline.out], topics[pipeline.dead])
    _counted(trial, counts)
    return Effects(
        inputs=len(trial.traffic.rows),
        distinct=len(trial.traffic.firsts),
        offered=trial.traffic.repeats,
        dropped=sum(count.duplicate + count.remnant for count in counts.values()),
        copies=copies,
    )


def logs_of(client: Client, name: str) -> dict[Source, Log]:
    """Read a topic whole."""
    reader = KafkaReader(client, name)
    bounds = reader.log()
    records: dict[Source, list[Record]] = {source: [] for source, _ in bounds.high}
    for fetched in reader.read(bounds.low, bounds.high):
        records[fetched.source] += fetched.batch
    ends = dict(bounds.high)
    return {source: Log(found, ends[source]) for source, found in records.items()}


def _counts(store: Store, lanes: Sequence[str]) -> Counts:
    """Add up what the seals of some lanes say became of their records."""
    catalog = Catalog(store)
    total: dict[str, int] = defaultdict(int)
    for lane in lanes:
        row = catalog.load(lane)
        assert row is not None, f"{lane} never was"
        for seq in range(1, row.head.ref.seq + 1):
            seal = catalog.seal(lane, row.head.ref.incarnation, seq)
            assert seal is not None, f"{lane} has no seal {seq}"
            for name, number in asdict(seal.counts).items():
                total[name] += number
    return Counts(**total)


def _one_version_each(made: Traffic, *topics: dict[Source, Log]) -> int:
    """Hold the outputs to: of each distinct input one version, made of its first record.

    Returns how many records are copies of others.
    """
    versions: dict[str, set[tuple[bytes, bytes | None]]] = defaultdict(set)
    told: dict[str, int | None] = {}
    records = 0
    for record in (record for found in topics for log in found.values() for record in log.records):
        assert record is not None
        records += 1
        worn = dict(record.headers)
        header = decode_header(worn[NAME])
        assert header is not None, "every output carries a header of ours"
        dead = "delivery-error" in worn
        # A dead letter wears what its record wore; of several headers of a name the last counts.
        body = {} if dead else json.loads(record.value or b"")
        name = worn["id"].decode() if dead else body["id"]
        versions[name].add((header.id, record.value))
        told[name] = body.get("n")
    wrong = {name: found for name, found in versions.items() if len(found) > 1}
    assert not wrong, f"more than one version: {wrong}"
    assert set(versions) == set(made.firsts), (
        f"lost {set(made.firsts) - set(versions)}, made up {set(versions) - set(made.firsts)}"
    )
    assert told == made.firsts, "the first record of a name is the one that counts"
    return records - len(versions)


def _counted(trial: Trial, counts: dict[str, Counts]) -> None:
    """Hold the seals' own figures to what was sent."""
    made, read = trial.traffic, counts["price"]
    assert made.repeats > 0, "no repeat was offered, so nothing was proved"
    assert made.conflicts > 0, "no repeat with another content was offered"
    dead = sum(told is None for told in made.firsts.values())
    assert (read.fresh, read.dead_letter) == (len(made.firsts), dead)
    assert counts["ship"].fresh == len(made.firsts) - dead
    if not trial.pipeline.rekeyed:
        assert (read.duplicate, read.conflict) == (made.repeats, made.conflicts)
    assert read.abandoned == counts["ship"].abandoned == 0
