"""One server of an instance: start it, wait until it is well, say how it is.

What it is: `Node`, which joins a cluster's settings, a directory and a process.
What it must not know: which other nodes there are, or who asked.

Invariants:
    `start` on a running node returns the running one; `await_ready` waits for it.
    A node is ready only when it has answered a real request.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from dedup.errors import Unavailable
from delivery.services import logs, ports, process
from delivery.services.guard import STARTING
from delivery.services.process import Lifeline, Process
from delivery.services.state import Cluster

__all__ = ["Health", "Launcher", "Node", "await_ready"]

#: How long a server may take to answer: one takes 3-7 s on two idle cores, six at once take 40.
START_SECONDS_MAX = 180.0

#: How long a server may take to end before it is killed: a broker hands its partitions over.
STOP_SECONDS_MAX = 30.0

#: How often a starting server is asked.
POLL_SECONDS = 0.1

#: How much of its log a server that failed shows.
LAST_LINES = 40  # a Java stack trace with its cause


class Health(StrEnum):
    """How a node is."""

    RUNNING = "running"
    #: It should run and does not.
    DEAD = "dead"
    #: It runs and does not answer.
    UNHEALTHY = "unhealthy"
    #: It does not run and should not.
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What starting servers takes.

    Attributes:
        java: the executable.
        jars: the class path of each kind of server.
        lifeline: servers die with this process; None: they outlive it.
    """

    java: Path
    jars: dict[str, list[Path]] = field(default_factory=dict)
    lifeline: Lifeline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One server of an instance."""

    cluster: Cluster
    index: int
    home: Path

    @property
    def name(self) -> str:
        """What people call it: kafka-1."""
        return f"{self.cluster.kind}-{self.index}"

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self.cluster.address(self.index)

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return self.home / self.name

    def process(self) -> Process | None:
        """Find its process, if it runs."""
        return process.find(self.directory)

    def start(self, launcher: Launcher) -> Process:
        """Start it unless it runs; `await_ready` waits until it is well."""
        running = self.process()
        if running is not None:
            return running
        self.directory.mkdir(exist_ok=True)
        for port, address in self.cluster.ports(self.index).items():
            if ports.busy(port, [address]) is not None:
                raise Unavailable(
                    f"start {self.name}",
                    f"{address}:{port}",
                    "another program listens on its port; its data is untouched; end that "
                    f"program (`lsof -i :{port}` names it) and run `delivery up` again",
                )
        jars: Sequence[Path] = launcher.jars[self.cluster.kind]
        self.cluster.prepare(self.index, self.directory, launcher.java, jars)
        command = self.cluster.command(self.index, self.directory, launcher.java, jars)
        return process.spawn(command, self.directory, launcher.lifeline)

    def answers(self, running: Process) -> str | None:
        """Ask for a real request once: None if it was answered, else what went wrong.

        Raises:
            Unavailable: it has ended; the error shows its last lines.
        """
        alive = running.alive()  # before asking: what ends in between is found by the next call
        try:
            self._listens()
            self.cluster.check(self.index)
        except Unavailable as error:
            if not alive:
                raise self.failed("it ended while starting") from error
            return error.hint
        return None

    def failed(self, what: str) -> Unavailable:
        """Say that it did not start, and show the end of its log."""
        lines = logs.last_lines(self.directory, LAST_LINES)
        if STARTING in lines:  # what an earlier run wrote does not explain this one
            lines = lines[len(lines) - lines[::-1].index(STARTING) :]
        log = "\n".join(f"    {line}" for line in lines)
        return Unavailable(
            f"start {self.name}",
            self.address,
            f"{what}; its data is untouched; the end of {self.directory / 'server.log'} says why; "
            f"correct that and run `delivery up` again:\n{log}",
        )

    def _listens(self) -> None:
        """Fail cheaply while nobody listens; clients are slow to notice."""
        host, port = self.cluster.host(self.index), self.cluster.port
        try:
            socket.create_connection((host, port), timeout=POLL_SECONDS).close()
        except OSError as error:
            raise Unavailable(f"reach {self.name}", self.address, f"{error}") from error

    def health(self, *, wanted: bool) -> tuple[Health, Process | None, str]:
        """Say how it is, which process it is, and what is wrong."""
        running = self.process()
        if running is None:
            return (Health.DEAD if wanted else Health.STOPPED), None, self._last_words()
        try:
            self._listens()
            self.cluster.check(self.index)
        except Unavailable as error:
            return Health.UNHEALTHY, running, error.hint
        return Health.RUNNING, running, ""

    def _last_words(self) -> str:
        lines = logs.last_lines(self.directory, 1)
        return lines[0] if lines else "it was never started"

    def stop(self) -> bool:
        """End it if it runs; False if it had to be killed."""
        running = self.process()
        return True if running is None else running.stop(STOP_SECONDS_MAX)


def await_ready(starting: Sequence[tuple[Node, Process]]) -> Iterator[Node]:
    """Yield each of these nodes as soon as it answers.

    Raises:
        Unavailable: one has ended, or does not answer in time; the error shows its last lines.
    """
    deadline = time.monotonic() + START_SECONDS_MAX
    pause = threading.Event()
    pending = list(starting)
    while pending:
        for node, running in list(pending):
            wrong = node.answers(running)
            if wrong is None:
                pending.remove((node, running))
                yield node
            elif time.monotonic() > deadline:
                raise node.failed(f"no answer in {START_SECONDS_MAX:.0f} s ({wrong})")
        pause.wait(POLL_SECONDS if pending else 0)
