"""The stages that a catalog knows: what each reads and writes, and how far it is.

What it is: `stages`, from one row of each lane and its newest seals.
What it must not know: chunks, how it is shown.

Invariants:
    Of each lane one row is read, and `SEALS_MAX` seals at most, whatever the lane holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.model import LaneRow
from delivery.operate.databases import Kept
from delivery.operate.opening import database_of, inputs_of, name_of

__all__ = ["Stage", "stages"]

#: Of each lane, the newest seals that are asked for dead letters: a list is to answer at once.
SEALS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage.

    Attributes:
        pipeline, stage: its names; of a receiver the stage is its group.
        reads, writes: topics, by name where a lane of the catalog reads them or Kafka was asked, else
            by identity.
        unnamed: of what it writes, the identities without a name.
        lanes: how many; `seals` in all of them, and `pending` that are not acknowledged.
        records: offsets below its frontiers.
        dead_letters: records that became one, by the newest `SEALS_MAX` seals of each lane.
        age_ms: since the last seal of any lane; None: nothing was ever sealed.
        databases: where lanes are kept that are in a user's database.
        unread: of these, what could not be read, in words: what is said of them is where they began.
    """

    pipeline: str
    stage: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    lanes: int
    seals: int
    pending: int
    records: int
    dead_letters: int
    age_ms: int | None
    databases: tuple[str, ...]
    unread: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def stages(
    catalog: Catalog,
    now_ms: int,
    kept: Mapping[str, Kept] | None = None,
    topics: Mapping[bytes, str] | None = None,
) -> list[Stage]:
    """Return the stages in the order of their names.

    Args:
        catalog: it is only read.
        now_ms: the time that ages are measured at.
        kept: lanes of users' databases, as far as it was tried to read them.
        topics: names of the cluster's topics, by identity, where it was asked.
    """
    found: dict[tuple[str, str], dict[str, LaneRow]] = {}
    away: dict[tuple[str, str], list[Kept]] = {}
    for lane in catalog.lanes():
        row = catalog.load(lane)
        if row is not None:
            name = name_of(lane)
            key = (name.pipeline, name.stage)
            found.setdefault(key, {})[lane] = row
            if kept is not None and lane in kept:
                away.setdefault(key, []).append(kept[lane])
    names = dict(topics or {}) | {
        identity: name
        for rows in found.values()
        for row in rows.values()
        for name, identity in row.head.topics
    }
    return [
        _stage(name, catalog, rows, away.get(name, []), names=names, now_ms=now_ms)
        for name, rows in sorted(found.items())
    ]


def _dead_letters(catalog: Catalog, lane: str, row: LaneRow) -> int:
    if not row.head.writes:
        return 0
    last = row.head.ref.seq
    return sum(
        seal.counts.dead_letter
        for incarnation, low, high in row.head.runs(max(1, last - SEALS_MAX + 1), last)
        for seal in catalog.seals(lane, incarnation, low, high)
    )


def _stage(
    name: tuple[str, str],
    catalog: Catalog,
    lanes: dict[str, LaneRow],
    kept: list[Kept],
    *,
    names: dict[Any, str],
    now_ms: int,
) -> Stage:
    rows = lanes.values()
    sealed = [row.head.minted_at_ms for row in rows if row.head.ref.seq]
    return Stage(
        pipeline=name[0],
        stage=name[1],
        reads=_once(name for row in rows for name, _ in row.head.topics),
        writes=_once(names.get(topic, topic.hex()) for row in rows for topic in row.head.writes),
        lanes=len(rows),
        seals=sum(row.head.ref.seq for row in rows),
        pending=sum(row.head.ref.seq - row.settled for row in rows),
        records=sum(offset for row in rows for _, offset in inputs_of(row.head)),
        dead_letters=sum(_dead_letters(catalog, lane, row) for lane, row in lanes.items()),
        age_ms=max(0, now_ms - max(sealed)) if sealed else None,
        databases=_once(
            [one.database for one in kept]
            or [path for row in rows if (path := database_of(row.head)) is not None]
        ),
        unnamed=_once(
            topic.hex() for row in rows for topic in row.head.writes if topic not in names
        ),
        unread=_once(one.line() for one in kept if one.unread is not None),
    )


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
