"""The state of a wrapped job, when it is lost: what an operator means is written into the lane.

What it is: `forget_state`.
What it must not know: Spark's query; it does not run.

Invariants:
    It is a seal over no records, so it is won or lost like any other, and fences whoever runs.
    The checkpoint that is named gets its identity here: no other one can pass for it.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import replace

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.errors import InvalidUsage, Unavailable
from dedup.model import IDENTITY_BYTES, Attempt, Frontier, HeadRef, Seal, advance
from delivery.host.spec import Plan
from delivery.microbatch.offsets import checkpoint_at
from delivery.wrap.positions import lane_of, state_source

__all__ = ["forget_state"]


def forget_state(plan: Plan, pipeline: str, stage: str, root: str) -> None:
    """Let a stage go on with an empty checkpoint; see `Delivery.forget_state`."""
    lane = lane_of(pipeline, stage)
    checkpoint = checkpoint_at(root)
    if checkpoint.latest() is not None:
        raise InvalidUsage(
            "forget the state of a job",
            root,
            "batches were planned in it already; nothing was changed: name an empty directory",
        )
    with closing(open_store(plan.catalog)) as store:
        catalog = Catalog(store)
        row = catalog.load(lane)
        if row is None:
            raise InvalidUsage(
                "forget the state of a job",
                lane,
                "there is no such lane; nothing was changed: name a stage that has run",
            )
        state = state_source(checkpoint.identify())
        ref = row.head.ref
        here = Frontier.of([(state, 0)])
        minted = max(row.head.minted_at_ms + 1, time.time_ns() // 1_000_000)
        seal = Seal(
            ref=HeadRef(ref.incarnation, ref.seq + 1, Attempt(os.urandom(IDENTITY_BYTES))),
            start=here,
            end=here,
            minted_at_ms=minted,
            lane_time_ms=row.head.lane_time_ms,
            code="state forgotten",
            # It reads nothing, and says the same as its neighbours of what they read.
            window_ms=row.head.window_ms,
            named=row.head.named,
        )
        head = replace(advance(row.head, seal), state=state.topic)
        if not catalog.append(lane, ref, head, seal):
            raise Unavailable(
                "forget the state of a job",
                lane,
                "somebody sealed just now; nothing was changed: stop the job, and ask again",
            )
