"""A stage that goes on elsewhere than it stands: further back, further on, with its ids or without.

What it is: `reset`, and `Begin`, where it is to go on.
What it must not know: Spark, the command line.

Invariants:
    Where each lane is to go on is decided once, and written into the lane as it is put to rest: who
    runs the same again after a kill goes on to the very same offsets.
    With its ids, a lane that goes back makes nothing take effect twice that it still knows.
    A position outside its log is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.model import Frontier, Head, LaneRow, ReadSeq, Source
from delivery.life.change import Change, LaneChange
from delivery.life.deeds import as_brought_in, drain, forget, put_apart
from delivery.life.survey import Surveyed, front_of, survey
from delivery.life.undertaking import Hands, Undertaking, undertake
from delivery.life.words import amount, named, positions
from delivery.protocol.rest import Kind

__all__ = ["Begin", "reset"]

_OP = "reset a stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where a stage is to go on: exactly one of these.

    Attributes:
        at: "earliest", "latest", or "here": where it stands.
        time_ms: at the first record that is not older.
        offsets: by partition; the others stay where they stand.
    """

    at: Literal["earliest", "latest", "here"] | None = None
    time_ms: int | None = None
    offsets: Mapping[int, int] | None = None

    def __post_init__(self) -> None:
        """Refuse what says nothing, or too much."""
        said = [one for one in (self.at, self.time_ms, self.offsets) if one is not None]
        if len(said) != 1:
            raise InvalidUsage(
                _OP,
                f"{len(said)} positions",
                "say one: earliest, latest, here, a time, or offsets by partition; nothing was done",
            )

    @property
    def words(self) -> str:
        """Say it in one word, the same whenever it is the same."""
        if self.at is not None:
            return self.at
        if self.time_ms is not None:
            return f"time {self.time_ms}"
        return " ".join(f"{p}:{offset}" for p, offset in sorted((self.offsets or {}).items()))


def reset(
    hands: Hands, stage: str, begin: Begin, *, forget_ids: bool = False, perform: bool = False
) -> Change:
    """Let a stage go on elsewhere, under new incarnations.

    Args:
        hands: what it is done with.
        stage: "stage" or "pipeline/stage".
        begin: where it is to go on.
        forget_ids: whether it forgets what took effect; what it reads again then counts again.
        perform: whether it is done.

    Raises:
        InvalidUsage: it cannot be. Nothing was done.
        Unavailable, Indeterminate: run the same again, and it goes on.
    """
    found = survey(hands.catalog, stage, _OP)
    _refuse(hands.catalog, found, begin)
    said = [("begin", begin.words), ("forget-ids", str(forget_ids).lower())]
    work = undertake(hands, [found], "reset", said)
    targets = _targets(hands, found, begin, work)
    if perform:
        _perform(work, targets, forget_ids=forget_ids)
    return Change(
        verb="reset",
        stage=found.name,
        done=perform,
        lanes=tuple(
            LaneChange(
                lane=lane,
                what=_what(found.lanes[lane].head, target, forget_ids=forget_ids),
                before=positions(found.lanes[lane].head),
                after=named(found.lanes[lane].head, target),
            )
            for lane, target in sorted(targets.items())
        ),
        means=_means(found, targets, forget_ids=forget_ids),
        depends=tuple(found.depends()),
    )


def _perform(work: Undertaking, targets: Mapping[str, Frontier], *, forget_ids: bool) -> None:
    hands = work.hands
    for lane, target in sorted(targets.items()):
        work.settle(lane, tuple((source.partition, offset) for source, offset in target))
    for lane in sorted(targets):
        if work.done(lane):
            continue
        drain(hands, lane)
        put_apart(hands, lane)
        if forget_ids:
            forget(hands, lane)
        else:
            as_brought_in(hands, lane, work.rest.intent)
    for lane in sorted(targets):
        decided = dict(work.target(lane))
        work.conclude(lane, partial(_moved, decided, () if forget_ids else None))
        hands.report(f"{lane} goes on elsewhere")


def _moved(decided: Mapping[int, int], reads: tuple[ReadSeq, ...] | None, head: Head) -> Head:
    frontier = Frontier.of(
        (source, decided.get(source.partition, offset)) for source, offset in _read(head)
    )
    return replace(head, frontier=frontier, read_seqs=head.read_seqs if reads is None else reads)


def _read(head: Head) -> list[tuple[Source, int]]:
    """Return the positions of topics that the lane reads now."""
    topics = {topic for _, topic in head.topics}
    return [(source, offset) for source, offset in head.frontier if source.topic in topics]


def _refuse(catalog: Catalog, found: Surveyed, begin: Begin) -> None:
    for rest in found.rests.values():
        if rest.kind in (Kind.RENAMED, Kind.REKEYED, Kind.MOVED, Kind.COPIED):
            raise InvalidUsage(_OP, found.name, f"{rest.why()}; nothing was done")
    if found.is_wrapped:
        raise InvalidUsage(
            _OP,
            found.name,
            "it is a wrapped job, which begins where its Spark query begins; nothing was done: give "
            "the job a new stage name and startingOffsets, or, if its state is lost, say "
            "d.forget_state(stage=...)",
        )
    front = front_of(catalog, found, _OP)
    if front is not None and begin.at != "here":
        raise InvalidUsage(
            _OP,
            found.name,
            f"its records are re-keyed by {front.name}, which reads the topic; nothing was done: "
            f"reset {front.name}. If ids are to be forgotten, reset both with --forget-ids, this one "
            "with --to here",
        )


def _targets(hands: Hands, found: Surveyed, begin: Begin, work: Undertaking) -> dict[str, Frontier]:
    """Return where each lane is to go on; of one that rests for this already, what was decided."""
    targets = {}
    unused = set(begin.offsets or ())
    for lane in work.every(found):
        row = found.lanes[lane]
        rest = found.rests.get(lane)
        if rest is not None and rest.intent == work.rest.intent:
            decided = dict(rest.target)
            targets[lane] = Frontier.of(
                (source, decided.get(source.partition, at)) for source, at in _read(row.head)
            )
        elif work.done(lane):
            targets[lane] = Frontier.of(_read(row.head))
        else:
            targets[lane] = Frontier.of(
                (source, _target(hands, row, source, at, begin)) for source, at in _read(row.head)
            )
        unused -= {source.partition for source, _ in targets[lane]}
    if unused:
        raise InvalidUsage(
            _OP,
            found.name,
            f"no lane of it reads partition {min(unused)}; nothing was done: a partition that it "
            "never read begins at its first offset",
        )
    return targets


def _target(hands: Hands, row: LaneRow, source: Source, at: int, begin: Begin) -> int:
    """Return where one partition is to go on.

    Raises:
        InvalidUsage: that is outside its log, or the topic is another one now.
    """
    name = next(name for name, topic in row.head.topics if topic == source.topic)
    topic = hands.cluster.topic(name)
    if topic.id != source.topic:
        raise InvalidUsage(
            _OP,
            name,
            "it was deleted and created again; nothing was done: say first that it is meant, with "
            "`delivery stage accept-topic`",
        )
    bounds = hands.cluster.bounds(topic)
    low, high = bounds.low.at(source) or 0, bounds.high.at(source) or 0
    if begin.at == "earliest":
        target = low
    elif begin.at == "latest":
        target = high
    elif begin.time_ms is not None:
        target = hands.cluster.at_time(topic, source, begin.time_ms)
    else:
        target = (begin.offsets or {}).get(source.partition, at)
    if not low <= target <= high:
        raise InvalidUsage(
            _OP,
            f"{name} partition {source.partition}",
            f"{target} is outside its log, which holds {low} to {high}; nothing was done: say an "
            "offset in between",
        )
    return target


# What is said of it ---------------------------------------------------------------------------


def _what(head: Head, target: Frontier, *, forget_ids: bool) -> str:
    again, skipped = _moves(head, target)
    said = []
    if again:
        said.append(f"{amount(again, 'offset')} read again")
    if skipped:
        said.append(f"{amount(skipped, 'offset')} skipped unread")
    if forget_ids:
        said.append("its ids are forgotten")
    return ", ".join(said) or "goes on where it stands"


def _moves(head: Head, target: Frontier) -> tuple[int, int]:
    """Return how many offsets are read again, and how many are skipped."""
    moves = [(target.at(source) or 0) - at for source, at in _read(head)]
    return sum(-move for move in moves if move < 0), sum(move for move in moves if move > 0)


def _means(
    found: Surveyed, targets: Mapping[str, Frontier], *, forget_ids: bool
) -> tuple[str, ...]:
    moves = [_moves(found.lanes[lane].head, target) for lane, target in targets.items()]
    again, skipped = sum(move[0] for move in moves), sum(move[1] for move in moves)
    said = ["whoever runs it is fenced, and follows; it need not be stopped"]
    if again and not forget_ids:
        said.append(
            f"of {amount(again, 'offset')} that are read again, what took effect does not count again "
            "while its id is held; what is older than the stage's window would"
        )
    if again and forget_ids:
        said.append(
            f"{amount(again, 'offset')} are read again and take effect again: what is made of them is "
            "new to everybody, and counts a second time downstream"
        )
    if skipped:
        said.append(f"{amount(skipped, 'offset')} are never read by this stage: lost to it")
    if forget_ids:
        said.append("publishers' repeats of what took effect until now will count as new records")
    else:
        said.append("ids are kept: repeats of what took effect are recognised as before")
    if found.pending:
        said.append(f"{amount(found.pending, 'seal')} not delivered yet are delivered first")
    said.append(
        "seals of before are let go: audit first, if what was done until now is to be proved"
    )
    return tuple(said)
