"""Repeats that come later than the window, and take effect again because their id was let go.

What it is: `Again`, which says of two seals whether both may have decided one id that a publisher
gave.
What it must not know: records, who asks.

Invariants:
    A seal is judged by what the one before it left, so lane time before it decides, not its own.
    An id is held until lane time is a window past the bucket that its seal put it into.
    A window is what the seals say: each that it was sealed under may have let ids go for good, so a
    longer one that comes later brings none back. Whoever says another one is believed.
    Where no window is said, every later bucket may be beyond it: that is no proof, and is noted.
"""

from __future__ import annotations

from collections.abc import Mapping

from dedup.formats.segment import BUCKET_MS
from dedup.model import Head, Seal
from delivery.checker.rows import owner

__all__ = ["Again", "bucket_end_ms"]


def bucket_end_ms(lane_time_ms: int) -> int:
    """Return the end of the bucket that an external id lies in, by the lane time of its seal."""
    return (lane_time_ms // BUCKET_MS + 1) * BUCKET_MS


class Again:
    """The seals of a lane, and what they say of windows.

    Args:
        head: of the lane.
        seals: those that can be read.
        window_ms: how long external ids are held; None: as the seals say.
        let_go_ms: buckets that ended by then may have been let go before the first of these seals.
    """

    def __init__(
        self, head: Head, seals: Mapping[int, Seal], window_ms: int | None, let_go_ms: int = 0
    ) -> None:
        self._head, self._seals = head, seals
        said = window_ms
        sure = unsure = let_go_ms if window_ms is None else 0
        #: Of each seal the end of the last bucket that may have been let go when it was judged: by
        #: the windows that are said, and if one that is not was none at all.
        self._sure: dict[int, int] = {}
        self._unsure: dict[int, int] = {}
        for seq in sorted(seals):
            if window_ms is None:
                said = seals[seq].window_ms or said
            at_ms = self.judged_ms(seq)
            self._sure[seq] = sure if said is None else max(sure, at_ms - said)
            self._unsure[seq] = max(unsure, at_ms - (said or 0))
            left_ms = seals[seq].lane_time_ms
            sure = sure if said is None else max(sure, left_ms - said)
            unsure = max(unsure, left_ms - (said or 0))
        #: The same behind the last seal, by windows that are said.
        self.let_go_ms = sure
        self._now = head.window_ms if window_ms is None else window_ms

    def may_by_now(self, seq: int) -> bool:
        """Tell whether what a seal decided may have been let go by now, by windows that are said."""
        now_ms = self._head.lane_time_ms - self._now if self._now else 0
        return max(now_ms, self.let_go_ms) >= self.end_ms(seq)

    def past_ms(self, earlier: int, later: int) -> int:
        """Return how far lane time was past the bucket of one seal when another was judged."""
        return self.judged_ms(later) - self.end_ms(earlier)

    def end_ms(self, seq: int) -> int:
        """Return the end of the bucket that a seal put its ids into.

        Where the seal cannot be read, its bucket was not before the first there is.
        """
        seal = self._seals.get(seq)
        return bucket_end_ms(seal.lane_time_ms if seal is not None else 0)

    def may(self, end_ms: int, later: int) -> bool:
        """Tell whether a bucket of this end may have been let go when a seal was judged."""
        return self._unsure[later] >= end_ms

    def knows(self, end_ms: int, later: int) -> bool:
        """Tell whether it may by windows that are said."""
        return self._sure[later] >= end_ms

    def judged_ms(self, seq: int) -> int:
        """Return lane time as it was when a seal was judged."""
        before, head = self._seals.get(seq - 1), self._head
        # A new incarnation may have raised lane time between the two.
        if before is None or owner(head, seq - 1) != owner(head, seq):
            before = self._seals[seq]
        return before.lane_time_ms
