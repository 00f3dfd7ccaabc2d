"""What a lane says of itself while its catalog is moved: in the target at rest, in the source gone.

What it is: how far a lane is, its row as it stands in the target meanwhile, and as it was.
What it must not know: what is stored beside the row, in which order anything is done.

Invariants:
    A row at rest holds all of what it was: it is put back byte by byte.
    A catalog with lanes of its own is no target.
"""

from __future__ import annotations

import os
from dataclasses import replace
from enum import StrEnum

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.model import IDENTITY_BYTES, Attempt, HeadRef, Incarnation, Kept, LaneRow
from delivery.protocol.rest import Kind, Rest, rest_of

__all__ = [
    "OP",
    "TO",
    "VERB",
    "Step",
    "fresh",
    "occupied",
    "original",
    "resting",
    "row_of",
    "step_of",
]

OP = "migrate a catalog"
VERB = "migrate"
#: What is said of a lane in the target: where it comes from, and the head that it had there.
_FROM, _INCARNATION, _ATTEMPT = "from", "incarnation", "attempt"
#: What is said of a lane in the source.
TO = "to"


class Step(StrEnum):
    """How far a lane is."""

    #: The target has nothing of it, or a copy of what it was before.
    WAITING = "waiting"
    #: Its head is in the target, at rest; maybe not all of the rest.
    COPIED = "copied"
    #: The source is out of use, the target not yet in use.
    FENCED = "fenced"
    MOVED = "moved"


def step_of(source: Catalog, target: Catalog | None, lane: str, to: str) -> Step:
    """Return how far a lane is.

    Raises:
        InvalidUsage: it was moved elsewhere, or the target has one of its own.
    """
    row, there = row_of(source, lane), None if target is None else target.load(lane)
    left = rest_of(row.head.state)
    arrived = None if there is None else rest_of(there.head.state)
    if left is not None and left.kind is Kind.MOVED:
        where = dict(left.said).get(TO)
        if where != to or there is None:
            raise InvalidUsage(
                OP,
                lane,
                f"it was moved to {where} already; nothing was done: go on there",
            )
        return Step.FENCED if _is_ours(arrived, source) else Step.MOVED
    if left is not None and left.kind is Kind.COPIED:
        raise InvalidUsage(OP, lane, f"{left.why()}; nothing was done")
    if there is None:
        return Step.WAITING
    if not _is_ours(arrived, source):
        assert target is not None, "a lane is in a catalog"
        raise occupied(target.store.url, lane)
    return Step.COPIED if resting(row, source.store.url, there) == there else Step.WAITING


def _is_ours(rest: Rest | None, source: Catalog) -> bool:
    return (
        rest is not None
        and rest.kind is Kind.COPIED
        and dict(rest.said).get(_FROM) == source.store.url
    )


def resting(row: LaneRow, url: str, like: LaneRow | None = None) -> LaneRow:
    """Return a row as it stands in the target while the source may go on."""
    head = row.head
    ref = (
        HeadRef(Incarnation(fresh()), head.ref.seq, Attempt(fresh()))
        if like is None
        else replace(like.head.ref, seq=head.ref.seq)
    )
    said = {_FROM: url, _INCARNATION: head.ref.incarnation.hex(), _ATTEMPT: head.ref.attempt.hex()}
    rest = Rest(kind=Kind.COPIED, verb=VERB, said=tuple(sorted(said.items())), state=head.state)
    return LaneRow(
        head=replace(
            head,
            ref=ref,
            past=(*head.past, Kept(head.ref.incarnation, head.ref.seq)),
            state=rest.encode(),
        ),
        ack=replace(row.ack, incarnation=ref.incarnation),
        collected=row.collected,
    )


def original(there: LaneRow) -> LaneRow:
    """Return a row as it stood in the source."""
    rest = rest_of(there.head.state)
    assert rest is not None, "it is at rest"
    said = dict(rest.said)
    incarnation = Incarnation(bytes.fromhex(said[_INCARNATION]))
    ref = HeadRef(incarnation, there.head.ref.seq, Attempt(bytes.fromhex(said[_ATTEMPT])))
    head = replace(there.head, ref=ref, past=there.head.past[:-1], state=rest.state)
    return LaneRow(
        head=head, ack=replace(there.ack, incarnation=incarnation), collected=there.collected
    )


def row_of(catalog: Catalog, lane: str) -> LaneRow:
    """Return the row of a lane that is there."""
    row = catalog.load(lane)
    assert row is not None, "a lane is never deleted"
    return row


def fresh() -> bytes:
    """Return 16 bytes that nobody was given before."""
    return os.urandom(IDENTITY_BYTES)


def occupied(url: str, lane: str) -> InvalidUsage:
    """Return the error about a target that is in use."""
    return InvalidUsage(
        OP,
        url,
        f"it holds lanes of its own ({lane}); nothing was done: name a catalog that is new or empty",
    )
