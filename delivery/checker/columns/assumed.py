"""A base that nobody proved: the catalog taken at its word up to a time, to prove what came after.

What it is: `assumed`.
What it must not know: topics.

Invariants:
    Every id that the catalog says was decided before is in it, so that later repeats are told.
"""

from __future__ import annotations

import numpy as np

from dedup.catalog.store import Store
from delivery.checker.chunks import read_parts
from delivery.checker.columns.ground import Base, Doubt
from delivery.checker.columns.listed import ids_of, listed_ids
from delivery.checker.columns.same import firsts, in_order
from delivery.checker.evidence import Evidence, Findings
from delivery.checker.listed import read_list
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
    world = World(Evidence(store=store, logs={}, lanes={}))
    try:
        ids, _ = listed_ids(store, book, read_list(world, book).slots)
    except Doubt:
        return None
    parts = [ids]
    for seq in before:
        parts += [ids_of(part) for part in read_parts(store, book, book.seals[seq], quiet) or ()]
    if quiet.found:
        return None
    decided = np.concatenate(parts)
    once = firsts((decided[:, 0], decided[:, 1])) == np.arange(len(decided))
    walk = dict(frontiers(book)[last])
    for source, offset in seal.start:
        walk.setdefault(source, offset)
    none = np.empty((0, 2), dtype=np.uint64)
    return Base(
        ref=seal.ref,
        frontier=walk,
        reads={read.key: read.seq for read in book.head.read_seqs},
        minted_at_ms=seal.minted_at_ms,
        lane_time_ms=seal.lane_time_ms,
        decided=in_order(decided[once]),
        sent=none,
        sealed=none,
        trusted=True,
    )
