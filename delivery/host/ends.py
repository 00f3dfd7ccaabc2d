"""How a lane ended in this process, as an error.

What it is: `check`, which raises what stopped a lane, and `ended`, the error that an end is.
What it must not know: who asks.

Invariants:
    An error says what the end means for the data, and what to do.
"""

from __future__ import annotations

from dedup.errors import Corrupt, DeliveryError, Fenced, Indeterminate, InvalidUsage, Unavailable
from delivery.host.lane import LaneTask
from delivery.protocol import messages as m


def check(lane: LaneTask) -> None:
    """Look at a lane that may have stopped: one that is done stays, one that failed is raised.

    Raises:
        Exception: what stopped it, whatever that was.
    """
    stop = lane.stopped
    if stop is None or stop.end is m.End.DONE:
        return
    if isinstance(lane.error, Exception):
        raise lane.error
    raise ended(lane.name, stop)


def ended(lane: str, stop: m.Stop) -> DeliveryError:
    """Return the error that a lane's end is."""
    kind = {
        m.End.FENCED: Fenced,
        m.End.REFUSED: InvalidUsage,
        m.End.INDETERMINATE: Indeterminate,
        m.End.CORRUPT: Corrupt,
    }.get(stop.end, Unavailable)
    hint = {
        m.End.FENCED: "the catalog was restored under it, or its stage was changed; start it again, "
        "and it follows",
        m.End.REFUSED: "nothing was read or skipped",
        m.End.INDETERMINATE: "nothing is lost: it goes on where it stands once the catalog answers",
        m.End.CORRUPT: "stop everything that uses this catalog, keep a copy, and restore a backup",
    }.get(stop.end, "nothing was skipped: run it again")
    return kind("run a lane", lane, f"{stop.why}; {hint}")
