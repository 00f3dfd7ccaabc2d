"""A base that nobody proved: the catalog taken at its word up to a time, to prove what came after.

What it is: `assumed`.
What it must not know: topics.

Invariants:
    Every id that the catalog says was decided before is in it, so that later repeats are told.
"""

from __future__ import annotations

import numpy as np

from dedup.catalog.store import Store
from delivery.checker.columns.base import Decided
from delivery.checker.columns.ground import Base, Doubt, Ground
from delivery.checker.columns.same import merged
from delivery.checker.columns.table import Marks
from delivery.checker.evidence import Evidence, Findings
from delivery.checker.rows import frontiers, read_lane
from delivery.checker.world import World

__all__ = ["assumed"]


def assumed(store: Store, lane: str, since_ms: int) -> Base | None:
    """Return what a lane had sealed before a time; None if nothing of that can be read any more."""
    quiet = Findings()
    book = read_lane(store, lane, quiet)
    if book is None or quiet.found:
        return None
    before = [seq for seq, seal in book.seals.items() if seal.minted_at_ms < since_ms]
    if not before:
        return None
    last = max(before)
    seal = book.seals[last]
    ground = Ground(World(Evidence(store=store, logs={}, lanes={})), {}, Marks(lambda *_: False))
    decided = Decided()
    try:
        decided.of_list(ground, book)
        decided.of_seals(ground, book, last)
    except Doubt:
        return None
    none = np.empty((0, 2), dtype=np.uint64)
    ids, group_of = merged((none, np.empty(0, np.int64)), (decided.ids, decided.group_of))
    walk = dict(frontiers(book)[last])
    for source, offset in seal.start:
        walk.setdefault(source, offset)
    return Base(
        ref=seal.ref,
        frontier=walk,
        reads={read.key: read.seq for read in book.head.read_seqs},
        minted_at_ms=seal.minted_at_ms,
        lane_time_ms=seal.lane_time_ms,
        decided=ids,
        group_of=group_of,
        groups=decided.groups,
        sent=none,
        sealed=none,
        places=np.empty((0, 3), dtype=np.int64),
        sources=(),
        trusted=True,
    )
