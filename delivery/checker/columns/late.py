"""Publishers' repeats that took effect again, because the window was past: told from double effects.

What it is: `admit_late`, which takes their records for fresh ones.
What it must not know: why anything else was decided.

Invariants:
    Where neither seals nor who asks say a window nothing is admitted: what may be right is in doubt.
    What does not pass is left as it is, and nothing explains its decision then.
"""

from __future__ import annotations

import numpy as np

from delivery.checker.again import Again
from delivery.checker.columns.ground import Base, Doubt, Ground
from delivery.checker.columns.listed import OLD, Inputs, in_hex
from delivery.checker.columns.same import ABSENT, Ints, Words, firsts, matches
from delivery.checker.evidence import Kind, LaneInput
from delivery.checker.rows import Book

__all__ = ["admit_late"]


def admit_late(
    ground: Ground,
    book: Book,
    rows: Inputs,
    decided: tuple[Words, Ints],
    *,
    asked: LaneInput,
    base: Base | None,
) -> None:
    """Take for fresh the first record in its seal of each id that was decided again, late enough.

    Args:
        ground: the evidence.
        book: the lane.
        rows: its records, whose `fresh` is changed.
        decided: the ids of all seals in question, and these.
        asked: the window, if it is not what the seals say.
        base: what is proved already.

    Raises:
        Doubt: an id was decided again, and whether late enough only a window would tell.
    """
    ids, seqs = decided
    due = np.flatnonzero(rows.fresh & (rows.seqs >= 0))
    if len(ids) <= len(due):
        return
    fresh = (rows.ids[due, 0], rows.ids[due, 1], rows.seqs[due])
    more = np.flatnonzero(matches(fresh, (ids[:, 0], ids[:, 1], seqs)) == ABSENT)
    if not len(more):
        return
    records = matches((*_words(rows.ids), rows.seqs), (*_words(ids[more]), seqs[more]))
    marks = rows.marks[records]
    external = (marks == ABSENT) | (ground.kept[marks] != 0)
    let_go_ms = base.let_go_ms if base is not None else 0
    again = Again(book.head, book.seals, asked.window_ms, let_go_ms)
    before = _Before(rows, decided, ids[more], base)
    for at in np.flatnonzero((records != ABSENT) & external).tolist():
        seq, row = int(seqs[more[at]]), int(records[at])
        last, known_ms = before.decision(at, seq)
        end_ms = again.end_ms(last) if known_ms is None else known_ms
        if not again.may(end_ms, seq):
            continue
        if not again.knows(end_ms, seq):
            past_ms = again.judged_ms(seq) - end_ms
            text = (
                f"id {in_hex(ids, int(more[at]))}: right if ids were held for {past_ms} ms at most"
            )
            raise Doubt(Kind.LATE_REPEAT, f"seal {seq}", text)
        rows.fresh[row] = True


class _Before:
    """Where ids that were decided again had been decided before."""

    def __init__(
        self, rows: Inputs, decided: tuple[Words, Ints], again: Words, base: Base | None
    ) -> None:
        ids, seqs = decided
        self._kind = firsts(_words(again))
        self._seqs: dict[int, list[int]] = {}
        self._ends: dict[int, int] = {}
        found = matches(_words(again), _words(ids))
        for at in np.flatnonzero(found != ABSENT).tolist():
            self._seqs.setdefault(int(found[at]), []).append(int(seqs[at]))
        # An id whose seal is gone, or that was brought in, is in the bucket that nobody knows.
        known = rows.ids[rows.fresh & (rows.seqs < 0)]
        for at in matches(_words(again), _words(known)).tolist():
            self._seqs.setdefault(at, []).append(OLD)
        if base is not None:
            found = matches(_words(again), _words(base.decided))
            for at in np.flatnonzero(found != ABSENT).tolist():
                end_ms = base.groups[int(base.group_of[at])].bucket.end_ms
                kind = int(found[at])
                self._ends[kind] = max(end_ms, self._ends.get(kind, 0))

    def decision(self, at: int, seq: int) -> tuple[int, int | None]:
        """Return the seal that decided an id last before another, or the end of its bucket."""
        kind = int(self._kind[at])
        earlier = [one for one in self._seqs.get(kind, ()) if one < seq]
        if earlier and max(earlier) >= 0:
            return max(earlier), None
        return OLD, self._ends.get(kind)


def _words(ids: Words) -> tuple[Words, Words]:
    return ids[:, 0], ids[:, 1]
