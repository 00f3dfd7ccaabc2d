"""The real clock: time, fresh identities, and pauses after a lost race.

What it is: the runner's clock port over this machine.
What it must not know: lanes.

Invariants:
    A pause ends at once when the host is told to stop.
    An identity comes from the operating system: no two processes, forks included, ever share one.
"""

from __future__ import annotations

import os
import random
import threading
import time

from dedup.model import IDENTITY_BYTES

#: The first pause after a lost race, and the longest: each further loss doubles it.
BACK_OFF_SECONDS = 0.02
BACK_OFF_SECONDS_MAX = 2.0
_RANDOM = random.SystemRandom()


class SystemClock:
    """This machine's clock.

    Args:
        stop: set when the host is to end; nobody waits any longer then.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    def fresh(self) -> bytes:
        """Return 16 random bytes."""
        return os.urandom(IDENTITY_BYTES)

    def back_off(self, losses: int) -> None:
        """Wait after `losses` lost races in a row, with a spread so that somebody wins."""
        self._stop.wait(pause_seconds(losses))


def pause_seconds(losses: int) -> float:
    """Return how long to wait after `losses` lost races in a row."""
    longest: float = min(BACK_OFF_SECONDS_MAX, BACK_OFF_SECONDS * 2 ** min(losses, 10))
    return longest * _RANDOM.uniform(0.5, 1.0)
