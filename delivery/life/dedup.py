"""A stage that deduplicates otherwise: partition by partition, or a whole topic behind re-keying.

What it is: `change_dedup`.
What it must not know: Spark, the command line.

To a whole topic: the lanes of the stage become those of the pass-through stage in front, with all that
they know, so that what they dropped before they drop then; and the stage gets lanes over the internal
topic, each with the ids that fall to it. Back again: the lanes in front become those of the stage, and
each gets the ids of all.

Invariants:
    The new lanes begin where the old ones ended: all of those are fenced first, and have delivered.
    Back to partitions only when nothing is in between: everything in the internal topic is sealed.
    No id is left behind, of whatever lane; none is twice in one lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from dedup.arrays import Ids, contains, sorted_unique, to_raw
from dedup.errors import InvalidUsage
from dedup.formats.segment import Bucket, Origin, Part
from dedup.model import (
    IDENTITY_BYTES,
    LANE_NAME_BYTES_MAX,
    Frontier,
    Head,
    LaneRow,
    TopicId,
)
from dedup.seeding import SEED_IDS_MAX, Beginning, Seeds, begin, begun_as
from delivery.kafka.partitioner import partitions_of
from delivery.kafka.port import Topic
from delivery.life import points
from delivery.life.change import Change, LaneChange
from delivery.life.deeds import bring_in, continued, drain, ids_of, parts_of, put_apart
from delivery.life.rename import moved_row
from delivery.life.survey import Surveyed, front_of, survey
from delivery.life.undertaking import Hands, Undertaking, undertake
from delivery.life.words import positions
from delivery.operate.opening import name_of
from delivery.protocol.rest import Kind, rest_of

__all__ = ["change_dedup"]

_OP = "change how a stage deduplicates"

To = Literal["partition", "topic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A change: which lanes become which, and which others there are.

    Attributes:
        moves: lanes that go on under other names.
        others: lanes that end, or begin, without a counterpart.
        internal: name of the topic in between.
        aside: the topics of duplicates and dead letters, which re-keying has too.
    """

    moves: dict[str, str]
    others: list[str]
    internal: str
    aside: tuple[TopicId, ...] = ()


def change_dedup(
    hands: Hands,
    stage: str,
    to: To,
    make: Callable[[str], Topic],
    *,
    aside: Sequence[str] = (),
    perform: bool = False,
) -> Change:
    """Let a stage deduplicate otherwise.

    Args:
        hands: what it is done with.
        stage: "stage" or "pipeline/stage".
        to: "partition" or "topic", as its declaration says from now on.
        make: creates the internal topic, or returns the one that is there.
        aside: which outputs it has for what is put aside; what re-keys for it has the same.
        perform: whether it is done.

    Raises:
        InvalidUsage: it cannot be. Nothing was done.
        Unavailable, Indeterminate: run the same again, and it goes on.
    """
    found = survey(hands.catalog, stage, _OP)
    front = front_of(hands.catalog, found, _OP)
    stages = [found] if front is None else [found, front]
    words = [("to", to), *((name, "yes") for name in aside)]
    work = undertake(hands, stages, "change-dedup", words)
    if found.is_wrapped or found.stage.endswith(".by-id"):
        raise _refused(found, "it is no stage that can be declared so; name the stage itself")
    if _is_so(found, front, to):
        return Change(
            verb="change-dedup",
            stage=found.name,
            done=True,
            means=(f"it deduplicates so already: dedup={to!r}",),
        )
    if to == "topic":
        plan = _to_topic(found, work, len(aside))
        _refuse_used(hands, found, plan, work)
        if perform:
            _perform_topic(work, found, plan, make(plan.internal))
    else:
        plan = _to_partition(found, front, work)
        _refuse_used(hands, found, plan, work)
        if not work.begun:
            _refuse_unread(hands, found, plan)
        if perform:
            _perform_partition(work, found, plan)
    return Change(
        verb="change-dedup",
        stage=found.name,
        done=perform,
        lanes=_said(stages, plan),
        means=_means(to, plan),
        depends=tuple(found.depends()),
    )


def _is_so(found: Surveyed, front: Surveyed | None, to: To) -> bool:
    """Tell whether there is nothing to be done any more."""
    internal = f"{found.pipeline}.{found.stage}.by-id"
    plain = [lane for lane, row in found.live.items() if not _reads(row, internal)]
    behind = [lane for lane in found.live if lane not in plain]
    if to == "topic":
        return not plain and bool(behind)
    return front is None and not behind and bool(plain)


# To a whole topic -----------------------------------------------------------------------------


def _to_topic(found: Surveyed, work: Undertaking, aside: int) -> _Plan:
    internal = f"{found.pipeline}.{found.stage}.by-id"
    moves = {
        lane: f"{found.name}.by-id/{name_of(lane).reads}"
        for lane in work.concerned(found)
        if not _reads(found.lanes[lane], internal)
    }
    if not moves:
        raise _refused(found, "it has no lanes that run")
    writes = _row(work.hands, min(moves)).head.writes
    if len(writes) < aside:
        raise _refused(found, f"it has {len(writes)} outputs, and {aside} of them said to be apart")
    # They are the last edges of every stage, in this order.
    return _Plan(moves=moves, others=[], internal=internal, aside=writes[len(writes) - aside :])


def _perform_topic(work: Undertaking, found: Surveyed, plan: _Plan, internal: Topic) -> None:
    hands = work.hands
    lanes = sorted(plan.moves)
    for lane in lanes:
        work.settle(lane)
    if not any(work.done(lane) for lane in lanes):
        for lane in lanes:
            drain(hands, lane)
        for lane in lanes:
            _succeed(work, plan.moves[lane], _row(hands, lane), parts_of(hands, lane))
        behind = _begin_behind(work, found, plan, internal)
        for lane in lanes:
            writes = (internal.id, *plan.aside)
            work.conclude(plan.moves[lane], partial(continued, _row(hands, lane).head, writes, 0))
        for name, head in behind.items():
            work.conclude(name, partial(continued, head, head.writes, 0))
    for lane in lanes:
        work.conclude(lane, last=Kind.REKEYED)


def _begin_behind(
    work: Undertaking, found: Surveyed, plan: _Plan, internal: Topic
) -> dict[str, Head]:
    """Let the stage begin behind re-keying, each lane with the ids that fall to it.

    Returns the lanes that were there before and rest for this, with what they are to be.
    """
    hands = work.hands
    rows = [_row(hands, lane) for lane in plan.moves]
    lane_time = max(row.head.lane_time_ms for row in rows)
    ids = sorted_unique(np.concatenate([ids_of(hands, lane) for lane in plan.moves]))
    raw = to_raw(ids)
    keys = [raw[at : at + IDENTITY_BYTES] for at in range(0, len(raw), IDENTITY_BYTES)]
    placed = partitions_of(keys, [0] * len(keys), [0] * len(keys), internal.partitions)
    ends, mark = hands.cluster.bounds(internal).high, f"rekeyed-{work.rest.intent.hex()}"
    before = {}
    for source in internal.sources:
        mine = ids[placed == source.partition] if len(ids) else ids
        lane = f"{found.name}/{internal.name}-{source.partition}"
        beginning = Beginning(
            start=Frontier.of([(source, ends.at(source) or 0)]),
            topics=((internal.name, internal.id),),
            writes=rows[0].head.writes,
            lane_time_ms=lane_time,
            mark=mark,
        )
        if begun_as(hands.catalog, lane) in (None, mark):
            begin(hands.catalog, lane, beginning, Seeds.of(mine, lane_time), hands.fresh)
            hands.at(points.ADOPTED)
            continue
        row = _row(hands, lane)
        before[lane] = replace(
            row.head,
            frontier=beginning.start,
            topics=beginning.topics,
            writes=beginning.writes,
            lane_time_ms=max(lane_time, row.head.lane_time_ms),
        )
        _succeed(work, lane, row, _external(mine, lane_time))
    return before


# Back to partitions ---------------------------------------------------------------------------


def _to_partition(found: Surveyed, front: Surveyed | None, work: Undertaking) -> _Plan:
    if front is None:
        raise _refused(found, "nothing re-keys for it")
    internal = f"{found.pipeline}.{found.stage}.by-id"
    moves = {lane: f"{found.name}/{name_of(lane).reads}" for lane in work.concerned(front)}
    others = [lane for lane in work.concerned(found) if _reads(found.lanes[lane], internal)]
    return _Plan(moves=moves, others=others, internal=internal)


def _refuse_unread(hands: Hands, found: Surveyed, plan: _Plan) -> None:
    """Refuse while something is in the internal topic that the stage has not sealed."""
    topic = hands.cluster.topic(plan.internal)
    high = hands.cluster.bounds(topic).high
    known = {
        source: offset for lane in plan.others for source, offset in _row(hands, lane).head.frontier
    }
    left = sum(max(0, at - known.get(source, 0)) for source, at in high)
    owed = sum(row.head.ref.seq - row.ack.seq for row in (_row(hands, lane) for lane in plan.moves))
    if left or owed:
        raise _refused(
            found,
            f"{left} offsets of {plan.internal} are not sealed yet, and {owed} seals in front of it "
            "are not delivered: let the pipeline run until all is delivered "
            "(query.processAllAvailable()), stop it, and run this again",
        )


def _perform_partition(work: Undertaking, found: Surveyed, plan: _Plan) -> None:
    hands = work.hands
    every = sorted((*plan.moves, *plan.others))
    for lane in every:
        work.settle(lane)
    if not any(work.done(lane) for lane in every):
        # It ran until just now, and may have sealed more in front meanwhile.
        try:
            _refuse_unread(hands, found, plan)
        except InvalidUsage:
            for lane in every:
                work.give_up(lane)
            raise
        for lane in every:
            drain(hands, lane)
        _gather(work, plan)
        behind = [_row(hands, lane).head for lane in plan.others]
        time = max((head.lane_time_ms for head in behind), default=0)
        writes = behind[0].writes if behind else ()
        for lane, name in sorted(plan.moves.items()):
            work.conclude(name, partial(continued, _row(hands, lane).head, writes, time))
    # Those in front last: while one of them rests for this, it is known to be under way.
    for lane in (*sorted(plan.others), *sorted(plan.moves)):
        work.conclude(lane, last=Kind.REKEYED)


def _gather(work: Undertaking, plan: _Plan) -> None:
    """Let each lane of a partition have the ids of the one in front, and those of all behind."""
    hands = work.hands
    every = [ids_of(hands, lane) for lane in plan.others]
    behind = sorted_unique(np.concatenate(every)) if every else np.empty((0, 2), dtype=np.uint64)
    time = max((_row(hands, lane).head.lane_time_ms for lane in plan.others), default=0)
    for lane, name in sorted(plan.moves.items()):
        known = ids_of(hands, lane)
        rest = behind[~contains(known, behind)] if len(known) and len(behind) else behind
        parts = [*parts_of(hands, lane), *_external(rest, time)]
        _succeed(work, name, _row(hands, lane), parts)


# Both -----------------------------------------------------------------------------------------


def _succeed(work: Undertaking, name: str, row: LaneRow, parts: Sequence[Part]) -> None:
    """Let a lane be there, at rest, that knows these ids and nothing else.

    Args:
        work: what it rests for.
        name: of the lane. One that was given up is taken up again: its seqs go on, so that whoever
            read what it once sent recognises that for ever.
        row: what a lane that is made begins as.
        parts: the ids.
    """
    catalog = work.hands.catalog
    if work.done(name):
        return
    found = catalog.load(name)
    rest = None if found is None else rest_of(found.head.state)
    if rest is None or rest.intent == work.rest.intent:
        work.adopted(name, moved_row(row, b"", Frontier()))
    else:
        work.settle(name)
    put_apart(work.hands, name)
    bring_in(work.hands, name, parts, work.rest.intent)
    work.hands.at(points.COPIED)


def _external(ids: Ids, time_ms: int) -> list[Part]:
    """Return ids as external ones of a lane time."""
    return [Part(Bucket.at(Origin.EXTERNAL, time_ms), to_raw(ids))] if len(ids) else []


def _reads(row: LaneRow, topic: str) -> bool:
    return any(name == topic for name, _ in row.head.topics)


def _row(hands: Hands, lane: str) -> LaneRow:
    row = hands.catalog.load(lane)
    assert row is not None, "a lane is never deleted"
    return row


def _refuse_used(hands: Hands, found: Surveyed, plan: _Plan, work: Undertaking) -> None:
    """Refuse names that are another stage's, and more ids than a lane may begin with."""
    names = list(plan.moves.values())
    if any(len(name.encode()) > LANE_NAME_BYTES_MAX for name in names):
        raise _refused(
            found, "the names of its new lanes would be too long: rename the stage first"
        )
    if work.begun:
        return
    for name in names:
        row = hands.catalog.load(name)
        rest = None if row is None else rest_of(row.head.state)
        if row is not None and (rest is None or rest.kind is not Kind.REKEYED):
            raise _refused(found, f"{name} is a lane of another stage: rename one of the two first")
    ids = sum(len(ids_of(hands, lane)) for lane in (*plan.moves, *plan.others))
    if ids > SEED_IDS_MAX:
        raise _refused(
            found,
            f"it holds {ids} ids, and a lane begins with {SEED_IDS_MAX} at most: let `delivery "
            "catalog compact` forget what is older than the window first",
        )


def _said(stages: Sequence[Surveyed], plan: _Plan) -> tuple[LaneChange, ...]:
    rows = {lane: row for found in stages for lane, row in found.lanes.items()}
    said = [
        LaneChange(
            lane=lane,
            what=f"goes on as {name}, with its ids",
            before=positions(rows[lane].head),
            after=positions(rows[lane].head),
        )
        for lane, name in sorted(plan.moves.items())
    ]
    said += [
        LaneChange(
            lane=lane, what="ends; its ids go to all lanes", before=positions(rows[lane].head)
        )
        for lane in plan.others
    ]
    return tuple(said)


def _means(to: To, plan: _Plan) -> tuple[str, ...]:
    said = [
        "whoever runs it is fenced; declare it with the new dedup=... from now on",
        "nothing is read again or skipped, and repeats of what took effect are recognised as before",
    ]
    if to == "topic":
        said.append(
            f"records go through {plan.internal} from now on: one hop more, their order is given up, "
            "and repeats are recognised wherever they come"
        )
    else:
        said.append("from now on repeats are recognised within their partition alone")
    said.append("what it did until now is found under the names of its lanes of before")
    return tuple(said)


def _refused(found: Surveyed, why: str) -> InvalidUsage:
    return InvalidUsage(_OP, found.name, f"nothing was done: {why}")
