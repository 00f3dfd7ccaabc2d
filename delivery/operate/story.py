"""The story of one record as plain values: where it comes from, and what every lane made of it.

What it is: `Story`, and the values in it.
What it must not know: how a story is found, how it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from delivery.operate.places import Attempt, Fate, Together
from delivery.operate.repeats import Repeat

__all__ = ["Copy", "Origin", "Original", "Output", "Reading", "Standing", "Story"]


class Standing(StrEnum):
    """What the catalog says of a header."""

    SEALED = "sealed"
    #: Its seal was collected; its position is on the history.
    COLLECTED = "sealed, and its seal was collected"
    ABANDONED = "of a history that was given up"
    ELSEWHERE = (
        "of a lane of this name in another catalog, or in one that was lost: see whether the "
        "pipeline is also started elsewhere"
    )
    UNSEALED = "sealed by nobody: it is forged, or the catalog is older than the topic"
    STRANGER = "of a sender that this catalog does not know as one of this topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a record's headers say of where it comes from, and whether the catalog agrees."""

    lane: str
    seq: int
    incarnation: str
    minted_ms: int
    kept: bool
    parent: tuple[int, int] | None
    standing: Standing
    attempt: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The record that a duplicate repeats: its seal, and its place where that could be found."""

    seq: int
    sealed_ms: int | None
    place: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One copy of an output in Kafka, and what the lanes that read it made of it.

    Of one that re-keying passed on under the id of its input, `repeats` has what its receivers dropped
    because it repeats this one: there what a publisher sent twice comes together.
    """

    offset: int
    receivers: Mapping[str, Fate] = field(default_factory=dict)
    repeats: Mapping[str, tuple[Repeat, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One output: what is stored or known of it, where its copies lie; why a dead letter is one."""

    id: str
    topic: str
    partition: int
    key: str | None
    size: int
    copies: tuple[Copy, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one lane made of the record.

    Attributes:
        lane, fate: the lane, and what became of the record there.
        seq, sealed_ms, code: of the seal that read it.
        attempts: everybody who tried at that position and left something, the winner first.
        original: what it repeats, if it is a duplicate.
        named: how its id was found: "delivery" by its header, else a way.
        outputs: what was made of it; of a wrapped job the first of what its whole batch made.
        repeats: what was dropped later because it repeats this record, if this one took effect.
        repeats_upto: the offset up to which these were looked for.
        repeats_elsewhere: the same of the other partitions in which they may come.
        remade: its seal keeps no outputs; what is not in Kafka is not known.
        together: of a wrapped job, what that batch was: of which input an output is, nobody knows.
    """

    lane: str
    fate: Fate
    seq: int | None = None
    sealed_ms: int | None = None
    code: str = ""
    attempts: tuple[Attempt, ...] = ()
    original: Original | None = None
    named: str | None = None
    outputs: tuple[Output, ...] = ()
    repeats: tuple[Repeat, ...] = ()
    repeats_upto: int | None = None
    repeats_elsewhere: tuple[tuple[int, int], ...] = ()
    remade: bool = False
    together: Together | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All of it. `size` is None where no record is at the place."""

    topic: str
    partition: int
    offset: int
    key: str | None
    size: int | None
    timestamp_ms: int | None
    id: str | None
    origin: Origin | None
    readings: tuple[Reading, ...]

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)
