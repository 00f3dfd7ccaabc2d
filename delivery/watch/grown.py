"""Topics that got more partitions, and stages that may miss repeats for a window after that.

What it is: `grown`, from the rows of a stage, how its lanes began and where its logs end.
What it must not know: the clock, how it is shown.

Invariants:
    A lane that began with the stage is not taken for a new partition's, however late its first
    record comes.
    Whoever re-keys, reads what is re-keyed, or what stages make, misses nothing; nor does whoever
    names records by their place: keys may move as they like, and every repeat counts anyhow.
    Time is lane time: a stage that stands still forgets nothing, and is not past its window either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dedup.model import LaneRow, Source, TopicId
from delivery.naming import EACH_TOPICS, PLACE
from delivery.operate.opening import database_of, inputs_of
from delivery.watch.rows import Rows, StageRows
from delivery.watch.tally import Tallies
from delivery.watch.waiting import Doors

__all__ = ["Grown", "grown"]

#: Lanes that begin within it of the first one began with it: tasks of one start come one by one.
START_MS = 60_000
#: How stages are called that re-key: their lanes let repeats pass from any partition, and the lanes
#: behind them drop these.
_RE_KEYING = ".by-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """A topic that grew less than a window ago.

    Attributes:
        topic: its identity.
        partitions: those that appeared.
        since_ms: when the first of their lanes began.
        until_ms: the lane time at which the window of the last of them is over.
    """

    topic: TopicId
    partitions: tuple[int, ...]
    since_ms: int
    until_ms: int


def grown(
    rows: Rows, stage: StageRows, doors: Doors | None, tallies: Tallies, window_ms: int
) -> Iterator[Grown]:
    """Yield the topics of publishers that grew under a stage, while its window is not over."""
    if stage.stage.endswith(_RE_KEYING):
        return
    made = {topic for one in rows.stages for topic in one.writes}
    topics: dict[TopicId, dict[Source, str]] = {}
    for lane, row in stage.lanes.items():
        if row.head.named.removeprefix(EACH_TOPICS) == PLACE:
            continue  # a place is in one partition, and no key has anything to do with it
        # A lane over all partitions knows a repeat wherever it lies.
        sources = [source for source, _ in inputs_of(row.head) if source.topic not in made]
        if len(sources) == 1 and database_of(row.head) is None:
            topics.setdefault(sources[0].topic, {})[sources[0]] = lane
    for topic, lanes in topics.items():
        now_ms = _time({source: stage.lanes[lane] for source, lane in lanes.items()}, doors)
        begun = {
            number: begun_ms
            for number, begun_ms in _appeared(stage, lanes, tallies).items()
            if now_ms < begun_ms + window_ms
        }
        if begun:
            yield Grown(
                topic=topic,
                partitions=tuple(sorted(begun)),
                since_ms=min(begun.values()),
                until_ms=max(begun.values()) + window_ms,
            )


def _appeared(stage: StageRows, lanes: Mapping[Source, str], tallies: Tallies) -> dict[int, int]:
    """Return the partitions that were not there when the first records were sealed, and when."""
    found = {
        source.partition: (tallies.lanes[lane], stage.lanes[lane].head.ref.seq)
        for source, lane in lanes.items()
        if lane in tallies.lanes
    }
    # What was collected is older than anything that was not: 0.
    firsts = [tally.first_ms or 0 for tally, seq in found.values() if seq]
    begun = {number: tally.begun_ms or 0 for number, (tally, _) in found.items()}
    if not firsts:
        return {}
    late_ms = max(min(firsts), min(begun.values()) + START_MS)
    late = {number: at for number, at in begun.items() if at > late_ms}
    # Kafka numbers new partitions behind the others: one before them only waited for a task.
    there = max((number for number in begun if number not in late), default=-1)
    return {number: at for number, at in late.items() if number > there}


def _time(lanes: Mapping[Source, LaneRow], doors: Doors | None) -> int:
    """Return the time of the slowest lane; one that has read its log is as far as any.

    A key may have moved between old partitions as well. Without Kafka it is not known which of the
    lanes that sealed nothing has anything to seal.
    """
    times = {source: row.head.lane_time_ms for source, row in lanes.items()}
    behind = [
        time
        for source, time in times.items()
        if (doors is None and time)
        or (
            doors is not None
            and (lanes[source].head.frontier.at(source) or 0) < _end(doors, source)
        )
    ]
    return min(behind, default=max(times.values()))


def _end(doors: Doors, source: Source) -> int:
    return doors.end(source) or 0
