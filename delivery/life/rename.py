"""A stage under another name: its lanes go on there with all that they know.

What it is: `rename`.
What it must not know: Spark, the command line.

The name of a lane is in the header of every record it has sent, so the old lanes stay where they
are, at rest for good: whoever reads what they sent recognises them for ever. The lanes of the new
name begin where the old ones ended, with their ids and with what they had read of their senders.

Invariants:
    No new lane is taken on before every old one is fenced, and has delivered what it sealed.
"""

from __future__ import annotations

from dataclasses import replace

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.model import LANE_NAME_BYTES_MAX, Ack, Frontier, LaneRow
from delivery.life.change import Change, LaneChange
from delivery.life.deeds import copy, drain
from delivery.life.survey import Surveyed, front_of, survey
from delivery.life.undertaking import Hands, Undertaking, undertake
from delivery.life.words import positions
from delivery.operate.opening import name_of
from delivery.protocol.rest import Kind

__all__ = ["moved_row", "rename"]

_OP = "rename a stage"


def rename(hands: Hands, stage: str, to: str, *, perform: bool = False) -> Change:
    """Let a stage go on under another name.

    Args:
        hands: what it is done with.
        stage: "stage" or "pipeline/stage".
        to: its new name, in the same pipeline.
        perform: whether it is done.

    Raises:
        InvalidUsage: it cannot be. Nothing was done.
        Unavailable, Indeterminate: run the same again, and it goes on.
    """
    found = survey(hands.catalog, stage, _OP)
    work = undertake(hands, [found], "rename", [("to", to)])
    names = {lane: _renamed(found, lane, to) for lane in work.concerned(found)}
    if not names:
        return _nothing(found, to)
    _refuse(hands.catalog, found, to, names, work)
    if perform:
        _perform(work, names)
    return Change(
        verb="rename",
        stage=found.name,
        done=perform,
        lanes=tuple(
            LaneChange(
                lane=lane,
                what=f"goes on as {names[lane]}, with its ids",
                before=positions(row.head),
                after=positions(row.head),
            )
            for lane, row in sorted(found.lanes.items())
            if lane in names
        ),
        means=_means(found, to),
        depends=tuple(found.depends()),
    )


def moved_row(row: LaneRow, state: bytes, delivered: Frontier | None = None) -> LaneRow:
    """Return the row of a lane that goes on where a resting one ended, as it begins.

    Args:
        row: of the one that ended.
        state: that one's state.
        delivered: what is delivered to the topics that it writes, if those are others.
    """
    seq = row.head.ref.seq
    # Everything of it is delivered, and its seals stay with the name they were made under.
    behind = row.ack.delivered if delivered is None else delivered
    ack = Ack(row.ack.incarnation, seq, behind)
    return LaneRow(head=replace(row.head, state=state), ack=ack, collected=seq)


def _perform(work: Undertaking, names: dict[str, str]) -> None:
    hands = work.hands
    for lane in sorted(names):
        work.settle(lane)
    for lane, name in sorted(names.items()):
        if work.done(lane):
            continue
        drain(hands, lane)
        row = hands.catalog.load(lane)
        assert row is not None, "a lane is never deleted"
        work.adopted(name, moved_row(row, work.state(lane)))
        if not work.done(name):
            copy(hands, lane, name)
    for name in sorted(names.values()):
        work.conclude(name)
    for lane in sorted(names):
        work.conclude(lane, last=Kind.RENAMED)


def _renamed(found: Surveyed, lane: str, to: str) -> str:
    return f"{found.pipeline}/{to}/{name_of(lane).reads}"


def _refuse(
    catalog: Catalog, found: Surveyed, to: str, names: dict[str, str], work: Undertaking
) -> None:
    front = front_of(catalog, found, _OP)
    if front is not None or found.stage.endswith(".by-id"):
        raise InvalidUsage(
            _OP,
            found.name,
            "its records are re-keyed through a topic that is named after it; nothing was done: "
            "change it with `delivery stage change-dedup` to partition, rename it, and change it back",
        )
    longest = max(len(name.encode()) for name in names.values())
    if not to or "/" in to or longest > LANE_NAME_BYTES_MAX:
        raise InvalidUsage(
            _OP, to, "a name is not empty, not too long, and has no slash; nothing was done"
        )
    if to == found.stage:
        raise InvalidUsage(_OP, to, "that is its name already; nothing was done")
    there = [
        lane
        for lane in catalog.lanes(f"{found.pipeline}/{to}/")
        if not work.begun or lane not in names.values()
    ]
    if there:
        raise InvalidUsage(
            _OP,
            f"{found.pipeline}/{to}",
            f"a stage had that name before ({there[0]}), and what it sent is known by it; nothing was "
            "done: choose another",
        )


def _nothing(found: Surveyed, to: str) -> Change:
    """Say that there is nothing left to do, if it was done; refuse otherwise."""
    done = [
        rest
        for rest in found.rests.values()
        if rest.kind is Kind.RENAMED and dict(rest.said).get("to") == to
    ]
    if not done:
        rest = next(iter(found.rests.values()))
        raise InvalidUsage(_OP, found.name, f"{rest.why()}; nothing was done")
    return Change(
        verb="rename",
        stage=found.name,
        done=True,
        means=(f"it was renamed before: it goes on as {to}",),
    )


def _means(found: Surveyed, to: str) -> tuple[str, ...]:
    said = [
        "whoever runs it is fenced; declare it by its new name from now on",
        "nothing is read again or skipped, and repeats of what took effect are recognised as before",
    ]
    if found.pending:
        said.append(f"{found.pending} seals that are not delivered yet are delivered first")
    if found.readers:
        said.append("who reads what it writes recognises both names, and needs not be told")
    said.append(
        f"audits and stories of what was done until now are found under {found.stage}, those of what "
        f"follows under {to}"
    )
    return tuple(said)
