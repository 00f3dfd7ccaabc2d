"""What became of records, added up seal by seal: each seal is read once.

What it is: `Tally`, the sums of one lane, and `Tallies`, those of all, which read on from look to
look.
What it must not know: clocks, Kafka, how sums are shown.

Invariants:
    A seal is added once, or not at all if it was collected before it could be read.
    `since` counts from the first look on: a counter that began anew with what happens to be kept
    would jump whenever something was collected.
    The first look at a lane reads at most `SEALS_MAX` seals, the newest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dedup.catalog.catalog import Catalog
from dedup.model import Incarnation, LaneRow, Seal
from delivery.naming import PLACE
from delivery.watch.rows import Rows

__all__ = ["BUNDLE_BOUNDS", "DELAY_BOUNDS", "VERDICTS", "Histogram", "Tallies", "Tally", "seals_of"]

#: Of each lane, what the first look reads at most.
SEALS_MAX = 20_000
#: Seals that are asked for at once.
PAGE_SEALS = 500
#: What becomes of a record, and what each adds up to everything that was read.
VERDICTS = ("fresh", "duplicate", "remnant", "abandoned")
_COUNTS = (*VERDICTS, "conflict", "dead_letter", "unnamed")

#: Upper bounds of the classes of bundles, in records.
BUNDLE_BOUNDS = (1.0, 10.0, 100.0, 1_000.0, 5_000.0, 10_000.0, 20_000.0, 50_000.0)
#: Upper bounds of the classes of seal delays, in seconds.
DELAY_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)


@dataclass(slots=True)
class Histogram:
    """How many values fell into each class, the last class being unbounded, and their sum."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Add one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def merge(self, other: Histogram) -> None:
        """Add another histogram of the same classes."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


@dataclass(frozen=True, slots=True)
class Change:
    """Records that are named otherwise than before.

    Attributes:
        before, after: how, as seals say it.
        seq, time_ms: the first seal that says so, and the lane time by then.
        since_ms: when the first seal was made that does not say what the one before it said.
    """

    before: str
    after: str
    seq: int
    time_ms: int
    since_ms: int


@dataclass(slots=True)
class Tally:
    """The sums of one lane.

    Attributes:
        counts: by name: the verdicts, `conflict`, `dead_letter`, `unnamed`, `seals`, `outputs` and
            `output_bytes` (as stored), since the first look.
        bundles: records read by each seal that read any, since the first look.
        delays: seconds from the newest record's timestamp to the seal, likewise.
        before: the sums of what was there at the first look.
        conflict_ms: when the first conflict was sealed that could be read; None: there was none.
        unnamed_ms: when the first bundle was sealed with records that lack the name they should
            have, and `unnamed_time_ms`: the lane time of the last; None: there was none.
        named: how records are named, as the last seal says that does.
        change: the last time that it was another way; None: it was not.
        begun_ms: when the lane began; None: it is not known any more.
        first_ms: when its first bundle was sealed; None: none was, or it is not known any more.
    """

    counts: Counter[str] = field(default_factory=Counter)
    bundles: Histogram = field(default_factory=lambda: Histogram(BUNDLE_BOUNDS))
    delays: Histogram = field(default_factory=lambda: Histogram(DELAY_BOUNDS))
    before: Counter[str] = field(default_factory=Counter)
    conflict_ms: int | None = None
    unnamed_ms: int | None = None
    unnamed_time_ms: int | None = None
    named: str = ""
    change: Change | None = None
    begun_ms: int | None = None
    first_ms: int | None = None

    def add(self, seal: Seal, *, first: bool) -> None:
        """Add a seal, to what was there before if this is the `first` look."""
        counts = self.before if first else self.counts
        for name in _COUNTS:
            counts[name] += getattr(seal.counts, name)
        counts["seals"] += 1
        counts["outputs"] += seal.outputs.rows
        counts["output_bytes"] += seal.outputs.size
        if seal.counts.conflict and self.conflict_ms is None:
            self.conflict_ms = seal.minted_at_ms
        if seal.counts.unnamed:
            self.unnamed_ms = self.unnamed_ms or seal.minted_at_ms
            self.unnamed_time_ms = seal.lane_time_ms
        self._name(seal)
        if not first and seal.counts.read:
            self.bundles.add(seal.counts.read)
        # A lane that knows of no time yet has no delay.
        if not first and seal.counts.read and seal.lane_time_ms:
            self.delays.add(max(0, seal.minted_at_ms - seal.lane_time_ms) / 1000)

    def _name(self, seal: Seal) -> None:
        # Where places named the records, every repeat took effect before as well.
        if seal.named and self.named not in ("", PLACE, seal.named):
            since_ms = self.change.since_ms if self.change is not None else seal.minted_at_ms
            self.change = Change(self.named, seal.named, seal.ref.seq, seal.lane_time_ms, since_ms)
        self.named = seal.named or self.named


class Tallies:
    """The sums of all lanes."""

    def __init__(self) -> None:
        self.lanes: dict[str, Tally] = {}
        self._read: dict[str, tuple[Incarnation, int]] = {}

    def look(self, catalog: Catalog, rows: Rows) -> None:
        """Read on up to the heads of these rows."""
        for lane, row in rows.lanes.items():
            tally = self.lanes.setdefault(lane, Tally())
            if lane in rows.unread:
                continue  # its seals are in a database, and its row only says where it began
            first = lane not in self._read
            if not self._read.get(lane, (None, 0))[1]:
                tally.begun_ms, tally.first_ms = _beginning(catalog, lane, row)
            head = row.head.ref
            incarnation, seq = self._read.get(lane, (head.incarnation, 0))
            if incarnation != head.incarnation:
                # Seqs count on through incarnations: what a restore gave up is sealed again.
                kept = row.head.last_kept(incarnation)
                seq = min(seq, kept) if kept is not None else head.seq
            low = max(seq + 1, head.seq - SEALS_MAX + 1) if first else seq + 1
            for seal in seals_of(catalog, lane, row, low):
                tally.add(seal, first=first)
            self._read[lane] = (head.incarnation, head.seq)


def seals_of(catalog: Catalog, lane: str, row: LaneRow, first: int = 1) -> Iterator[Seal]:
    """Yield the seals of a lane's history from `first` to its head that are still there."""
    for incarnation, low, high in row.head.runs(first, row.head.ref.seq):
        for at in range(low, high + 1, PAGE_SEALS):
            yield from catalog.seals(lane, incarnation, at, min(high, at + PAGE_SEALS - 1))


def _beginning(catalog: Catalog, lane: str, row: LaneRow) -> tuple[int | None, int | None]:
    """Return when a lane was begun and when its first bundle was sealed, as far as both are kept."""
    found = {
        seal.ref.seq: seal.minted_at_ms
        for incarnation, low, high in row.head.runs(0, min(1, row.head.ref.seq))
        for seal in catalog.seals(lane, incarnation, low, high)
    }
    return found.get(0) or None, found.get(1)
