"""Which ids may be forgotten, decided by sequence and by the lane's own progress.

What it is: one pure rule per origin.
What it must not know: the clock. No clock decides about safety.

Invariants:
    An internal part goes only when, for EVERY sender seen in it, everything up to the highest seq
    seen has been read: whatever still arrives of them is a remnant, dropped before the look-up.
    An external part, kept (re-keyed) ids included, goes only when lane time is a window past it.
"""

from __future__ import annotations

from dedup.formats.segment import Bucket, Origin, Part
from dedup.model import Head

#: How long a publisher may repeat itself by default, along the lane's own progress.
WINDOW_MS_DEFAULT = 24 * 60 * 60 * 1000
#: The longest window: ids are kept in memory-mapped filters, and those are sized for it.
WINDOW_MS_MAX = 30 * 24 * 60 * 60 * 1000


def outlived(bucket: Bucket, lane_time_ms: int, window_ms: int) -> bool:
    """Tell whether lane time is a window past an external bucket.

    It is asked of buckets with ids, and of the one that a trusted time falls into: ids lie in a
    bucket of their time or a later one, so what it does not hold of may not have been forgotten.
    """
    return lane_time_ms >= bucket.end_ms + window_ms


def forgettable(part: Part, head: Head, window_ms: int) -> bool:
    """Tell whether no record that may still arrive can need this part."""
    if part.bucket.origin is Origin.EXTERNAL:
        return outlived(part.bucket, head.lane_time_ms, window_ms)
    read = {known.key: known.seq for known in head.read_seqs}
    return all(read.get(seen.key, -1) >= seen.seq for seen in part.seen)
