"""The words of the catalog as types: lanes, heads, seals, acknowledgements, segments.

What it is: frozen, hashable values, and the few pure functions that order them. The stores keep
them, the protocol core computes with them, the checker reads them from raw bytes.
What it must not know: any store, file, clock, Spark or Kafka.

Invariants:
    A value is complete when it exists: every field is checked where it is made.
    Identities (`Attempt`, `Incarnation`, `TopicId`, `RecordId`) are 16 raw bytes.
    A `Frontier` never moves backwards inside an incarnation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NewType

from dedup.frozen import replace

Attempt = NewType("Attempt", bytes)
Incarnation = NewType("Incarnation", bytes)
RecordId = NewType("RecordId", bytes)
TopicId = NewType("TopicId", bytes)

#: Length in bytes of every identity.
IDENTITY_BYTES = 16
#: Longest name of a lane, "pipeline/stage/lane"; it rides in every record's header.
LANE_NAME_BYTES_MAX = 255


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """One partition of one topic; the topic by its identity, because names can be reused."""

    topic: TopicId
    partition: int

    def __post_init__(self) -> None:
        """Refuse what cannot be a topic-partition."""
        assert len(self.topic) == IDENTITY_BYTES, "a topic id is 16 bytes"
        assert self.partition >= 0, "a partition is not negative"


@dataclass(frozen=True, slots=True)
class Frontier:
    """For each source partition the next offset: not yet covered by a seal, or not delivered."""

    positions: tuple[tuple[Source, int], ...] = ()

    def __post_init__(self) -> None:
        """Keep one spelling of each frontier: sorted, one position a source, none negative."""
        if len(self.positions) == 1:  # nearly all: a lane reads one partition
            assert self.positions[0][1] >= 0, "offsets are not negative"
            return
        sources = [source for source, _ in self.positions]
        assert sources == sorted(set(sources)), "positions are sorted and unique"
        assert all(offset >= 0 for _, offset in self.positions), "offsets are not negative"

    @staticmethod
    def of(positions: Iterable[tuple[Source, int]]) -> Frontier:
        """Build a frontier from positions in any order."""
        given = tuple(positions)
        return Frontier(given if len(given) == 1 else tuple(sorted(dict(given).items())))

    def __iter__(self) -> Iterator[tuple[Source, int]]:
        return iter(self.positions)

    def at(self, source: Source) -> int | None:
        """Return the next offset of one source, or None where the frontier does not know it."""
        for known, offset in self.positions:
            if known is source or known == source:
                return offset
        return None

    def covers(self, other: Frontier) -> bool:
        """Tell whether every position of `other` is at or below ours."""
        if self.positions == other.positions:
            return True
        mine = dict(self.positions)
        return all(mine.get(source, -1) >= offset for source, offset in other.positions)

    def merged(self, other: Frontier) -> Frontier:
        """Return the elementwise maximum."""
        mine, theirs = self.positions, other.positions
        if mine == theirs:
            return self
        if len(mine) == len(theirs) == 1 and mine[0][0] == theirs[0][0]:
            return self if mine[0][1] >= theirs[0][1] else other
        merged = dict(mine)
        for source, offset in theirs:
            merged[source] = max(offset, merged.get(source, 0))
        return Frontier.of(merged.items())


@dataclass(frozen=True, slots=True)
class HeadRef:
    """What an append compares: all three, so that no other history can pass for this one."""

    incarnation: Incarnation
    seq: int
    attempt: Attempt

    def __post_init__(self) -> None:
        """Refuse what would shift every field stored behind it."""
        assert len(self.incarnation) == IDENTITY_BYTES, "an incarnation is 16 bytes"
        assert len(self.attempt) == IDENTITY_BYTES, "an attempt is 16 bytes"


@dataclass(frozen=True, slots=True, order=True)
class ReadSeq:
    """Everything that `sender` emitted up to `seq` for this lane's partition has been read."""

    sender: str
    incarnation: Incarnation
    topic: TopicId
    seq: int

    @property
    def key(self) -> tuple[str, Incarnation, TopicId]:
        """What a read seq is kept per."""
        return (self.sender, self.incarnation, self.topic)


@dataclass(frozen=True, slots=True, order=True)
class Kept:
    """A past incarnation of a lane and the last seq that was kept of it."""

    incarnation: Incarnation
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The one row that says where a lane stands; moved only by a compare-and-append."""

    ref: HeadRef
    frontier: Frontier
    lane_time_ms: int = 0
    minted_at_ms: int = 0
    read_seqs: tuple[ReadSeq, ...] = ()
    #: Name and identity of every topic the lane reads.
    topics: tuple[tuple[str, TopicId], ...] = ()
    #: Identity of every topic the lane writes; a header naming this lane elsewhere is a copy.
    writes: tuple[TopicId, ...] = ()
    #: The incarnations before this one, oldest first. Seqs go on counting through all of them.
    past: tuple[Kept, ...] = ()
    #: Identity of a stateful job's checkpoint and the position of its state; empty otherwise.
    state: bytes = b""
    #: For how long publishers may repeat themselves, as the last seal said that did; 0: none has.
    window_ms: int = 0
    #: How publishers name records, as the last seal said that did; "": none has.
    named: str = ""

    def last_kept(self, incarnation: Incarnation) -> int | None:
        """Return the last valid seq of an incarnation of this lane; None if it is not ours."""
        if incarnation == self.ref.incarnation:
            return self.ref.seq
        for kept in self.past:
            if kept.incarnation == incarnation:
                return kept.seq
        return None

    def runs(self, first: int, last: int) -> Iterator[tuple[Incarnation, int, int]]:
        """Yield (incarnation, first, last) for each stretch of [first, last] of this history."""
        for kept in (*self.past, Kept(self.ref.incarnation, self.ref.seq)):
            end = min(kept.seq, last)
            if first <= end:
                yield kept.incarnation, first, end
            first = max(first, kept.seq + 1)

    def incarnation_of(self, seq: int) -> Incarnation:
        """Return the incarnation under which `seq` of the present history was sealed."""
        for kept in self.past:
            if seq <= kept.seq:
                return kept.incarnation
        return self.ref.incarnation


@dataclass(frozen=True, slots=True)
class Ack:
    """How far a lane's outputs are durably delivered, and the offsets behind the last of them."""

    incarnation: Incarnation
    seq: int
    delivered: Frontier = field(default_factory=Frontier)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRow:
    """All that one linearizable read of a lane returns."""

    head: Head
    ack: Ack
    #: Outputs up to here may be gone. Raised BEFORE the first delete, never written by an append.
    collected: int = 0

    @property
    def settled(self) -> int:
        """The seq up to which nobody needs to emit anything any more."""
        return max(self.ack.seq, self.collected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of the records of one bundle; they add up."""

    read: int = 0
    fresh: int = 0
    duplicate: int = 0
    remnant: int = 0
    abandoned: int = 0
    dead_letter: int = 0
    #: Duplicates whose payload was not that of the record they repeat.
    conflict: int = 0
    #: Records that do not have the name that the stage was told of: their place names them.
    unnamed: int = 0

    def __post_init__(self) -> None:
        """Every record read has exactly one verdict; a dead letter is a fresh record."""
        verdicts = self.fresh + self.duplicate + self.remnant + self.abandoned
        assert verdicts == self.read, "the verdicts add up to what was read"
        assert 0 <= self.dead_letter <= self.fresh, "dead letters are fresh records"
        assert 0 <= self.conflict <= self.duplicate, "conflicts are duplicates"
        assert 0 <= self.unnamed <= self.read, "unnamed records are records"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """What a seal promises about stored chunks: how many, how large, and their digest."""

    chunks: int = 0
    rows: int = 0
    size: int = 0
    digest: bytes = bytes(IDENTITY_BYTES)

    def __post_init__(self) -> None:
        """A digest is 128 bits."""
        assert len(self.digest) == IDENTITY_BYTES, "a digest is 16 bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Entry `seq` of a lane: the only thing that makes an attempt count."""

    ref: HeadRef
    start: Frontier
    end: Frontier
    minted_at_ms: int
    lane_time_ms: int
    code: str = ""
    counts: Counts = field(default_factory=Counts)
    learned: tuple[ReadSeq, ...] = ()
    outputs: BlobRef = field(default_factory=BlobRef)
    segment: BlobRef = field(default_factory=BlobRef)
    #: The offsets that took no effect, and why; its rows are runs of them.
    dropped: BlobRef = field(default_factory=BlobRef)
    #: Chunks small enough to ride in the seal itself; then nothing is stored beside it.
    inline_outputs: bytes = b""
    inline_segment: bytes = b""
    inline_dropped: bytes = b""
    #: For how long its lane holds ids that publishers name; 0: whoever made it does not know.
    window_ms: int = 0
    #: How publishers name its records, as the stage says it, "place" where nothing but that names
    #: them, "function NAME" where code does, "each topic's " in front where names are those of a
    #: topic; "": whoever made it does not know.
    named: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """The place of one attempt at one position: what its chunks are stored under."""

    lane: str
    incarnation: Incarnation
    seq: int
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentList:
    """The segments of a lane that no longer need their seals' entries, behind the head.

    Every id sealed up to `upto` is in one of `slots`, or expired. `version` is compared when the
    list is replaced.
    """

    version: int = 0
    upto: int = -1
    slots: tuple[Slot, ...] = ()


def advance(head: Head, seal: Seal) -> Head:
    """Return the head that a won append of `seal` moves `head` to."""
    assert seal.ref.incarnation == head.ref.incarnation, "a seal belongs to its head's incarnation"
    assert seal.ref.seq == head.ref.seq + 1, "seqs are gapless"
    assert seal.end.covers(seal.start), "a seal covers a range, not a step back"
    assert seal.minted_at_ms > head.minted_at_ms, "minted-at is strictly increasing"
    assert seal.lane_time_ms >= head.lane_time_ms, "lane time never falls"
    return replace(
        head,
        ref=seal.ref,
        frontier=head.frontier.merged(seal.end),
        lane_time_ms=seal.lane_time_ms,
        minted_at_ms=seal.minted_at_ms,
        read_seqs=merged_reads(head.read_seqs, seal.learned),
        window_ms=seal.window_ms or head.window_ms,
        named=seal.named or head.named,
    )


def merged_reads(known: Iterable[ReadSeq], learned: Iterable[ReadSeq]) -> tuple[ReadSeq, ...]:
    """Return the highest read seq per (sender, incarnation, topic), sorted."""
    best: dict[tuple[str, Incarnation, TopicId], ReadSeq] = {}
    for read in (*known, *learned):
        if read.key not in best or best[read.key].seq < read.seq:
            best[read.key] = read
    return tuple(sorted(best.values()))
