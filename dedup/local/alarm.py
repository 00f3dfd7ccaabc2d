"""Looks at a lane's filters now and then, and says when they have become a burden.

What it is: `Alarm`.
What it must not know: how a filter is made larger, what is asked of it.

Invariants:
    Nothing depends on it: a saturated filter costs look-ups, never a verdict.
    A look reads every bit. It waits until that is little for each id that came since the last one,
    so that it costs a large lane no more than a small one.
    What is said is counted each time, and logged once in a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from dedup.local.group import Group
from dedup.local.stats import Counters, alarm_of

__all__ = ["END_BYTES", "LOOK_BYTES", "QUIET_SECONDS", "Alarm"]

LOG = logging.getLogger(__name__)
#: How long nothing more is logged of a lane.
QUIET_SECONDS = 3600.0
#: Bytes read for each id that came: some nanoseconds of the hundred that an id costs in all.
LOOK_BYTES = 16
#: Filters of so many bytes are read at the end of a process, whatever came: four milliseconds.
END_BYTES = 8 * 1024 * 1024


class Alarm:
    """The alarm of one lane.

    Args:
        lane: its name.
        now: a clock in seconds.
    """

    def __init__(self, lane: str, now: Callable[[], float] = time.monotonic) -> None:
        self._lane = lane
        self._now = now
        #: Ids that came since the last look.
        self.unseen = 0
        self._told: float | None = None

    def look(self, groups: Iterable[Group], counters: Counters, *, spare_bytes: int = 0) -> None:
        """Look at the filters if a look is due.

        Args:
            groups: what they are filters of.
            counters: of the index.
            spare_bytes: what may be read in any case, if anything came at all.
        """
        filters = [group.filter for group in groups if group.filter is not None]
        size = sum(one.filter.nbytes for one in filters)
        if not self.unseen or size > max(LOOK_BYTES * self.unseen, spare_bytes):
            return
        self.unseen = 0
        count = sum(one.saturated for one in filters)
        counters.saturated += count
        if not count:
            return
        now = self._now()
        if self._told is None or now - self._told >= QUIET_SECONDS:
            self._told = now
            LOG.warning("%s: %s", self._lane, alarm_of(count))
