"""How far behind every stage is, lane by lane, and which stage holds the pipeline up.

What it is: `lag`, and the values it returns.
What it must not know: the clock, how it is shown.

Invariants:
    The catalog is only read: one row a lane, and one entry of each lane that owes an emission.
    What is unknown is None, never 0.
    Of a lane in a user's database the catalog knows no more than when it last collected: how far
    that lane is now is unknown.
    A record waits at one door at a time, so the stage with the oldest is the one that holds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.model import LaneRow, Source
from delivery.operate.opening import database_of, inputs_of
from delivery.watch.rows import Rows, StageRows
from delivery.watch.waiting import Doors, delivered_to, guessed_ms

__all__ = ["LATE_MS", "Holdup", "Lag", "LaneLag", "StageLag", "lag"]

#: What is younger holds nobody up: a batch of Spark's takes a second, a rebalance some more.
LATE_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLag:
    """One lane.

    Attributes:
        lane: its name.
        behind: records, by offsets, that no seal covers; None: unknown.
        waiting_ms: age of the oldest of them; 0: there are none; None: unknown.
        pending: seals that are not acknowledged.
        pending_ms: age of the oldest of them; 0: there are none; None: unknown.
        oldest_ms: when the oldest thing that waits was made; None: nothing does, or unknown.
        sealed_ms: when its last seal was minted; None: nothing was ever sealed.
    """

    lane: str
    behind: int | None
    waiting_ms: int | None
    pending: int
    pending_ms: int | None
    oldest_ms: int | None
    sealed_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLag:
    """One stage: its lanes added up, and the oldest of what waits in any.

    Attributes:
        pipeline, stage: its names.
        behind: records that no seal covers, those of partitions without a lane included.
        waiting_ms, pending, pending_ms, oldest_ms, sealed_ms: as of a lane.
        unclaimed: partitions of its topics that no lane reads yet; None: unknown.
        late_ms: the larger of both ages; None: unknown, unless one is known to be late.
        lanes: the lanes.
    """

    pipeline: str
    stage: str
    behind: int | None
    waiting_ms: int | None
    pending: int
    pending_ms: int | None
    oldest_ms: int | None
    sealed_ms: int | None
    unclaimed: int | None
    late_ms: int | None
    lanes: tuple[LaneLag, ...]

    @property
    def name(self) -> str:
        """The words by which messages name it."""
        return f"{self.pipeline}/{self.stage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdup:
    """The stage that holds the pipeline up, and what of it."""

    pipeline: str
    stage: str
    late_ms: int
    why: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """All stages in the order in which records flow, and what holds them up, if anything does."""

    stages: tuple[StageLag, ...]
    holdup: Holdup | None

    def only(self, stage: str) -> Lag:
        """Return what concerns one stage, "stage" or "pipeline/stage"; what holds all up stays."""
        return replace(
            self, stages=tuple(one for one in self.stages if stage in (one.stage, one.name))
        )

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def lag(
    catalog: Catalog, rows: Rows, doors: Doors | None, now_ms: int, *, late_ms: int = LATE_MS
) -> Lag:
    """Say how far behind every stage is.

    Args:
        catalog: what is asked for entries.
        rows: of the lanes, read before the doors.
        doors: Kafka; None: what lanes of the catalog have delivered is all that is known to wait.
        now_ms: the time that ages are measured at.
        late_ms: what is younger holds nobody up.
    """
    look = _Look(catalog, rows, doors, now_ms)
    stages = tuple(look.stage(one) for one in rows.stages)
    return Lag(stages=stages, holdup=_holdup(stages, now_ms, late_ms))


class _Look:
    """One look at everything."""

    def __init__(self, catalog: Catalog, rows: Rows, doors: Doors | None, now_ms: int) -> None:
        self._catalog = catalog
        self._rows = rows.lanes
        self._doors = doors
        self._now_ms = now_ms
        self._first = self._first_waiting()

    def _first_waiting(self) -> dict[Source, int]:
        """Ask for the first waiting record of each partition that is behind, the furthest first."""
        if self._doors is None:
            return {}
        behind: dict[Source, tuple[int, int]] = {}
        for row in self._rows.values():
            if database_of(row.head) is not None:
                continue
            for source, offset in inputs_of(row.head):
                missing = (self._doors.end(source) or 0) - offset
                # Of several lanes that read a partition the one furthest behind is asked for.
                if missing > behind.get(source, (0, 0))[0]:
                    behind[source] = (missing, offset)
        furthest = sorted(behind.items(), key=lambda one: -one[1][0])
        return self._doors.first_ms({source: offset for source, (_, offset) in furthest})

    def stage(self, stage: StageRows) -> StageLag:
        """Return how a stage stands."""
        lanes = tuple(self._lane(lane, row) for lane, row in stage.lanes.items())
        unclaimed = None if self._doors is None else list(_unclaimed(stage, self._doors))
        behind = _sum(one.behind for one in lanes)
        if behind is not None and unclaimed:
            behind += sum(unclaimed)
        waits = _oldest(one.waiting_ms for one in lanes)
        pends = _oldest(one.pending_ms for one in lanes)
        made = [one.oldest_ms for one in lanes if one.oldest_ms is not None]
        return StageLag(
            pipeline=stage.pipeline,
            stage=stage.stage,
            behind=behind,
            waiting_ms=waits,
            pending=sum(one.pending for one in lanes),
            pending_ms=pends,
            oldest_ms=min(made, default=None),
            sealed_ms=stage.sealed_ms,
            unclaimed=None if unclaimed is None else len(unclaimed),
            late_ms=_oldest((waits, pends)),
            lanes=lanes,
        )

    def _lane(self, lane: str, row: LaneRow) -> LaneLag:
        if database_of(row.head) is not None:
            return _elsewhere(lane)
        missing = {source: self._missing(source, at) for source, at in inputs_of(row.head)}
        behind = _sum(missing.values())
        times = [self._since(row, source) for source, count in missing.items() if count]
        known = [made for made in times if made is not None]
        waits = max(0, self._now_ms - min(known)) if known else None
        owed = row.head.ref.seq - row.settled
        seal = _first_owed(self._catalog, lane, row) if owed else None
        pends = None if seal is None else max(0, self._now_ms - seal)
        return LaneLag(
            lane=lane,
            behind=behind,
            waiting_ms=0 if behind == 0 else waits,
            pending=owed,
            pending_ms=pends if owed else 0,
            oldest_ms=min([*known, *([seal] if seal is not None else [])], default=None),
            sealed_ms=row.head.minted_at_ms if row.head.ref.seq else None,
        )

    def _missing(self, source: Source, offset: int) -> int | None:
        """Return how many offsets no seal covers."""
        if self._doors is not None:
            end = self._doors.end(source)
        else:
            end = delivered_to(source, self._rows.values())
        return None if end is None else max(0, end - offset)

    def _since(self, row: LaneRow, source: Source) -> int | None:
        """Return when the first of them was made."""
        if self._doors is not None:
            return self._first.get(source)
        return guessed_ms(self._catalog, row, source, self._rows)


def _elsewhere(lane: str) -> LaneLag:
    """Return what the catalog knows of a lane that is in a user's database; it emits nothing."""
    return LaneLag(
        lane=lane,
        behind=None,
        waiting_ms=None,
        pending=0,
        pending_ms=0,
        oldest_ms=None,
        sealed_ms=None,
    )


def _first_owed(catalog: Catalog, lane: str, row: LaneRow) -> int | None:
    """Return when the first seal was minted that is not acknowledged; None where it is gone."""
    seq = row.settled + 1
    seal = catalog.seal(lane, row.head.incarnation_of(seq), seq)
    return seal.minted_at_ms if seal is not None else None


def _unclaimed(stage: StageRows, doors: Doors) -> Iterable[int]:
    """Yield how many records are in each partition that no lane of a stage reads."""
    claimed = {source for row in stage.lanes.values() for source, _ in row.head.frontier}
    for identity in stage.reads:
        topic = doors.topic(identity)
        for source in topic.sources if topic is not None else ():
            if source not in claimed:
                yield max(0, (doors.end(source) or 0) - (doors.low(source) or 0))


# What holds up ------------------------------------------------------------------------------------


def _holdup(stages: Sequence[StageLag], now_ms: int, late_ms: int) -> Holdup | None:
    late = [one for one in stages if (one.late_ms or 0) >= late_ms]
    if not late:
        return None
    # The first of equals, because stages are in the order of the flow.
    worst = max(late, key=lambda one: one.late_ms or 0)
    why, advice = _why(worst, now_ms, late_ms)
    return Holdup(
        pipeline=worst.pipeline,
        stage=worst.stage,
        late_ms=worst.late_ms or 0,
        why=why,
        advice=advice,
    )


def _why(stage: StageLag, now_ms: int, late_ms: int) -> tuple[str, str]:
    """Say what of a stage is late, and what to do about it."""
    if (stage.pending_ms or 0) >= (stage.waiting_ms or 0):
        return (
            (
                f"seals of it ({stage.pending:,}) are not acknowledged: decided, and not known to be "
                "delivered"
            ),
            (
                "see whether it runs and whether the brokers of its output topics answer; what is "
                "sealed is not lost"
            ),
        )
    behind = "records" if stage.behind is None else f"records ({stage.behind:,})"
    if stage.sealed_ms is None or now_ms - stage.sealed_ms >= late_ms:
        return (
            f"{behind} wait for it, and it seals nothing",
            (
                "see whether it runs, and what its driver's log says; nothing is lost while the input "
                "topic keeps its records"
            ),
        )
    return (
        f"{behind} wait for it, and it seals: it is slower than what comes in, or catching up",
        "watch `delivery top`: if it does not catch up, `delivery advice` says what to change",
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """Add up; what is unknown of one is unknown of all, and nothing known of none is unknown."""
    found = list(counts)
    known = [one for one in found if one is not None]
    return sum(known) if found and len(known) == len(found) else None


def _oldest(ages: Iterable[int | None]) -> int | None:
    """Return the largest age; an unknown one makes 0 unknown, but hides no older one."""
    found = list(ages)
    known = [one for one in found if one is not None]
    most = max(known, default=None)
    return None if not most and len(known) < len(found) else most
