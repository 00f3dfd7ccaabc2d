"""One of the two that run the job: its driver process, what is killed of it, how far it is.

What it is: `Contender`. It starts the driver, starts it again whenever it has died, and kills -9
when the plan says so.
What it must not know: what the job does, what should come out.

Invariants:
    Both contenders have the same plan, and are killed by the same rule: at a share of the orders,
    while output is growing.
    Only processes below a driver that was started here are ever killed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil

from delivery.operate.dying import PYTHON_WORKER, below, tree

JOB = Path(__file__).with_name("job.py")

Victim = Literal["workers", "driver"]
#: At which share of the orders who dies.
PLAN: tuple[tuple[float, Victim], ...] = (
    (0.10, "workers"),
    (0.25, "workers"),
    (0.40, "workers"),
    (0.50, "driver"),
    (0.65, "workers"),
    (0.80, "workers"),
)
#: A driver that ends by itself so often does not run.
ENDED_MAX = 5
#: How long what a driver leaves behind may take to notice.
LEFT_SECONDS_MAX = 30.0
#: Silence after which the last output has come.
QUIET_SECONDS = 5.0
#: How much of a log is shown.
LOG_CHARS = 4_000


class Contender:
    """One way to run the job.

    Args:
        name: what it is called on the screen.
        told: what its driver is told.
        directory: for its files.
    """

    def __init__(self, name: str, told: dict[str, Any], directory: Path) -> None:
        self.name = name
        self.topics: list[str] = told["topics"]
        self._told = told
        self._directory = directory
        self._log = directory / f"{told['way']}.log"
        self._waiting = list(PLAN)
        #: Records in its last topic.
        self.came = 0
        #: "starting", "running", "finished" or "gave up".
        self.state = "starting"
        self.workers_killed = 0
        self.drivers_killed = 0
        #: How often the driver ended though nobody had killed it.
        self.ended = 0
        self._finishing = False
        self._grew_at = time.monotonic()
        self._below: dict[int, psutil.Process] = {}
        self._process = self._start()

    def __str__(self) -> str:
        """Say how far it is."""
        killed = self.workers_killed + self.drivers_killed
        state = "" if self.state == "running" else f", {self.state}"
        return f"{self.name}: {self.came:,} out, {killed} killed{state}"

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in {"finished", "gave up"}

    @property
    def spared(self) -> bool:
        """Whether somebody was not killed who should have been."""
        return bool(self._waiting) or not (self.workers_killed and self.drivers_killed)

    @property
    def log(self) -> str:
        """The end of what its drivers wrote."""
        return self._log.read_text(errors="replace")[-LOG_CHARS:]

    # Its driver -------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[str]:
        self.state = "starting"
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(JOB), json.dumps(self._told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._directory,
                # Ctrl-C is ours; the driver learns of it by the end of its input.
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Take down what a driver says, until it says no more."""
        assert process.stdout is not None
        for word in process.stdout:
            if process is self._process:
                self.state = word.strip()

    def finish(self) -> None:
        """Let it end, once the plan is done or there is nothing left to kill it at."""
        self._finishing = True

    def look(self, came: int, orders: int) -> None:
        """Take notice of how many of the orders came; kill it or start it again if that is due."""
        now = time.monotonic()
        growing = came > self.came
        if growing:
            self._grew_at = now
        self.came = came
        if self.over:
            return
        if self._process.poll() is not None:
            self._ended()
        elif self.state == "running":
            if self._waiting and growing and came >= self._waiting[0][0] * orders:
                self._kill(self._waiting[0][1])
            elif self._finishing and (not self._waiting or now - self._grew_at > QUIET_SECONDS):
                self._tell()

    def _tell(self) -> None:
        assert self._process.stdin is not None
        self.state = "finishing"
        with suppress(BrokenPipeError):  # it has died; the next look starts another
            self._process.stdin.write("finish\n")
            self._process.stdin.flush()

    def _ended(self) -> None:
        self.ended += 1
        if self.ended >= ENDED_MAX:
            self.state = "gave up"
        else:
            self._process = self._start()

    # Killing ----------------------------------------------------------------------------------

    def _kill(self, victim: Victim) -> None:
        every = tree(self._process.pid)
        self._below |= {one.pid: one for one in every}
        if victim == "driver":
            # Both halves of it: Python, and the JVM that it talks to.
            self._process.kill()
            for one in every:
                if _name(one) == "java":
                    _end(one)
            self._process.wait()
            self.drivers_killed += 1
            self._waiting.pop(0)
            self._process = self._start()
            return
        workers = below(self._process.pid, PYTHON_WORKER)
        for worker in workers:
            _end(worker)
        self.workers_killed += len(workers)
        if workers:  # between two tasks there may be none
            self._waiting.pop(0)

    def close(self) -> None:
        """End whatever is left of it."""
        if self._process.poll() is None:
            self._below |= {one.pid: one for one in tree(self._process.pid)}
            if not self.over:
                self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(LEFT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
        # A JVM ends when its driver has, and what it started when it has.
        _, alive = psutil.wait_procs(list(self._below.values()), timeout=LEFT_SECONDS_MAX)
        for one in alive:
            _end(one)


def _end(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""
