"""How long an append waits for those of other lanes, to share one wait for the disk with them.

What it is: `Company`, which takes the time of what lanes do before an append, and of commits.
What it must not know: lanes, stores.

Invariants:
    Nobody waits for longer than a commit takes: where the disk is slow lanes share a commit, and
    where it is quick, records do not wait until the user code of all other lanes has run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Company"]

#: What the newest time counts for in how long something takes.
NEWEST_SHARE = 1 / 8


class Company:
    """Whether what is ready goes now.

    Args:
        now: a clock of seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._commit = self._lane = 0.0
        self._ready: float | None = None

    def prepared(self, seconds: float) -> None:
        """Take note of how long a lane's work took."""
        self._lane += (seconds - self._lane) * NEWEST_SHARE

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Time a commit, which takes all that is ready."""
        began, self._ready = self._now(), None
        yield
        self._commit += (self._now() - began - self._commit) * NEWEST_SHARE

    def enough(self) -> bool:
        """Tell whether something that is ready has waited enough, if it is to wait for one more lane."""
        now = self._now()
        if self._ready is None:
            self._ready = now
        return now - self._ready + self._lane >= self._commit
