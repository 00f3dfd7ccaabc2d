"""A publisher at a steady rate, in a process of its own: nobody's interpreter is shared with it.

What it is: `python -m bench.publisher KAFKA TOPIC`, which is told by lines on its input how far to
publish, and `publishing`, the other end of that.
What it must not know: who reads the records, what is measured.

Invariants:
    Every record carries the time at which it was made, and is sent at once.
    An order is spelled as `bench.job` spells it, so that one reader reads both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.output import FIRST_ORDER

PER_SECOND = 1_000
PARTITIONS = 4
#: It wakes up as often.
TICK_SECONDS = 0.001
#: How far "until told otherwise" is.
ENDLESS = 1 << 40
#: What fills a value up to the size of the job's.
PAD = "x" * 90


class Publisher:
    """A publisher that runs elsewhere."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, until: int = ENDLESS) -> None:
        """Let it publish at its rate up to so many records."""
        assert self._process.stdin is not None, "a pipe was asked for"
        self._process.stdin.write(f"{until}\n")
        self._process.stdin.flush()

    def await_end(self) -> int:
        """Wait until it came as far as it was told, all of it sent; return how far."""
        assert self._process.stdout is not None, "a pipe was asked for"
        return int(self._process.stdout.readline())

    def halt(self) -> int:
        """Let it stop where it is; return where that was."""
        self.begin(0)
        return self.await_end()


@contextmanager
def publishing(kafka: str, topic: str) -> Iterator[Publisher]:
    """Have a publisher for the time of a block; it publishes nothing before it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.publisher", kafka, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Publisher(process)
    finally:
        process.kill()
        process.wait()


class _Told:
    """How far to publish, as the last line said."""

    def __init__(self) -> None:
        self.until = 0
        self.ended = False
        self._said = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self.until = int(line)
            self._said.set()
        self.ended = True
        self._said.set()

    def lines(self) -> Iterator[int]:
        """Yield how far each line says, until there are no more."""
        while self._said.wait() and not self.ended:
            self._said.clear()
            yield self.until


def main(kafka: str, topic: str) -> None:
    """Publish as far as lines on the input say."""
    import confluent_kafka  # noqa: PLC0415 - not by whoever only starts this

    producer = confluent_kafka.Producer({"bootstrap.servers": kafka, "linger.ms": 0})
    told, pause, number = _Told(), threading.Event(), 0
    for until in told.lines():
        began, first = time.time(), number
        while number < told.until:
            due = first + int((time.time() - began) * PER_SECOND)
            for at in range(number, min(due, told.until)):
                made = {"order": FIRST_ORDER + at, "made_ms": time.time() * 1000, "pad": PAD}
                value = json.dumps(made, separators=(",", ":")).encode()
                headers: list[tuple[str, str | bytes | None]] = [("id", b"order-%012d" % at)]
                producer.produce(topic, value, partition=at % PARTITIONS, headers=headers)
                number = at + 1
            producer.poll(0)
            pause.wait(TICK_SECONDS)
        producer.flush()
        # A line that another one cut short is not answered; that one is.
        if told.until == until:
            print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
