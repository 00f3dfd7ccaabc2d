"""A topic that was deleted and created again, on purpose: what was of the old one is given up.

What it is: `accept_topic`.
What it must not know: Spark, the command line.

Each lane that wrote or read the old topic knows it by its identity and refuses the new one. It is
taken over by one compare-and-set: to its frontier or its edges the new identity is added in place of
the old one, under a new incarnation.

Invariants:
    Writers are taken over before readers: who reads the new topic knows by then that its senders
    write it, so no record of theirs passes for a stranger's.
    What a reader has read of its senders in the old topic counts in the new one too: a late copy
    that lands there is dropped.
    Lanes of names that were given up are taken over too: they may have late copies under way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from dedup.collect import Keep, collect
from dedup.errors import Indeterminate, InvalidUsage, Unavailable
from dedup.expiry import WINDOW_MS_MAX
from dedup.model import (
    Ack,
    Attempt,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    Kept,
    LaneRow,
    Source,
    TopicId,
    merged_reads,
)
from delivery.kafka.port import Topic
from delivery.life import points
from delivery.life.change import Change, LaneChange
from delivery.life.deeds import as_brought_in
from delivery.life.undertaking import TRIES_MAX, Hands
from delivery.life.words import amount, positions
from delivery.operate.opening import database_of, name_of
from delivery.protocol.rest import Kind, rest_of

__all__ = ["accept_topic"]

_OP = "accept a topic"
#: Lanes that rest so may not be touched by anybody else.
_BUSY = (Kind.UNDER_WAY, Kind.MOVED, Kind.COPIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Over:
    """What is known of a topic's change.

    Attributes:
        topic: as it is now.
        old: the identities that it had.
        low: the first offset of each of its partitions.
    """

    topic: Topic
    old: frozenset[TopicId]
    low: Frontier


def accept_topic(
    hands: Hands, topic: str, *, writers: Collection[str] = (), perform: bool = False
) -> Change:
    """Take a topic for what it is now.

    Args:
        hands: what it is done with.
        topic: its name.
        writers: stages that wrote the old one, "stage" or "pipeline/stage", where no lane of the
            catalog read it, so that nobody remembers its name.
        perform: whether it is done.

    Raises:
        InvalidUsage: it cannot be, or nobody knew another topic of that name. Nothing was done.
        Unavailable, Indeterminate: run the same again, and it goes on.
    """
    now = hands.cluster.topic(topic)
    rows = _rows(hands)
    over = _Over(
        topic=now,
        old=_old(hands, now, rows, writers),
        low=hands.cluster.bounds(now).low,
    )
    writing = [lane for lane, row in rows.items() if over.old.intersection(row.head.writes)]
    reading = [lane for lane, row in rows.items() if _reads(row, over)]
    lanes = [*writing, *(lane for lane in reading if lane not in writing)]
    _refuse(rows, lanes, over)
    if perform:
        for lane in lanes:
            _take_over(hands, lane, over)
    return Change(
        verb="accept-topic",
        stage=topic,
        done=perform,
        lanes=tuple(
            LaneChange(
                lane=lane,
                what=" and ".join(
                    [
                        *(["writes the new one"] if lane in writing else []),
                        *(["reads the new one from its first offset"] if lane in reading else []),
                    ]
                ),
                before=positions(rows[lane].head),
                after=positions(_taken_over(rows[lane].head, over)),
            )
            for lane in lanes
        ),
        means=_means(rows, writing, reading, over),
        depends=tuple(sorted({_stage(lane) for lane in lanes})),
    )


def _rows(hands: Hands) -> dict[str, LaneRow]:
    lanes = hands.catalog.lanes()
    return {lane: row for lane in lanes if (row := hands.catalog.load(lane)) is not None}


def _reads(row: LaneRow, over: _Over) -> bool:
    return any(topic in over.old for _, topic in row.head.topics)


def _old(
    hands: Hands, now: Topic, rows: Mapping[str, LaneRow], writers: Collection[str]
) -> frozenset[TopicId]:
    """Return the identities under which lanes know a topic of that name."""
    old = {
        topic
        for row in rows.values()
        for name, topic in row.head.topics
        if name == now.name and topic != now.id
    }
    there = set(hands.cluster.topics())
    for writer in writers:
        mine = {lane: row for lane, row in rows.items() if writer in _names(lane)}
        gone = {topic for row in mine.values() for topic in row.head.writes if topic not in there}
        if len(gone - old) > 1:
            raise InvalidUsage(
                _OP,
                f"{now.name}, written by {writer}",
                f"{writer} has {len(gone)} outputs that are no topic of this cluster, so nobody can "
                "tell which one it was; nothing was done: bring the others back first",
            )
        if not gone:
            raise InvalidUsage(
                _OP,
                f"{now.name}, written by {writer}",
                "there is no such stage, or all that it writes is there; nothing was done",
            )
        old |= gone
    if not old:
        raise InvalidUsage(
            _OP,
            now.name,
            "no lane of this catalog read another topic of that name, so there is nothing to accept; "
            "nothing was done. If a stage wrote it that nobody read, say --written-by STAGE",
        )
    return frozenset(old)


def _names(lane: str) -> tuple[str, str]:
    name = name_of(lane)
    return name.stage, f"{name.pipeline}/{name.stage}"


def _stage(lane: str) -> str:
    return _names(lane)[1]


def _refuse(rows: Mapping[str, LaneRow], lanes: list[str], over: _Over) -> None:
    for lane in lanes:
        head = rows[lane].head
        rest = rest_of(head.state)
        if rest is not None and rest.kind in _BUSY:
            raise InvalidUsage(_OP, lane, f"{rest.why()}; nothing was done")
        if database_of(head) is not None:
            raise InvalidUsage(
                _OP,
                lane,
                "it is kept in a user's database, which this catalog does not command; nothing was "
                "done: begin a group of another name",
            )
        if name_of(lane).reads == "all" and _reads(rows[lane], over):
            raise InvalidUsage(
                _OP,
                lane,
                "it is a wrapped job, whose Spark query stands in the old topic; nothing was done: "
                "give the job a new stage name",
            )
        lost = rest is None and any(
            source.topic in over.old and source.partition >= over.topic.partitions
            for source, _ in head.frontier
        )
        if lost and rows[lane].ack.seq < head.ref.seq:
            raise InvalidUsage(
                _OP,
                lane,
                f"{over.topic.name} has only {over.topic.partitions} partitions now, and what this lane "
                "has sealed is not delivered yet; nothing was done: create the topic with as many "
                "partitions as before",
            )


def _take_over(hands: Hands, lane: str, over: _Over) -> None:
    catalog = hands.catalog
    for _ in range(TRIES_MAX):
        row = catalog.load(lane)
        assert row is not None, "a lane is never deleted"
        if not over.old.intersection(row.head.writes) and not _reads(row, over):
            return
        # What was made of the old topic, or went into it, is not there to be held against anything.
        collect(catalog, lane, Keep(window_ms=WINDOW_MS_MAX))
        if _reads(row, over):
            as_brought_in(hands, lane, hands.fresh())
        hands.at(points.COLLECTED)
        row = catalog.load(lane)
        assert row is not None, "a lane is never deleted"
        head = _taken_over(row.head, over)
        ref = HeadRef(Incarnation(hands.fresh()), row.head.ref.seq, Attempt(hands.fresh()))
        past = (*head.past, Kept(row.head.ref.incarnation, row.head.ref.seq))
        moved = LaneRow(
            head=replace(head, ref=ref, past=past),
            ack=Ack(ref.incarnation, row.ack.seq, _elsewhere(row.ack.delivered, over)),
            collected=row.collected,
        )
        hands.at(points.CONCLUDES)
        try:
            if catalog.reincarnate(lane, row.head.ref, moved, row):
                hands.at(points.CONCLUDED)
                return
        except Indeterminate:
            continue  # the lane says next whether it happened
    raise Unavailable(
        _OP, lane, "it moves on all the time; what was done is done: run the same again"
    )


def _elsewhere(delivered: Frontier, over: _Over) -> Frontier:
    """Return what was delivered to other topics: nothing of it is in the new one."""
    return Frontier.of((source, at) for source, at in delivered if source.topic not in over.old)


def _taken_over(head: Head, over: _Over) -> Head:
    """Return a head that knows the new topic in place of the old one."""
    new, old = over.topic.id, over.old
    positions = dict(head.frontier)
    if any(topic in old for _, topic in head.topics):
        for source, _ in head.frontier:
            known = Source(new, source.partition)
            if source.topic in old and (low := over.low.at(known)) is not None:
                positions.setdefault(known, low)
    copies = [replace(read, topic=new) for read in head.read_seqs if read.topic in old]
    return replace(
        head,
        frontier=Frontier.of(positions.items()),
        topics=tuple((name, new if topic in old else topic) for name, topic in head.topics),
        writes=tuple(new if topic in old else topic for topic in head.writes),
        read_seqs=merged_reads(head.read_seqs, copies),
    )


def _means(
    rows: Mapping[str, LaneRow], writing: list[str], reading: list[str], over: _Over
) -> tuple[str, ...]:
    said = ["whoever runs these lanes is fenced, and follows"]
    if reading:
        said.append(
            "the new topic is read from its first offset; what was in the old one above the frontiers "
            "is gone unread. Where to begin can be said afterwards, with `delivery stage reset`"
        )
        said.append(
            "ids are kept: repeats of what took effect before are recognised in the new topic"
        )
    unread = _unread(rows, writing, reading, over)
    if unread:
        said.append(
            f"{amount(unread, 'offset')} delivered to the old topic and not read by these lanes: lost "
            "to them, and not sent again"
        )
    owed = sum(rows[lane].head.ref.seq - rows[lane].ack.seq for lane in writing)
    if owed:
        said.append(f"{amount(owed, 'seal')} not delivered yet will go to the new topic")
    said.append("seals of before are let go: the old topic is not there to prove them by")
    return tuple(said)


def _unread(
    rows: Mapping[str, LaneRow], writing: list[str], reading: list[str], over: _Over
) -> int:
    """Return how many offsets writers delivered to the old topic behind the readers' frontiers."""
    ends = Frontier()
    for lane in writing:
        ends = ends.merged(
            Frontier.of((s, at) for s, at in rows[lane].ack.delivered if s.topic in over.old)
        )
    return sum(
        max(0, (ends.at(source) or 0) - at)
        for lane in reading
        for source, at in rows[lane].head.frontier
        if source.topic in over.old
    )
