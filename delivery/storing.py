"""Storing what a bundle became, under its attempt: nobody sees it before its seal.

What it is: one function, from a bundle's rows and verdicts to the seal that promises them.
What it must not know: whether the seal will win.

Invariants:
    Nothing refers to what is stored here yet, so the same call again is always right.
    Everything a seal promises is stored, or rides in it, BEFORE the seal is returned.
"""

from __future__ import annotations

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.formats.dropped import dropped_chunks
from dedup.formats.segment import segment_chunks
from dedup.frozen import replace
from dedup.model import Seal, Slot
from delivery import points
from delivery.batch import Rows
from delivery.outputs import Origin, content_digest, encode_outputs
from delivery.protocol import messages as m
from delivery.recipe import Recipe, encode_recipe
from delivery.stage import Policy
from delivery.work import Work


def store_bundle(
    catalog: Catalog,
    lane: str,
    store: m.Store,
    work: Work,
    *,
    code: str,
    policy: Policy,
    counts: tuple[int, ...] | None = None,
    at: points.At,
) -> Seal:
    """Store outputs, ids and dropped offsets; return the seal that names them.

    Args:
        catalog: where they are stored.
        lane: the lane's name.
        store: where the bundle will stand.
        work: the bundle.
        code: version of the stage's code.
        policy: what the stage chose, of which seals say how ids are held and found.
        counts: of a deterministic stage, how many partitions each edge has; None of any other.
        at: is told each named step.
    """
    ref, verdicts = store.ref, work.verdicts
    work.origin = Origin(lane=lane, ref=ref, minted_at_ms=store.minted_at_ms)
    slot = Slot(lane, ref.incarnation, ref.seq, ref.attempt)
    chunks = _outputs(work.origin, work.rows, counts)
    at(points.BEFORE_OUTPUT)
    outputs = catalog.put(Blob.OUTPUTS, slot, chunks, len(work.rows))
    at(points.MID_OUTPUT)
    work.parts = verdicts.parts(store.lane_time_ms)
    ids = segment_chunks(work.parts)
    segment = catalog.put(Blob.SEGMENT, slot, ids, len(verdicts.ids))
    drops = dropped_chunks(verdicts.dropped)
    dropped = catalog.put(Blob.DROPPED, slot, drops, len(verdicts.dropped))
    return Seal(
        ref=ref,
        start=store.start,
        end=store.end,
        minted_at_ms=store.minted_at_ms,
        lane_time_ms=store.lane_time_ms,
        code=code,
        counts=replace(verdicts.counts, dead_letter=work.dead_letters),
        learned=verdicts.learned,
        outputs=outputs,
        segment=segment,
        dropped=dropped,
        inline_outputs=catalog.inline(chunks),
        inline_segment=catalog.inline(ids),
        inline_dropped=catalog.inline(drops),
        window_ms=policy.window_ms,
        named=policy.named,
    )


def _outputs(origin: Origin, rows: Rows, counts: tuple[int, ...] | None) -> list[bytes]:
    """Return what is stored of outputs: the rows, or how to know them when they are made again.

    Code that has failed once on the way may fail otherwise the next time, a dead letter tells of
    failures, and what tells of repeats is not made by the code: such rows are stored.
    """
    if counts is None or rows.unrepeatable or not rows:
        return encode_outputs(origin, rows)
    return [encode_recipe(Recipe(counts=counts, digest=content_digest(rows)))]
