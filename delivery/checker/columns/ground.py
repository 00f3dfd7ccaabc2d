"""What a proof over columns stands on: the evidence, what is proved already, and doubts.

What it is: `Ground`, `Base` and `Doubt`.
What it must not know: any rule.

Invariants:
    A doubt says what is not as expected, and is no finding yet: the checker of records decides,
    unless what it would have to read is gone.
    A base was proved up to its seal, and holds what later records may repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dedup.model import HeadRef, Incarnation, Source, TopicId
from delivery.checker.columns.same import Ints, Words
from delivery.checker.columns.table import Column, Marks
from delivery.checker.evidence import Finding, Kind
from delivery.checker.world import World

__all__ = ["Base", "Doubt", "Ground", "Reads"]

#: What a lane has read of its senders.
Reads = Mapping[tuple[str, Incarnation, TopicId], int]


class Doubt(Exception):
    """Something that a proof does not explain; it ends the proof, and is neither error nor finding.

    Args:
        kind: what it would be called if it is wrong; None: it is only unusual.
        subject: what exactly.
        text: what was seen.
    """

    def __init__(self, kind: Kind | None, subject: str, text: str) -> None:
        super().__init__(kind, subject, text)
        self.kind, self.subject, self.text = kind, subject, text

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"

    def finding(self, lane: str) -> Finding | None:
        """Return it as a finding, for when nobody can look closer."""
        if self.kind is None:
            return None
        return Finding(self.kind, lane, self.subject, self.text)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Base:
    """What is proved of a lane.

    Attributes:
        ref: of the last seal that is.
        frontier: what it leaves sealed.
        reads: what was read of senders by then.
        minted_at_ms, lane_time_ms: of that seal.
        decided: every id that was decided up to it, in order.
        sent: ids of every output up to it.
        sealed: two digests of all that is frozen of each of these.
        trusted: the catalog is taken at its word, and what was sent up to here is not known.
    """

    ref: HeadRef
    frontier: Mapping[Source, int]
    reads: Reads
    minted_at_ms: int
    lane_time_ms: int
    decided: Words
    sent: Words
    sealed: Words
    trusted: bool = False


@dataclass(slots=True)
class Ground:
    """The evidence.

    Attributes:
        world: rows; its logs are empty but for their ends.
        columns: every partition that lanes in question read or write.
        marks: that occur in them.
        seqs, minted, kept: of every mark, by its place.
    """

    world: World
    columns: Mapping[Source, Column]
    marks: Marks
    seqs: Ints = field(init=False)
    minted: Ints = field(init=False)
    kept: Ints = field(init=False)

    def __post_init__(self) -> None:
        """Spread what marks say."""
        self.seqs = self.marks.column("seq")
        self.minted = self.marks.column("minted_at_ms")
        self.kept = self.marks.column("kept")

    def partitions(self, topic: TopicId) -> list[Column]:
        """Return the columns of a topic."""
        return [self.columns[source] for source in sorted(self.columns) if source.topic == topic]

    def senders(self, name: str) -> Ints:
        """Return the places of all marks of a sender."""
        found = [place for place, mark in enumerate(self.marks.every) if mark.sender == name]
        return np.array(found, dtype=np.int64)
