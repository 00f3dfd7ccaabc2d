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

from dedup.formats.segment import Bucket, Part
from dedup.model import HeadRef, Incarnation, ReadSeq, Seal, Source, TopicId
from delivery.checker.chunks import read_parts
from delivery.checker.columns.same import Ints, Mask, Words
from delivery.checker.columns.table import Column, Marks
from delivery.checker.evidence import Finding, Findings, Kind
from delivery.checker.rows import Book
from delivery.checker.world import World

__all__ = ["Base", "Doubt", "Ground", "Group", "Reads"]

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


@dataclass(frozen=True, slots=True)
class Group:
    """Ids of one bucket.

    Attributes:
        bucket: it.
        seen: of internal ones the highest seq of each of their senders.
    """

    bucket: Bucket
    seen: tuple[ReadSeq, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Base:
    """What is proved of a lane.

    Attributes:
        ref: of the last seal that is.
        frontier: what it leaves sealed.
        reads: what was read of senders by then.
        minted_at_ms, lane_time_ms: of that seal.
        decided: every id that was decided up to it and may still be repeated, in order.
        group_of: of each its place in `groups`.
        groups: which ids can be forgotten together, and when.
        sent: ids of every output up to it that a topic still has.
        sealed: two digests of all that is frozen of each of these.
        places: of each its place in `sources`, its first offset, and its seal.
        sources: partitions.
        forgotten: up to this seal outputs may have been forgotten, because a topic let them go.
        trusted: the catalog is taken at its word, and what was sent up to here is not known.
        let_go_ms: buckets of publishers' ids that ended by then may have been let go by that seal.
    """

    ref: HeadRef
    frontier: Mapping[Source, int]
    reads: Reads
    minted_at_ms: int
    lane_time_ms: int
    decided: Words
    group_of: Ints
    groups: tuple[Group, ...]
    sent: Words
    sealed: Words
    places: Ints
    sources: tuple[Source, ...]
    forgotten: int = -1
    trusted: bool = False
    let_go_ms: int = 0


@dataclass(slots=True)
class Ground:
    """The evidence.

    Attributes:
        world: rows; its logs are empty but for their ends.
        columns: every partition that lanes in question read or write.
        marks: that occur in them.
        lows: where the logs of partitions begin, as far as that is known.
        seqs, minted, kept: of every mark, by its place.
    """

    world: World
    columns: Mapping[Source, Column]
    marks: Marks
    lows: Mapping[Source, int] = field(default_factory=dict)
    seqs: Ints = field(init=False)
    minted: Ints = field(init=False)
    kept: Ints = field(init=False)
    _of_lane: str = ""
    _parts: dict[int, list[Part] | None] = field(default_factory=dict)

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

    def read_before(self, base: Base, topic: TopicId) -> Mask:
        """Tell of all marks, and of none, whether a base proves that all they say was read before."""
        said = [
            base.reads.get((mark.sender, mark.incarnation, topic), -1) >= mark.seq
            for mark in self.marks.every
        ]
        # Of what the catalog says, its reads are not of the base's time.
        return np.array([*said, False], dtype=np.bool_) & (not base.trusted)

    def parts(self, book: Book, seal: Seal, findings: Findings) -> list[Part] | None:
        """Return the ids of a seal; those of one lane are read once."""
        if self._of_lane != book.name:
            self._of_lane, self._parts = book.name, {}
        seq = seal.ref.seq
        if seq not in self._parts:
            self._parts[seq] = read_parts(self.world.evidence.store, book, seal, findings)
        return self._parts[seq]
