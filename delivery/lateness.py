"""Records that come too late to tell whether they are repeats: known by a time that a stage trusts.

What it is: `Trust`, which a stage has that names a time field, and its one rule.
What it must not know: headers, indexes, how what is put aside is stored.

Invariants:
    What is asked here would be fresh: whatever is still known to be a repeat was told before.
    A record is put aside where the bucket of its time is outlived, by the one rule by which ids go.
    A time that is accepted is covered by the bucket of its id: `Verdicts.named_ms` sees to it.

SUBTLE: no clock decides about safety here either. The clock sets aside what is more than a window
ahead of it, so that one absurd time does not hold ids for ever; that is sealed like every dead
letter. Whatever is accepted, by a clock right or wrong, has its id in the bucket of its own time or
a later one, and a repeat of it is known or put aside for as long as that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dedup.arrays import Places
from dedup.errors import InvalidUsage
from dedup.expiry import outlived
from dedup.formats.segment import BUCKET_MS, Bucket, Origin
from dedup.model import Head
from delivery.batch import Batch
from delivery.records import Record
from delivery.timing import NO_TIME, times_of
from delivery.verdicts import EXTERNAL, Verdicts

#: What could not be done for a record that is put aside, as its error says.
JUDGING = "take a record for fresh"


class Judged(Protocol):
    """The records of one batch, as far as they are judged."""

    batch: Batch
    #: Those that would be fresh, and of every record the bucket of its id.
    rows: Places
    buckets: npt.NDArray[np.int64]
    #: By row, why it is a dead letter; what is put aside is added.
    letters: dict[int, InvalidUsage]


@dataclass(frozen=True, slots=True)
class Trust:
    """The time field of a stage's records, and for how long the stage knows their ids.

    Attributes:
        way: see `delivery.timing.time_from`.
        window_ms: how long external ids are held, along lane time.
    """

    way: Callable[[Record], Any]
    window_ms: int

    def put_aside(
        self,
        sheets: Iterable[Judged],
        head: Head,
        pending: Iterable[Verdicts],
        now_ms: int,
        verdicts: Verdicts,
    ) -> None:
        """Make dead letters of what may be a repeat, and note how far in time the others are.

        SUBTLE: the head's lane time is not enough. This bundle counts only on top of the pending
        ones, and when the last of those is sealed, before that is known here, a collector may drop
        ids by it, or another process of this host move the index that they share. Beyond them
        nobody gets without this bundle being lost. What they say is never ahead of their clock, nor
        is the lane time that they are sealed with.

        Args:
            sheets: the records, and which of them would be fresh.
            head: the sealed head they were judged against.
            pending: this process's own bundles before them that are not sealed yet.
            now_ms: the clock.
            verdicts: is told the largest time.
        """
        lane_time_ms = max([head.lane_time_ms, *(held.time_ms for held in pending)])
        for sheet in sheets:
            rows = sheet.rows[sheet.buckets[sheet.rows] == EXTERNAL]
            if sheet.letters:
                rows = rows[~np.isin(rows, list(sheet.letters))]
            newest_ms = self._newest_ms(
                sheet.batch, rows, sheet.letters, lane_time_ms=lane_time_ms, now_ms=now_ms
            )
            verdicts.named_ms = max(verdicts.named_ms, newest_ms)
            verdicts.time_ms = max(verdicts.time_ms, min(newest_ms, now_ms))

    def _newest_ms(
        self,
        batch: Batch,
        rows: Places,
        letters: dict[int, InvalidUsage],
        *,
        lane_time_ms: int,
        now_ms: int,
    ) -> int:
        """Return the largest time of these rows, but for those put aside; 0 if none is left."""
        times = times_of(self.way, batch, rows, letters)
        numbers = times // BUCKET_MS
        ahead = times > now_ms + self.window_ms
        late = np.zeros(len(rows), dtype=np.bool_)
        for number in np.unique(numbers[times != NO_TIME]).tolist():
            if not outlived(Bucket(Origin.EXTERNAL, number), lane_time_ms, self.window_ms):
                break  # nor is any later one
            late |= numbers == number
        for at in np.flatnonzero(ahead | late).tolist():
            what = f"offset {batch.offsets[rows[at]]} of partition {batch.source.partition}"
            why = self._ahead(now_ms) if ahead[at] else self._late(lane_time_ms)
            letters[int(rows[at])] = InvalidUsage(
                JUDGING, f"{what}, of {_said(int(times[at]))}", why
            )
        left = times[~(ahead | late)]
        return max(int(left.max(initial=NO_TIME)), 0)

    def _late(self, lane_time_ms: int) -> str:
        return (
            f"its lane has come to {_said(lane_time_ms)} and its window is {self.window_ms} ms: it is "
            "older than what this lane still remembers, and nobody can tell whether it is a repeat; "
            "user code never saw it: look for its id in the outputs, and send it again with another "
            "id and time if it is not there"
        )

    def _ahead(self, now_ms: int) -> str:
        return (
            f"it is {_said(now_ms)} and its window is {self.window_ms} ms: an id of a time so far ahead "
            "would have to be remembered until then; user code never saw it: mend its publisher's "
            "clock, and send it again with its real time"
        )


def _said(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
