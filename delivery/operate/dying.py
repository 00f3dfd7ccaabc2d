"""Deaths on purpose: at a named point, or of a process somewhere below another one.

What it is: `Kills`, a kill for each named point when it is asked for; `below` and `kill_one`, which
find the processes of Spark under a driver, and kill one.
What it must not know: what dies for which reason, who starts it again.

Invariants:
    Only processes below the one that is named are ever found.
    A marker that is there prevents a kill, so that nobody dies before it is asked for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from delivery.host.killing import VICTIM_SUFFIX
from delivery.points import POINTS

__all__ = ["EXECUTOR", "PYTHON_WORKER", "Kills", "below", "kill_one", "tree"]

#: What stands in the command lines of Spark's processes. Python workers are forked from one that is
#: started ahead of them, and carry its command line.
PYTHON_WORKER = "pyspark.worker"
EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True)
class Kills:
    """One kill for each of some points, each when it is asked for.

    A marker that is there prevents a kill; taken away, it lets the next process die that comes past.
    """

    directory: Path
    points: Sequence[str] = POINTS

    def __post_init__(self) -> None:
        """Let nobody die yet."""
        self.directory.mkdir()
        for point in self.points:
            self.marker(point).touch()

    def marker(self, point: str) -> Path:
        """Return the file that prevents a point's kill, or says who died."""
        return self.directory / point

    @property
    def kill_at(self) -> str:
        """What processes are told."""
        return ",".join(f"{point}:{self.marker(point)}" for point in self.points)

    def arm(self, point: str, victim: str = "") -> None:
        """Let whoever passes a point die there, and a victim with it."""
        marker = self.marker(point)
        marker.with_name(marker.name + VICTIM_SUFFIX).write_text(victim)
        marker.unlink()

    def disarm(self, point: str) -> None:
        """Let nobody die at a point any more."""
        self.marker(point).touch()

    def happened(self, point: str) -> bool:
        """Tell whether somebody has died at a point since it was armed."""
        marker = self.marker(point)
        return marker.exists() and marker.read_text().startswith(f"{point} ")


def below(pid: int, what: str) -> list[psutil.Process]:
    """Return the processes of a kind under another one; none if there are none just now."""
    with suppress(psutil.NoSuchProcess):
        found = [
            one
            for one in psutil.Process(pid).children(recursive=True)
            if what in " ".join(_command(one))
        ]
        if what == PYTHON_WORKER:
            # What forks them is none of them.
            carriers = {one.pid for one in found}
            found = [one for one in found if _parent(one) in carriers]
        return found
    return []


def kill_one(pid: int, what: str, chance: random.Random) -> bool:
    """Kill a process of a kind under another one; False if there is none just now."""
    found = below(pid, what)
    with suppress(psutil.NoSuchProcess):
        if found:
            chance.choice(found).kill()
            return True
    return False


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all below it."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def _command(process: psutil.Process) -> list[str]:
    try:
        found: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return found


def _parent(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.ppid())
    return 0
