"""A process that changes a stage and dies on the way, as SIGKILL kills: nothing of it is undone.

What it is: `python life_child.py PATH VERB POINT`.
What it must not know: what is checked afterwards.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from dedup.catalog.open import open_catalog
from delivery.broker import MemoryBroker
from delivery.life.rename import rename
from delivery.life.retire import retire
from delivery.life.undertaking import Hands
from delivery.operate.logs import Cluster
from tests.unit.memory_kafka import MemoryClient


def nothing_is_owed(_names: Sequence[str]) -> NoReturn:
    raise AssertionError("everything was delivered before")


def change(path: str, verb: str, point: str = "") -> None:
    """Do it, and die at a point."""

    def at(here: str) -> None:
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    catalog = open_catalog(f"sqlite:{path}")
    hands = Hands(
        catalog=catalog,
        cluster=Cluster(MemoryClient(MemoryBroker())),
        sink=nothing_is_owed,
        fresh=lambda: os.urandom(16),
        at=at,
    )
    if verb == "rename":
        rename(hands, "price", "cost", perform=True)
    else:
        retire(hands, "price", perform=True)
    catalog.store.close()


if __name__ == "__main__":
    change(*sys.argv[1:])
