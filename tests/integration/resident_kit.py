"""What the suites over the resident engine share: a driver to talk to, traffic, and the proof.

What it is: `Driver`, the other end of `resident_driver.py`; `Pipeline`, two chained stages over
topics of their own; `Pipeline.check`, which looks at what came out.
What it must not know: how the engine works.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from delivery.header import decode_header
from delivery.kafka.opening import open_client
from delivery.kafka.port import Topic, TopicSettings
from delivery.operate.dying import EXECUTOR, PYTHON_WORKER, below, tree
from tests.integration.kafka_kit import Sent, drain, emissions

#: Generous: a session takes 6 s on two idle cores, and twenty on busy ones.
SECONDS_MAX = 240.0
#: How often a condition of another process is looked at.
POLL_SECONDS = 0.02
#: Every so many records one comes twice.
REPEATED_EVERY = 7
PROGRAM = Path(__file__).with_name("resident_driver.py")


class Driver:
    """A driver program, and a conversation with it."""

    def __init__(self, master: str, log: Path, conf: dict[str, str] | None = None) -> None:
        self.log = log
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps({"master": master, "conf": conf or {}})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                cwd=log.parent,
                env=kept,
            )
        self._ready()

    def _ready(self) -> None:
        assert self._line() == "ready", self.log.read_text()

    def _line(self) -> str:
        assert self.process.stdout is not None
        patience = threading.Timer(SECONDS_MAX, self.process.kill)
        patience.start()
        try:
            return self.process.stdout.readline().strip()
        finally:
            patience.cancel()

    def do(self, what: str, **told: Any) -> dict[str, Any]:
        """Tell it to do something; return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, told]) + "\n")
        self.process.stdin.flush()
        text = self._line()
        assert text, self.log.read_text()[-20_000:]
        answer: dict[str, Any] = json.loads(text)
        self._ready()
        return answer

    def well(self, what: str, **told: Any) -> dict[str, Any]:
        """Tell it to do something that must go well."""
        answer = self.do(what, **told)
        assert "error" not in answer, (answer, self.log.read_text()[-20_000:])
        return answer

    def workers(self) -> list[psutil.Process]:
        """The Python processes that run its tasks."""
        return below(self.process.pid, PYTHON_WORKER)

    def executors(self) -> list[psutil.Process]:
        """The JVMs of its executors."""
        return below(self.process.pid, EXECUTOR)

    def kill(self) -> None:
        """Kill it; what it started ends by itself, and is waited for."""
        every = tree(self.process.pid)
        self.process.kill()
        self.process.wait()
        _gone(every)

    def close(self) -> None:
        """Let it end in good order."""
        every = tree(self.process.pid) if self.process.poll() is None else []
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(SECONDS_MAX)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            _gone(every)


def _identity(header: bytes | None) -> bytes:
    decoded = decode_header(header or b"")
    assert decoded is not None, "every record that we send says who it is"
    return bytes(decoded.id)


def _gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    for process in alive:
        process.kill()
    assert not alive, f"they outlived their driver: {alive}"


@contextmanager
def driven(master: str, log: Path, conf: dict[str, str] | None = None) -> Iterator[Driver]:
    """Run a driver for the time of a `with` block."""
    driver = Driver(master, log, conf)
    try:
        yield driver
    finally:
        driver.close()


def until(condition: Callable[[], Any], seconds: float = SECONDS_MAX) -> float:
    """Wait until something is true; return how long it took."""
    began = time.monotonic()
    pause = threading.Event()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not come true in time"
        pause.wait(POLL_SECONDS)
    return time.monotonic() - began


@dataclass
class Pipeline:
    """Two chained stages over topics of their own."""

    name: str
    kafka: str
    directory: Path
    partitions: int = 4
    #: Order -> how often it was sent.
    sent: dict[int, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Make the topics."""
        self.client = open_client(self.kafka)
        for topic in (self.raw, self.priced, self.out):
            self.client.create(topic, TopicSettings(partitions=self.partitions))
        self.producer = self.client.producer()

    @property
    def raw(self) -> str:
        """Where records come in."""
        return f"{self.name}.raw"

    @property
    def priced(self) -> str:
        """Between the stages."""
        return f"{self.name}.priced"

    @property
    def out(self) -> str:
        """Where they leave."""
        return f"{self.name}.out"

    @property
    def given(self) -> dict[str, Any]:
        """What a driver is told to start it."""
        return {
            "name": self.name,
            "kafka": self.kafka,
            "catalog": f"sqlite:{self.directory / 'catalog.db'}",
            "home": str(self.directory / "home"),
            "stages": [
                {
                    "call": "price",
                    "reads": self.raw,
                    "writes": [self.priced],
                    "id_from": "header:id",
                },
                {"call": "ship", "reads": self.priced, "writes": [self.out]},
            ],
        }

    def topic(self, name: str) -> Topic:
        """Look at a topic."""
        return self.client.describe([name])[name]

    def ends(self, name: str) -> int:
        """Count what a topic holds."""
        return sum(offset for _, offset in self.client.bounds(name, self.topic(name).sources).high)

    def send(self, numbers: Iterable[int]) -> None:
        """Send orders, some of them twice, as a publisher does who lost an answer."""
        rows = []
        for number in numbers:
            times = 2 if number % REPEATED_EVERY == 0 else 1
            self.sent[number] = self.sent.get(number, 0) + times
            row = Sent(
                number % self.partitions,
                value=json.dumps({"id": number}).encode(),
                headers=(("id", b"%d" % number),),
            )
            rows += [row] * times
        self.producer.emit([self.topic(self.raw)], emissions(rows))

    def records(self, name: str) -> list[tuple[bytes, dict[str, Any]]]:
        """Read a topic: the identity of each record, and its value."""
        topic = self.topic(name)
        bounds = self.client.bounds(name, topic.sources)
        consumer = self.client.consumer()
        ends = {source: end for source, end in bounds.high if end}
        consumer.add(name, {source: bounds.low.at(source) or 0 for source in ends})
        drained = drain(consumer, ends)
        consumer.close()
        return [
            (_identity(dict(headers)["delivery"]), json.loads(value or b"{}"))
            for rows in drained.rows.values()
            for _, _, value, headers in rows
        ]

    @contextmanager
    def traffic(self, first: int) -> Iterator[None]:
        """Send orders all the time, from a number on."""
        stop = threading.Event()

        def send_on() -> None:
            number = first
            while not stop.is_set():
                self.send(range(number, number + 50))
                number += 50
                stop.wait(0.1)

        thread = threading.Thread(target=send_on)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def flowing(self) -> float:
        """Wait until there is new output; return how long it took."""
        before = self.ends(self.out)
        return until(lambda: self.ends(self.out) > before)

    def check(self) -> None:
        """Every order that was sent came out once, in one version, made of one that was sealed."""
        assert any(times > 1 for times in self.sent.values()), "no repeat was offered"
        priced = self.versions(self.priced)
        shipped = self.versions(self.out)
        assert sorted(priced) == sorted(shipped) == sorted(self.sent)
        for number, value in shipped.items():
            assert value["price"] == priced[number]["price"], "shipped at a price never sealed"

    def versions(self, name: str) -> dict[int, dict[str, Any]]:
        """Return the one version of each order in a topic; fail if there are two."""
        found: dict[int, tuple[bytes, dict[str, Any]]] = {}
        for identity, value in self.records(name):
            number = value["id"]
            one = (identity, value)
            assert found.setdefault(number, one) == one, f"two versions of order {number}"
        return {number: value for number, (_, value) in found.items()}

    def close(self) -> None:
        """Let go of the clients."""
        self.producer.close()
        self.client.close()


def running(driver: Driver, pipeline: Pipeline) -> int:
    """Ask how many tasks run."""
    status: dict[str, int] = driver.well("look", name=pipeline.name)["status"]
    return status["running"]
