"""A stage that a job without this library takes over: where that job begins.

What it is: `leave`.
What it must not know: Spark, the command line.

Invariants:
    What lies below the offsets that are given is sealed and delivered; what lies above was never
    sealed, and never will be: the lanes are fenced before the offsets are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.model import LaneRow
from delivery.life.change import Change, LaneChange
from delivery.life.deeds import drain
from delivery.life.survey import Surveyed, front_of, survey
from delivery.life.undertaking import Hands, Undertaking, undertake
from delivery.life.words import amount, positions
from delivery.protocol.rest import Kind

__all__ = ["leave"]

_OP = "leave a stage"


def leave(hands: Hands, stage: str, *, perform: bool = False) -> Change:
    """Let a job without this library go on where a stage stands.

    Args:
        hands: what it is done with.
        stage: "stage" or "pipeline/stage".
        perform: whether it is done; without it the offsets are those of now, and move on.

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
            "its records are re-keyed, so that some may be in between; nothing was done: change it "
            "with `delivery stage change-dedup` to partition, and then leave it",
        )
    for rest in found.rests.values():
        if rest.kind not in (Kind.UNDER_WAY, Kind.LEFT):
            raise InvalidUsage(_OP, found.name, f"{rest.why()}; nothing was done")
    work = undertake(hands, [found], "leave")
    lanes = work.concerned(found)
    if perform:
        _perform(work, lanes)
    rows = _rows(hands.catalog, found.lanes)
    return Change(
        verb="leave",
        stage=found.name,
        done=perform or not lanes,
        lanes=tuple(
            LaneChange(
                lane=lane,
                what="ends here; the other job begins here",
                before=positions(row.head),
                after=positions(row.head),
            )
            for lane, row in sorted(rows.items())
        ),
        means=_means(found),
        depends=tuple(found.depends()),
        offsets=_offsets(rows.values()),
    )


def _perform(work: Undertaking, lanes: list[str]) -> None:
    for lane in lanes:
        work.settle(lane)
    for lane in lanes:
        if not work.done(lane):
            drain(work.hands, lane)
    for lane in lanes:
        work.conclude(lane, last=Kind.LEFT)


def _rows(catalog: Catalog, lanes: Iterable[str]) -> dict[str, LaneRow]:
    return {lane: row for lane in lanes if (row := catalog.load(lane)) is not None}


def _offsets(rows: Iterable[LaneRow]) -> Mapping[str, Mapping[int, int]]:
    """Return where the lanes stand, by topic and partition, as Spark's startingOffsets does."""
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        names = {topic: name for name, topic in row.head.topics}
        for source, offset in row.head.frontier:
            if source.topic in names:
                found.setdefault(names[source.topic], {})[source.partition] = offset
    return {name: dict(sorted(offsets.items())) for name, offsets in sorted(found.items())}


def _means(found: Surveyed) -> tuple[str, ...]:
    said = [
        (
            "whoever runs it is fenced; everything below the offsets took effect and is delivered, "
            "nothing above them did: a job that begins exactly there loses nothing and doubles nothing"
        ),
        (
            "from then on publishers' repeats are not recognised, and a restart of that job may repeat "
            "what it did"
        ),
        "a partition that is not named was never read: let the job begin at its first offset",
    ]
    if found.pending:
        said.append(f"{amount(found.pending, 'seal')} not delivered yet are delivered first")
    if found.readers:
        said.append(
            "that job's outputs carry no header of this library: who reads them names them by "
            "id_from, as any publisher's"
        )
    return tuple(said)
