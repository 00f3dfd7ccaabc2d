"""The exploration of many worlds at once: a process a core, each world in one of its own.

What it is: `Explorers`, which begins with the largest worlds, and `explored`, which one process does.
What it must not know: what is asserted of a report.

Invariants:
    A process explores one world and ends, and its memory with it. It also ends with whoever started
    it, however that ends.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections.abc import Iterable
from multiprocessing.pool import AsyncResult
from typing import Self

from delivery.testing.explore import Report, explore
from delivery.testing.world import LaneWorld
from tests.crash.worlds import WORLDS

#: Longer than all of them take together; who has died without a word is noticed then.
WAIT_SECONDS_MAX = 3600


def explored(name: str) -> tuple[Report, float]:
    """Explore a world; return what was seen and the seconds it took a core, whoever else has them."""
    began = time.process_time()
    report = explore(LaneWorld.of(WORLDS[name].scenario))
    return report, time.process_time() - began


class Explorers:
    """Processes that explore worlds, as many at once as there are cores."""

    def __init__(self, names: Iterable[str]) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pool = spawning.Pool(os.cpu_count(), _follow, maxtasksperchild=1)
        self._reports: dict[str, AsyncResult[tuple[Report, float]]] = {}
        # The largest first: the last one to end should not have begun last.
        for name in sorted(names, key=lambda name: -WORLDS[name].states):
            self._reports[name] = self._pool.apply_async(explored, (name,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def report(self, name: str) -> tuple[Report, float]:
        """Wait for a world."""
        return self._reports[name].get(WAIT_SECONDS_MAX)


def _follow() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process was started for a world"

    def follow() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
