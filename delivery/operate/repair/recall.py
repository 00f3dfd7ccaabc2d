"""The ids of inputs that took effect before a catalog was lost, read anew from the input's log.

What it is: `recall`, which reads a partition up to the last input that has an output, and says which
ids were decided, which inputs have no output, and where reading goes on.
What it must not know: output topics, where anything is written.

Invariants:
    An id is made as a lane makes it: by the judge itself, who knows the senders.
    An input that has an output, or that is taken for done, is decided: its id is recalled, so that
    it runs no second time, whoever repeats it.
    Every other input below the end is at or above the frontier: it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids, Mask, contains, firsts, sorted_unique
from dedup.catalog.catalog import Catalog
from dedup.formats.segment import Part
from dedup.model import IDENTITY_BYTES, Attempt, Frontier, Head, HeadRef, Incarnation, Seal
from delivery.batch import Batch
from delivery.judge import Judge
from delivery.naming import IdFrom
from delivery.operate.repair.sights import Offsets
from delivery.verdicts import Verdicts

__all__ = ["SLOT_IDS", "Recalled", "recall"]

#: Ids that are put into one segment together: 8 MiB of them.
SLOT_IDS = 512 * 1024

_NOBODY = Head(
    ref=HeadRef(Incarnation(bytes(IDENTITY_BYTES)), 0, Attempt(bytes(IDENTITY_BYTES))),
    frontier=Frontier(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What a log says of the inputs below an offset.

    Attributes:
        frontier: where reading goes on: everything below it is decided.
        ids: how many were recalled.
        segments: their parts, ready to be stored.
        again: offsets at or above the frontier that have no output: they run.
        taken: how many inputs without output are taken for done.
        lane_time_ms: the clock if a publisher named any of the ids, which are held from then; else 0.
    """

    frontier: int
    ids: int
    segments: tuple[tuple[Part, ...], ...]
    again: Offsets
    taken: int
    lane_time_ms: int


class _Nothing:
    """An index in which nothing is decided."""

    def catch_up(self, _head: Head) -> None:
        """Know nothing of any head."""

    def took(self, _seal: Seal, _parts: Sequence[Part]) -> bool:
        """Take nothing."""
        return False

    def decided(self, ids: Ids, _buckets: npt.NDArray[np.int64]) -> Mask:
        """Say No."""
        return np.zeros(len(ids), dtype=np.bool_)

    def first_seen(self, ids: Ids) -> list[None]:
        """Know of none."""
        return [None] * len(ids)

    def digests_of(self, ids: Ids) -> tuple[Mask, npt.NDArray[np.uint16]]:
        """Know no payload."""
        return self.decided(ids, np.empty(0, dtype=np.int64)), np.zeros(len(ids), dtype=np.uint16)


def recall(
    batches: Iterable[Batch],
    done: Offsets,
    end: int,
    *,
    senders: Catalog,
    id_from: IdFrom,
    certain_from: int,
    now_ms: int,
) -> Recalled:
    """Read a partition's log and say what was decided.

    Args:
        batches: its records from its beginning to `end`.
        done: offsets of inputs that have an output, sorted.
        end: the offset behind the last of them.
        senders: a catalog that knows the lanes that write this topic.
        id_from: how publishers name its records.
        certain_from: inputs below it are taken for done, output or not.
        now_ms: the clock; ids that publishers name are held for a window from then.
    """
    judge = Judge(senders, _Nothing(), id_from, lambda: ())
    known: Ids = np.empty((0, 2), dtype=np.uint64)
    segments: list[tuple[Part, ...]] = []
    held = Verdicts()
    open_ids: list[Ids] = []
    open_offsets: list[Offsets] = []
    taken, external = 0, False

    def settle() -> None:
        nonlocal known, held
        parts = _fresh(held, known).parts(now_ms)
        if parts:
            segments.append(parts)
        known = sorted_unique(np.concatenate([known, held.ids]))
        held = Verdicts()

    for batch in batches:
        has = np.isin(batch.offsets, done, assume_unique=True)
        below = batch.offsets < certain_from
        taken += int((below & ~has).sum())
        for rows, decided in ((has | below, True), (~(has | below), False)):
            part = _rows(batch, rows)
            if not len(part):
                continue
            found = judge.judge([part], Frontier(), _NOBODY, ())
            if decided:
                external = external or bool((found.buckets < 0).any())
                _add(held, found)
            else:
                open_ids.append(found.ids)
                open_offsets += [pick.batch.offsets[pick.rows] for pick in found.picks]
        if len(held.ids) >= SLOT_IDS:
            settle()
    settle()
    again = np.empty(0, dtype=np.int64)
    if open_ids:
        again = np.concatenate(open_offsets)[~contains(known, np.concatenate(open_ids))]
    return Recalled(
        frontier=int(again[0]) if len(again) else end,
        ids=len(known),
        segments=tuple(segments),
        again=again,
        taken=taken,
        lane_time_ms=now_ms if external else 0,
    )


def _rows(batch: Batch, mask: Mask) -> Batch:
    """Return some rows of a batch."""
    rows = np.flatnonzero(mask)
    if len(rows) == len(batch):
        return batch
    picked = rows.tolist()
    return Batch(
        batch.source,
        batch.offsets[rows],
        batch.timestamps_ms[rows],
        [batch.keys[row] for row in picked],
        [batch.values[row] for row in picked],
        [batch.headers[row] for row in picked],
    )


def _add(held: Verdicts, found: Verdicts) -> None:
    """Put ids beside others; the records themselves are let go."""
    shifted = np.where(found.mark_of < 0, found.mark_of, found.mark_of + len(held.marks))
    held.ids = np.concatenate([held.ids, found.ids])
    held.buckets = np.concatenate([held.buckets, found.buckets])
    held.mark_of = np.concatenate([held.mark_of, shifted])
    held.marks += found.marks


def _fresh(held: Verdicts, known: Ids) -> Verdicts:
    """Return the ids that no segment holds yet, each once."""
    rows = np.flatnonzero(firsts(held.ids) & ~contains(known, held.ids))
    return Verdicts(
        ids=held.ids[rows],
        buckets=held.buckets[rows],
        marks=held.marks,
        mark_of=held.mark_of[rows],
    )
