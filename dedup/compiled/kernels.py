"""The loops of kernels.c, called with arrays.

What it is: `kernels()`, which is None where there is no library, `why_not`, and `without`.
What it must not know: what ids are for. Whoever calls a kernel does the same in arrays beside it, and
that is the definition.

Invariants:
    Nothing depends on a library but speed.
    A library is of the very source beside it: it says the source's hash, and another one is not used.
    Memory is checked before its address is handed on: its kind, its order, its size. Whatever stands
    in it, a kernel stays inside. Where assertions are switched off nothing is checked, and there are
    no kernels.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids, Mask, Places
from dedup.compiled.making import LIBRARY, SOURCE, hash_of

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]

#: What DELIVERY_COMPILED says to have arrays do the work: to see whether the library is to blame, or
#: what it is worth.
_NO: Final = ("no", "0", "off", "false")

#: What kernels.c counts on: the longest message, and as much of the secret as messages meet; words of
#: a filter's line, patterns of a filter, words of a filter's key; rows of an overlay.
_MESSAGE_BYTES_MAX: Final = 240
_SECRET_BYTES: Final = 135
_LINE_WORDS: Final = 8
_PATTERNS: Final = 1 << 12
_KEY_WORDS: Final = 5
_LINES_ROWS_MAX: Final = (1 << 31) - 1

#: The first byte of something writable in one piece.
_first_of: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer

_P, _N, _W, _I = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int32


class Kernels:
    """The functions of a library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        def named(name: str, result: Any, *arguments: Any) -> Any:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            return function

        self.source: int = named("source_hash", _W)()
        self._hash_rows = named("hash_rows", None, _P, _N, _W, _N, _P, _P)
        self._hash_spans = named("hash_spans", None, _P, _P, _N, _W, _P, _P)
        self._filter_add = named("filter_add", None, _P, _W, _P, _P, _P, _N)
        self._filter_maybe = named("filter_maybe", None, _P, _W, _P, _P, _P, _N, _P)
        self._lines_add = named("lines_add", None, _P, _P, _P, _I, _I, _I)
        self._lines_ask = named("lines_ask", _N, _P, _P, _P, _I, _I, _P, _N, _P, _P)
        self._run_find = named("run_find", None, _P, _P, _N, _P)
        self._runs_hold = named("runs_hold", None, _P, _N, _P, _N, _P, _P, _P)

    def hash_rows(self, rows: Bytes, secret: Bytes) -> Ids:
        """Return the XXH3-128 of every row of an array of shape (n, length)."""
        count, length = rows.shape
        assert rows.dtype == np.uint8, "messages are bytes"
        assert rows.strides[1] == 1 or length == 1 or not count, "a row's bytes lie side by side"
        assert length <= _MESSAGE_BYTES_MAX, "longer ones are hashed differently"
        ids = np.empty((count, 2), dtype=np.uint64)
        self._hash_rows(_at(rows), rows.strides[0], length, count, _secret(secret), _at(ids))
        return ids

    def hash_spans(self, data: Bytes, bounds: Rows, length_max: int, secret: Bytes) -> Ids:
        """Return the XXH3-128 of messages between bounds; of longer ones, nothing in particular."""
        count = len(bounds) - 1
        assert 0 <= length_max <= _MESSAGE_BYTES_MAX, "longer ones are hashed differently"
        assert bounds[0] >= 0, "messages begin in the data"
        assert bounds[-1] <= len(data), "messages end in the data"
        assert bool((bounds[1:] >= bounds[:-1]).all()), "no message ends before it begins"
        ids = np.empty((count, 2), dtype=np.uint64)
        self._hash_spans(
            _whole(data, np.uint8),
            _whole(bounds, np.int64),
            count,
            length_max,
            _secret(secret),
            _at(ids),
        )
        return ids

    def filter_add(self, bits: Words, patterns: Words, key: Words | None, ids: Ids) -> None:
        """Set the bits of ids."""
        assert bits.flags.writeable, "a reader changes nothing"
        ids = _rows(ids)
        self._filter_add(*_filter(bits, patterns, key), _whole(ids, np.uint64), len(ids))

    def filter_maybe(self, bits: Words, patterns: Words, key: Words | None, ids: Ids) -> Mask:
        """Tell of each id whether all its bits are set."""
        ids, maybe = _rows(ids), np.empty(len(ids), dtype=np.bool_)
        self._filter_maybe(
            *_filter(bits, patterns, key), _whole(ids, np.uint64), len(ids), _at(maybe)
        )
        return maybe

    def lines_add(
        self,
        first: npt.NDArray[np.int32],
        following: npt.NDArray[np.int32],
        held: Ids,
        start: int,
    ) -> None:
        """Let the ids that stand behind `start` queue, each in front of its line."""
        assert 0 <= start <= len(held) <= len(following), "everybody has a place in a queue"
        assert len(held) <= _LINES_ROWS_MAX, "a row's number has 31 bits"
        self._lines_add(
            _whole(first, np.int32),
            _whole(following, np.int32),
            _whole_ids(held),
            start,
            len(held),
            _line_bits(first),
        )

    def lines_ask(
        self,
        first: npt.NDArray[np.int32],
        following: npt.NDArray[np.int32],
        held: Ids,
        line_max: int,
        ids: Ids,
    ) -> tuple[Mask, Places]:
        """Tell of each id whether it stands in its line, and of which that is not known.

        Rows are trusted: they are this process's own, and `lines_add` wrote them.
        """
        assert len(held) >= len(following), "everybody in a queue has a name"
        ids, known = _rows(ids), np.empty(len(ids), dtype=np.bool_)
        unsure = np.empty(len(ids), dtype=np.int64)
        left = self._lines_ask(
            _whole(first, np.int32),
            _whole(following, np.int32),
            _whole_ids(held),
            _line_bits(first),
            line_max,
            _whole(ids, np.uint64),
            len(ids),
            _at(known),
            _at(unsure),
        )
        return known, unsure[:left].astype(np.intp, copy=False)

    def run_find(self, run: Mapped, ids: Ids) -> Rows:
        """Return the row of each id in a run, -1 where it is absent."""
        ids, found = _rows(ids), np.empty(len(ids), dtype=np.int64)
        self._run_find(_at(run.row), _whole(ids, np.uint64), len(ids), _at(found))
        return found

    def runs_hold(self, runs: Sequence[Mapped], ids: Ids) -> tuple[Mask, list[int], list[int]]:
        """Tell of each id whether a run has it, and of each run how many it was asked for and had."""
        ids, known = _rows(ids), np.empty(len(ids), dtype=np.bool_)
        counts = np.zeros((2, len(runs)), dtype=np.int64)
        table = np.concatenate([run.row for run in runs])
        self._runs_hold(
            _at(table),
            len(runs),
            _whole(ids, np.uint64),
            len(ids),
            *map(_at, (known, counts[0], counts[1])),
        )
        return known, counts[0].tolist(), counts[1].tolist()


class Mapped:
    """A run as kernels see it.

    Args:
        ids: sorted.
        prefixes: for each prefix the first row that has it or a higher one, and the number of rows.
    """

    def __init__(self, ids: Ids, prefixes: npt.NDArray[np.unsignedinteger[Any]]) -> None:
        wide = prefixes.dtype == np.uint64
        # Both stay where they are as long as this does.
        self._held = ids, prefixes
        self.row = np.array(
            [
                _whole_ids(ids),
                len(ids),
                _whole(prefixes, np.uint64 if wide else np.uint32),
                wide,
                _bits(len(prefixes) - 1),
            ],
            dtype=np.int64,
        )


def kernels() -> Kernels | None:
    """Return the kernels, or None."""
    return _kernels


def why_not() -> str | None:
    """Say why there are no kernels; None: there are."""
    return _why


@contextmanager
def without() -> Iterator[None]:
    """Have arrays do the work of this process for a while: for whoever compares."""
    global _kernels  # noqa: PLW0603 - one library a process
    before, _kernels = _kernels, None
    try:
        yield
    finally:
        _kernels = before


def load(library: Path, source: Path) -> tuple[Kernels | None, str | None]:
    """Return the kernels of a library, or None and why."""
    if os.environ.get("DELIVERY_COMPILED", "").lower() in _NO:
        return None, "DELIVERY_COMPILED says so"
    if sys.flags.optimize:
        return None, "python -O switches off what keeps its loops inside their memory"
    try:
        wanted = hash_of(source.read_bytes())
        found = Kernels(ctypes.CDLL(str(library)))
    except OSError as error:
        absent = "no library was made where the package was built, or it came in an archive"
        return None, f"the library cannot be used here: {error}" if library.exists() else absent
    except AttributeError as error:
        return None, f"the library is another one: {error}"
    if found.source != wanted:
        return None, "the library was made from another source"
    return found, None


def _filter(bits: Words, patterns: Words, key: Words | None) -> tuple[int, int, int, int | None]:
    assert len(bits) > 0, "a filter has lines"
    assert len(bits) % _LINE_WORDS == 0, "a filter is whole lines"
    assert len(patterns) == _PATTERNS, "twelve bits choose a pattern"
    assert key is None or len(key) == _KEY_WORDS, "a key is as many words as the hash has"
    return (
        _whole(bits, np.uint64),
        len(bits),
        _whole(patterns, np.uint64),
        None if key is None else _whole(key, np.uint64),
    )


def _bits(count: int) -> int:
    """Return how many bits tell so many things apart."""
    assert count > 0, "as many as bits can tell apart"
    assert count & (count - 1) == 0, "as many as bits can tell apart"
    return count.bit_length() - 1


def _line_bits(first: npt.NDArray[np.int32]) -> int:
    assert len(first) > 1, "shifting by all 64 is undefined"
    return _bits(len(first))


def _rows(ids: Ids) -> Ids:
    """Return ids, in one piece."""
    assert ids.shape == (len(ids), 2), "an id is two words"
    return np.ascontiguousarray(ids)


def _whole_ids(ids: Ids) -> int:
    assert ids.shape == (len(ids), 2), "an id is two words"
    return _whole(ids, np.uint64)


def _secret(secret: Bytes) -> int:
    assert len(secret) >= _SECRET_BYTES, "a message meets that much of the secret"
    return _whole(secret, np.uint8)


def _whole(array: npt.NDArray[Any], kind: npt.DTypeLike) -> int:
    assert array.dtype == kind, "memory is of the kind that is meant"
    assert array.flags.c_contiguous, "memory is in one piece"
    assert array.flags.aligned, "words lie where words may"
    return _at(array)


def _at(array: npt.NDArray[Any]) -> int:
    if array.size and array.flags.writeable and array.flags.c_contiguous:
        # A fifth of the time, and there are two dozen a batch.
        return ctypes.addressof(_first_of(array))
    address: int = array.__array_interface__["data"][0]
    return address


_kernels, _why = load(LIBRARY, SOURCE)
