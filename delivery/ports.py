"""What a lane runner needs from the world: the ports that hosts, connectors and sinks fill.

What it is: protocols, and the one check that every clock is held to.
What it must not know: any implementation.

Invariants stand at each port; the conformance of an implementation is tested behind the faulty
wrappers of `delivery.testing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dedup.errors import InvalidUsage
from dedup.model import IDENTITY_BYTES, Frontier, Source, TopicId
from delivery.batch import Batch, Emission, Emissions, Rows, batches_of
from delivery.records import Output, Record

__all__ = [
    "Batch",
    "Clock",
    "Counting",
    "Emission",
    "Emissions",
    "Emitter",
    "Frontier",
    "Log",
    "Output",
    "Reader",
    "Record",
    "Rereader",
    "Rows",
    "Sender",
    "Sending",
    "Source",
    "Stage",
    "TopicId",
    "batches_of",
    "checked_identity",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What the source's log is just now: its topics by name, and its bounds."""

    topics: tuple[tuple[str, TopicId], ...] = ()
    low: Frontier = field(default_factory=Frontier)
    high: Frontier = field(default_factory=Frontier)

    def __post_init__(self) -> None:
        """Refuse what is no identity of a topic."""
        assert all(len(topic) == IDENTITY_BYTES for _, topic in self.topics), "topic ids: 16 bytes"


class Reader(Protocol):
    """Where a lane's records come from, as far as the runner asks."""

    def log(self) -> Log:
        """Return topics and bounds, read now."""


class Rereader(Reader, Protocol):
    """A reader that can also give a range again that was read before."""

    def reread(self, start: Frontier, end: Frontier) -> Iterable[Batch]:
        """Return the records of [start, end), those of a source in the order of their offsets.

        What the log does not hold any more is missing: whoever asks compares with its bounds.
        """


class Stage(Protocol):
    """User code and what is said about it."""

    #: Version of the code; kept in every seal.
    code: str

    def run(self, record: Record) -> Sequence[Output]:
        """Return what one record becomes. May be called again; only one result counts.

        Raises:
            Exception: whatever user code raises; the runner follows the stage's policy.
        """


class Emitter(Protocol):
    """Where outputs go."""

    #: Identity of the topic behind each edge, in the edges' order.
    writes: tuple[TopicId, ...]

    def place(self, rows: Rows) -> Sequence[int]:
        """Return the partition each output goes to; it is frozen with the stored row.

        A function of the output and its parent's partition and offset alone.
        """

    def emit(self, emissions: Emissions) -> Frontier:
        """Send in order, flush, and return per topic partition the offset behind the last record.

        Returns only when every record is durable. The offsets are those of the delivery reports; a
        report without one is replaced by the partition's end, read AFTER the flush. Called again
        with the same emissions it may repeat them.
        """


class Counting(Emitter, Protocol):
    """An emitter whose partitions are counted, so that it places as when there were fewer."""

    #: How many partitions each edge has, as `place` sees it.
    counts: tuple[int, ...]

    def place_among(self, rows: Rows, counts: Sequence[int]) -> Sequence[int]:
        """Return what `place` returns where each edge has so many partitions."""


class Sending(Protocol):
    """Records on their way."""

    def done(self, seconds: float = 0.0) -> Frontier | None:
        """Return what `emit` would have returned once all are durable; None before.

        Waits up to `seconds` for it.

        Raises:
            DeliveryError: not all of them will be; emit the same again.
        """


class Sender(Emitter, Protocol):
    """An emitter that need not be waited for."""

    def begin(self, emissions: Emissions) -> Sending:
        """Send in order, behind everything that was begun before; wait for nothing."""


class Clock(Protocol):
    """Time and fresh identities; neither ever decides about safety."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""

    def fresh(self) -> bytes:
        """Return 16 bytes that nobody was given before or will be given again."""

    def back_off(self, losses: int) -> None:
        """Wait after `losses` lost races in a row, with some spread, so that somebody wins."""


def checked_identity(identity: bytes, lane: str) -> bytes:
    """Return an identity that a clock gave, if it is one."""
    if len(identity) == IDENTITY_BYTES:
        return identity
    raise InvalidUsage(
        "make an identity",
        lane,
        f"the clock gave {len(identity)} bytes and an identity has {IDENTITY_BYTES}; "
        "nothing was written: let it return uuid4().bytes",
    )
