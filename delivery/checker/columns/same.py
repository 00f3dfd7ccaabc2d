"""Rows that are the same in several columns: the one join that a proof over columns needs.

What it is: `firsts`, `matches` and `Combos`, over plain arrays.
What it must not know: what the columns mean.

Invariants:
    Rows are told apart by all of their columns, never by a hash of them alone: where two that
    differ have the same hash, everything is sorted by the columns themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "ABSENT",
    "Ints",
    "Mask",
    "Words",
    "among",
    "distinct",
    "firsts",
    "in_order",
    "matches",
    "merged",
    "occurring",
]

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Words: TypeAlias = npt.NDArray[np.uint64]
_Columns: TypeAlias = Sequence[npt.NDArray[Any]]

#: Where there is no such row.
ABSENT = -1
#: Odd, and far from each other: what is multiplied by them spreads over all bits.
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


def firsts(columns: _Columns) -> Ints:
    """Return of every row the first one that is the same in all columns, itself maybe."""
    count = len(columns[0])
    if not count:
        return np.empty(0, dtype=np.int64)
    words = [_words(column) for column in columns]
    mixed = _mixed(words)
    if _changes([np.sort(mixed)]).all():
        return np.arange(count)  # none is like another, and to see that is cheaper than an order
    order = np.argsort(mixed)
    found = _least(order, _changes([mixed[order]]))
    again = np.flatnonzero(found != np.arange(count))
    first = found[again]
    if any((word[again] != word[first]).any() for word in words):
        order = np.lexsort(words[::-1])
        found = _least(order, _changes([word[order] for word in words]))
    return found


def _least(order: Ints, new: Mask) -> Ints:
    """Return of every row the first one of its kind, if rows of a kind follow each other."""
    starts = np.flatnonzero(new)
    least = np.minimum.reduceat(order, starts)
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.repeat(least, np.diff(np.append(starts, len(order))))
    return found


def matches(known: _Columns, asked: _Columns) -> Ints:
    """Return of every row asked for the first known one that is the same, else `ABSENT`."""
    mine, theirs = [_words(column) for column in known], [_words(column) for column in asked]
    many, mixed = len(known[0]), _mixed(mine)
    order = np.argsort(mixed)
    ordered = mixed[order]
    if not many or not _changes([ordered]).all():
        joined = [np.concatenate(pair) for pair in zip(mine, theirs, strict=True)]
        found = firsts(joined)[many:]
        return np.where(found < many, found, ABSENT)
    # No two known ones have the same hash, so that each row can be the same as one at most.
    wanted = _mixed(theirs)
    places = np.argsort(wanted)
    at = np.empty(len(wanted), dtype=np.int64)
    at[places] = np.searchsorted(ordered, wanted[places])  # in order, which is quick
    found = order[np.minimum(at, many - 1)]
    same = np.ones(len(wanted), dtype=np.bool_)
    for one, other in zip(mine, theirs, strict=True):
        same &= one[found] == other
    return np.where(same, found, ABSENT)


def in_order(ids: Words) -> Words:
    """Return ids, two words each, in the order of their first words."""
    return ids[np.argsort(ids[:, 0])]


def merged(known: tuple[Words, Ints], more: tuple[Words, Ints]) -> tuple[Words, Ints]:
    """Return ordered ids with others put in, and the number beside each.

    The known ones are not sorted again.
    """
    (ids, numbers), (others, beside) = known, more
    order = np.argsort(others[:, 0])
    others, beside = others[order], beside[order]
    if not len(ids):
        return others, beside
    at = np.searchsorted(ids[:, 0], others[:, 0], side="right")
    return np.insert(ids, at, others, axis=0), np.insert(numbers, at, beside)


def among(known: Words, ids: Words) -> Mask:
    """Tell of ids whether they are among known ones, whose first words are in order."""
    high = np.ascontiguousarray(known[:, 0])
    first = np.searchsorted(high, ids[:, 0])
    behind = np.searchsorted(high, ids[:, 0], side="right")
    found = np.zeros(len(ids), dtype=np.bool_)
    while (open_rows := np.flatnonzero(~found & (first < behind))).size:
        found[open_rows] = known[first[open_rows], 1] == ids[open_rows, 1]
        first[open_rows] += 1
    return found


def distinct(columns: _Columns) -> Ints:
    """Return one row of each kind, the first; of few kinds, in long runs mostly."""
    if not len(columns[0]):
        return np.empty(0, dtype=np.int64)
    starts = np.flatnonzero(_changes([_words(column) for column in columns]))
    found: Ints = starts[np.unique(firsts([column[starts] for column in columns]))]
    return found


def occurring(places: Ints) -> Ints:
    """Return which places occur in a column of them, `ABSENT` too, in order.

    They are few and small: sorting every row to find them takes ten times as long.
    """
    found: Ints = np.flatnonzero(np.bincount(places - ABSENT)) + ABSENT
    return found


def _words(column: npt.NDArray[Any]) -> Words:
    if column.dtype == np.uint64:
        return column
    return column.astype(np.int64).view(np.uint64)


def _mixed(words: Sequence[Words]) -> Words:
    mixed = np.zeros(len(words[0]), dtype=np.uint64)
    for at, word in enumerate(words):
        # Of neighbouring numbers the upper bits must differ as well.
        mixed ^= word
        mixed *= np.uint64(_FACTORS[at % len(_FACTORS)])
        mixed ^= mixed >> _HALF
    return mixed


def _changes(columns: Sequence[Words]) -> Mask:
    changes = np.zeros(len(columns[0]), dtype=np.bool_)
    changes[0] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return changes
