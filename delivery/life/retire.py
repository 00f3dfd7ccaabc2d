"""A stage that has ended: nothing is owed, its storage is free, and its name starts nothing by itself.

What it is: `retire`.
What it must not know: Spark, the command line.

The heads of its lanes stay for ever. They are all that receivers need of a sender that has ended:
who it was, what it wrote, up to where, and behind which offsets that lies.

Invariants:
    Nothing is taken away before all that was sealed is delivered.
"""

from __future__ import annotations

from dedup.errors import InvalidUsage
from delivery.life.change import Change, LaneChange
from delivery.life.deeds import drain, forget, put_apart
from delivery.life.survey import Surveyed, front_of, survey
from delivery.life.undertaking import Hands, Undertaking, undertake
from delivery.life.words import amount, positions
from delivery.protocol.rest import Kind

__all__ = ["retire"]

_OP = "retire a stage"
#: Lanes that go on elsewhere stay names that say so; they rest, have delivered all, and only take
#: up room.
_ELSEWHERE = (Kind.RENAMED, Kind.REKEYED)


def retire(hands: Hands, stage: str, *, perform: bool = False) -> Change:
    """End a stage for good.

    Args:
        hands: what it is done with.
        stage: "stage" or "pipeline/stage".
        perform: whether it is done.

    Raises:
        InvalidUsage: it cannot be. Nothing was done.
        Unavailable, Indeterminate: run the same again, and it goes on.
    """
    found = survey(hands.catalog, stage, _OP)
    front = front_of(hands.catalog, found, _OP)
    if front is not None:
        raise InvalidUsage(
            _OP,
            found.name,
            f"{front.name} still re-keys records for it; nothing was done: retire {front.name} first",
        )
    work = undertake(hands, [found], "retire")
    gone = sorted(lane for lane, rest in found.rests.items() if rest.kind in _ELSEWHERE)
    lanes = [lane for lane in work.every(found) if lane not in gone]
    if perform:
        for lane in gone:
            put_apart(hands, lane)
            forget(hands, lane)
        _perform(work, lanes)
    return Change(
        verb="retire",
        stage=found.name,
        done=perform,
        lanes=tuple(
            LaneChange(
                lane=lane,
                what="reads nothing more; its ids and seals go",
                before=positions(found.lanes[lane].head),
            )
            for lane in sorted((*lanes, *gone))
        ),
        means=_means(found),
        depends=tuple(found.depends()),
    )


def _perform(work: Undertaking, lanes: list[str]) -> None:
    for lane in lanes:
        work.settle(lane)
    for lane in lanes:
        if not work.done(lane):
            drain(work.hands, lane)
            put_apart(work.hands, lane)
            forget(work.hands, lane)
    for lane in lanes:
        work.conclude(lane, last=Kind.RETIRED)


def _means(found: Surveyed) -> tuple[str, ...]:
    said = [
        "whoever runs it is fenced; what it has not read it never reads",
        (
            "its ids, seals and stored outputs are deleted, so that its storage is free: audit first, if "
            "what it did is to be proved"
        ),
        "its name starts nothing by itself: whoever begins it anew says so with `delivery stage reset`",
    ]
    if found.pending:
        said.insert(1, f"{amount(found.pending, 'seal')} not delivered yet are delivered first")
    if found.readers:
        said.append(
            "who reads what it wrote can read on to the end, and still drops repeats of it; nothing "
            "new comes"
        )
    return tuple(said)
