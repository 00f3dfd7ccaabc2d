"""The exploration of many worlds at once: a process a core, each world in one of its own.

What it is: `Explorers`, and what one process does: `explored`, of a world, and `found`, of a mutant.
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
from collections.abc import Callable, Iterable
from multiprocessing.pool import AsyncResult
from typing import Generic, Self, TypeVar

from delivery.testing.explore import Report, explore
from delivery.testing.world import LaneWorld
from tests.crash.mutants import MUTANTS
from tests.crash.plans import find
from tests.crash.worlds import WORLDS

_T = TypeVar("_T")

#: Longer than all of them take together; who has died without a word is noticed then.
WAIT_SECONDS_MAX = 7200


def explored(name: str) -> tuple[Report, float]:
    """Explore a world; return what was seen and the seconds it took a core, whoever else has them."""
    began = time.process_time()
    report = explore(LaneWorld.of(WORLDS[name].scenario))
    return report, time.process_time() - began


def found(name: str) -> tuple[str | None, float]:
    """Look for a plan that kills a mutant; return it and the seconds it took a core."""
    began = time.process_time()
    (mutant,) = (one for one in MUTANTS if one.name == name)
    return find(mutant), time.process_time() - began


def largest_first(names: Iterable[str]) -> list[str]:
    """Return worlds in the order in which they are begun: the last to end has not begun last."""
    return sorted(names, key=lambda name: -WORLDS[name].states)


class Explorers(Generic[_T]):
    """Processes that explore, as many at once as there are cores.

    Args:
        explore: what a process does with a name.
        names: in the order in which they are begun.
    """

    def __init__(self, explore: Callable[[str], tuple[_T, float]], names: Iterable[str]) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pool = spawning.Pool(os.cpu_count(), _follow, maxtasksperchild=1)
        self._reports: dict[str, AsyncResult[tuple[_T, float]]] = {
            name: self._pool.apply_async(explore, (name,)) for name in names
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def report(self, name: str) -> tuple[_T, float]:
        """Wait for what one of them saw."""
        return self._reports[name].get(WAIT_SECONDS_MAX)


def _follow() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process was started for a world"

    def follow() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
