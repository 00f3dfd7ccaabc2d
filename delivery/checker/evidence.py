"""What the checker is given and what it answers with.

What it is: `Evidence` (logs, the raw store, the lanes in question), `Finding` and its kinds.
What it must not know: how anything is checked.

Invariants:
    No finding is proof, as far as the evidence goes: what was collected cannot be read any more.
    Logs are given whole; the same log may be the sink of one lane and the ledger of the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from dedup.catalog.store import Store
from dedup.model import Frontier, Source

#: Findings of one kind about one lane; more of the same tell nobody more.
FINDINGS_MAX = 100


class Kind(Enum):
    """What is wrong, in one sentence each."""

    # The lane's rows.
    UNREADABLE = "stored bytes are torn, flipped, or contradict themselves"
    COLUMNS = "the bytes of a row name another position than its columns"
    HISTORY = "the incarnations of a lane are out of order, or one stands there twice"
    ACK = "the acknowledgement is above the head, or of another incarnation"
    COLLECTED = "more was given free for collection than was acknowledged"
    ENTRY_GAP = "an entry that must be there is not"
    ENTRY_FOREIGN = "an entry is not the one that won its position"
    FRONTIER_GAP = "a seal begins behind the end of the one before it: inputs were skipped"
    FRONTIER_OVERLAP = "a seal begins before the end of the one before it: inputs count twice"
    FRONTIER_HEAD = "the head's frontier is not where its seals end"
    MINTED_AT = "minted-at does not strictly increase"
    LANE_TIME = "lane time fell"
    READ_SEQS = "the head's read seqs are not what its seals learned"
    READ_TOO_FAR = "a read seq covers what the lane has not read"
    # What is stored beside them.
    SEGMENT_GONE = "the ids of a seal are gone"
    OUTPUTS_GONE = "the outputs of a seal are gone before they were collected"
    DROPPED_GONE = "what a seal says of the records that took no effect is gone"
    DIGEST = "stored chunks are not those that were sealed"
    COUNTS = "the counts of a seal are not what its range and its chunks hold"
    # Which inputs took effect.
    NEVER_INPUT = "an id was decided that no input has"
    NOT_DECIDED = "an input below the frontier was never decided"
    DECIDED_TWICE = "an id was decided twice"
    LATE_REPEAT = "a publisher's repeat took effect again, which is right only if the stage's window had passed"
    DECIDED_ELSEWHERE = "an id was decided by a seal that its first record does not belong to"
    ABANDONED = "a record of an abandoned history took effect"
    BUCKET = "an id lies in a bucket that is dropped at another time than it may be"
    # Which inputs took none.
    DROPPED_OUTSIDE = "a seal dropped an offset that it did not read, or that holds nothing"
    DROPPED_FRESH = "a record was dropped, and took effect"
    DROPPED_WHY = "a record was dropped for a reason that does not hold"
    NOT_ACCOUNTED = "a record was read, and neither took effect nor was dropped"
    # What was made of them.
    PARENT = "an output's parent is no fresh record of its seal"
    REPEAT = "what is told of a record that took no effect does not hold, or not of all of them"
    TARGET = "an output goes to an edge or a partition that does not exist"
    # What left the pipeline.
    STRANGER = "a record names a sender that does not write this topic"
    UNSEALED = "a record was emitted that no seal stands behind"
    NOT_OF_SEAL = (
        "a record claims a seal that does not promise it: its attempt lost, or it is forged"
    )
    PAYLOAD = "two copies of a record differ"
    REMADE = "what is in the sink is not what was sealed, and its outputs were made again"
    TWO_VERSIONS = "two executions for one input are both in the sink"
    LOST = "an acknowledged output is not in the sink"
    DELIVERED_LOW = "an acknowledged output lies behind the delivered offset only"
    DELIVERED_BEYOND = "a delivered offset is beyond the end of its log, or of no topic of the lane"
    UNFINISHED = "something due is not sealed or not acknowledged"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: its kind, the lane, what exactly, and what was seen."""

    kind: Kind
    lane: str
    subject: str
    text: str

    @property
    def is_note(self) -> bool:
        """Whether it may be right: only somebody who knows the stage's window can tell."""
        return self.kind is Kind.LATE_REPEAT

    def __str__(self) -> str:
        return f"{self.lane}: {self.subject}: {self.kind.name}: {self.kind.value} ({self.text})"


class Logged(Protocol):
    """A record in a log, as far as it is checked."""

    @property
    def offset(self) -> int:
        """Its place."""

    @property
    def key(self) -> bytes | None:
        """Its key."""

    @property
    def value(self) -> bytes | None:
        """Its value."""

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """Its headers, in order."""


@dataclass(frozen=True, slots=True)
class Log:
    """One topic-partition, whole.

    Attributes:
        records: in offset order; None where an offset holds nothing.
        end: the offset behind the last one, holes included.
        foreign: offsets known to be written by somebody who is not a lane of this catalog.
    """

    records: Sequence[Logged | None]
    end: int
    foreign: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Seals of a lane that are in question; of what is before and behind them it is believed.

    Attributes:
        first, last: their seqs; there are none if the last is less. A first of 0 takes in all that
            was collected.
        start, end: the frontier before the first one, and the one behind the last.
    """

    first: int
    last: int
    start: Frontier
    end: Frontier


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInput:
    """What only the outside knows of a lane.

    Attributes:
        id_from: how publishers name their records, where a seal does not say it or `ways` lacks it.
        ways: how they do, by the words in which seals say it.
        due: up to where everything must have taken effect, if the run has finished. None: up to
            the end of every log that the lane reads.
        window_ms: how long ids that publishers name are held. None: as long as the seals say; where
            they say nothing nobody knows, and what took effect again later is noted.
        seeded: ids were brought in with the lane, and some of them were forgotten already.
        span: only these seals are in question; None: all are.
    """

    id_from: Callable[[Any], bytes | None] = lambda _: None
    ways: Mapping[str, Callable[[Any], bytes | None]] = field(default_factory=dict)
    due: Frontier | None = None
    window_ms: int | None = None
    seeded: bool = False
    span: Span | None = None

    def name_of(self, record: Any, said: str) -> bytes | None:
        """Return a record's name by what its seal has said; None where its place names it."""
        return named_by(self.ways.get(said, self.id_from), record)


def named_by(way: Callable[[Any], bytes | None], record: Any) -> bytes | None:
    """Return a record's name; None where it has none, or none can be taken out of it.

    What cannot be named is sealed as a dead letter, by its place, or is not sealed at all.
    """
    try:
        name = way(record)
    except Exception:  # noqa: BLE001 - a user's function may raise anything
        return None
    return name if isinstance(name, bytes) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What there is to look at.

    Attributes:
        store: the raw store; it is only read.
        logs: every partition that one of the lanes reads or writes.
        lanes: the lanes to check, by name.
        finished: everything due must be sealed, acknowledged and in the sink.
        restored: the catalog was put back from a backup; what it does not know was abandoned.
    """

    store: Store
    logs: Mapping[Source, Log]
    lanes: Mapping[str, LaneInput]
    finished: bool = False
    restored: bool = False


@dataclass(slots=True)
class Findings:
    """What was found so far."""

    found: list[Finding] = field(default_factory=list)
    _counts: Counter[tuple[Kind, str]] = field(default_factory=Counter)

    def add(self, kind: Kind, lane: str, subject: str, text: str) -> None:
        """Take down one finding."""
        self._counts[kind, lane] += 1
        if self._counts[kind, lane] <= FINDINGS_MAX:
            self.found.append(Finding(kind, lane, subject, text))
