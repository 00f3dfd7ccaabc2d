"""A broker with the input of the job, and the throughput of any contestant on it.

What it is: `Cluster`, the input and a place for each turn; `drain`, throughput from the broker's own
stamps on the output.
What it must not know: how any way works; each is a driver process of its own.

Invariants:
    Every turn has an output topic, a catalog and a checkpoint of its own, and leaves none.
    What is timed begins with the first output, so that nobody's start counts.
    Throughput is measured by LogAppendTime alone: one clock for all.
    While a contestant runs, only the ends of the log are asked for; it is read and judged after the
    contestant has stopped. A turn in which an input has no effect, or two, although the way says
    that this cannot be, is an error and no figure.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from bench.driving import Driver, driven
from bench.harness import SCRATCH, Turn
from bench.job import VALUES, Job, originals
from bench.output import Came, Numbers, ends, read
from bench.publisher import PARTITIONS
from bench.user_code import cost_us, nonce
from delivery.batch import Emissions
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, Topic, TopicSettings
from delivery.services.ephemeral import ephemeral
from delivery.services.jars import Report

#: Records that are drained: ten seconds of steady state for who makes 200,000 a second. And when it
#: must be quick.
RECORDS, RECORDS_QUICK = 2_000_000, 20_000
#: Shares of the output between which the rate is taken: neither the first bundle nor the last.
STEADY = (0.15, 0.95)
#: Who works in micro-batches gets the input in so many, as from a steady stream. In a single one, all
#: that comes before a shuffle would be over when the first output appears, and not be timed. The span
#: above is eight of them, from the middle of one batch's output to the middle of another's; more and
#: smaller batches would only cost Spark more starts of batches.
MICRO_BATCHES = 10
#: No turn takes longer.
STALL_SECONDS_MAX = 600.0
#: How often the ends of the log are asked for.
LOOK_SECONDS = 0.25
#: How long a log with transactions stands still before it is at its end: its markers count as
#: records, so no number of records says so. Longer than any contestant's commits are apart.
STILL_SECONDS = 4.0
#: How many records are sent at once, and on how many the user code's own cost is taken.
FILLED_AT_ONCE, COSTED = 20_000, 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way of doing the job.

    Attributes:
        way: what its driver calls it.
        catalog: URL, for ours.
        deduplicates: whether repeats are dropped.
        parents: whether outputs say which input they come from, so that this is checked as well.
        transactional: whether outputs are visible only after a commit later than their stamps; then
            latency ends when a reader of committed records has them, not at the stamp.
        micro_batches: whether it is told how much to take at once.
        stages: how many of them, one behind the other.
        deterministic: whether its user code is declared so.
        python: whether its user code is `bench.user_code`.
        command: the driver.
        commit_ms: how often a transactional way commits when it is drained, and at a steady rate.
    """

    way: str
    catalog: str = ""
    deduplicates: bool = True
    parents: bool = False
    transactional: bool = False
    micro_batches: bool = False
    stages: int = 1
    deterministic: bool = False
    python: bool = True
    command: tuple[str, ...] = (sys.executable, "-m", "bench.pipeline_driver")
    commit_ms: tuple[int, int] = (0, 0)


@dataclass(slots=True, kw_only=True)
class Place:
    """What one turn has for itself.

    Attributes:
        cluster: where.
        way: of the contestant.
        source, target: topics.
        order: what its driver is told.
    """

    cluster: Cluster
    way: Way
    source: Topic
    target: Topic
    order: dict[str, str]

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        """Run the contestant for the time of a block."""
        with driven(self.way.command, self.order) as driver:
            yield driver

    @property
    def reach(self) -> int:
        """How far the log of the output reaches."""
        return ends(self.cluster.client, self.target)

    def until(self, records: int, look: Callable[[], None] = lambda: None) -> None:
        """Wait until so many records are there; `look` meanwhile."""
        pause, began = threading.Event(), time.monotonic()
        last, moved = -1, began
        while True:
            look()
            now, there = time.monotonic(), self.reach
            if there != last:
                last, moved = there, now
            still = now - moved > STILL_SECONDS
            if there >= records and (still or not self.way.transactional):
                return
            assert now - began < STALL_SECONDS_MAX, f"{there} of {records} records came out"
            pause.wait(LOOK_SECONDS)

    def read(self, *, keep: bool = False, until: int | None = None) -> Came:
        """Read what came out."""
        return read(self.cluster.client, self.target, keep=keep, until=until)


def drain(cluster: Cluster, way: Way) -> Turn:
    """Do the job for everything that is in the input topic."""
    expected = cluster.orders(deduplicated=way.deduplicates)
    with cluster.place(way, cluster.source, way.commit_ms[0]) as place:
        with place.driver() as driver:
            place.until(int(expected.sum()), driver.curve.look)
        came = place.read()
    counts = came.counts(VALUES)
    assert np.array_equal(counts, expected), "nothing crashed: every order came out, and not twice"
    if way.parents:
        assert len(np.unique(came.parents)) == expected.sum(), "every input has one effect"
    stamps = np.sort(came.stamps_ms)
    first, last = (int(share * (len(stamps) - 1)) for share in STEADY)
    seconds = max(int(stamps[last] - stamps[first]), 1) / 1000
    cpu = driver.curve.seconds(float(stamps[first]), float(stamps[last])) / (last - first) * 1e6
    facts = {"steady s": seconds, "CPU s/M": cpu, "memory MB": driver.curve.memory_mb}
    if way.python:
        facts |= {"of it user code": cluster.user_us, "beyond it": cpu - cluster.user_us}
    return Turn(seconds=(seconds,), amount=last - first, facts=facts)


class Cluster:
    """A broker with the input of the job."""

    def __init__(self, bootstrap: str, client: Client, records: int) -> None:
        self.bootstrap = bootstrap
        self.client = client
        self.records = records
        self.source = client.create("bench-input", TopicSettings(partitions=PARTITIONS))
        job = Job()
        values = [job.record(offset).value or b"" for offset in range(COSTED)]
        #: CPU microseconds of the user code for a record, alone in a warm process.
        self.user_us = cost_us(nonce, values)
        self._fill(job)

    def _fill(self, job: Job) -> None:
        producer = self.client.producer()
        for start in range(0, self.records, FILLED_AT_ONCE):
            offsets = range(start, min(start + FILLED_AT_ONCE, self.records))
            rows = [job.record(offset) for offset in offsets]
            # A repeat goes where the record went that it repeats.
            partitions = [int(row.headers[0][1][-4:]) % PARTITIONS for row in rows]
            emissions = Emissions(
                edges=[0] * len(rows),
                partitions=partitions,
                keys=[None] * len(rows),
                values=[row.value for row in rows],
                headers=[row.headers for row in rows],
                ids=np.zeros((len(rows), 2), dtype=np.uint64),
            )
            producer.emit([self.source], emissions)
        producer.close()

    def orders(self, *, deduplicated: bool) -> Numbers:
        """Return what must come out: how often each order, as its value begins."""
        numbers = originals(self.records)
        if deduplicated:
            numbers = numbers[numbers == np.arange(self.records)]
        return np.bincount(numbers % VALUES, minlength=VALUES)

    @contextmanager
    def topic(self, name: str, *, append_time: bool = False) -> Iterator[Topic]:
        """Have a topic for the time of a block: what ten turns wrote would fill a disk."""
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only here

        settings = TopicSettings(partitions=PARTITIONS, append_time=append_time)
        topic = self.client.create(name, settings)
        try:
            yield topic
        finally:
            admin = AdminClient({"bootstrap.servers": self.bootstrap})
            for done in admin.delete_topics([name]).values():
                done.result()

    @contextmanager
    def place(self, way: Way, source: Topic, commit_ms: int) -> Iterator[Place]:
        """Give a turn an output topic, a catalog and a directory of its own."""
        name = uuid.uuid4().hex[:8]
        SCRATCH.mkdir(parents=True, exist_ok=True)
        with (
            ExitStack() as between,
            self.topic(f"out-{name}", append_time=True) as target,
            tempfile.TemporaryDirectory(dir=SCRATCH) as scratch,
        ):
            for number in range(1, way.stages):
                between.enter_context(self.topic(f"{target.name}-{number}"))
            order = {
                "way": way.way,
                "kafka": self.bootstrap,
                "source": source.name,
                "target": target.name,
                "catalog": way.catalog.format(scratch=scratch, name=name),
                "scratch": scratch,
            }
            if commit_ms:
                order["commit_ms"] = str(commit_ms)
            # What is published while it runs is no backlog: nobody is held back there.
            if way.micro_batches and source == self.source:
                order["at_once"] = str(self.records // MICRO_BATCHES)
            if way.stages > 1:
                order["stages"] = str(way.stages)
            if way.deterministic:
                order["deterministic"] = "yes"
            yield Place(cluster=self, way=way, source=source, target=target, order=order)


@contextmanager
def clusters(*, quick: bool, report: Report) -> Iterator[Cluster]:
    """Start a broker and publish the input of the job."""
    with ephemeral(kafka=1, report=report) as services:
        bootstrap = services.kafka.bootstrap
        with open_client(bootstrap, {}, "confluent") as client:
            records = RECORDS_QUICK if quick else RECORDS
            report(f"publishing {records:,} records")
            yield Cluster(bootstrap, client, records)
