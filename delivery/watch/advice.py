"""What to change, concluded from what was observed.

What it is: `advise`, pure conclusions from a history, distances and the lag, and `Advice`.
What it must not know: catalogs, Kafka, how it is shown.

Invariants:
    Each piece of advice says what was seen, in figures, before it says what to do.
    Where too little was seen to conclude anything, nothing is said but that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np

from delivery.watch.distances import Distances
from delivery.watch.filters import Health
from delivery.watch.history import History, StageHistory
from delivery.watch.lag import Lag

__all__ = ["WINDOWS", "Advice", "Topic", "advise", "window_for"]

_HOUR_MS = 3_600_000
#: Windows that are suggested, as `d.stage(window=...)` takes them; the default is "24h".
WINDOWS = (("1h", 1), ("6h", 6), ("12h", 12), ("24h", 24), ("2d", 48), ("7d", 168), ("14d", 336))
WINDOW_LONGEST = "30d"
#: A window holds so many times the longest distance that was seen.
WINDOW_MARGIN = 2
#: Fewer records tell nothing about bundles and lanes.
RECORDS_MIN = 1_000
#: A bundle is small below so many records, if there are this many seals a second and lane of them.
BUNDLE_SMALL = 10
SEALS_MANY = 5.0
#: Half of all bundles: what the typical one is.
HALF = 0.5
#: A bundle is full at this many records; it ends at 20,000 or at 4 MiB.
BUNDLE_FULL = 10_000
#: A lane is crowded if it reads so many times what the average lane reads.
SKEW = 3.0
#: A publisher that repeats more than this share has a fault, or is a replay.
REPEATS_MANY = 0.5
#: More losing attempts than this share of seals are more than a restart now and then.
LOSERS_MANY = 0.01


class Topic(StrEnum):
    """What advice is about."""

    WINDOW = "window"
    BUNDLES = "bundles"
    LANES = "lanes"
    REPEATS = "repeats"
    LOSERS = "losers"
    FILTERS = "filters"
    LETTERS = "dead-letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One piece of advice.

    Attributes:
        stage: "pipeline/stage".
        topic: what it is about.
        seen: what was observed.
        change: what to do; empty: nothing, it is as it should be.
    """

    stage: str
    topic: Topic
    seen: str
    change: str

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def window_for(longest_ms: int) -> str:
    """Return the shortest window that holds `WINDOW_MARGIN` times a distance."""
    wanted = WINDOW_MARGIN * longest_ms
    return next((said for said, hours in WINDOWS if hours * _HOUR_MS >= wanted), WINDOW_LONGEST)


def advise(
    history: History,
    found: Mapping[str, Distances],
    lag: Lag,
    filters: Iterable[Health] = (),
    letters: Mapping[str, str] | None = None,
) -> list[Advice]:
    """Conclude what to change.

    Args:
        history: of all stages.
        found: distances of repeats, by "pipeline/stage"; empty: Kafka was not asked.
        lag: how far behind they are now.
        filters: of this host.
        letters: by "pipeline/stage", the place of a dead letter; None: Kafka was not asked.
    """
    seconds = max(1.0, (history.until_ms - history.since_ms) / 1000)
    behind = {one.name: (one.late_ms or 0) > 0 for one in lag.stages}
    advice: list[Advice] = []
    for stage in history.stages:
        advice += _letters(history, stage, (letters or {}).get(stage.name))
        advice += _window(stage, found.get(stage.name), seconds)
        if stage.total("read") >= RECORDS_MIN:
            advice += _bundles(stage, seconds, late=behind.get(stage.name, False))
            advice += _lanes(stage)
            advice += _repeats(stage)
        advice += _losers(stage)
    full = [one for one in filters if one.saturated]
    for lane in dict.fromkeys(one.lane for one in full):
        stage_name = "/".join(lane.split("/")[:2])
        mine = [one for one in full if one.lane == lane]
        advice.append(
            Advice(
                stage=stage_name,
                topic=Topic.FILTERS,
                seen=f"{len(mine)} filters of {lane} are saturated: up to {max(one.rate for one in mine):.1%} "
                "of strangers cost a look-up",
                change="delete the lane's directory in the home while nothing runs: it is made anew, "
                "large enough; if names come from strangers, give filters a key: "
                "Delivery(filters=Filters(key=...))",
            )
        )
    return advice


def _letters(history: History, stage: StageHistory, place: str | None) -> Iterator[Advice]:
    count = stage.total("dead_letter")
    if not count:
        return
    first = int(np.flatnonzero(stage.sums["dead_letter"])[0])
    since_ms = history.since_ms + first * history.slice_seconds * 1000
    since = datetime.fromtimestamp(since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    asked = (
        f"--offset {place}" if place else "--offset TOPIC/PARTITION/OFFSET of one, with --kafka,"
    )
    yield Advice(
        stage=stage.name,
        topic=Topic.LETTERS,
        seen=f"{count:,} of {stage.total('read'):,} records went to dead letters since {since}",
        change=f"`delivery explain` {asked} says why; mend that for the records that come, and let a "
        "stage of its own read the topic of dead letters if they are to take effect after all",
    )


def _window(stage: StageHistory, found: Distances | None, seconds: float) -> Iterator[Advice]:
    repeats = stage.total("duplicate")
    if found is None or not repeats or (found.found_ms and not found.named_ms):
        return  # what stages made needs no window
    longest, watched_ms = found.longest_ms, round(seconds * 1000)
    if longest is None:
        seen = f"of {found.sampled:,} repeats that were looked up, no original could be found"
        change = "give the input topic a longer retention to learn how late repeats come"
    else:
        window = window_for(longest)
        seen = (
            f"{repeats:,} repeats in {_words(watched_ms)}; of {len(found.named_ms):,} that "
            f"were looked up the latest came {_words(longest)} after its original"
        )
        change = f'window="{window}" holds at least {WINDOW_MARGIN} times that'
        wanted_ms = dict(WINDOWS).get(window, 0) * _HOUR_MS
        if wanted_ms and wanted_ms == found.window_ms:
            change = ""
        elif 0 < wanted_ms < found.window_ms and watched_ms < found.window_ms:
            # Nobody can have seen one that comes later than this.
            seen += f"; its window is {_words(found.window_ms)}, and that long was not looked at"
            change = ""
        elif window == WINDOW_LONGEST:
            change += "; there is no longer one, and a repeat that comes later counts again"
    yield Advice(stage=stage.name, topic=Topic.WINDOW, seen=seen, change=change)


def _bundles(stage: StageHistory, seconds: float, *, late: bool) -> Iterator[Advice]:
    counts, bounds = stage.bundles.counts, stage.bundles.bounds
    total = sum(counts)
    if not total:
        return
    small = sum(
        count for count, bound in zip(counts, bounds, strict=False) if bound <= BUNDLE_SMALL
    )
    full = total - sum(
        count for count, bound in zip(counts, bounds, strict=False) if bound <= BUNDLE_FULL
    )
    per_lane = total / seconds / max(1, len(stage.lanes))
    mean = stage.bundles.sum / total
    if full > HALF * total and late:
        yield Advice(
            stage=stage.name,
            topic=Topic.BUNDLES,
            seen=f"{full:,} of {total:,} bundles are full, and records wait",
            change="it works as fast as it can: raise tasks=... up to the number of its lanes "
            f"({len(stage.lanes)}); if each lane has a task already, see where user code spends its "
            "time (threads=... for code that waits, batch=True for code that computes)",
        )
    elif small > HALF * total and per_lane > SEALS_MANY:
        yield Advice(
            stage=stage.name,
            topic=Topic.BUNDLES,
            seen=f"{small:,} of {total:,} bundles have {BUNDLE_SMALL} records or fewer, at "
            f"{per_lane:.1f} seals a second in each lane",
            change="it is as quick as it can be and commits often for it; if seconds do not matter, "
            'engine="micro-batch" with trigger={"processingTime": "1 second"} makes fewer seals',
        )
    else:
        yield Advice(
            stage=stage.name,
            topic=Topic.BUNDLES,
            seen=f"{total:,} bundles of {mean:,.0f} records on average",
            change="",
        )


def _lanes(stage: StageHistory) -> Iterator[Advice]:
    if len(stage.lanes) < 2:  # noqa: PLR2004  one lane has nothing to be compared with
        return
    total = sum(stage.lanes.values())
    mean = total / len(stage.lanes)
    lane, most = max(stage.lanes.items(), key=lambda one: one[1])
    idle = sum(1 for count in stage.lanes.values() if not count)
    if most > SKEW * mean:
        yield Advice(
            stage=stage.name,
            topic=Topic.LANES,
            seen=f"{lane} read {most / total:.0%} of all records of {len(stage.lanes)} lanes, "
            f"{idle} of which read none",
            change="a lane is one partition, and more partitions do not split a key: let the "
            "publisher choose a key with more values, or none",
        )
    else:
        yield Advice(
            stage=stage.name,
            topic=Topic.LANES,
            seen=f"the busiest of {len(stage.lanes)} lanes read {most / total:.0%} of all records",
            change="",
        )


def _repeats(stage: StageHistory) -> Iterator[Advice]:
    share = stage.total("duplicate") / stage.total("read")
    if share > REPEATS_MANY:
        yield Advice(
            stage=stage.name,
            topic=Topic.REPEATS,
            seen=f"{share:.0%} of what it read were repeats",
            change="all were dropped; see whether a publisher sends everything twice, or whether "
            "id_from names something that is not unique",
        )


def _losers(stage: StageHistory) -> Iterator[Advice]:
    count, seals = sum(stage.losers.values()), stage.total("seals")
    if seals and count > LOSERS_MANY * seals:
        yield Advice(
            stage=stage.name,
            topic=Topic.LOSERS,
            seen=f"{count:,} attempts lost a race, beside {seals:,} seals",
            change="nothing of theirs counts, but their work is lost: see whether two drivers run the "
            "stage, or speculation is on",
        )


def _words(milliseconds: int) -> str:
    for name, length in (("d", 24 * _HOUR_MS), ("h", _HOUR_MS), ("min", 60_000)):
        if milliseconds >= length:
            return f"{milliseconds / length:.1f} {name}"
    return f"{milliseconds / 1000:.1f} s"
