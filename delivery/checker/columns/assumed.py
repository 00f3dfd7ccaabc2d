"""A base that nobody proved: the catalog taken at its word up to a seal, to prove what came after.

What it is: `assumed`.
What it must not know: topics.

Invariants:
    Every id that the catalog says was decided before is in it, so that later repeats are told.
"""

from __future__ import annotations

import numpy as np

from dedup.catalog.store import Store
from delivery.checker.again import Again
from delivery.checker.columns.base import Decided
from delivery.checker.columns.ground import Base, Doubt, Ground
from delivery.checker.columns.listed import raise_first
from delivery.checker.columns.same import merged
from delivery.checker.columns.table import Marks
from delivery.checker.evidence import Evidence, Findings, Span
from delivery.checker.rows import read_lane
from delivery.checker.world import World

__all__ = ["assumed"]


def assumed(store: Store, lane: str, span: Span) -> Base:
    """Return what a lane had sealed before a span that has seals before it.

    Raises:
        Doubt: not all of that can be read, so that nobody knows what repeats it.
    """
    quiet, upto = Findings(), span.first - 1
    book = read_lane(store, lane, quiet, 0, upto)
    raise_first(quiet)
    if book is None or upto not in book.seals:
        raise Doubt(None, f"seal {upto}", "it cannot be read")
    seal = book.seals[upto]
    ground = Ground(World(Evidence(store=store, logs={}, lanes={})), {}, Marks(lambda *_: False))
    decided = Decided()
    decided.of_list(ground, book, upto)
    decided.of_seals(ground, book, upto)
    none = np.empty((0, 2), dtype=np.uint64)
    ids, group_of = merged((none, np.empty(0, np.int64)), (decided.ids, decided.group_of))
    return Base(
        ref=seal.ref,
        frontier=dict(span.start),
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
        let_go_ms=Again(book.head, book.seals, None).let_go_ms,
    )
