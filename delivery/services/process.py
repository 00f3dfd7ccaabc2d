"""One server process: start it under a guard, recognise it later, stop it.

What it is: `spawn` and `Process`, the only code that starts or signals a server.
What it must not know: what the server is, where it listens, whether it is healthy.

Invariants:
    A signal goes only to a process whose pid AND start time are the recorded ones; a pid that
    the kernel gave to somebody else is never touched.
    A node has at most one live process: the guard's lock sees to it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dedup.errors import Unavailable
from delivery.services import guard

__all__ = ["Lifeline", "Process", "find", "spawn", "until"]

#: How long a node's lock may be held without a record: the time between fork and rename in the
#: guard, generous for a machine that swaps.
RECORD_SECONDS_MAX = 10.0

#: How often a condition of another process is looked at; the kernel offers no portable event.
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process named by pid and start time, so that it stays the same one."""

    pid: int
    started: str

    @classmethod
    def current(cls) -> Process:
        """This very process."""
        pid = os.getpid()
        moment = guard.started(pid)
        assert moment is not None, "the running process has a start time"
        return cls(pid=pid, started=moment)

    def alive(self) -> bool:
        """Whether this process still runs (a zombie does not)."""
        return guard.started(self.pid) == self.started

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal if this process still runs; say whether it was sent."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; say whether it has."""
        return until(lambda: not self.alive(), seconds)

    def stop(self, seconds: float) -> bool:
        """Ask it to end, kill it after `seconds`; say whether asking was enough."""
        if not self.signal(signal.SIGTERM):
            return True
        self.signal(signal.SIGCONT)  # a paused process cannot hear SIGTERM
        if self.wait(seconds):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """Kill it and wait until the kernel has let go of it."""
        self.signal(signal.SIGKILL)
        if not self.wait(RECORD_SECONDS_MAX):
            raise Unavailable(
                "kill a server",
                f"pid {self.pid}",
                "it does not end even when killed (a disk that hangs?); look at it with `ps`, "
                "then run the command again",
            )


class Lifeline:
    """A pipe that ends when this process ends, however it ends; then `root` is removed.

    Guards watch the reading end. Forked children of this process let go of the writing end, or
    a forgotten worker would keep the servers of a dead test alive.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reader, self._writer = os.pipe()
        self._open = True
        os.register_at_fork(after_in_child=self.close)

    def close(self) -> None:
        """Let go: every guard that watches kills its server."""
        if self._open:
            self._open = False
            os.close(self.reader)
            os.close(self._writer)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition of another process for at most `seconds`; say whether it came true."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(POLL_SECONDS)
    return True


def spawn(argv: Sequence[str], directory: Path, lifeline: Lifeline | None = None) -> Process:
    """Start a server in `directory` under a guard of its own and return its process.

    With a `lifeline` the server dies with this process; without one it outlives the terminal.
    """
    command = [sys.executable, "-I", guard.__file__, "--directory", str(directory)]
    pass_fds: tuple[int, ...] = ()
    if lifeline is not None:
        command += ["--lifeline", str(lifeline.reader), "--remove", str(lifeline.root)]
        pass_fds = (lifeline.reader,)
    done = subprocess.run(
        [*command, "--", *argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        pass_fds=pass_fds,
        start_new_session=True,
        check=False,
    )
    answer = done.stdout.strip()
    process = find(directory) if answer.isdigit() or answer == guard.ALREADY_RUNNING else None
    if process is None and not answer.isdigit():
        raise Unavailable(
            "start a server",
            argv[0],
            f"{answer or done.stderr.strip()}; nothing was started; correct that and try again",
        )
    if process is None:  # it started and has ended since: the log says why
        return Process(pid=int(answer), started="ended")
    return process


def find(directory: Path) -> Process | None:
    """Find the live server of a node's directory, whoever started it."""
    found: list[Process] = []

    def recorded_or_free() -> bool:
        process = _recorded(directory)
        if process is not None and process.alive():
            found.append(process)
            return True
        return not _locked(directory)

    if not until(recorded_or_free, RECORD_SECONDS_MAX):
        raise Unavailable(
            "find a server",
            str(directory),
            f"its lock is held but {guard.RECORD_NAME} names no live process; find the holder "
            f"with `lsof {directory / guard.LOCK_NAME}`, end it, and run the command again",
        )
    return found[0] if found else None


def _recorded(directory: Path) -> Process | None:
    try:
        record = json.loads((directory / guard.RECORD_NAME).read_text(encoding="utf-8"))
        return Process(pid=int(record["pid"]), started=str(record["started"]))
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _locked(directory: Path) -> bool:
    try:
        lock = os.open(directory / guard.LOCK_NAME, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(lock)
