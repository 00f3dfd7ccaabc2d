"""What a filter is: the port that every engine and every user of filters agrees on.

What it is: `Filter`, which the rest of the library holds, and `Bits`, which an engine provides.
What it must not know: any engine, any file.

Invariants:
    `maybe` is never False for an id that was added. That is the whole promise; a True is a hint,
    and whoever gets one asks the catalog.
    Bits are only ever set. So a reader that sees some of a writer's bits is behind, never wrong,
    and a tag stays true of every later state of the bits.
"""

from __future__ import annotations

from typing import Protocol

from dedup.arrays import Ids, Mask
from dedup.model import HeadRef

#: The secret of a filter that ids chosen by a stranger must not be able to crowd.
KEY_BYTES = 16


class Filter(Protocol):
    """A set of ids that may say yes too often and never says no to an id it was given."""

    @property
    def engine(self) -> str:
        """The name of the engine."""

    @property
    def capacity(self) -> int:
        """How many ids it holds at its target rate. More may be added; the rate rises."""

    @property
    def target_rate(self) -> float:
        """The share of strangers that may get a True at capacity."""

    @property
    def key(self) -> bytes | None:
        """The secret it was made with."""

    @property
    def count(self) -> int:
        """How many ids were added, repeats included; of a file, up to its last tag."""

    @property
    def nbytes(self) -> int:
        """What the bits take."""

    @property
    def tag(self) -> HeadRef | None:
        """The head whose ids are all in the bits; None: it is exact for nothing."""

    def set_tag(self, tag: HeadRef) -> None:
        """Say that every id sealed up to `tag` was added. May be called again with any head."""

    def add(self, ids: Ids) -> None:
        """Add ids. Adding one again changes nothing but the count."""

    def maybe(self, ids: Ids) -> Mask:
        """Tell of each id whether it may have been added."""

    def fill(self) -> float:
        """Return the share of bits that are set, from a sample if there are many."""

    def rate(self) -> float:
        """Return the share of random strangers that get a True now, from a sample if large."""

    def crowded(self) -> bool:
        """Tell whether ids crowd together as random ones never do. Reads every bit."""

    def close(self) -> None:
        """Let go of the memory; the bits of a file stay. A second call does nothing."""


class Bits(Protocol):
    """An engine at work on memory that somebody else holds."""

    def add(self, ids: Ids) -> None:
        """Set the bits of ids."""

    def maybe(self, ids: Ids) -> Mask:
        """Tell of each id whether all its bits are set."""

    def fill(self) -> float:
        """Return the share of bits that are set."""

    def rate(self) -> float:
        """Return the expected share of false positives."""

    def crowded(self) -> bool:
        """Tell whether ids crowd together."""


class Engine(Protocol):
    """A kind of filter: how large one is, what it does to memory, and how to recognise its work."""

    @property
    def name(self) -> str:
        """What the configuration and the header call it."""

    def version(self) -> str:
        """Return the version of whatever chooses the bits."""

    def layout(self) -> int:
        """Return a checksum over the bits that fixed ids get: another one, another layout."""

    def size(self, capacity: int, rate: float) -> int:
        """Return the bytes that so many ids need at that rate."""

    def over(self, memory: memoryview, capacity: int, rate: float, key: bytes | None) -> Bits:
        """Return the engine at work on memory of that size, which may be read-only."""
