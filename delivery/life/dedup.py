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
from dedup.catalog.store import Blob
from dedup.errors import InvalidUsage
from dedup.formats.segment import Bucket, Origin, Part, segment_chunks
from dedup.model import (
    IDENTITY_BYTES,
    LANE_NAME_BYTES_MAX,
    Frontier,
    Head,
    LaneRow,
    SegmentList,
    TopicId,
)
from dedup.seeding import SEED_IDS_MAX, Beginning, Seeds, begin
from delivery.kafka.partitioner import partitions_of
from delivery.kafka.port import Topic
from delivery.life import points
from delivery.life.change import Change, LaneChange
from delivery.life.deeds import copy, drain, ids_of, parts_of, seed_slot, united
from delivery.life.rename import moved_row
from delivery.life.survey import Surveyed, front_of, survey
from delivery.life.undertaking import Hands, Undertaking, undertake
from delivery.life.words import positions
from delivery.operate.opening import name_of
from delivery.protocol.rest import Kind

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
    """

    moves: dict[str, str]
    others: list[str]
    internal: str


def change_dedup(
    hands: Hands, stage: str, to: To, make: Callable[[str], Topic], *, perform: bool = False
) -> Change:
    """Let a stage deduplicate otherwise.

    Args:
        hands: what it is done with.
        stage: "stage" or "pipeline/stage".
        to: "partition" or "topic", as its declaration says from now on.
        make: creates the internal topic, or returns the one that is there.
        perform: whether it is done.

    Raises:
        InvalidUsage: it cannot be. Nothing was done.
        Unavailable, Indeterminate: run the same again, and it goes on.
    """
    found = survey(hands.catalog, stage, _OP)
    front = front_of(hands.catalog, found, _OP)
    stages = [found] if front is None else [found, front]
    work = undertake(hands, stages, "change-dedup", [("to", to)])
    if found.is_wrapped or found.stage.endswith(".by-id"):
        raise _refused(found, "it is no stage that can be declared so; name the stage itself")
    if to == "topic":
        plan = _to_topic(found, work)
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


# To a whole topic -----------------------------------------------------------------------------


def _to_topic(found: Surveyed, work: Undertaking) -> _Plan:
    internal = f"{found.pipeline}.{found.stage}.by-id"
    moves = {
        lane: f"{found.name}.by-id/{name_of(lane).reads}"
        for lane in work.concerned(found)
        if not _reads(found.lanes[lane], internal)
    }
    if not moves:
        raise _refused(found, "it deduplicates the whole topic already, or has no lanes that run")
    return _Plan(moves=moves, others=[], internal=internal)


def _perform_topic(work: Undertaking, found: Surveyed, plan: _Plan, internal: Topic) -> None:
    hands = work.hands
    for lane in sorted(plan.moves):
        work.settle(lane)
    for lane in sorted(plan.moves):
        if not work.done(lane):
            drain(hands, lane)
    if not all(work.done(lane) for lane in plan.moves):
        _move(work, plan.moves)
        # Every lane below is made by one write, and a lane that is there was made by this: no other
        # could be made while those of the stage rest.
        _begin_behind(work, found, plan, internal)
    for name in sorted(plan.moves.values()):
        work.conclude(name, partial(_writing, (internal.id,)))
    for lane in sorted(plan.moves):
        work.conclude(lane, last=Kind.REKEYED)


def _begin_behind(work: Undertaking, found: Surveyed, plan: _Plan, internal: Topic) -> None:
    """Let the stage begin behind re-keying, each lane with the ids that fall to it."""
    hands = work.hands
    rows = [_row(hands, lane) for lane in plan.moves]
    lane_time = max(row.head.lane_time_ms for row in rows)
    ids = sorted_unique(np.concatenate([ids_of(hands, lane) for lane in plan.moves]))
    raw = to_raw(ids)
    keys = [raw[at : at + IDENTITY_BYTES] for at in range(0, len(raw), IDENTITY_BYTES)]
    placed = partitions_of(keys, [0] * len(keys), [0] * len(keys), internal.partitions)
    ends = hands.cluster.bounds(internal).high
    for source in internal.sources:
        mine = ids[placed == source.partition] if len(ids) else ids
        beginning = Beginning(
            start=Frontier.of([(source, ends.at(source) or 0)]),
            topics=((internal.name, internal.id),),
            writes=rows[0].head.writes,
            lane_time_ms=lane_time,
            mark=f"rekeyed-{work.rest.intent.hex()}",
        )
        lane = f"{found.name}/{internal.name}-{source.partition}"
        begin(hands.catalog, lane, beginning, Seeds.of(mine, lane_time), hands.fresh)
        hands.at(points.ADOPTED)


def _writing(topics: tuple[TopicId, ...], head: Head) -> Head:
    return replace(head, writes=topics)


# Back to partitions ---------------------------------------------------------------------------


def _to_partition(found: Surveyed, front: Surveyed | None, work: Undertaking) -> _Plan:
    if front is None:
        raise _refused(found, "it deduplicates partition by partition already")
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
    for name in sorted(plan.moves.values()):
        work.conclude(name, partial(_plain, writes, time))
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
        work.adopted(name, moved_row(_row(hands, lane), work.state(lane)))
        if work.done(name) or hands.catalog.segment_list(name) is not None:
            continue
        own = parts_of(hands, lane)
        parts = united([*own, *_without(behind, ids_of(hands, lane), time)])
        if sum(part.count for part in parts) > SEED_IDS_MAX:
            raise _too_many(name)
        head = _row(hands, name).head
        slot = seed_slot(head, name, work.rest.intent)
        slots = (slot,) if parts else ()
        if parts:
            hands.catalog.store.put(Blob.SEGMENT, slot, segment_chunks(parts))
        listed = SegmentList(version=1, upto=head.ref.seq, slots=slots)
        hands.catalog.replace_segment_list(name, None, listed)
        hands.at(points.COPIED)


def _without(ids: Ids, known: Ids, time_ms: int) -> Sequence[Part]:
    """Return ids as external ones of now, but for those that are known."""
    rest = ids[~contains(known, ids)] if len(known) and len(ids) else ids
    return [Part(Bucket.at(Origin.EXTERNAL, time_ms), to_raw(rest))] if len(rest) else []


def _plain(writes: tuple[TopicId, ...], time_ms: int, head: Head) -> Head:
    return replace(head, writes=writes, lane_time_ms=max(head.lane_time_ms, time_ms))


# Both -----------------------------------------------------------------------------------------


def _move(work: Undertaking, moves: dict[str, str]) -> None:
    hands = work.hands
    for lane, name in sorted(moves.items()):
        if work.done(lane):
            continue
        work.adopted(name, moved_row(_row(hands, lane), work.state(lane)))
        if not work.done(name):
            copy(hands, lane, name)


def _reads(row: LaneRow, topic: str) -> bool:
    return any(name == topic for name, _ in row.head.topics)


def _row(hands: Hands, lane: str) -> LaneRow:
    row = hands.catalog.load(lane)
    assert row is not None, "a lane is never deleted"
    return row


def _refuse_used(hands: Hands, found: Surveyed, plan: _Plan, work: Undertaking) -> None:
    """Refuse names that lanes had before, unless this very change made them."""
    names = list(plan.moves.values())
    if any(len(name.encode()) > LANE_NAME_BYTES_MAX for name in names):
        raise _refused(
            found, "the names of its new lanes would be too long: rename the stage first"
        )
    if work.begun:
        return
    used = [name for name in names if hands.catalog.load(name) is not None]
    if not plan.others:
        used += list(hands.catalog.lanes(f"{found.name}/{plan.internal}-"))
    if used:
        raise _refused(
            found,
            f"it was changed before, and {used[0]} is a name that was given up then: change it under "
            "another name, with `delivery stage rename` first",
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


def _too_many(name: str) -> InvalidUsage:
    return InvalidUsage(
        _OP,
        name,
        f"it would begin with more than {SEED_IDS_MAX} ids; nothing goes on that was not before: let "
        "`delivery catalog compact` forget what is older than the window, and run the same again",
    )
