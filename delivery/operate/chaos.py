"""A user's own job, killed again and again, and what its catalog and topics show afterwards.

What it is: `Chaos`, which starts a command, kills it or parts of it, starts it again and lets it come
to rest; `told`, which puts what an audit found into lost, doubled and conflicting.
What it must not know: what the job does.

Invariants:
    Only processes that descend from the command are killed; none of them is left behind.
    The seed repeats the choices; what the operating system makes of them is not in it.
    A command that fails without having been killed is an error of its own, not one of the audit.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage, Unavailable
from dedup.model import Frontier, LaneRow, TopicId
from delivery.checker import Finding, Kind
from delivery.host.killing import VARIABLE
from delivery.operate.dying import EXECUTOR, PYTHON_WORKER, Kills, kill_one, tree
from delivery.operate.logs import Cluster
from delivery.operate.opening import database_of
from delivery.points import POINTS

__all__ = ["KINDS", "Chaos", "Rest", "Setting", "told"]

#: How long somebody may take to come past a point.
POINT_SECONDS_MAX = 20.0
#: Somebody to kill may take so long to come back: a job on Spark that starts anew needs twenty seconds.
VICTIM_SECONDS_MAX = 30.0
#: A command that ended asks for another one at once; so often it may fail by itself.
FAILURES_MAX = 3
#: How long a job may take to end when it is asked to.
STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.1
#: What of a job's words stands in an error.
SAID_BYTES = 2000

_POINT, _WORKER, _EXECUTOR, _JOB = "point", "worker", "executor", "job"
#: What may die, in words.
KINDS = {
    _POINT: "at a named point",
    _WORKER: "Spark's Python worker",
    _EXECUTOR: "Spark's executor",
    _JOB: "the job with all below it",
}

_LOST = {
    *(Kind.LOST, Kind.NOT_DECIDED, Kind.NOT_ACCOUNTED, Kind.DROPPED_FRESH, Kind.FRONTIER_GAP),
    *(Kind.OUTPUTS_GONE, Kind.UNFINISHED, Kind.DELIVERED_LOW),
}
_DOUBLED = {Kind.TWO_VERSIONS, Kind.DECIDED_TWICE, Kind.FRONTIER_OVERLAP, Kind.DECIDED_ELSEWHERE}
_CONFLICTING = {Kind.PAYLOAD, Kind.NOT_OF_SEAL, Kind.UNSEALED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a job is treated.

    Attributes:
        command: the job, as a shell would start it.
        kills: how many, spread over `seconds` at random.
        kinds: of `KINDS`; a kind that is not there just now is passed over for another, and waited for
            if there is none.
        points: at which somebody may die.
        seed: of all choices.
        log: where what the job says goes.
    """

    command: Sequence[str]
    kills: int
    seconds: float
    kinds: Sequence[str] = tuple(KINDS)
    points: Sequence[str] = POINTS
    seed: int = 0
    log: Path


class Chaos:
    """One run.

    Args:
        setting: how the job is treated.
        scratch: a directory of this run, for what tells processes where to die.
        report: is told who died.
    """

    def __init__(
        self, setting: Setting, scratch: Path, report: Callable[[str], None] = lambda _: None
    ) -> None:
        self._setting, self._report = setting, report
        self._points = Kills(scratch / "kills")
        self._chance = random.Random(setting.seed)  # noqa: S311 - choices are to be repeated
        self._pause = threading.Event()
        try:
            self._log = setting.log.open("ab")
        except OSError as error:
            raise InvalidUsage(
                "keep what a job says",
                str(setting.log),
                f"{error.strerror or error}; nothing was started: name another file with --log",
            ) from error
        self._was_killed = False
        self._failures = 0
        self._armed: str | None = None
        #: Who died, by kind, when that was seen, and how often the job was started.
        self.died: list[tuple[int, str]] = []
        self.starts = 0
        #: How often nobody of what may die was there.
        self.missed = 0
        self._job = self._start()

    def kill_all(self) -> None:
        """Kill as often as was asked for, starting the job again whenever it is gone.

        Raises:
            Unavailable: the job fails by itself.
        """
        began, setting = time.monotonic(), self._setting
        for number in range(setting.kills):
            moment = (number + self._chance.uniform(0.5, 1.0)) * setting.seconds / setting.kills
            while time.monotonic() < began + moment:
                self._revive()
                self._pause.wait(POLL_SECONDS)
            self._revive()
            name = self._kill_any(list(setting.kinds))
            at = f"{time.monotonic() - began:5.0f} s"
            if name is None:
                self.missed += 1
                self._report(f"{at}  nobody: there was none of what may die")
                continue
            self.died.append((time.time_ns() // 1_000_000, name))
            self._report(f"{at}  {KINDS[name]}")

    def settle(self, rests: Callable[[], bool], seconds_max: float) -> bool:
        """Let the job go on until it rests; tell whether it came to that.

        Raises:
            Unavailable: the job fails by itself.
        """
        deadline = time.monotonic() + seconds_max
        while not rests():
            if time.monotonic() > deadline:
                return False
            self._revive()
            self._pause.wait(POLL_SECONDS)
        return True

    def stop(self) -> None:
        """End the job and all below it. May be called twice."""
        every = tree(self._job.pid) if self._job.poll() is None else []
        if every:
            with suppress(ProcessLookupError):
                self._job.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._job.wait(STOP_SECONDS_MAX)
        self._end(every)
        self._log.close()

    # The job ----------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        self._was_killed = False
        try:
            return subprocess.Popen(
                list(self._setting.command),
                env=dict(os.environ) | {VARIABLE: self._points.kill_at},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise InvalidUsage(
                "start a job",
                " ".join(self._setting.command),
                f"{error}; nothing was killed: mend the command behind `--`",
            ) from error

    def _revive(self) -> None:
        code = self._job.poll()
        if code is None:
            return
        if code and not self._was_killed and not self._has_died():
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                self._log.flush()
                said = self._setting.log.read_bytes()[-SAID_BYTES:].decode(errors="replace")
                raise Unavailable(
                    "kill a job",
                    " ".join(self._setting.command),
                    f"it ends with {code} by itself, {FAILURES_MAX} times; nothing was audited: let it "
                    f"run without chaos first; what it said stands in {self._setting.log}: {said}",
                )
        else:
            self._failures = 0
        self._job = self._start()

    def _has_died(self) -> bool:
        """Tell whether the job died at a point, or something below it did, of which it fails."""
        at_point = self._armed is not None and self._points.happened(self._armed)
        return at_point or self._job.poll() == -signal.SIGKILL

    def _end(self, processes: Sequence[psutil.Process]) -> None:
        for one in processes:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(processes, STOP_SECONDS_MAX)
        self._job.wait()

    # Who dies ---------------------------------------------------------------------------------

    def _kill_any(self, kinds: Sequence[str]) -> str | None:
        """Kill one of these kinds, waiting while none is there: what died is yet to come back."""
        deadline = time.monotonic() + VICTIM_SECONDS_MAX
        while True:
            mixed = self._chance.sample(kinds, len(kinds))
            name = next((kind for kind in mixed if self._ways[kind](self)), None)
            if name is not None or time.monotonic() > deadline:
                return name
            self._revive()
            self._pause.wait(POLL_SECONDS)

    def _kill_at_point(self) -> bool:
        point = self._chance.choice(list(self._setting.points))
        self._points.arm(point)
        self._armed = point
        deadline = time.monotonic() + POINT_SECONDS_MAX
        while not self._points.happened(point):
            if time.monotonic() > deadline:
                self._points.disarm(point)
                return self._points.happened(point)
            self._revive()
            self._pause.wait(POLL_SECONDS)
        self._was_killed = True
        return True

    def _kill_worker(self) -> bool:
        return self._kill_below(PYTHON_WORKER)

    def _kill_executor(self) -> bool:
        return self._kill_below(EXECUTOR)

    def _kill_below(self, what: str) -> bool:
        if not kill_one(self._job.pid, what, self._chance):
            return False
        self._was_killed = True
        return True

    def _kill_job(self) -> bool:
        every = tree(self._job.pid)
        if not every:
            return False
        self._was_killed = True
        self._end(every)
        return True

    _ways: Mapping[str, Callable[[Chaos], bool]] = {
        _POINT: _kill_at_point,
        _WORKER: _kill_worker,
        _EXECUTOR: _kill_executor,
        _JOB: _kill_job,
    }


class Rest:
    """Whether lanes have sealed and delivered what was there when their job was last killed.

    What publishers send meanwhile is not waited for. Lanes that receivers keep in their own
    databases are left out.

    Args:
        catalog: is only read.
        cluster: its topics.
    """

    def __init__(self, catalog: Catalog, cluster: Cluster) -> None:
        self._catalog, self._cluster = catalog, cluster
        #: Where topics ended that no lane writes, when they were first looked at.
        self._due: dict[TopicId, Frontier] = {}
        #: Of lanes that have sealed enough, the seq that is to be delivered.
        self._sealed: dict[str, int] = {}

    def reached(self, lanes: Sequence[str]) -> bool:
        """Tell whether it is so by now; it is asked again and again."""
        rows = {lane: row for lane in lanes if (row := self._catalog.load(lane)) is not None}
        made = {topic for row in rows.values() for topic in row.head.writes}
        every = [self._has_sealed(lane, row, made) for lane, row in rows.items()]
        return all(every) and all(
            rows[lane].ack.seq >= seq for lane, seq in self._sealed.items() if lane in rows
        )

    def _has_sealed(self, lane: str, row: LaneRow, made: set[TopicId]) -> bool:
        if database_of(row.head) is not None:
            return True
        for source, offset in row.head.frontier:
            if (self._end_of(source.topic, made).at(source) or 0) > offset:
                return False
        self._sealed.setdefault(lane, row.head.ref.seq)
        return True

    def _end_of(self, identity: TopicId, made: set[TopicId]) -> Frontier:
        topic = self._cluster.topics().get(identity)
        if topic is None:
            return Frontier.of(())
        if identity in made:
            return self._cluster.bounds(topic).high
        if identity not in self._due:
            self._due[identity] = self._cluster.bounds(topic).high
        return self._due[identity]


def told(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return how many findings say that something was lost, doubled, conflicting, or else."""
    found = Counter(
        next(
            (
                name
                for name, kinds in (
                    ("lost", _LOST),
                    ("doubled", _DOUBLED),
                    ("conflicting", _CONFLICTING),
                )
                if finding.kind in kinds
            ),
            "other",
        )
        for finding in findings
    )
    return {name: found[name] for name in ("lost", "doubled", "conflicting", "other")}
