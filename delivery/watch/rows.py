"""The head rows of a catalog, by stage, in the order in which records flow through them.

What it is: `Rows`, one read of every lane's row, and `StageRows`; `rows_of`, which reads those of
lanes in users' databases there.
What it must not know: entries, chunks, Kafka, clocks.

Invariants:
    One row a lane is read, whatever the lane holds; two where receivers keep lanes in databases.
    A stage stands behind those that write what it reads; in a circle, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from dedup.catalog.catalog import Catalog
from dedup.model import LaneRow, TopicId
from delivery.operate.opening import database_of, name_of

__all__ = ["Rows", "StageRows", "read_rows", "rows_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """The lanes of one stage."""

    pipeline: str
    stage: str
    lanes: Mapping[str, LaneRow]

    @property
    def name(self) -> str:
        """The words by which messages name it."""
        return f"{self.pipeline}/{self.stage}"

    @property
    def reads(self) -> dict[TopicId, str]:
        """The topics it reads, by identity."""
        return {identity: name for row in self.lanes.values() for name, identity in row.head.topics}

    @property
    def writes(self) -> tuple[TopicId, ...]:
        """The topics it writes, each once."""
        return tuple(
            dict.fromkeys(topic for row in self.lanes.values() for topic in row.head.writes)
        )

    @property
    def window_ms(self) -> int:
        """The longest window that the last seals of its lanes say; 0: none says one."""
        return max((row.head.window_ms for row in self.lanes.values()), default=0)

    @property
    def sealed_ms(self) -> int | None:
        """When the last seal of any lane was minted; None: none was, or it is in a user's database."""
        found = [
            row.head.minted_at_ms
            for row in self.lanes.values()
            if row.head.ref.seq and database_of(row.head) is None
        ]
        return max(found) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """All of them.

    Attributes:
        lanes: the rows, by lane.
        stages: their stages.
        names: of topics, by identity.
        unread: lanes of users' databases that were not read, and why not.
    """

    lanes: Mapping[str, LaneRow]
    stages: tuple[StageRows, ...]
    names: Mapping[bytes, str]
    unread: Mapping[str, str] = field(default_factory=dict)

    def topic(self, identity: TopicId) -> str:
        """Return a topic's name where a lane of the catalog reads it, else its identity in hex."""
        return self.names.get(identity, identity.hex())


@contextmanager
def rows_of(catalog: Catalog, files: Sequence[str] = ()) -> Iterator[tuple[Catalog, Rows]]:
    """Give the rows of all lanes, those of users' databases too, and a catalog that has these.

    Args:
        catalog: it is only read.
        files: databases that are somewhere else than where it remembers them, or copies of them.

    Raises:
        InvalidUsage: one of `files` keeps no lane of this catalog.
    """
    rows = read_rows(catalog)
    if not files and all(database_of(row.head) is None for row in rows.lanes.values()):
        yield catalog, rows
        return
    from delivery.operate.databases import (  # noqa: PLC0415  receivers serve metrics themselves
        with_databases,
    )

    with with_databases(catalog, files) as (whole, kept):
        unread = {lane: one.unread for lane, one in kept.items() if one.unread is not None}
        yield whole, replace(read_rows(whole), unread=unread)


def read_rows(catalog: Catalog, lanes: Iterable[str] | None = None) -> Rows:
    """Read the rows of these lanes, or of all.

    Names of topics are those that the lanes read know.
    """
    found = {
        lane: row
        for lane in (catalog.lanes() if lanes is None else lanes)
        if (row := catalog.load(lane)) is not None
    }
    stages: dict[tuple[str, str], dict[str, LaneRow]] = {}
    for lane, row in found.items():
        name = name_of(lane)
        stages.setdefault((name.pipeline, name.stage), {})[lane] = row
    return Rows(
        lanes=found,
        stages=_in_flow(
            [
                StageRows(pipeline=pipeline, stage=stage, lanes=rows)
                for (pipeline, stage), rows in sorted(stages.items())
            ]
        ),
        names={identity: name for row in found.values() for name, identity in row.head.topics},
    )


def _in_flow(stages: list[StageRows]) -> tuple[StageRows, ...]:
    """Put stages behind those that write what they read."""
    waiting, ordered = stages, []
    while waiting:
        free = [one for one in waiting if not _fed_by(one, waiting)] or waiting[:1]
        ordered += free
        waiting = [one for one in waiting if one not in free]
    return tuple(ordered)


def _fed_by(stage: StageRows, others: Iterable[StageRows]) -> bool:
    reads = set(stage.reads)
    return any(other is not stage and reads & set(other.writes) for other in others)
