"""How large processes become, seen from outside.

What it is: `watched`, which looks at the resident memory of processes all the while something happens.
What it must not know: what the processes are.

Invariants:
    A process that has gone counts with what was seen of it; one that is new counts from its start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

#: How often they are looked at.
LOOK_SECONDS = 0.1

Processes = Callable[[], Iterable[psutil.Process]]


@dataclass(slots=True)
class Sizes:
    """The most bytes that each process was seen with, by its id."""

    most: dict[int, int] = field(default_factory=dict)

    @property
    def largest(self) -> int:
        """The most that any of them was seen with."""
        return max(self.most.values())

    def look(self, processes: Processes) -> None:
        """Look at them once."""
        for one in processes():
            with suppress(psutil.NoSuchProcess):
                size = int(one.memory_info().rss)
                self.most[one.pid] = max(size, self.most.get(one.pid, 0))


@contextmanager
def watched(processes: Processes) -> Iterator[Sizes]:
    """Look at processes while the block runs."""
    sizes, over = Sizes(), threading.Event()
    sizes.look(processes)

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            sizes.look(processes)

    looking = threading.Thread(target=look, name="growth")
    looking.start()
    try:
        yield sizes
    finally:
        over.set()
        looking.join()
