"""The engine of `pybloom-live`: the classic filter, about a hundred times slower.

What it is: `BloomFilter` of that package at work on memory that we hold.
What it must not know: files, lanes, tags.

Invariants:
    Keys are text: bytes would be hashed by how Python prints them.
    The package's own counter decides nothing: it would refuse to add beyond the capacity.
    `ScalableBloomFilter` is not used: its rate is a multiple of what it was asked for.
    Which bits an id gets is the package's choice; a release that chooses others is noticed by
    `version` and `layout`.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import xxhash

from dedup.arrays import Ids, Mask, to_raw
from dedup.errors import InvalidUsage
from dedup.filters import sizing
from dedup.model import IDENTITY_BYTES

PACKAGE = "pybloom-live"
#: How an id becomes a key of the package; it stands in the header with the package's version.
KEYS_ARE = "hex of key and id"
#: Bytes a key in hexadecimal takes.
_HEX_BYTES = 2 * IDENTITY_BYTES
#: The package unpacks its hashes in 16-bit and in 32-bit numbers, by size: one probe of each.
_PROBED = ((100, 0.01), (1_000, 0.001), (100_000, 0.001))
_PROBE_IDS = 32


class PybloomBits:
    """The engine at work on memory of the size that the package asks for."""

    def __init__(self, memory: memoryview, capacity: int, rate: float, key: bytes | None) -> None:
        self._bloom = _filter(capacity, rate)
        # Bit arrays over foreign memory: what is set here is set in the file.
        self._bloom.bitarray = _bitarray()(buffer=memory, endian="little")
        self._prefix = "" if key is None else key.hex()

    def add(self, ids: Ids) -> None:
        """Set the bits of ids."""
        bloom = self._bloom
        for name in self._names(ids):
            bloom.count = 0
            bloom.add(name, skip_check=True)

    def maybe(self, ids: Ids) -> Mask:
        """Tell of each id whether all its bits are set."""
        bloom = self._bloom
        return np.fromiter((name in bloom for name in self._names(ids)), np.bool_, len(ids))

    def fill(self) -> float:
        """Return the share of bits that are set."""
        return float(self._bloom.bitarray.count() / self._bloom.num_bits)

    def rate(self) -> float:
        """Return what a random stranger meets: one bit in each slice.

        In slices below 2**15 bits the package takes 16-bit numbers modulo the slice, which are
        uneven; there strangers get up to a fifth more.
        """
        return float(self.fill() ** self._bloom.num_slices)

    def crowded(self) -> bool:
        """Ids never crowd: every bit is chosen out of a whole slice."""
        return False

    def _names(self, ids: Ids) -> list[str]:
        text, prefix = to_raw(ids).hex(), self._prefix
        return [prefix + text[at : at + _HEX_BYTES] for at in range(0, len(text), _HEX_BYTES)]


class PybloomEngine:
    """The kind of filter that the package makes."""

    name = PACKAGE

    def version(self) -> str:
        """Return the version of the package, and how it is given ids."""
        _package()
        return f"{version(PACKAGE)}, {KEYS_ARE}"

    def layout(self) -> int:
        """Return a checksum over what fixed ids do to empty filters."""
        return _layout()

    def size(self, capacity: int, rate: float) -> int:
        """Return the bytes that so many ids need at that rate."""
        sizing.checked(capacity, rate)
        return -(-int(_filter(capacity, rate).num_bits) // 8)

    def over(
        self, memory: memoryview, capacity: int, rate: float, key: bytes | None
    ) -> PybloomBits:
        """Return the engine at work on memory of that size."""
        return PybloomBits(memory, capacity, rate, key)


@cache
def _layout() -> int:
    ids = np.arange(2 * _PROBE_IDS, dtype=np.uint64).reshape(-1, 2)
    digest = xxhash.xxh3_64(sys.byteorder.encode())
    for capacity, rate in _PROBED:
        memory = bytearray(-(-int(_filter(capacity, rate).num_bits) // 8))
        PybloomBits(memoryview(memory), capacity, rate, None).add(ids)
        digest.update(memory)
    return digest.intdigest()


def _filter(capacity: int, rate: float) -> Any:
    return _package().BloomFilter(capacity=capacity, error_rate=rate)


def _package() -> Any:
    try:
        import pybloom_live  # noqa: PLC0415 - an optional extra, asked for only where it is used
    except ImportError as error:
        raise InvalidUsage(
            f"use the filter engine {PACKAGE}",
            PACKAGE,
            "the package is not installed and nothing was changed: install "
            "exactly-once-delivery[pybloom], or use the default engine, blocked",
        ) from error
    return pybloom_live


def _bitarray() -> Any:
    from bitarray import bitarray  # noqa: PLC0415 - comes with the extra

    return bitarray
