"""What the suites over wrapped jobs share: traffic with repeats, jobs in processes, and their effects."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from delivery.checker import Evidence, LaneInput, Log, check
from delivery.header import NAME, decode_header
from delivery.host.killing import VARIABLE
from delivery.kafka.opening import open_client
from delivery.kafka.port import TopicSettings
from delivery.microbatch.offsets import checkpoint_at
from delivery.naming import id_from, per_topic
from delivery.operate.auditing import Terms, audit
from delivery.operate.logs import Cluster
from delivery.services.kafka import Kafka
from delivery.watch.lag import lag
from delivery.watch.rows import read_rows
from delivery.watch.waiting import Doors
from delivery.wrap.positions import state_source
from tests.acceptance.kit import ROOT, Worker, publish
from tests.acceptance.reading import logs_of
from tests.acceptance.traffic import Row
from tests.integration.wrap_stories import Stories

#: A session takes a quarter of a minute to start on a busy machine.
JOB_SECONDS_MAX = 400.0
PARTITIONS = 2
#: When the first record says that it happened, a multiple of the window.
FIRST = 1_700_000_000
WINDOW_SECONDS = 20
#: Far enough behind all others to close their windows, and in a window of its own.
LAST = FIRST + 100_000


def settings_of(story: str, kafka: Kafka, directory: Path) -> dict[str, str]:
    """Return what a story is told: where everything is, and a name for its topics."""
    return {
        "kafka": kafka.bootstrap,
        "catalog": f"sqlite:{directory / 'catalog.db'}",
        "home": str(directory / "home"),
        "directory": str(directory),
        "name": f"{story}-{directory.name}-{id(directory)}",
    }


def played(module: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Play every scene of a story in one process; return what it has shown."""
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(settings)],
        cwd=Path(ROOT),
        capture_output=True,
        text=True,
        timeout=2 * JOB_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    shown: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return shown


def row(number: int, partition: int | None = None) -> Row:
    """Return the record of that number; the same whenever it is asked for."""
    value = json.dumps({"id": number, "at": FIRST + number}).encode()
    where = number % PARTITIONS if partition is None else partition
    return Row(where, None, value, (("id", str(number).encode()),))


def traffic(first: int, last: int) -> list[Row]:
    """Return records with a repeat of every fifth: beside it, later, and in the other partition."""
    rows = []
    for number in range(first, last):
        rows.append(row(number))
        if number % 5 == 0:
            again = max(first, number - (0, 7, 31)[number // 5 % 3])
            other = number % 50 == 0
            rows.append(row(again, (again + 1) % PARTITIONS if other else None))
    return rows


def closing() -> list[Row]:
    """Return a record for each partition that closes all windows before it."""
    made = []
    for partition in range(PARTITIONS):
        value = json.dumps({"id": 0, "at": LAST}).encode()
        made.append(Row(partition, None, value, (("id", b"last-%d" % partition),)))
    return made


@dataclass(frozen=True, kw_only=True)
class Job:
    """One wrapped job with topics and a catalog of its own."""

    name: str
    kafka: str
    directory: Path
    kind: str
    #: Of its own, in its directory, unless another is named.
    catalog: str = ""
    master: str = "local[2,4]"
    stage: str = "report"
    conflicts: str = "count"
    filters: Mapping[str, Any] | None = None
    #: For Spark, beside what every job has.
    conf: Mapping[str, str] = field(default_factory=dict)
    #: Whether it reads what is there now and no more.
    bounded: bool = False
    #: Topics beside its own that it reads.
    beside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.catalog:
            object.__setattr__(self, "catalog", f"sqlite:{self.directory / 'catalog.db'}")
        with open_client(self.kafka) as client:
            topics = [f"{self.name}.in", f"{self.name}.out"]
            for topic in topics if not client.describe(topics) else ():
                client.create(topic, TopicSettings(partitions=PARTITIONS))

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def settings(self) -> dict[str, Any]:
        """What a program is told that runs it."""
        return {
            "name": self.name,
            "kafka": self.kafka,
            "catalog": self.catalog,
            "master": self.master,
            "conf": dict(self.conf),
            "home": str(self.directory / "home"),
            "kind": self.kind,
            "stage": self.stage,
            "conflicts": self.conflicts,
            "bounded": self.bounded,
            "filters": self.filters,
            "reads": [f"{self.name}.in", *self.beside],
            "unwrapped": f"{self.name}.unwrapped",
            "gates": str(self.directory),
            "checkpoint": str(self.checkpoint),
        }

    def send(self, rows: list[Row]) -> None:
        with open_client(self.kafka) as client:
            publish(client, f"{self.name}.in", rows)

    def start(self, kill_at: str = "", *, doomed: bool = False) -> Worker:
        """Start a process that takes what is available now."""
        settings = self.settings | {"doomed": doomed}
        command = [sys.executable, "-m", "tests.integration.wrap_job", json.dumps(settings)]
        environment = os.environ | ({VARIABLE: kill_at} if kill_at else {})
        said = self.directory / f"job.{time.monotonic_ns()}.log"
        with said.open("wb") as file:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
        return Worker(process, said)

    def run(self, expected: int = 0, kill_at: str = "") -> str:
        """Run it to its end, and return what it said."""
        worker = self.start(kill_at, doomed=bool(kill_at))
        worker.ended(expected, JOB_SECONDS_MAX)
        return worker.said.read_text()

    def effects(self) -> list[dict[str, Any]]:
        """Return what came out, copies taken together; of each output there is one version."""
        with open_client(self.kafka) as client:
            logs = logs_of(client, f"{self.name}.out")
        versions: dict[bytes, set[bytes]] = defaultdict(set)
        for record in (record for log in logs.values() for record in log.records):
            assert record is not None
            header = decode_header(record.header(NAME) or b"")
            assert header is not None, "every output carries a header of ours"
            versions[header.id].add(record.value or b"")
        assert all(len(found) == 1 for found in versions.values())
        return [json.loads(value) for found in versions.values() for value in found]

    def seq(self) -> int:
        """Return how many batches are sealed."""
        store = open_store(self.catalog)
        try:
            row = Catalog(store).load(self.lane)
        finally:
            store.close()
        return row.head.ref.seq if row else 0

    @property
    def lane(self) -> str:
        return f"{self.name}/report/all"

    def prove(self) -> None:
        """Hold raw input, raw catalog and raw output against each other."""
        with open_client(self.kafka) as client:
            topics = (f"{self.name}.in", *self.beside, f"{self.name}.out")
            logs = {at: log for topic in topics for at, log in logs_of(client, topic).items()}
        query = checkpoint_at(str(self.checkpoint)).query_id()
        if query is not None:
            logs[state_source(query)] = Log([], 0)  # batches: there is no record in them
        store = open_store(self.catalog)
        try:
            lanes = {self.lane: LaneInput(id_from=per_topic(id_from("header:id")))}
            findings = check(Evidence(store=store, logs=logs, lanes=lanes, finished=True))
        finally:
            store.close()
        assert not findings, "\n".join(map(str, findings))
        self._asked_by_its_operator()

    def _asked_by_its_operator(self) -> None:
        """Hold what the operator's verbs say to the same: it is proved, and nothing waits."""
        with (
            open_client(self.kafka) as client,
            contextlib.closing(open_store(self.catalog)) as store,
        ):
            catalog = Catalog(store)
            found = audit(catalog, Cluster(client), [self.lane], Terms(finished=True))
            said = (found.verdict, dict(found.unproved), dict(found.given_up))
            assert said == ("exact", {}, {}), found.document()
            rows = read_rows(catalog, [self.lane])
            (stage,) = lag(catalog, rows, Doors(client), time.time_ns() // 1_000_000).stages
            waits = (stage.behind, stage.waiting_ms, stage.pending, stage.late_ms)
            assert waits == (0, 0, 0, 0), stage
            inputs = {topic: logs_of(client, topic) for topic in (f"{self.name}.in", *self.beside)}
            stories = Stories(catalog, self.lane, inputs, logs_of(client, f"{self.name}.out"))
            stories.check(Cluster(client), self.name)


def each_once(job: Job, last: int) -> None:
    """Hold the effects to one for each record."""
    found = Counter(effect["id"] for effect in job.effects())
    assert found == Counter(range(last))


def pairs_once(job: Job, last: int) -> None:
    """Hold the effects to one for each pair of numbers."""
    found = Counter(effect["id"] for effect in job.effects())
    assert found == Counter({number // 2 for number in range(last)})


def counted_exactly(job: Job, last: int) -> None:
    """Hold each record to one effect, and each count to one step for each record of its digit."""
    each_once(job, last)
    found = defaultdict(list)
    for effect in job.effects():
        assert effect["digit"] == effect["id"] % 10
        found[effect["digit"]].append(effect["nth"])
    assert {digit: sorted(of) for digit, of in found.items()} == {
        digit: list(range(len(range(digit, last, 10)))) for digit in range(10)
    }


def summed_exactly(job: Job, last: int) -> None:
    """Hold all runs together to each number once."""
    count, total = Counter[int](), Counter[int]()
    for effect in job.effects():
        count[effect["digit"]] += effect["n"]
        total[effect["digit"]] += effect["id"]
    for digit in range(10):
        numbers = range(digit, last, 10)
        assert (count[digit], total[digit]) == (len(numbers), sum(numbers)), digit


def windows_exact(job: Job, last: int, others: Sequence[dict[str, Any]] = ()) -> None:
    """Hold every window to the distinct records in it; some may have come out elsewhere."""
    expected: dict[int, list[int]] = {}
    for number in range(last):
        start = (FIRST + number) // WINDOW_SECONDS * WINDOW_SECONDS
        expected.setdefault(start, []).append(number)
    found = sorted([*others, *job.effects()], key=lambda effect: int(effect["start"]))
    assert found == [
        {"start": start, "n": len(ids), "s": sum(ids)} for start, ids in sorted(expected.items())
    ]


@pytest.fixture
def make(kafka: Kafka, unique: Callable[[str], str], tmp_path: Path) -> Callable[..., Job]:
    """Make jobs with topics of their own in the test's directory."""

    def made(kind: str, **more: Any) -> Job:
        name = unique("wrap")
        return Job(name=name, kafka=kafka.bootstrap, directory=tmp_path, kind=kind, **more)

    return made
