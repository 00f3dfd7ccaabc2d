"""Record ids as arrays: two 64-bit words an id, compared and sorted like the 16 bytes they are.

What it is: `Ids`, its two spellings (array and raw bytes), order, repeats and membership.
What it must not know: how an id is made, what is stored under it, filters.

Invariants:
    `Ids` is a C-contiguous array of native uint64, one row an id; column 0 is the high and column
    1 the low half of the big-endian 128 bits, so that (high, low) order is the order of the bytes.
    A stored run of ids is their 16 bytes one after another, sorted and unique.
    Nothing here trusts the high half to tell two ids apart: whoever names records may choose ids
    that agree in it. Ties cost time in proportion to the ids that are tied, times a logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dedup.model import IDENTITY_BYTES

#: Ids as an array of shape (n, 2).
Ids: TypeAlias = npt.NDArray[np.uint64]
#: Positions, counts and offsets in arrays.
Places: TypeAlias = npt.NDArray[np.intp]
#: One truth an id.
Mask: TypeAlias = npt.NDArray[np.bool_]

#: The spelling in bytes.
_BIG_ENDIAN = np.dtype(">u8")


def from_raw(raw: bytes | memoryview) -> Ids:
    """Return ids from their 16 bytes one after another; the array is the caller's own."""
    assert len(raw) % IDENTITY_BYTES == 0, "raw ids are 16 bytes each"
    return np.frombuffer(raw, dtype=_BIG_ENDIAN).astype(np.uint64).reshape(-1, 2)


def to_raw(ids: Ids) -> bytes:
    """Return the 16 bytes of every id one after another."""
    return ids.astype(_BIG_ENDIAN).tobytes()


def pack(ids: Sequence[bytes]) -> Ids:
    """Return ids from one bytes object each."""
    # Lengths that only add up would shift every id behind the first wrong one.
    assert set(map(len, ids)) <= {IDENTITY_BYTES}, "an id is 16 bytes"
    return from_raw(b"".join(ids))


def order(ids: Ids) -> Places:
    """Return the order that sorts ids; equal ids stay in the order given."""
    return ordered(ids)[0]


def ordered(ids: Ids) -> tuple[Places, Places]:
    """Return `order`, and the places in it of all ids that may be like the one beside them.

    Numbers of 64 bits are sorted three times as fast as places are found that would sort them. So
    each carries its place, where random ids almost never have a bit that decides.
    """
    place_bits = len(ids).bit_length()
    places = np.arange(len(ids), dtype=np.uint64)
    mask = np.uint64((1 << place_bits) - 1)
    keys = ids[:, 0] & ~mask
    keys |= places
    keys.sort()
    np.bitwise_and(keys, mask, out=places)
    keys >>= np.uint64(place_bits)
    tied = _same_as_next(keys)
    found = places.view(np.int64).astype(np.intp, copy=False)
    if not tied.any():
        return found, np.empty(0, dtype=np.intp)
    touched = _touched(tied)
    rows = found[touched]
    found[touched] = rows[np.lexsort((rows, ids[rows, 1], ids[rows, 0]))]
    return found, touched


def firsts(ids: Ids) -> Mask:
    """Tell of each id whether it is the first of its kind in the order given."""
    mask = np.ones(len(ids), dtype=np.bool_)
    found, tied = ordered(ids)
    mask[found[_repeated(ids, found, tied)]] = False
    return mask


def firsts_in_order(ids: Ids) -> Places:
    """Return the places that sort ids, of each id only that of the first of its kind."""
    found, tied = ordered(ids)
    if not len(tied):
        return found
    keep = np.ones(len(ids), dtype=np.bool_)
    keep[_repeated(ids, found, tied)] = False
    return found.compress(keep)


def first_places(ids: Ids) -> Places:
    """Return for each id the place of the first of its kind in the order given."""
    found = order(ids)
    start = np.arange(len(ids))
    start[1:][_repeats(ids.take(found, axis=0))] = 0
    places = np.empty(len(ids), dtype=np.intp)
    places[found] = found[np.maximum.accumulate(start)]
    return places


def sorted_unique(ids: Ids) -> Ids:
    """Return the ids in their order, each once."""
    return ids.take(firsts_in_order(ids), axis=0)


def contains(known: Ids, ids: Ids) -> Mask:
    """Tell of each id whether it is among `known`, which is sorted."""
    if len(known) == 0:
        return np.zeros(len(ids), dtype=np.bool_)
    # Neighbours among the ids asked for end beside each other, and the processor guesses right.
    turns = order(ids)
    asked = ids.take(turns, axis=0)
    high, low = np.ascontiguousarray(known[:, 0]), known[:, 1]
    place = np.searchsorted(high, asked[:, 0])
    place[place == len(known)] = 0  # behind the last: any row will do, its high half differs
    near = high.take(place) == asked[:, 0]
    hit = near & (low.take(place) == asked[:, 1])
    tied = np.flatnonzero(near & ~hit)
    if len(tied):
        hit[tied] = _among_tied(high, low, asked[tied], place[tied])
    mask = np.empty(len(ids), dtype=np.bool_)
    mask[turns] = hit
    return mask


def _among_tied(
    high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64], ids: Ids, start: Places
) -> Mask:
    """Look for low halves by bisection, each inside the rows that share its high half."""
    end = np.searchsorted(high, ids[:, 0], side="right")
    last = end - 1
    while (start < last).any():
        middle = (start + last) // 2
        below = low[middle] < ids[:, 1]
        start = np.where(below, np.minimum(middle + 1, last), start)
        last = np.where(below, last, middle)
    found: Mask = low[start] == ids[:, 1]
    return found


def _repeated(ids: Ids, found: Places, tied: Places) -> Places:
    """Return the places, in what `ordered` returned, of all ids that are the one before them.

    Only what stands beside something alike can be a repeat.
    """
    return tied[1:][_repeats(ids.take(found[tied], axis=0))]


def _repeats(ordered: Ids) -> Mask:
    """Tell of each id but the first whether it is the one before it."""
    repeats: Mask = _same_as_next(ordered[:, 0]) & _same_as_next(ordered[:, 1])
    return repeats


def _same_as_next(column: npt.NDArray[np.unsignedinteger[Any]]) -> Mask:
    same: Mask = column[1:] == column[:-1]
    return same


def _touched(tied: Mask) -> Places:
    """Return the rows on either side of every tie."""
    touched = np.zeros(len(tied) + 1, dtype=np.bool_)
    touched[1:] = tied
    touched[:-1] |= tied
    return np.flatnonzero(touched)
