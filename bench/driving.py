"""The driver of a contestant, from outside: started, watched, killed, ended.

What it is: `Driver`, a process that does the job, and `Curve`, the CPU and memory of it and of
everything below it by the broker's clock, so that a figure may be had of any span of a turn.
What it must not know: how any way does the job.

Invariants:
    A driver is told what to do by one JSON argument, says "started", and ends when its input is
    closed.
    What is counted is the contestant's own: neither the broker nor who measures.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import psutil

from bench.meter import MB

#: How long a driver may take to end.
END_SECONDS_MAX = 300.0
#: How long what a killed driver leaves behind may live.
GONE_SECONDS_MAX = 60.0
#: How many lines of a driver's last words an error carries.
LAST_LINES = 20


class Curve:
    """CPU seconds of a process and all below it, as they grew."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._ms: list[float] = []
        self._seconds: list[float] = []
        self.memory_mb = 0.0

    def look(self) -> None:
        """Take a point."""
        seconds = memory = 0.0
        with suppress(psutil.NoSuchProcess):
            for process in [self._root, *self._root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    # Children that ended count through who waited for them.
                    seconds += times.user + times.system
                    seconds += times.children_user + times.children_system
                    memory += process.memory_info().rss
        self._ms.append(time.time() * 1000)
        # Who ended and was not waited for is not forgotten.
        self._seconds.append(max([seconds, *self._seconds[-1:]]))
        self.memory_mb = max(self.memory_mb, memory / MB)

    def seconds(self, first_ms: float, last_ms: float) -> float:
        """Return the CPU seconds between two moments."""
        first, last = np.interp([first_ms, last_ms], self._ms, self._seconds)
        return float(last - first)


class Driver:
    """A process that does the job."""

    def __init__(self, command: tuple[str, ...], order: dict[str, str]) -> None:
        self._way = order["way"]
        self._process = subprocess.Popen(
            [*command, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.curve = Curve(self._process.pid)
        self._tail: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        for line in self._process.stderr or ():
            self._tail.append(line)

    def await_started(self) -> None:
        """Wait until it says that it does the job."""
        assert self._process.stdout is not None, "a pipe was asked for"
        if self._process.stdout.readline().strip() != "started":
            self._process.wait()
            self._reading.join()
            raise RuntimeError(f"the driver of {self._way} ended: {self.last_words}")

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """What it said last about itself."""
        return "".join(self._tail[-LAST_LINES:])

    def below(self) -> list[psutil.Process]:
        """Return it and every process below it."""
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    def kill(self) -> float:
        """Kill it and the JVM that is its other half; return when, in milliseconds.

        Workers are left to notice by themselves, as they are when a driver's machine fails.
        """
        halves = [one for one in self.below() if one.pid == self._process.pid or _is_java(one)]
        now = time.time() * 1000
        for one in halves:
            one.kill()
        self._process.wait()
        return now

    def close(self) -> None:
        """Let it end."""
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                assert stream is not None, "a pipe was asked for"
                stream.close()
        self._process.wait(timeout=END_SECONDS_MAX)
        self._reading.join(timeout=END_SECONDS_MAX)


def _is_java(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.name() == "java"
    return False


def gone(processes: list[psutil.Process]) -> float:
    """Wait until processes have ended; return when that was, in milliseconds."""
    _, alive = psutil.wait_procs(processes, timeout=GONE_SECONDS_MAX)
    assert not alive, f"they outlived their driver: {alive}"
    return time.time() * 1000


@contextmanager
def driven(command: tuple[str, ...], order: dict[str, str]) -> Iterator[Driver]:
    """Run a driver, started, for the time of a block."""
    driver = Driver(command, order)
    try:
        driver.await_started()
        yield driver
    except AssertionError as error:
        # What did not come out is often explained by what the driver said.
        error.add_note(driver.last_words)
        raise
    finally:
        driver.close()
