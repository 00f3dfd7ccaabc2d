"""What the core is told and what it asks for: events and instructions.

What it is: small frozen values. The runner performs each instruction and answers with one event.
What it must not know: how anything is performed.

Invariants:
    An instruction about a bundle carries its `ticket`; the answer carries it back. A ticket is
    never used again, so an answer that comes late is recognised and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dedup.model import (
    Ack,
    Attempt,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    LaneRow,
    Seal,
    TopicId,
)

# Events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """Begin. `start` is where the lane starts if it never was."""

    start: Frontier


@dataclass(frozen=True, slots=True)
class Loaded:
    """The lane's row as read, or None for a lane that never was.

    `topics` and the log's bounds (first offset, end offset) are those of the source just now,
    `writes` the topics that outputs would go to.
    """

    row: LaneRow | None
    topics: tuple[tuple[str, bytes], ...] = ()
    low: Frontier = field(default_factory=Frontier)
    high: Frontier = field(default_factory=Frontier)
    writes: tuple[TopicId, ...] = ()


class Outcome(Enum):
    """How a conditional write ended, as far as its writer can tell."""

    WON = "won"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Started:
    """The append of seq 0 was answered. Whoever won it, the lane is read again."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Polled:
    """The reader planned [start, end) and holds its rows; offsets have holes, ranges do not.

    `first` gives the log's first offset of sources that the lane may not know yet.
    """

    start: Frontier
    end: Frontier
    first: Frontier = field(default_factory=Frontier)


@dataclass(frozen=True, slots=True)
class Classified:
    """The rows of a bundle have verdicts; a fresh attempt was minted for it."""

    ticket: int
    attempt: Attempt
    #: The clock at that moment, and what lane time may be by what was read (0: nothing tells).
    now_ms: int
    source_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class Ran:
    """User code returned for every fresh record of the bundle."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Outputs and segment are stored under the attempt; this is the seal that promises them."""

    ticket: int
    seal: Seal


@dataclass(frozen=True, slots=True)
class Appended:
    """The append was answered, or its answer is lost."""

    ticket: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Resolved:
    """The head was read, and AFTER it the entry at the position of the unknown append."""

    ticket: int
    row: LaneRow | None
    entry: Attempt | None


@dataclass(frozen=True, slots=True)
class Delivered:
    """This process emitted every output of a seal and flushed; `offsets` are behind the last."""

    seq: int
    offsets: Frontier


@dataclass(frozen=True, slots=True)
class Missing:
    """The outputs of a seal, or its entry, are not there."""

    seq: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The acknowledgement was answered, or its answer is lost."""

    ack: Ack
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RowRead:
    """The row was read again. `missing` names the seq whose outputs were not found, if any."""

    row: LaneRow | None
    missing: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """The source is bounded: succeed once everything up to `goal` is sealed and acknowledged."""

    goal: Frontier


@dataclass(frozen=True, slots=True)
class Broke:
    """Something failed that the protocol cannot mend: user code, a store that stays away."""

    why: str


Event = (
    Opened
    | Loaded
    | Started
    | Polled
    | Classified
    | Ran
    | Stored
    | Appended
    | Resolved
    | Delivered
    | Missing
    | Acknowledged
    | RowRead
    | Ending
    | Broke
)

# Instructions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """Read the lane's row linearizably, and the source's topics and bounds. Answer: Loaded.

    After `losses` lost races in a row, wait first: whoever loses backs off and follows.
    """

    losses: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Append seq 0 with a fresh incarnation and attempt. Answer: Started."""

    frontier: Frontier
    topics: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Classify:
    """Give every row of [start, end) its verdict. Answer: Classified.

    Asks the ids up to `head`, and those of the pending bundles `after`, oldest first.
    """

    ticket: int
    start: Frontier
    end: Frontier
    head: Head
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Run user code on the fresh rows. Answer: Ran, or Broke."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Store:
    """Store outputs and segment under the attempt. Answer: Stored, BEFORE any append of it."""

    ticket: int
    ref: HeadRef
    start: Frontier
    end: Frontier
    minted_at_ms: int
    lane_time_ms: int


@dataclass(frozen=True, slots=True)
class Append:
    """THE commit point: move the head from `expected` to `head`. Answer: Appended."""

    ticket: int
    expected: HeadRef
    head: Head
    seal: Seal


@dataclass(frozen=True, slots=True)
class Resolve:
    """Read the head, and AFTER it the entry. Answer: Resolved."""

    ticket: int
    incarnation: Incarnation
    seq: int


@dataclass(frozen=True, slots=True)
class Discard:
    """A bundle's attempt lost or was given up: forget its verdicts and outputs, keep its rows."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Emit:
    """Emit a sealed bundle from its stored rows and flush. Answer: Delivered, or Missing.

    `ticket` names the bundle if this process sealed it and so holds the very bytes it stored.
    """

    seq: int
    incarnation: Incarnation
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Move the acknowledgement, AFTER the flush. Answer: Acknowledged."""

    expected: Ack
    ack: Ack


@dataclass(frozen=True, slots=True)
class ReadRow:
    """Read the lane's row again. Answer: RowRead with the same `missing`."""

    missing: int | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Rows below `frontier` are sealed: the reader may forget them."""

    frontier: Frontier


class End(Enum):
    """How a lane's work in this process ended."""

    DONE = "done"
    FENCED = "fenced"
    REFUSED = "refused"
    INDETERMINATE = "indeterminate"
    CORRUPT = "corrupt"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more will be asked for."""

    end: End
    why: str


Instruction = (
    Load
    | Start
    | Classify
    | Run
    | Store
    | Append
    | Resolve
    | Discard
    | Emit
    | Acknowledge
    | ReadRow
    | Release
    | Stop
)
