"""Repeats that come later than the window, and take effect again because their id was let go.

What it is: `Again`, which says of two seals whether both may have decided one id that a publisher
gave.
What it must not know: records, who asks.

Invariants:
    A seal is judged by what the one before it left, so lane time before it decides, not its own.
    An id is held until lane time is a window past the bucket that its seal put it into.
    Where no window is said, every later bucket may be beyond it: that is no proof, and is noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dedup.formats.segment import BUCKET_MS
from dedup.model import Head, Seal
from delivery.checker.rows import owner

__all__ = ["Again", "bucket_end_ms"]


def bucket_end_ms(lane_time_ms: int) -> int:
    """Return the end of the bucket that an external id lies in, by the lane time of its seal."""
    return (lane_time_ms // BUCKET_MS + 1) * BUCKET_MS


@dataclass(frozen=True, slots=True)
class Again:
    """The seals of a lane, and the window if it is known.

    Attributes:
        head: of the lane.
        seals: those that can be read.
        window_ms: how long external ids are held; None: nobody said.
    """

    head: Head
    seals: Mapping[int, Seal]
    window_ms: int | None

    def past_ms(self, earlier: int, later: int) -> int:
        """Return how far lane time was past the bucket of one seal when another was judged.

        Where the first seal cannot be read, its bucket was not before the first there is.
        """
        seal = self.seals.get(earlier)
        end_ms = bucket_end_ms(seal.lane_time_ms if seal is not None else 0)
        return self.judged_ms(later) - end_ms

    def may(self, earlier: int, later: int) -> bool:
        """Tell whether what one seal decided may have been let go when another was judged."""
        return self.past_ms(earlier, later) >= (self.window_ms or 0)

    def judged_ms(self, seq: int) -> int:
        """Return lane time as it was when a seal was judged."""
        before, head = self.seals.get(seq - 1), self.head
        # A new incarnation may have raised lane time between the two.
        if before is None or owner(head, seq - 1) != owner(head, seq):
            before = self.seals[seq]
        return before.lane_time_ms
