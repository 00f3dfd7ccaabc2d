"""Whether every stage keeps its promise as far as can be seen, and if not, since when and why.

What it is: `guarantee`, and the values it returns.
What it must not know: the clock, how it is shown.

Invariants:
    A look, no proof: what `delivery audit` proves record by record is not repeated here. Whatever
    is said to be degraded has happened, or a setting lets it happen.
    What was not looked at is unknown, never exact.
    Being late is no loss: that is what `delivery lag` is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dedup.errors import DeliveryError
from dedup.expiry import WINDOW_MS_DEFAULT
from dedup.model import LaneRow, Source, TopicId
from delivery.naming import KEYS_MOVED
from delivery.operate.opening import database_of, inputs_of
from delivery.watch.grown import grown
from delivery.watch.reasons import UNKNOWN, Kind, Reason, State, by_seals
from delivery.watch.rows import Rows, StageRows
from delivery.watch.tally import Tallies
from delivery.watch.waiting import Doors

__all__ = ["Guarantee", "Kind", "Reason", "StageGuarantee", "State", "guarantee", "settings_in"]


#: Topics are compared, and asked for their settings.
_UNCLEAN = "unclean.leader.election.enable"
_CLEANUP = "cleanup.policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGuarantee:
    """What can be said of one stage; `since_ms` is the earliest that a reason names."""

    pipeline: str
    stage: str
    state: State
    since_ms: int | None
    reasons: tuple[Reason, ...]

    @property
    def name(self) -> str:
        """The words by which messages name it."""
        return f"{self.pipeline}/{self.stage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """All stages, and the worst of them."""

    state: State
    stages: tuple[StageGuarantee, ...]

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def settings_in(rows: Rows, doors: Doors | None) -> dict[str, dict[str, str]]:
    """Return the settings of all topics that lanes read or write, as far as they may be read."""
    if doors is None:
        return {}
    wanted = {topic for one in rows.stages for topic in (*one.reads, *one.writes)}
    found = {}
    for identity in wanted:
        topic = doors.topic(identity)
        if topic is not None:
            try:
                found[topic.name] = doors.settings_of(topic.name)
            except DeliveryError:
                # Who may read a topic may not always read how it is set: nothing is said of it.
                found[topic.name] = {}
    return found


def guarantee(
    rows: Rows,
    doors: Doors | None,
    tallies: Tallies,
    settings: Mapping[str, Mapping[str, str]],
    *,
    window_ms: int = WINDOW_MS_DEFAULT,
) -> Guarantee:
    """Say of every stage whether it keeps its promise.

    Args:
        rows: of the lanes, read before the doors.
        doors: Kafka; None: it was not asked, and nothing is said to be exact.
        tallies: the seals that could be read.
        settings: of topics, by their names.
        window_ms: of stages whose seals do not say theirs.
    """
    stages = tuple(
        _stage(
            one,
            doors,
            settings,
            rows.unread,
            [
                *by_seals(rows, one, tallies, one.window_ms or window_ms),
                *_grown(rows, one, doors, tallies, one.window_ms or window_ms),
            ],
        )
        for one in rows.stages
    )
    states = {one.state for one in stages}
    worst = next(
        (one for one in (State.DEGRADED, State.UNKNOWN) if one in states),
        State.EXACT if stages else State.UNKNOWN,
    )
    return Guarantee(state=worst, stages=stages)


def _stage(
    stage: StageRows,
    doors: Doors | None,
    settings: Mapping[str, Mapping[str, str]],
    unread: Mapping[str, str],
    sealed: Iterable[Reason],
) -> StageGuarantee:
    reasons = [*sealed, *_elsewhere(stage, unread)]
    if doors is None:
        reasons.append(
            Reason(
                kind=Kind.NOT_ASKED,
                subject=stage.name,
                since_ms=None,
                text="Kafka was not asked, so it is not known what its topics hold",
                advice="name the brokers with --kafka",
            )
        )
    else:
        reasons += [
            *_inputs(stage, doors),
            *_outputs(stage, doors),
            *_settings(stage, doors, settings),
        ]
    degraded = [one for one in reasons if one.kind not in UNKNOWN]
    state = State.DEGRADED if degraded else State.UNKNOWN if reasons else State.EXACT
    times = [one.since_ms for one in degraded if one.since_ms is not None]
    return StageGuarantee(
        pipeline=stage.pipeline,
        stage=stage.stage,
        state=state,
        since_ms=min(times, default=None),
        reasons=tuple(reasons),
    )


def _grown(
    rows: Rows, stage: StageRows, doors: Doors | None, tallies: Tallies, window_ms: int
) -> Iterator[Reason]:
    for one in grown(rows, stage, doors, tallies, window_ms):
        numbers = ", ".join(map(str, one.partitions))
        yield Reason(
            kind=Kind.PARTITIONS_GREW,
            subject=rows.topic(one.topic),
            since_ms=one.since_ms,
            until_ms=one.until_ms,
            text=KEYS_MOVED.format(numbers),
            advice="it is over once every lane has read on for a window; deduplicate the whole topic "
            'before it grows again (dedup="topic"). Stages without id_from lose nothing by it',
        )


def _elsewhere(stage: StageRows, unread: Mapping[str, str]) -> Iterator[Reason]:
    for lane, row in stage.lanes.items():
        database = database_of(row.head)
        if database is not None:
            yield Reason(
                kind=Kind.ELSEWHERE,
                subject=lane,
                since_ms=None,
                text=f"it is kept in its user's database {database}, and only what the catalog "
                "remembers of it is known",
                advice=unread.get(lane, "run this where that database lies"),
            )


def _inputs(stage: StageRows, doors: Doors) -> Iterator[Reason]:
    for identity, name in stage.reads.items():
        if doors.topic(identity) is None:
            yield _missing(stage, doors, name)
    for lane, row in stage.lanes.items():
        if database_of(row.head) is not None:
            continue
        for source, offset in inputs_of(row.head):
            low, end = doors.low(source), doors.end(source)
            if low is None or end is None:
                continue  # its topic is gone, which is said once
            since = row.head.minted_at_ms or None
            if offset < low:
                yield Reason(
                    kind=Kind.UNREAD_DELETED,
                    subject=lane,
                    since_ms=since,
                    text=f"{low - offset:,} offsets of partition {source.partition} were deleted "
                    "before they were sealed: their records are lost to this stage",
                    advice="give the topic a longer retention than the stage can stand still; the "
                    "stage refuses to jump the gap until it is told where to begin",
                )
            elif offset > end:
                yield _cut(lane, source, offset - end, since, "sealed")


def _outputs(stage: StageRows, doors: Doors) -> Iterator[Reason]:
    said = set()
    for lane, row in stage.lanes.items():
        for source, offset in row.ack.delivered:
            end = doors.end(source)
            if end is None:
                if source.topic not in said:
                    said.add(source.topic)
                    yield _unseen(source.topic)
            elif offset > end:
                yield _cut(lane, source, offset - end, _since(row), "delivered")


def _settings(
    stage: StageRows, doors: Doors, settings: Mapping[str, Mapping[str, str]]
) -> Iterator[Reason]:
    reads = set(stage.reads)
    for identity in dict.fromkeys((*stage.reads, *stage.writes)):
        topic = doors.topic(identity)
        said = settings.get(topic.name, {}) if topic is not None else {}
        if topic is None:
            continue
        if said.get(_UNCLEAN) == "true":
            yield Reason(
                kind=Kind.SETTING,
                subject=topic.name,
                since_ms=None,
                text=f"{_UNCLEAN}=true: a broker that missed records may lead it, and records that "
                "were acknowledged are lost",
                advice=f"set {_UNCLEAN}=false on the topic",
            )
        if identity in reads and "compact" in said.get(_CLEANUP, ""):
            yield Reason(
                kind=Kind.SETTING,
                subject=topic.name,
                since_ms=None,
                text=f"{_CLEANUP}={said[_CLEANUP]}: a record may be taken by compaction before it is "
                "read",
                advice=f"set {_CLEANUP}=delete on a topic whose every record counts",
            )


def _missing(stage: StageRows, doors: Doors, name: str) -> Reason:
    """Say that a topic is not there, or is another one of its name."""
    other = next((one for one in doors.topics.values() if one.name == name), None)
    if other is not None:
        return Reason(
            kind=Kind.TOPIC_REPLACED,
            subject=other.name,
            since_ms=stage.sealed_ms,
            text="it was deleted and created again: it is another topic than the one that was read, "
            "and what was in that one and not sealed is lost",
            advice="see what the publisher did; the stage refuses the new topic until it is told to "
            "accept it",
        )
    return Reason(
        kind=Kind.TOPIC_GONE,
        subject=name,
        since_ms=stage.sealed_ms,
        text="this Kafka has no such topic: it was deleted, or it is in another cluster",
        advice="name the cluster that the pipeline uses; of a deleted topic nothing can be read again",
    )


def _unseen(identity: TopicId) -> Reason:
    return Reason(
        kind=Kind.ELSEWHERE,
        subject=identity.hex(),
        since_ms=None,
        text="what it writes is no topic of this Kafka, so what became of its outputs was not seen: "
        "files or a table, a topic of another cluster, or one that was deleted",
        advice="look at files and tables themselves; a deleted topic is said of the stage that "
        "reads it",
    )


def _cut(lane: str, source: Source, count: int, since_ms: int | None, what: str) -> Reason:
    return Reason(
        kind=Kind.LOG_CUT,
        subject=lane,
        since_ms=since_ms,
        text=f"partition {source.partition} of topic {source.topic.hex()} ends {count:,} offsets "
        f"below what was {what}: Kafka has lost records that it had acknowledged",
        advice="stop the stage, and find out which broker lost its log; `delivery audit` says which "
        "records are missing",
    )


def _since(row: LaneRow) -> int | None:
    return row.head.minted_at_ms or None
