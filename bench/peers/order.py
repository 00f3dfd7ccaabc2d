"""What the driver of a peer is told, and the user code it runs.

What it is: `Order`, `nonce`, and the two words a driver and the benchmark exchange.
What it must not know: any peer; this library: a peer's environment has only the peer.

Invariants:
    `nonce` is the function that ours runs as well, so that contestants differ in everything but the
    user's code.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from bench.user_code import nonce

__all__ = ["ID", "TASKS", "Order", "nonce", "told", "work"]

#: Tasks at once, as there are cores.
TASKS = 2
#: The header with a record's id.
ID = "id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a driver is told.

    Attributes:
        way: "dedup" if repeats are to be dropped, else "plain".
        kafka: where.
        source, target: topics.
        catalog: nothing; ours have one.
        scratch: a directory of this turn.
        commit_ms: how often to commit, in milliseconds.
    """

    way: str
    kafka: str
    source: str
    target: str
    catalog: str
    scratch: str
    commit_ms: str

    @property
    def dedup(self) -> bool:
        """Whether repeats are to be dropped."""
        return self.way == "dedup"


def told() -> Order:
    """Return what the benchmark wants."""
    return Order(**json.loads(sys.argv[1]))


def work() -> None:
    """Say that the job is under way, and wait until nobody wants it any more."""
    print("started", flush=True)
    sys.stdin.read()
