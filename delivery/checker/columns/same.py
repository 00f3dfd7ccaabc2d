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
    order = np.argsort(mixed)
    new = _changes([mixed[order]])
    apart = _changes([word[order] for word in words])
    if (new != apart).any():
        order = np.lexsort(words[::-1])
        new = _changes([word[order] for word in words])
    starts = np.flatnonzero(new)
    least = np.minimum.reduceat(order, starts)
    found = np.empty(count, dtype=np.int64)
    found[order] = np.repeat(least, np.diff(np.append(starts, count)))
    return found


def matches(known: _Columns, asked: _Columns) -> Ints:
    """Return of every row asked for the first known one that is the same, else `ABSENT`."""
    many = len(known[0])
    joined = [
        np.concatenate((_words(one), _words(other)))
        for one, other in zip(known, asked, strict=True)
    ]
    found = firsts(joined)[many:]
    return np.where(found < many, found, ABSENT)


def in_order(ids: Words) -> Words:
    """Return ids, two words each, in their order."""
    return ids[np.lexsort((ids[:, 1], ids[:, 0]))]


def merged(known: tuple[Words, Ints], more: tuple[Words, Ints]) -> tuple[Words, Ints]:
    """Return ordered ids with others put in, and the number beside each.

    The known ones are not sorted again.
    """
    (ids, numbers), (others, beside) = known, more
    order = np.lexsort((others[:, 1], others[:, 0]))
    others, beside = others[order], beside[order]
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
