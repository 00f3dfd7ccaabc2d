"""A process dies where a test says: at a named point, once, as `kill -9` ends it.

What it is: `killer`, which reads `DELIVERY_KILL_AT` and gives the callable that hosts hand to their
runners. Tests of crashes set the variable; no host imports this module unless it is set.
What it must not know: what happens at any point, which host it is in.

Invariants:
    The variable holds `POINT:MARKER` once or more, separated by commas. At POINT the process
    creates the file MARKER and dies; where MARKER exists nothing happens. So each kill happens
    once, whatever starts again, and a test that creates the markers beforehand and deletes one of
    them while the pipeline runs says when.
    A file `MARKER.victim` may hold `executor` (the JVM that this process works for) or the ids of
    processes: they die first, then this one. Where `paused` stands before that, or alone, nobody
    dies: they stand still with everything below them, then this process, until somebody lets them
    go on. The points that this process passes afterwards are written to `MARKER.woken`.
    Death is SIGKILL and standing still is SIGSTOP: nothing is flushed, closed or told.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from dedup.errors import InvalidUsage
from delivery.points import PLACES, At

#: The variable.
VARIABLE = "DELIVERY_KILL_AT"
#: Beside a marker: who dies.
VICTIM_SUFFIX = ".victim"
#: Beside a marker: what a process passed after it had stood still.
WOKEN_SUFFIX = ".woken"
EXECUTOR = "executor"
PAUSED = "paused"


def killer(environment: Mapping[str, str] = os.environ) -> At:
    """Return what dies at the points that the environment names.

    Raises:
        InvalidUsage: it names no point, or no marker.
    """
    markers = dict(_entry(text) for text in environment.get(VARIABLE, "").split(",") if text)
    woken: list[Path] = []

    def at(point: str) -> None:
        for file in woken:
            with file.open("a") as passed:
                passed.write(f"{point}\n")
        marker = markers.get(point)
        if marker is not None and not marker.exists() and _die(point, marker):
            woken.append(marker.with_name(marker.name + WOKEN_SUFFIX))

    return at


def _entry(text: str) -> tuple[str, Path]:
    point, _, marker = text.partition(":")
    if point not in PLACES or not marker:
        raise InvalidUsage(
            "die at a point",
            f"{VARIABLE}={text}",
            f"nothing was started: say POINT:MARKER, a point of {', '.join(PLACES)} and a file",
        )
    return point, Path(marker)


def _die(point: str, marker: Path) -> bool:
    """Die, or stand still; True if somebody let this process go on, False if another was quicker."""
    try:
        file = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(file, f"{point} {os.getpid()}".encode())
    os.close(file)
    words = _words(marker.with_name(marker.name + VICTIM_SUFFIX))
    paused = PAUSED in words
    victims = _victims([word for word in words if word != PAUSED])
    for victim in _with_all_below(victims) if paused else victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGSTOP if paused else signal.SIGKILL)
    # SUBTLE: to this thread. Another one that were told to stand still would have to run first, and
    # this one could go on meanwhile, into the next commit.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if paused else signal.SIGKILL)
    return True


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []


def _victims(words: list[str]) -> list[int]:
    """Return who else dies; whoever is gone already is left out."""
    if words == [EXECUTOR]:
        above = psutil.Process().parents()
        return [process.pid for process in above if process.name() == "java"][:1]
    return [int(word) for word in words]


def _with_all_below(pids: list[int]) -> list[int]:
    """Return processes and all below them, this one left out: it is the last to stand still."""
    found = set(pids)
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found |= {one.pid for one in psutil.Process(pid).children(recursive=True)}
    return sorted(found - {os.getpid()})
