"""What is said of repeats whose payload is not that of the record they repeat.

What it is: `ConflictLog`, which tells the first of them, or stops the stage if that was asked for.
What it must not know: how they are found.

Invariants:
    All of them are counted in the seal, whatever is logged.
    A publisher that gives every record the same id fills no disk: of a lane a few are logged, and
    then none for a while.
    No payload is logged.
"""

from __future__ import annotations

import logging

from delivery.judge import CONFLICTS_SHOWN
from delivery.verdicts import Verdicts

__all__ = ["ConflictLog"]

LOG = logging.getLogger(__name__)
#: How long nothing more is logged of a lane.
QUIET_MS = 60_000


class ConflictLog:
    """The conflicts of one lane.

    Args:
        lane: its name.
        stops: whether the stage is to stop at the first.
    """

    def __init__(self, lane: str, *, stops: bool) -> None:
        self._lane = lane
        self._stops = stops
        self._told_ms: int | None = None
        #: Those that nobody was told of.
        self._untold = 0

    def tell(self, verdicts: Verdicts, now_ms: int) -> None:
        """Log the conflicts of a bundle, unless others were logged just now.

        Raises:
            InvalidUsage: there is one, and the stage is to stop at it.
        """
        named = verdicts.conflicts[:CONFLICTS_SHOWN]
        if not named:
            return
        if self._stops:
            raise named[0].error(self._lane)
        # A clock that was put back does not keep us quiet.
        if self._told_ms is not None and 0 <= now_ms - self._told_ms < QUIET_MS:
            self._untold += verdicts.conflict
            return
        LOG.warning(
            "%s: %d records repeat an id with another payload, and take no effect as repeats do%s: %s%s; "
            'let the publisher give different records different ids, or say conflicts="error" to stop '
            'at them, conflicts="ignore" not to look',
            self._lane,
            verdicts.conflict,
            f" ({self._untold} before them were not logged)" if self._untold else "",
            ", ".join(
                f"offset {one.offset} of partition {one.source.partition} (id {one.id.hex()})"
                for one in named
            ),
            ", …" if verdicts.conflict > len(named) else "",
        )
        self._untold = 0
        self._told_ms = now_ms
