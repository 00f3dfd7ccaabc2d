"""A stage as its catalog knows it: lanes, what they read and write, who depends on them.

What it is: `survey`, and `Surveyed`.
What it must not know: what is going to be done to the stage.

Invariants:
    Catalog and topics are only read.
    A stage is one stage of one pipeline; a name that two pipelines have is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.model import LaneRow, TopicId
from delivery.operate.opening import chosen, database_of, name_of
from delivery.protocol.rest import Kind, Rest, rest_of
from delivery.wrap.positions import lane_of

__all__ = ["Surveyed", "front_of", "survey"]

#: What the name of the pass-through stage ends with that re-keys for another.
_FRONT = ".by-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """One stage.

    Attributes:
        pipeline, stage: its names.
        lanes: its lanes and their rows, by name.
        readers: stages that read what it writes, "pipeline/stage".
        writers: stages that write what it reads.
    """

    pipeline: str
    stage: str
    lanes: Mapping[str, LaneRow]
    readers: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Both its names."""
        return f"{self.pipeline}/{self.stage}"

    @property
    def rests(self) -> dict[str, Rest]:
        """The lanes that rest, and why."""
        found = {lane: rest_of(row.head.state) for lane, row in self.lanes.items()}
        return {lane: rest for lane, rest in found.items() if rest is not None}

    @property
    def live(self) -> dict[str, LaneRow]:
        """The lanes that do not rest for good."""
        ended = {lane for lane, rest in self.rests.items() if rest.kind is not Kind.UNDER_WAY}
        return {lane: row for lane, row in self.lanes.items() if lane not in ended}

    @property
    def is_wrapped(self) -> bool:
        """Whether it is the one lane of a wrapped job."""
        return lane_of(self.pipeline, self.stage) in self.lanes

    @property
    def topics(self) -> dict[str, TopicId]:
        """What its lanes read that do not rest for good, by name."""
        return {name: topic for row in self.live.values() for name, topic in row.head.topics}

    @property
    def pending(self) -> int:
        """How many seals are not known to be delivered."""
        return sum(row.head.ref.seq - row.ack.seq for row in self.live.values())

    def depends(self) -> list[str]:
        """Say who else has to do with it."""
        said = [f"{reader} reads what it writes" for reader in self.readers]
        return said + [f"{writer} writes what it reads" for writer in self.writers]


def survey(catalog: Catalog, stage: str, op: str) -> Surveyed:
    """Look at a stage.

    Args:
        catalog: where it is.
        stage: "stage" or "pipeline/stage".
        op: what is asked for, in words.

    Raises:
        InvalidUsage: there is none, or there are several; or its lanes are in a user's database.
    """
    names = chosen(catalog, stage)
    stages = sorted({(name_of(lane).pipeline, name_of(lane).stage) for lane in names})
    if len(stages) > 1:
        both = " and ".join("/".join(one) for one in stages)
        raise InvalidUsage(op, stage, f"there are {both}; nothing was done: say which one")
    rows = {lane: row for lane in names if (row := catalog.load(lane)) is not None}
    kept = [path for row in rows.values() if (path := database_of(row.head)) is not None]
    if kept:
        raise InvalidUsage(
            op,
            "/".join(stages[0]),
            f"its lanes are kept in the database {kept[0]}, which this catalog does not command; "
            "nothing was done: begin a group of another name",
        )
    return Surveyed(
        pipeline=stages[0][0],
        stage=stages[0][1],
        lanes=rows,
        readers=_readers(catalog, rows),
        writers=_writers(catalog, rows),
    )


def front_of(catalog: Catalog, found: Surveyed, op: str) -> Surveyed | None:
    """Return the pass-through stage in front of one that deduplicates a whole topic; None: none."""
    front = f"{found.stage}{_FRONT}"
    if not any(True for _ in catalog.lanes(f"{found.pipeline}/{front}/")):
        return None
    surveyed = survey(catalog, f"{found.pipeline}/{front}", op)
    return surveyed if surveyed.live else None


def _readers(catalog: Catalog, rows: Mapping[str, LaneRow]) -> tuple[str, ...]:
    written = {topic for row in rows.values() for topic in row.head.writes}
    return _stages(
        lane
        for lane, row in _others(catalog, rows)
        if written.intersection(topic for _, topic in row.head.topics)
    )


def _writers(catalog: Catalog, rows: Mapping[str, LaneRow]) -> tuple[str, ...]:
    read = {topic for row in rows.values() for _, topic in row.head.topics}
    return _stages(
        lane for lane, row in _others(catalog, rows) if read.intersection(row.head.writes)
    )


def _others(catalog: Catalog, rows: Mapping[str, LaneRow]) -> Iterable[tuple[str, LaneRow]]:
    """Yield the lanes of other stages that do not rest for good."""
    for lane in catalog.lanes():
        row = None if lane in rows else catalog.load(lane)
        if row is not None and rest_of(row.head.state) is None:
            yield lane, row


def _stages(lanes: Iterable[str]) -> tuple[str, ...]:
    names = (name_of(lane) for lane in lanes)
    return tuple(sorted({f"{name.pipeline}/{name.stage}" for name in names}))
