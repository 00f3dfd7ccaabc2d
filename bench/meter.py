"""What a turn used: CPU seconds, resident memory, bytes given to the disk.

What it is: `Meter`, a context manager over one turn, and `Usage`, what it found.
What it must not know: what is run.

Invariants:
    CPU and bytes are those of this process, of its children (dead ones included, once they were
    waited for) and of the servers named. Memory is that of this process and its live children.
    A child that appears and ends between two looks counts in CPU, not in memory.
    Looking for children takes milliseconds of CPU; it happens outside of what is counted, but for
    once in `CHILDREN_SECONDS`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import psutil

#: How often memory is looked at, and how often new children are looked for.
SAMPLE_SECONDS = 0.02
CHILDREN_SECONDS = 1.0

MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one turn used."""

    cpu_seconds: float
    memory_mb: float
    growth_mb: float
    written_mb: float


class Meter:
    """Measures what happens inside its `with` block; `usage` is there after it."""

    usage: Usage

    def __init__(self, servers: tuple[int, ...] = ()) -> None:
        self._own = [psutil.Process()]
        self._servers = [psutil.Process(pid) for pid in servers]
        self._children: list[psutil.Process] = []
        self._looked = 0.0
        self._first = self._peak = 0
        self._written = self._seconds = 0.0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._look_for_children()
        self._first = self._peak = self._resident()
        self._written = self._total(_written)
        self._seconds = self._total(_seconds)
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        own = _total(self._own, _seconds)
        self._ended.set()
        self._sampler.join()
        self._look_for_children()
        others = _total([*self._children, *self._servers], _seconds)
        self._peak = max(self._peak, self._resident())
        self.usage = Usage(
            cpu_seconds=own + others - self._seconds,
            memory_mb=self._peak / MB,
            growth_mb=(self._peak - self._first) / MB,
            written_mb=(self._total(_written) - self._written) / MB,
        )

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            if time.monotonic() - self._looked > CHILDREN_SECONDS:
                self._look_for_children()
            self._peak = max(self._peak, self._resident())

    def _look_for_children(self) -> None:
        self._children = self._own[0].children(recursive=True)
        self._looked = time.monotonic()

    def _resident(self) -> int:
        return int(_total([*self._own, *self._children], lambda one: one.memory_info().rss))

    def _total(self, figure: Callable[[psutil.Process], float]) -> float:
        return _total([*self._children, *self._servers, *self._own], figure)


def _total(processes: Sequence[psutil.Process], figure: Callable[[psutil.Process], float]) -> float:
    """Add up a figure; who has ended meanwhile counts through who waited for it."""
    total = 0.0
    for process in processes:
        try:
            total += figure(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def _seconds(process: psutil.Process) -> float:
    """Return CPU seconds, with those of children that were waited for."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _written(process: psutil.Process) -> float:
    """Return bytes given to the disk; 0 where the system does not tell."""
    counters = getattr(process, "io_counters", None)
    return float(counters().write_bytes) if counters is not None else 0.0
