"""A catalog moved into another store: copied, checked, and only then taken out of use where it was.

What it is: `survey`, which says what there is to move and what forbids it, and `migrate`, which does
it, in phases that may each be run again.
What it must not know: which stores these are, command lines.

Invariants:
    A lane runs in one catalog at most. In the target it is at rest until the source was fenced.
    The source is fenced by a new incarnation in place of the very head that was copied: whoever had
    it open can append nothing any more, and whoever opens it is refused and told where it went.
    Nothing is fenced BEFORE everything was copied and compared; nothing runs in the target BEFORE
    everything is fenced.
    A lane arrives as it was, byte by byte, incarnation included: receivers notice nothing.
    Killed anywhere, the same call finishes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from dedup.backup import downstream_first
from dedup.catalog.catalog import Catalog
from dedup.errors import Corrupt, InvalidUsage, Unavailable
from dedup.formats.lane import encode_head
from dedup.model import Attempt, HeadRef, Incarnation, Kept, LaneRow
from delivery.operate.migration.copying import amount, compare, copy
from delivery.operate.migration.places import (
    OP,
    TO,
    VERB,
    Step,
    fresh,
    occupied,
    original,
    resting,
    row_of,
    step_of,
)
from delivery.operate.reporting import Report, silent
from delivery.operate.verification import verify
from delivery.protocol.rest import Kind, Rest

__all__ = ["POINTS", "Migrated", "Move", "migrate", "survey"]

#: The named steps at which tests end the process, in their order.
POINTS = ("lane-made", "lane-copied", "checked", "fenced", "moved")

At = Callable[[str], None]

#: A lane of which the source is still in use.
_OPEN = (Step.WAITING, Step.COPIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One lane: how far it is, the seq of its head, and how much of it there is in the source."""

    lane: str
    step: Step
    seq: int
    entries: int
    chunks: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """What there is to move, or was moved.

    Attributes:
        source, target: the catalogs.
        done: whether every lane is moved.
        lanes: in the order in which they are moved: receivers before their senders.
    """

    source: str
    target: str
    done: bool
    lanes: tuple[Move, ...]

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {
            "lanes": [asdict(lane) | {"step": lane.step.value} for lane in self.lanes]
        }


def survey(source: Catalog, target: Catalog | None, to: str, report: Report = silent) -> Migrated:
    """Say what there is to move, and how far it is.

    Args:
        source: the catalog that is used.
        target: the other one; None: there is none yet.
        to: its URL.
        report: is told each lane.

    Raises:
        InvalidUsage: the target holds lanes of its own, or the source was moved elsewhere.
    """
    lanes = downstream_first(source)
    if target is not None:
        strange = [lane for lane in target.lanes() if lane not in lanes]
        if strange:
            raise occupied(target.store.url, strange[0])
    moves: list[Move] = []
    for lane in lanes:
        report(f"look at {lane}", len(moves), len(lanes))
        entries, chunks, size = amount(source.store, lane)
        moves.append(
            Move(
                lane=lane,
                step=step_of(source, target, lane, to),
                seq=row_of(source, lane).head.ref.seq,
                entries=entries,
                chunks=chunks,
                size=size,
            )
        )
    return Migrated(
        source=source.store.url,
        target=to,
        done=all(move.step is Step.MOVED for move in moves),
        lanes=tuple(moves),
    )


def migrate(
    source: Catalog,
    target: Catalog,
    report: Report = silent,
    at: At = lambda _: None,
) -> Migrated:
    """Move every lane. The same call again finishes what was killed.

    Raises:
        InvalidUsage: see `survey`; or the source is being written to.
        Corrupt: what was copied is not what was there. Nothing was fenced.
    """
    to = target.store.url
    steps = {move.lane: move.step for move in survey(source, target, to).lanes}
    # Every lane is there, at rest, BEFORE any is whole: nobody begins one anew meanwhile.
    for lane in [lane for lane, step in steps.items() if step is Step.WAITING]:
        _make(source, target, lane)
        at("lane-made")
    still = [lane for lane, step in steps.items() if step in _OPEN]
    for done, lane in enumerate(still):
        report(f"copy {lane}", done, 2 * len(still))
        copy(source.store, target.store, lane)
        at("lane-copied")
    for done, lane in enumerate(still, len(still)):
        report(f"check {lane}", done, 2 * len(still))
        compare(source.store, target.store, lane)
        _verify(target, lane)
    at("checked")
    _change_over(source, target, still, at)
    for lane in [lane for lane, step in steps.items() if step is not Step.MOVED]:
        _arrive(target, lane)
        at("moved")
    return survey(source, target, to)


def _make(source: Catalog, target: Catalog, lane: str) -> None:
    """Put the head of a lane into the target, at rest."""
    rest, there = resting(row_of(source, lane), source.store.url), target.load(lane)
    if there is None:
        target.recreate(lane, rest)
    elif not target.reincarnate(lane, there.head.ref, rest):
        raise Unavailable(
            OP, lane, "another migration moved it just now; nothing is lost: run it again"
        )


def _verify(target: Catalog, lane: str) -> None:
    found = verify(target.store, [lane])
    if not found.whole:
        raise Corrupt(
            OP,
            str(found.findings[0]),
            f"that is one of {len(found.findings)} findings in the copy, and the source has them too, "
            "because both are equal; nothing was fenced: see `delivery catalog verify` on the source",
        )


def _change_over(source: Catalog, target: Catalog, lanes: list[str], at: At) -> None:
    """Take lanes out of use in the source, if all of them still stand where they were copied."""
    rows = {lane: _unchanged(source, target, lane) for lane in lanes}
    for lane, row in rows.items():
        _fence(source, target, lane, row)
        at("fenced")


def _unchanged(source: Catalog, target: Catalog, lane: str) -> LaneRow:
    row, copied = row_of(source, lane), original(row_of(target, lane))
    if encode_head(copied.head) != encode_head(row.head) or _settled(copied) != _settled(row):
        raise _written(source, lane)
    return row


def _fence(source: Catalog, target: Catalog, lane: str, row: LaneRow) -> None:
    ref = HeadRef(Incarnation(fresh()), row.head.ref.seq, Attempt(fresh()))
    rest = Rest(kind=Kind.MOVED, verb=VERB, said=((TO, target.store.url),), state=row.head.state)
    head = replace(
        row.head,
        ref=ref,
        past=(*row.head.past, Kept(row.head.ref.incarnation, row.head.ref.seq)),
        state=rest.encode(),
    )
    fenced = LaneRow(
        head=head, ack=replace(row.ack, incarnation=ref.incarnation), collected=row.collected
    )
    if not source.reincarnate(lane, row.head.ref, fenced, since=row):
        raise _written(source, lane)


def _arrive(target: Catalog, lane: str) -> None:
    """Let a lane run in the target, as it was in the source."""
    there = row_of(target, lane)
    if not target.reincarnate(lane, there.head.ref, original(there)):
        raise Unavailable(
            OP, lane, "another migration moved it just now; nothing is lost: run it again"
        )


def _settled(row: LaneRow) -> tuple[Any, ...]:
    return (row.ack.seq, row.ack.delivered, row.collected)


def _written(source: Catalog, lane: str) -> InvalidUsage:
    return InvalidUsage(
        OP,
        f"{lane} in {source.store.url}",
        "it was sealed, acknowledged or collected while it was copied, so its stage runs; the source "
        "goes on as it was, but for lanes that were fenced before this one: stop every stage and "
        "receiver, and run the same again, which finishes it",
    )
