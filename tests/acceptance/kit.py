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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.errors import Unavailable
from dedup.model import Counts
from delivery.batch import Emissions
from delivery.checker import Evidence, LaneInput, check
from delivery.host.killing import VARIABLE
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, TopicSettings
from delivery.resident.caught_up import wait_until_delivered
from tests.acceptance.lifeline import LIFELINES
from tests.acceptance.pricing import TINY_INDEXES, Pipeline
from tests.acceptance.reading import counts_of, logs_of, versions_of
from tests.acceptance.telling import untrue
from tests.acceptance.traffic import Row, Traffic, traffic

_T = TypeVar("_T")

ROOT = Path(__file__).resolve().parents[2]
#: Partitions of the topics between stages; dead letters have one.
PARTITIONS = 2
#: How long a trial's processes may take to come to the end of their input.
END_SECONDS_MAX = 120.0
POLL_SECONDS = 0.02
#: What of a process's words stands in a failure.
SAID_CHARACTERS = 6000
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
    #: Inputs of which nothing came out, or something came of a repeat that is not the first.
    lost: int
    #: Inputs of which two executions came out.
    doubled: int
    #: Records that came out with different contents under one identity.
    conflicting: int
    #: What the independent checker says beyond that, and what the seals' own figures contradict.
    findings: tuple[str, ...]


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
    def of(
        pipeline: Pipeline, directory: Path, *, seed: int, count: int, pad_bytes: int = 0
    ) -> Trial:
        """Make a trial: create its topics and traffic, and send nothing yet."""
        made = traffic(
            seed,
            count,
            partitions=PARTITIONS,
            lanes=f"{pipeline.stages[0].prefix}{pipeline.raw}-",
            scattered=pipeline.rekeyed,
            pad_bytes=pad_bytes,
        )
        with open_client(pipeline.kafka) as client:
            for topic in pipeline.topics:
                single = topic == pipeline.dead
                wanted = TopicSettings(partitions=1 if single else PARTITIONS)
                answered(partial(client.create, topic, wanted))
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

    def start(self, name: str = "worker", kill_at: str = "", *, ahead_ms: int = 0) -> Worker:
        """Start a worker process over every lane; its clock may be ahead of the others'."""
        how = (str(self.complete), str(ahead_ms))
        return self._started(name, "tests.acceptance.worker", how, kill_at)

    def drive(
        self,
        engine: str,
        master: str,
        kill_at: str = "",
        *,
        complete: Path | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> Worker:
        """Start a Spark driver over every lane; it may have a file of its own that lets it end."""
        how = (engine, master, str(complete or self.complete), json.dumps(dict(conf or {})))
        return self._started("driver", "tests.acceptance.driver", how, kill_at)

    def collect(self) -> Worker:
        """Start a collector of every lane whose processes die at each step of it."""
        return self._started("collector", "tests.acceptance.collector", (str(self.complete),))

    def _started(self, name: str, program: str, how: tuple[str, ...], kill_at: str = "") -> Worker:
        text = json.dumps(asdict(self.pipeline))
        command = [sys.executable, "-m", program, text, *how]
        environment = {key: text for key, text in os.environ.items() if "PYSPARK" not in key}
        environment |= {"PYTHONPATH": str(ROOT)} | ({VARIABLE: kill_at} if kill_at else {})
        environment |= {TINY_INDEXES: str(self.pipeline.tiny)} if self.pipeline.tiny else {}
        said = self.directory / f"{name}.{time.monotonic_ns()}.log"
        with said.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
            )
        LIFELINES.add(process)
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
        assert code == expected, f"ended with {code}: {self.said.read_text()[-SAID_CHARACTERS:]}"

    def kill(self) -> None:
        """End it as `kill -9` does, wherever it is."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def shares(rows: Sequence[Row], count: int) -> list[Sequence[Row]]:
    """Cut rows into so many parts of about one size."""
    size = -(-len(rows) // count)
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def until(
    what: str,
    holds: Callable[[], bool],
    seconds_max: float = END_SECONDS_MAX,
    of: Worker | None = None,
) -> None:
    """Wait for something to hold; fail with what was waited for, and what a process said."""
    deadline = time.monotonic() + seconds_max
    while not holds():
        ended = of is not None and of.process.poll() is not None and not holds()
        if ended or time.monotonic() > deadline:
            said = of.said.read_text()[-SAID_CHARACTERS:] if of else ""
            raise AssertionError(f"waited {seconds_max} s at most, in vain, for: {what}\n{said}")
        time.sleep(POLL_SECONDS)


def delivered(trial: Trial, worker: Worker, seconds_max: float) -> None:
    """Wait until everything that was sent has gone through every stage, while a process runs."""
    deadline = time.monotonic() + seconds_max

    def in_time() -> None:
        assert time.monotonic() < deadline, worker.said.read_text()[-SAID_CHARACTERS:]
        assert worker.process.poll() is None, worker.said.read_text()[-SAID_CHARACTERS:]

    wait_until_delivered(trial.pipeline.plan, in_time)


def answered(ask: Callable[[], _T]) -> _T:
    """Ask brokers, of which one may be dead or stand still, until they answer; what changes nothing."""
    deadline = time.monotonic() + END_SECONDS_MAX
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL_SECONDS)


def publish(client: Client, topic: str, rows: Sequence[Row]) -> None:
    """Send records to the partitions they name."""
    known, producer = answered(partial(client.describe, [topic]))[topic], client.producer()
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


def prove(trial: Trial, *, collected: bool = False, stories: bool = True) -> Effects:
    """Judge a trial, and fail with everything that is wrong.

    Where seals were collected nobody can add up what they said, or tell each record's story. Of
    records by the hundred megabytes that takes minutes, and may be left out.
    """
    shown = judge(trial, collected=collected)
    assert shown.offered > 0, "no repeat was offered, so nothing was proved"
    assert not shown.findings, "\n".join(shown.findings)
    assert (shown.lost, shown.doubled, shown.conflicting) == (0, 0, 0)
    told = untold(trial) if stories and not collected else []
    assert not told, "\n".join(told)
    return shown


def untold(trial: Trial) -> list[str]:
    """Return where an operator would be told otherwise than it was."""
    pipeline = trial.pipeline
    store = open_store(pipeline.catalog)
    try:
        with open_client(pipeline.kafka) as client:
            topics = {name: logs_of(client, name) for name in pipeline.topics}
            return untrue(client, Catalog(store), pipeline, topics, len(trial.traffic.rows))
    finally:
        store.close()


def judge(trial: Trial, *, collected: bool = False) -> Effects:
    """Look at the raw input, the raw catalog and the raw output."""
    pipeline = trial.pipeline
    with open_client(pipeline.kafka) as client:
        topics = {name: logs_of(client, name) for name in pipeline.topics}
    logs = {source: log for found in topics.values() for source, log in found.items()}
    lanes = {
        spec.name: {
            spec.lane(source): LaneInput(id_from=spec.id_of()) for source in topics[spec.reads]
        }
        for spec in pipeline.stages
    }
    every = {name: asked for of_stage in lanes.values() for name, asked in of_stage.items()}
    store = open_store(pipeline.catalog)
    try:
        found = [
            str(one) for one in check(Evidence(store=store, logs=logs, lanes=every, finished=True))
        ]
        added = {} if collected else lanes
        counts = {stage: counts_of(store, list(of_stage)) for stage, of_stage in added.items()}
    finally:
        store.close()
    versions = versions_of(topics[pipeline.out], topics[pipeline.dead])
    quoted = versions_of(topics[pipeline.quotes])
    firsts = trial.traffic.firsts
    priced = {name: told for name, told in firsts.items() if told is not None}
    strange = set(versions) - set(firsts) | set(quoted) - set(priced)
    found += [f"made up: {sorted(strange)}"] if strange else []
    torn = [name for name in quoted if quoted[name].nonces != versions[name].nonces]
    found += [f"of another call than their quotes: {sorted(torn)}"] if torn else []
    found += _contradictions(trial, counts) if counts else []
    every_version = [*versions.values(), *quoted.values()]
    lost = {name for name, told in firsts.items() if versions[name].told != {told}}
    lost |= {name for name, told in priced.items() if quoted[name].told != {told}}
    return Effects(
        inputs=len(trial.traffic.rows),
        distinct=len(firsts),
        offered=trial.traffic.repeats,
        dropped=sum(count.duplicate + count.remnant for count in counts.values()),
        copies=sum(len(one.copies) - len(set(one.copies)) for one in every_version),
        lost=len(lost),
        doubled=sum(len({identity for identity, _ in one.copies}) > 1 for one in every_version),
        conflicting=sum(
            len(set(one.copies)) > len({identity for identity, _ in one.copies})
            for one in every_version
        ),
        findings=tuple(found),
    )


def _contradictions(trial: Trial, counts: dict[str, Counts]) -> list[str]:
    """Hold the seals' own figures to what was sent."""
    made, read, shipped = trial.traffic, counts["price"], counts["ship"]
    dead = sum(told is None for told in made.firsts.values())
    pairs = [
        ("priced", read.fresh, len(made.firsts)),
        ("dead letters", read.dead_letter, dead),
        ("shipped", shipped.fresh, len(made.firsts) - dead),
        ("abandoned", read.abandoned + shipped.abandoned, 0),
    ]
    if not trial.pipeline.rekeyed:
        # Re-keying drops some of them in one stage and some in the next.
        pairs += [
            ("repeats", read.duplicate, made.repeats),
            ("repeats of another content", read.conflict, made.conflicts),
        ]
    return [f"{what}: {said} sealed, {due} due" for what, said, due in pairs if said != due]
