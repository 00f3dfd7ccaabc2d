"""How the lane of a wrapped job is called, and what stands in its frontier for the job's state.

What it is: `lane_of` and `state_source`.
What it must not know: where checkpoints are.

Invariants:
    A position in it is the number of the next batch of that very checkpoint: no record, no identity.
"""

from __future__ import annotations

import uuid

from dedup.model import Source, TopicId

__all__ = ["lane_of", "state_source"]


def lane_of(pipeline: str, stage: str) -> str:
    """Return the name of a job's one lane; no lane of a partition is called so."""
    return f"{pipeline}/{stage}/all"


def state_source(query_id: str) -> Source:
    """Return the source whose next position is the next batch of a query's checkpoint.

    The state of a job is one more thing that it reads, and a seal says up to where. So batches
    without a record can be sealed, and a gap, a step back and another checkpoint are refused as they
    are for partitions.
    """
    return Source(TopicId(uuid.UUID(query_id).bytes), 0)
