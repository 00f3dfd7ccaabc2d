"""A broker with the input of the job, and what a turn of any contestant on it took.

What it is: `Cluster`, `drain` (throughput from the broker's own stamps on the output) and `steady`
(latency at a thousand records a second), for whatever program does the job.
What it must not know: how any way works; each is a driver process of its own, told what to do by
one JSON argument, that says "started" and ends when its input is closed.

Invariants:
    Every turn has an output topic, a catalog and a checkpoint of its own.
    What is timed begins with the first output, so that nobody's start counts.
    Throughput is measured by LogAppendTime alone: one clock for all.
    Only committed records are read. A turn in which an input has no effect, or two, although the
    way says that this cannot be, is an error and no figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from bench.harness import SCRATCH, Turn
from bench.job import VALUES, Job, original
from delivery.batch import Emissions
from delivery.header import NAME, decode_header
from delivery.kafka.opening import open_client
from delivery.kafka.port import Client, Topic, TopicSettings
from delivery.services.ephemeral import ephemeral
from delivery.services.jars import Report

PARTITIONS = 4
#: Records that are drained, and when it must be quick.
RECORDS, RECORDS_QUICK = 400_000, 20_000
#: Shares of the output between which the rate is taken: neither the first bundle nor the last.
STEADY = (0.15, 0.95)
#: Latency: records a second, for how long, and for how long before that.
PER_SECOND = 1_000
SECONDS, SECONDS_QUICK, SETTLING_SECONDS = 20, 5, 3
#: No turn takes longer.
STALL_SECONDS_MAX = 300.0
#: The generator wakes up as often.
TICK_SECONDS = 0.002
#: Every value begins with its order: so many bytes, and the number of the first.
ORDER_BYTES, FIRST_ORDER = len('{"order":10000000'), 10_000_000
#: How many lines of a driver's last words an error carries.
LAST_LINES = 20


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
        command: the driver.
        commit_ms: how often a transactional way commits when it is drained, and at a steady rate.
    """

    way: str
    catalog: str = ""
    deduplicates: bool = True
    parents: bool = False
    transactional: bool = False
    command: tuple[str, ...] = (sys.executable, "-m", "bench.pipeline_driver")
    commit_ms: tuple[int, int] = (0, 0)


@contextmanager
def _driver(command: tuple[str, ...], order: dict[str, str]) -> Iterator[None]:
    """Run a driver, started, for the time of a block."""
    process = subprocess.Popen(
        [*command, json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None, "a pipe was asked for"
    assert process.stderr is not None, "a pipe was asked for"
    tail: list[str] = []
    reading = threading.Thread(target=lambda: tail.extend(process.stderr or ()), daemon=True)
    reading.start()
    try:
        if process.stdout.readline().strip() != "started":
            process.wait()
            reading.join()
            raise RuntimeError(f"the driver of {order['way']} ended: {''.join(tail[-LAST_LINES:])}")
        yield
    except AssertionError as error:
        # What did not come out is often explained by what the driver said.
        error.add_note("".join(tail[-LAST_LINES:]))
        raise
    finally:
        assert process.stdin is not None, "a pipe was asked for"
        process.stdin.close()
        process.wait(timeout=STALL_SECONDS_MAX)


class _Output:
    """The output topic of one turn, read as it grows."""

    def __init__(self, client: Client, topic: Topic) -> None:
        self._consumer = client.consumer()
        self._consumer.add(topic.name, dict.fromkeys(topic.sources, 0))
        self.stamps: list[np.ndarray] = []
        self.seen: list[np.ndarray] = []
        self.values: list[bytes] = []
        self.orders: Counter[bytes] = Counter()
        self.parents: set[tuple[int, int]] = set()
        self.count = 0

    def read(self, *, keep: bool) -> int:
        """Take what is there; return how much."""
        got = 0
        for fetched in self._consumer.poll(max_records=50_000, max_bytes=1 << 25, timeout=0.2):
            batch = fetched.batch
            got += len(batch)
            self.stamps.append(batch.timestamps_ms)
            self.seen.append(np.full(len(batch), time.time() * 1000))
            values = [value or b"" for value in batch.values]
            self.orders.update(value[:ORDER_BYTES] for value in values)
            if keep:
                self.values += values
            for headers in batch.headers:
                own = next((value for name, value in headers or () if name == NAME), None)
                header = decode_header(own) if own else None
                if header is not None:
                    self.parents.add(header.parent)
        self.count += got
        return got

    def until(self, enough: int, *, keep: bool = False) -> None:
        """Read until so many records are there."""
        deadline = time.monotonic() + STALL_SECONDS_MAX
        while self.count < enough:
            self.read(keep=keep)
            assert time.monotonic() < deadline, f"{self.count} of {enough} records came out"

    def close(self) -> None:
        """Let go."""
        self._consumer.close()


def drain(cluster: Cluster, way: Way) -> Turn:
    """Do the job for everything that is in the input topic."""
    expected = cluster.orders(deduplicated=way.deduplicates)
    with cluster.turn(way, cluster.source.name, way.commit_ms[0]) as output:
        output.until(expected.total())
    assert output.orders == expected, "nothing crashed, so every order came out, and not twice"
    if way.parents:
        assert len(output.parents) == expected.total(), "every input has one effect"
    stamps = np.sort(np.concatenate(output.stamps))
    first, last = (int(share * (len(stamps) - 1)) for share in STEADY)
    seconds = max(int(stamps[last] - stamps[first]), 1) / 1000
    return Turn(seconds=(seconds,), amount=last - first)


def steady(cluster: Cluster, way: Way, seconds: int) -> Turn:
    """Do the job at a steady rate; time every record from its publication to its output."""
    name = f"steady-{uuid.uuid4().hex[:8]}"
    source = cluster.client.create(name, TopicSettings(partitions=PARTITIONS))
    with cluster.turn(way, source.name, way.commit_ms[1]) as output:
        # What a driver needs to start is not latency: it has done a second's work before the rest
        # is published.
        first, last = PER_SECOND, (1 + SETTLING_SECONDS + seconds) * PER_SECOND
        _publish(cluster.bootstrap, source, 0, first)
        output.until(first, keep=True)
        publishing = threading.Thread(
            target=_publish, args=(cluster.bootstrap, source, first, last)
        )
        publishing.start()
        output.until(last, keep=True)
        publishing.join()
    ended = np.concatenate(output.seen if way.transactional else output.stamps)
    fields = [json.loads(value) for value in output.values]
    made = np.array([one["made_ms"] for one in fields])
    order = np.array([one["order"] for one in fields])
    late = np.maximum(ended - made, 0)[order >= first + SETTLING_SECONDS * PER_SECOND]
    return Turn(seconds=tuple((late / 1000).tolist()))


def _publish(bootstrap: str, topic: Topic, first: int, last: int) -> None:
    """Publish these records, a thousand a second, each with the time it was made at."""
    import confluent_kafka  # noqa: PLC0415 - only here

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    pad, began, number = "x" * 90, time.time(), first
    pause = threading.Event()
    while number < last:
        due = min(first + int((time.time() - began) * PER_SECOND), last)
        for at in range(number, due):
            value = json.dumps({"order": at, "made_ms": time.time() * 1000, "pad": pad})
            producer.produce(
                topic.name,
                value.encode(),
                partition=at % PARTITIONS,
                headers=[("id", b"order-%012d" % at)],
            )
        number = due
        producer.poll(0)
        pause.wait(TICK_SECONDS)
    producer.flush()


class Cluster:
    """A broker with the input of the job."""

    def __init__(self, bootstrap: str, client: Client, records: int) -> None:
        self.bootstrap = bootstrap
        self.client = client
        self.records = records
        self.source = client.create("bench-input", TopicSettings(partitions=PARTITIONS))
        self._fill()

    def _fill(self) -> None:
        job, producer = Job(), self.client.producer()
        for start in range(0, self.records, 20_000):
            offsets = range(start, min(start + 20_000, self.records))
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

    def orders(self, *, deduplicated: bool) -> Counter[bytes]:
        """Return what must come out: how often each order, as its value begins."""
        numbers = [(offset, original(offset)) for offset in range(self.records)]
        return Counter(
            b'{"order":%d' % (FIRST_ORDER + number % VALUES)
            for offset, number in numbers
            if number == offset or not deduplicated
        )

    @contextmanager
    def turn(self, way: Way, source: str, commit_ms: int) -> Iterator[_Output]:
        """Start a driver with an output topic, a catalog and a directory of its own."""
        name = uuid.uuid4().hex[:8]
        target = self.client.create(
            f"out-{name}", TopicSettings(partitions=PARTITIONS, append_time=True)
        )
        SCRATCH.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
            order = {
                "way": way.way,
                "kafka": self.bootstrap,
                "source": source,
                "target": target.name,
                "catalog": way.catalog.format(scratch=scratch, name=name),
                "scratch": scratch,
            }
            if commit_ms:
                order["commit_ms"] = str(commit_ms)
            output = _Output(self.client, target)
            try:
                with _driver(way.command, order):
                    yield output
            finally:
                output.close()


@contextmanager
def clusters(*, quick: bool, report: Report) -> Iterator[Cluster]:
    """Start a broker and publish the input of the job."""
    with ephemeral(kafka=1, report=report) as services:
        bootstrap = services.kafka.bootstrap
        with open_client(bootstrap, {}, "confluent") as client:
            yield Cluster(bootstrap, client, RECORDS_QUICK if quick else RECORDS)
