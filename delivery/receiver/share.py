"""Which partitions of a topic a process of a group reads: as the lanes themselves tell.

What it is: names of processes, and `choose`, which says what a process should take over now.
What it must not know: how a lane is taken over, Kafka, catalogs.

Every seal names the process that made it, so the log of a lane says who works on it; nobody keeps
a list of members, and nobody holds a lock. A process takes a lane over by sealing an empty range
in it: the one before loses its next comparison, sees the other's name, and lets go. Whatever is
decided here may be wrong, or decided by two at once: the append fences, and only time is lost.

Invariants:
    A share is a hint. No clock and no list decides about safety.
    A lane that moves, or has nothing to read, is taken only from who has more than a fair share.
"""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

__all__ = ["PATIENCE_SECONDS", "PATIENCE_SECONDS_MAX", "Seen", "choose", "is_gone", "member"]

#: A lane with something to read that stood still for so long is taken over. It grows with the
#: bundles that a process sees take long, and doubles for whoever is taken from.
PATIENCE_SECONDS = 5.0
PATIENCE_SECONDS_MAX = 300.0
#: Start times are compared in whole milliseconds, which is how names carry them.
_MS = 1000
_FIELDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is seen of one partition's lane."""

    partition: int
    #: Who sealed last; None: the lane never was.
    owner: str | None
    #: Whether its owner is known to be dead.
    gone: bool = False
    #: Offsets that no seal covers yet.
    lag: int = 0
    #: How long its head has not moved, as far as was looked.
    still_seconds: float = 0.0


def member() -> str:
    """Return a name for this process that nobody else has or will have."""
    started = int(psutil.Process().create_time() * _MS)
    return f"{socket.gethostname()} {os.getpid()} {started} {os.urandom(4).hex()}"


def is_gone(name: str) -> bool:
    """Tell whether the process of that name is known to be dead; of other hosts nothing is known."""
    fields = name.rsplit(" ", _FIELDS - 1)
    if len(fields) != _FIELDS or fields[0] != socket.gethostname():
        return False
    try:
        return int(psutil.Process(int(fields[1])).create_time() * _MS) != int(fields[2])
    except psutil.NoSuchProcess:
        return True
    except (psutil.AccessDenied, ValueError):
        return False


def choose(
    me: str, lanes: Sequence[Seen], patience: float, dice: random.Random | random.SystemRandom
) -> list[int]:
    """Return the partitions to take over now.

    All that nobody works on, and one of whoever has most, if that is more than a fair share while
    this process has less.
    """
    free = [
        lane.partition
        for lane in lanes
        if lane.owner is None
        or (lane.owner != me and lane.gone)
        or (lane.owner != me and lane.lag > 0 and lane.still_seconds >= patience)
    ]
    if free:
        return free
    owned = Counter(lane.owner for lane in lanes)
    fair = len(lanes) // len({me, *owned})
    richest = max(owned, key=lambda name: (owned[name], name or ""), default=None)
    if owned[me] >= fair or richest is None or owned[richest] <= fair:
        return []
    return [dice.choice([lane.partition for lane in lanes if lane.owner == richest])]
