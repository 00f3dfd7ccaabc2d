"""How a catalog and its topics stood when an audit began.

What it is: `Stand`: heads and lists of one moment, receivers first, and what was sealed since;
`given_up`, what of a row is of topics that are gone for good, and `states`, what is of none.
What it must not know: what is proved of it.

Invariants:
    Rows are read receivers first, topics after them; what senders sealed meanwhile is told from
    what no seal stands behind by what the catalog says then.
"""

from __future__ import annotations

from dedup.backup import downstream_first
from dedup.catalog.catalog import Catalog
from dedup.errors import Corrupt
from dedup.model import LaneRow, Source
from delivery.operate.logs import Cluster
from delivery.operate.opening import inputs_of
from delivery.operate.reach import Reach
from delivery.operate.snapshot import Snapshot
from delivery.protocol.senders import Mark

__all__ = ["Stand", "given_up", "states"]


class Stand:
    """One moment.

    Args:
        catalog: is only read.
        cluster: its topics.
    """

    def __init__(self, catalog: Catalog, cluster: Cluster) -> None:
        try:
            every = downstream_first(catalog)
        except Corrupt:
            every = sorted(catalog.lanes())  # the checker says what is wrong
        self.snapshot = Snapshot(catalog.store, every)
        self.catalog = Catalog(self.snapshot)
        #: None: it cannot be read.
        self.rows: dict[str, LaneRow | None] = {lane: self._row(lane) for lane in every}
        #: What lanes have read of topics that were given up: nothing is there to hold it against.
        self.given_up: dict[str, dict[Source, int]] = {
            lane: found
            for lane, row in self.rows.items()
            if row is not None and (found := given_up(row, cluster))
        }
        ends: dict[Source, int] = {}
        for found in self.given_up.values():
            # A lane that had read less of it owes nothing: there is nothing to read.
            ends |= {s: min(at, ends.get(s, at)) for s, at in found.items()}
        #: What is no topic in the frontiers of wrapped jobs: there is no record in it.
        self.states: dict[Source, int] = {
            source: at
            for row in self.rows.values()
            if row is not None
            for source, at in states(row)
        }
        empty = ends | self.states
        self.cluster = cluster.with_gone(empty) if empty else cluster
        self.reach = Reach(self.catalog, self.cluster, frozenset(ends), frozenset(self.states))
        self._since: dict[str, tuple[int, int] | None] = {}

    @property
    def restored(self) -> bool:
        """Whether the catalog may have been put back from a backup."""
        return any(row.head.past for row in self.rows.values() if row is not None)

    def is_later(self, mark: Mark) -> bool | None:
        """Tell whether a record was sealed after the rows were read; None: a history changed.

        It is asked when all topics have been read.
        """
        row = self.rows.get(mark.sender)
        if row is None:
            return False
        if mark.sender not in self._since:
            self._since[mark.sender] = self.snapshot.sealed_since(mark.sender)
        since = self._since[mark.sender]
        if since is None:
            return None
        current = mark.incarnation == row.head.ref.incarnation
        return current and since[0] < mark.seq <= since[1]

    def ask_again(self) -> None:
        """Forget what was sealed since: more topics were read meanwhile."""
        self._since.clear()

    def changed(self) -> bool:
        """Tell whether something may have been taken away since the rows were read."""
        return any(self.snapshot.moved(lane) for lane in self.rows)

    def _row(self, lane: str) -> LaneRow | None:
        try:
            return self.catalog.load(lane)
        except Corrupt:
            return None


def given_up(row: LaneRow, cluster: Cluster) -> dict[Source, int]:
    """Return up to where a lane has read topics that are gone, and that it reads no more.

    `delivery stage accept-topic` lets a lane know another topic by that name, and lets go of the
    seals of before.
    """
    reads = {identity for _, identity in row.head.topics}
    return {
        source: offset
        for source, offset in inputs_of(row.head)
        if source.topic not in reads and source.topic not in cluster.topics()
    }


def states(row: LaneRow) -> list[tuple[Source, int]]:
    """Return the positions of a row that are of Spark's checkpoints, not of topics."""
    inputs = inputs_of(row.head)
    return [(source, at) for source, at in row.head.frontier if inputs.at(source) is None]
