"""What may be the matter with a stage, and what its seals alone say of that.

What it is: `State`, `Kind` and `Reason`, the words of `guarantee`; `by_seals`, the reasons that seals
give: conflicts, records without a name, records that are named otherwise.
What it must not know: Kafka, the clock, how it is shown.

Invariants:
    Whatever is said has happened.
    Time is lane time: a stage that stands still forgets nothing, and is not past its window either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from delivery.operate.opening import inputs_of
from delivery.watch.rows import Rows, StageRows
from delivery.watch.tally import Tallies

__all__ = ["UNKNOWN", "Kind", "Reason", "State", "by_seals"]


class State(StrEnum):
    """What can be said of a stage."""

    EXACT = "exact"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """What is the matter."""

    #: Records were deleted from the input before a seal covered them.
    UNREAD_DELETED = "unread-deleted"
    #: A log ends below what was sealed or delivered: it has lost records.
    LOG_CUT = "log-cut"
    #: A topic is another one than the one that was read or written.
    TOPIC_REPLACED = "topic-replaced"
    TOPIC_GONE = "topic-gone"
    #: A publisher used one id for two payloads: the second took no effect.
    CONFLICT = "conflict"
    #: Records lack the name that the stage was told of: no repeat of theirs is told.
    UNNAMED = "unnamed"
    #: Records are named otherwise than before: repeats of those before are not told.
    NAMED_OTHERWISE = "named-otherwise"
    #: The input has got more partitions: repeats of a publisher may lie in another one.
    PARTITIONS_GREW = "partitions-grew"
    #: A setting lets Kafka lose what it has acknowledged, or take records before they are read.
    SETTING = "setting"
    #: It was not looked at.
    NOT_ASKED = "not-asked"
    ELSEWHERE = "elsewhere"


#: Kinds that say only that nobody looked.
UNKNOWN = (Kind.NOT_ASKED, Kind.ELSEWHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that is the matter.

    Attributes:
        kind: what.
        subject: the lane or topic that it is the matter with.
        since_ms: the earliest moment at which it may have begun; None: unknown.
        text: what happened and what it means for the data.
        advice: what to do.
        until_ms: the lane time at which it is over by itself; None: it is not.
    """

    kind: Kind
    subject: str
    since_ms: int | None
    text: str
    advice: str
    until_ms: int | None = None


def by_seals(rows: Rows, stage: StageRows, tallies: Tallies, window_ms: int) -> Iterator[Reason]:
    """Yield what the seals of a stage say that is the matter with it."""
    yield from _conflicts(stage, tallies)
    yield from _unnamed(stage, tallies, window_ms)
    yield from _named_otherwise(rows, stage, tallies, window_ms)


def _conflicts(stage: StageRows, tallies: Tallies) -> Iterator[Reason]:
    for lane in stage.lanes:
        tally = tallies.lanes.get(lane)
        if tally is not None and tally.conflict_ms is not None:
            count = tally.before["conflict"] + tally.counts["conflict"]
            yield Reason(
                kind=Kind.CONFLICT,
                subject=lane,
                since_ms=tally.conflict_ms,
                text=f"{count:,} repeats had another payload than the record they repeat: what came "
                "second took no effect",
                advice="let the publisher give every record an id of its own, or say "
                'conflicts="ignore" if that is meant',
            )


def _unnamed(stage: StageRows, tallies: Tallies, window_ms: int) -> Iterator[Reason]:
    for lane, row in stage.lanes.items():
        tally = tallies.lanes.get(lane)
        if tally is None or tally.unnamed_time_ms is None:
            continue
        until_ms = tally.unnamed_time_ms + window_ms
        if row.head.lane_time_ms < until_ms:
            count = tally.before["unnamed"] + tally.counts["unnamed"]
            yield Reason(
                kind=Kind.UNNAMED,
                subject=lane,
                since_ms=tally.unnamed_ms,
                until_ms=until_ms,
                text=f"{count:,} records do not have the name that id_from= says, and were named by "
                "their place: one that its publisher sends twice takes effect twice",
                advice="look whether id_from= is spelt as the publisher does; where some records "
                "have no name and that is meant, give a function that returns None for them",
            )


def _named_otherwise(
    rows: Rows, stage: StageRows, tallies: Tallies, window_ms: int
) -> Iterator[Reason]:
    made = {topic for one in rows.stages for topic in one.writes}
    for lane, row in stage.lanes.items():
        change = tallies.lanes[lane].change if lane in tallies.lanes else None
        if change is None or made.issuperset(source.topic for source, _ in inputs_of(row.head)):
            continue
        until_ms = change.time_ms + window_ms
        if row.head.lane_time_ms < until_ms:
            yield Reason(
                kind=Kind.NAMED_OTHERWISE,
                subject=lane,
                since_ms=change.since_ms,
                until_ms=until_ms,
                text=f"records are named by {change.after} since seal {change.seq}, and were by "
                f"{change.before}: what was sealed before, and its publisher repeats now, takes "
                "effect again",
                advice="it is over once the lane has read on for a window; where it was not meant, "
                "put id_from= back. What was sealed in between may take effect again after that",
            )
