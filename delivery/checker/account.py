"""Every record of a seal's range accounted for: it took effect, or it was dropped for a reason.

What it is: the records of one range as the evidence shows them, held against the ids that the seal
decided and the offsets that it dropped.
What it must not know: how a verdict is found.

Invariants:
    The range, less what was dropped, less the holes of the log, is what took effect.
    Nothing is said twice: an id that is missing or decided elsewhere is the ledger's to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dedup.formats.dropped import Run, Verdict
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part
from dedup.model import Incarnation, RecordId, Seal, Source, TopicId
from delivery.checker.evidence import Findings, Kind
from delivery.checker.world import Seen
from delivery.header import Header

#: What a lane has read of its senders, as its seals learned it.
Reads = Mapping[tuple[str, Incarnation, TopicId], int]


@dataclass(frozen=True, slots=True)
class Input:
    """A record with the id it counts by; one that is external has no header."""

    seen: Seen
    id: RecordId
    header: Header | None
    #: Of a history that was given up: it counts by no id, though its header names one.
    abandoned: bool = False

    @property
    def external(self) -> bool:
        """Whether its publisher names it."""
        return self.header is None or self.header.mark.kept


@dataclass(slots=True)
class Range:
    """What one seal read."""

    read: int = 0
    #: The first record of each id in the range, whether or not it should take effect.
    inputs: dict[RecordId, Input] = field(default_factory=dict)
    #: Every record in the range, by its place.
    records: dict[tuple[Source, int], Input] = field(default_factory=dict)

    @property
    def abandoned(self) -> int:
        """How many records are of a history that was given up."""
        return sum(one.abandoned for one in self.records.values())

    def add(self, one: Input) -> None:
        """Take one record in."""
        self.records[one.seen.source, one.seen.record.offset] = one
        if not one.abandoned:
            self.inputs.setdefault(one.id, one)


@dataclass(slots=True, kw_only=True)
class Account:
    """One seal, what it read, what it decided and what it dropped.

    Attributes:
        current: whether the histories of the senders are those that it was judged by.
        reads: what was read of the senders when it was judged, or more.
        first: the first record of each id in all that the lane ever read.
        believed: ids whose first record is not looked at.
    """

    lane: str
    seal: Seal
    range: Range
    ids: Collection[RecordId]
    runs: Sequence[Run]
    current: bool
    reads: Reads
    first: Mapping[RecordId, Input]
    believed: Collection[RecordId] = ()
    #: Ids of records that were dropped as repeats; known after the check.
    repeats: set[RecordId] = field(default_factory=set)
    #: By partition and offset what was dropped, and why; known after the check.
    dropped: dict[tuple[int, int], tuple[Input, Verdict]] = field(default_factory=dict)

    def check(self, findings: Findings) -> None:
        """Say which records are not accounted for, and which are twice."""
        dropped = self._dropped(findings)
        taken: set[RecordId] = set()
        for place, one in self.range.records.items():
            decided = one.id in self.ids
            if dropped.get(place) is Verdict.DUPLICATE:
                self.repeats.add(one.id)
            if place in dropped:
                self.dropped[one.seen.place] = (one, dropped[place])
                if decided and self.range.inputs.get(one.id) is one:
                    self._say(findings, Kind.DROPPED_FRESH, place, f"as {dropped[place].name}")
                elif why := self._wrong(one, dropped[place]):
                    self._say(findings, Kind.DROPPED_WHY, place, why)
            elif decided and one.id not in taken:
                taken.add(one.id)
            else:
                text = "another record of its id did" if decided else "its id is not decided here"
                self._say(findings, Kind.NOT_ACCOUNTED, place, text)
        self._check_counts(dropped, findings)

    def _dropped(self, findings: Findings) -> dict[tuple[Source, int], Verdict]:
        """Return the verdict of each place that was dropped, of those that were read."""
        dropped: dict[tuple[Source, int], Verdict] = {}
        starts, ends = dict(self.seal.start), dict(self.seal.end)
        for run in self.runs:
            low, high = starts.get(run.source, 0), ends.get(run.source, 0)
            outside = run.offset < low or run.offset + run.count > high
            if outside or not run.count:
                text = f"{run.count} offsets; the seal read {low} to {high}"
                self._say(findings, Kind.DROPPED_OUTSIDE, (run.source, run.offset), text)
            # A damaged count may be any number.
            for offset in range(max(run.offset, low), min(run.offset + run.count, high)):
                place = (run.source, offset)
                if place not in self.range.records:
                    self._say(
                        findings, Kind.DROPPED_OUTSIDE, place, "a hole, or read by another seal"
                    )
                elif place in dropped:
                    self._say(findings, Kind.DROPPED_WHY, place, "dropped twice")
                dropped[place] = run.verdict
        return dropped

    def _wrong(self, one: Input, verdict: Verdict) -> str:
        """Say why a reason does not hold; nothing if it does, as far as can be told."""
        if verdict is Verdict.ABANDONED:
            return "" if one.abandoned else "its sender's history holds it"
        if one.abandoned:
            return "its history was given up" if self.current else ""
        if verdict is Verdict.REMNANT:
            if one.header is None:
                return "no sender of this topic sealed it, so none can have been read past it"
            mark = one.header.mark
            read = self.reads.get((mark.sender, mark.incarnation, one.seen.source.topic), -1)
            return "" if read >= mark.seq else f"seq {mark.seq}, and only {read} was read"
        return ""

    def _check_counts(
        self, dropped: Mapping[tuple[Source, int], Verdict], findings: Findings
    ) -> None:
        counts = self.seal.counts
        found = Counter(dropped.values())
        pairs = [
            ("duplicate", counts.duplicate, found[Verdict.DUPLICATE]),
            ("remnant", counts.remnant, found[Verdict.REMNANT]),
            ("abandoned", counts.abandoned, found[Verdict.ABANDONED]),
        ]
        subject = f"seal {self.seal.ref.seq}"
        for what, said, seen in pairs:
            if said != seen:
                text = f"{what}: {said} said, {seen} dropped as such"
                findings.add(Kind.COUNTS, self.lane, subject, text)
        differ = sum(
            self._may_differ(self.range.records[place])
            for place, verdict in dropped.items()
            if verdict is Verdict.DUPLICATE and place in self.range.records
        )
        if counts.conflict > differ:
            text = f"conflict: {counts.conflict} said, at most {differ} repeats differ"
            findings.add(Kind.COUNTS, self.lane, subject, text)

    def _may_differ(self, one: Input) -> bool:
        """Tell whether a repeat can have another payload than what it repeats."""
        first = self.first.get(one.id)
        if not one.external or first is None:
            return False
        return (
            one.id in self.believed
            or first is one
            or first.seen.record.value != one.seen.record.value
        )

    def _say(self, findings: Findings, kind: Kind, place: tuple[Source, int], text: str) -> None:
        source, offset = place
        subject = f"seal {self.seal.ref.seq}, partition {source.partition} offset {offset}"
        findings.add(kind, self.lane, subject, text)


def external_at(lane_time_ms: int) -> Bucket:
    """Return the bucket of external ids that are sealed at a lane time."""
    return Bucket(Origin.EXTERNAL, lane_time_ms // BUCKET_MS)


def fits(
    one: Input, part: Part, seen: dict[tuple[str, Incarnation, TopicId], int], lane_time_ms: int
) -> bool:
    """Tell whether an id lies where it is dropped only when no copy of it can come any more."""
    if one.header is None or one.external:
        return part.bucket == external_at(lane_time_ms)
    mark = one.header.mark
    if part.bucket != Bucket(Origin.INTERNAL, mark.minted_at_ms // BUCKET_MS):
        return False
    key = (mark.sender, mark.incarnation, one.seen.source.topic)
    return seen.get(key, -1) >= mark.seq
