"""A bundle's fresh records through user code: what they become, and where that goes.

What it is: one function, the same for a bundle that is to be sealed and for one whose outputs are
made again.
What it must not know: lanes, seals, whether the outputs will count.

Invariants:
    Outputs stand in the order of the records they were made from.
    Deterministic code that takes batches gets one of each partition of a bundle, however the
    records came: where a batch ends is said by the seal alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from itertools import groupby, repeat
from typing import cast

import numpy as np

from dedup.errors import InvalidUsage
from dedup.model import RecordId
from delivery.batch import Rows, joined
from delivery.blame import place_of
from delivery.ports import Counting, Emitter, Stage
from delivery.records import Output, Record
from delivery.stage import Policy, run_fresh
from delivery.verdicts import Pick

__all__ = ["execute"]


def execute(
    picks: Sequence[Pick],
    *,
    stage: Stage,
    policy: Policy,
    emitter: Emitter,
    counts: Sequence[int] | None = None,
    kept: Iterator[RecordId | None] | None = None,
    besides: Sequence[tuple[Output, Record]] = (),
    pool: Executor | None = None,
) -> tuple[Rows, int]:
    """Return what fresh records become, and how many dead letters are among it.

    Args:
        picks: the records.
        stage: user code.
        policy: what becomes of a record that keeps failing.
        emitter: where outputs go.
        counts: how many partitions each edge is taken to have; None: as many as it has.
        kept: for each record its id if its outputs keep it.
        besides: outputs that the code does not make, each with its parent; they come last.
        pool: runs user code on several records at once.

    Raises:
        StoppedByRecordError: user code cannot process a record.
        InvalidUsage: an output goes to no edge.
    """
    rows, dead_letters = Rows(), 0
    ids = repeat(None) if kept is None else kept
    for pick in _whole(picks) if policy.deterministic else picks:
        dead_letters += run_fresh(
            stage,
            pick.batch,
            pick.rows,
            policy,
            rows,
            kept=ids,
            pool=pool,
            letters=pick.letters,
        )
    for output, record in besides:
        rows.add([output], record, None)
        rows.unrepeatable = True
    _check_edges(rows, len(emitter.writes), stage, policy.writes)
    if rows and counts is not None:
        rows.partitions = list(cast("Counting", emitter).place_among(rows, counts))
    elif rows:
        rows.partitions = list(emitter.place(rows))
    return rows, dead_letters


def _whole(picks: Sequence[Pick]) -> list[Pick]:
    """Return the records of each partition as one batch."""
    found = []
    for _, group in groupby(picks, lambda pick: pick.batch.source):
        mine = list(group)
        # With a dead letter a bundle stores its rows.
        if len(mine) > 1 and not any(pick.letters for pick in mine):
            begins = np.cumsum([0, *(len(pick.batch) for pick in mine)])
            rows = [pick.rows + begin for pick, begin in zip(mine, begins, strict=False)]
            mine = [Pick(joined([pick.batch for pick in mine]), np.concatenate(rows))]
        found += mine
    return found


def _check_edges(rows: Rows, edges: int, stage: Stage, names: Sequence[str]) -> None:
    outside = {edge for edge in set(rows.edges) if not 0 <= edge < edges}
    if not outside:
        return
    wrong = next(row for row, edge in enumerate(rows.edges) if edge in outside)
    call = getattr(stage, "call", None)
    place = place_of(call) if call is not None else ""
    which = ", ".join(f"{edge} is {name}" for edge, name in enumerate(names))
    has = f"the stage has {edges} outputs, numbered from 0{which and f': {which}'}"
    mend = "mend what the code says to .to(...)"
    if not edges:
        has = "the stage was declared without writes="
        mend = "say writes=, or let the function return nothing"
    raise InvalidUsage(
        "send an output",
        f"to output {rows.edges[wrong]}, of offset {rows.parent_offsets[wrong]} of partition "
        f"{rows.parent_partitions[wrong]}",
        f"{has}; nothing of its bundle was sealed: {mend}{place and f', at {place}'}",
    )
