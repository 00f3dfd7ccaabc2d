"""Lanes proved over columns, beside live jobs, from the beginning or from where the last proof ended.

What it is: `Proving`, which reads the topics of some lanes once, in batches, and proves lane by lane.
What it must not know: the rules of the proof, how what is in doubt is looked at.

Invariants:
    Catalog and topics are only read; what is kept of a record is about 70 bytes.
    A topic is read from the earliest offset that one of the lanes has not proved yet.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from dedup.model import Frontier, LaneRow, Seal, Source, TopicId
from delivery.checker import Evidence, LaneInput, Log, Span
from delivery.checker.columns import (
    Base,
    Bucket,
    Column,
    Doubt,
    Ground,
    Marks,
    Proof,
    Reading,
    check_senders,
    digests_of,
    prove,
    settled,
)
from delivery.checker.rows import kept_until
from delivery.checker.world import World
from delivery.naming import PLACE, IdFrom, id_from, way_of
from delivery.operate.guessing import SAMPLE_MAX
from delivery.operate.reach import Terms, due_of, seeded
from delivery.operate.reporting import Report
from delivery.operate.stand import Stand
from delivery.operate.ways import Named, Naming, named
from delivery.protocol.senders import Mark
from delivery.records import Record

__all__ = ["Proved", "Proving", "no_cycles"]

#: Offsets below a lane's frontier that tell how its records are named, where its seals are gone.
TAIL_OFFSETS = 4 * SAMPLE_MAX
#: Running digests that are kept of a lane: of the newest 30 days in which it sealed.
BUCKETS_MAX = 30 * 24 * 6


@dataclass(slots=True)
class Proved:
    """What is known of the lanes by now, and what the next proof begins with.

    Attributes:
        bases: what is proved of each lane.
        named: how its records are named, in words, and the way.
        positions: up to where topics hold nothing that a next proof would have to read.
        buckets: running digests of all that was proved, by lane and time of the seals.
    """

    bases: dict[str, Base] = field(default_factory=dict)
    named: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    positions: dict[Source, int] = field(default_factory=dict)
    buckets: dict[str, dict[int, Bucket]] = field(default_factory=dict)


class Proving:
    """One try.

    Args:
        stand: the catalog as it stood, and what the cluster has.
        terms: what only the operator knows.
        proved: what is known already; it is not changed.
        report: is told what is done.
        spans: of these lanes only some seals are in question.
    """

    def __init__(
        self,
        stand: Stand,
        terms: Terms,
        proved: Proved,
        report: Report,
        spans: Mapping[str, Span] | None = None,
    ) -> None:
        self._stand, self._terms, self._before, self._report = stand, terms, proved, report
        self._spans = spans or {}
        self._ways: dict[str | None, IdFrom] = {}
        self._named: dict[str, Named] = {}
        self.proofs: dict[str, Proof] = {}
        self.doubts: dict[str, Doubt] = {}
        #: What is proved of each lane by now, and digests of what was proved anew.
        self._bases: dict[str, Base] = {}
        self.buckets: dict[str, dict[int, Bucket]] = {}
        self._ground: Ground | None = None
        self._asked: dict[str, LaneInput] = {}
        rows = stand.rows.values() if self._spans else ()
        self._written = {topic for row in rows if row is not None for topic in row.head.writes}
        #: How many records there were, by partition.
        self.records: dict[Source, int] = {}
        self._columns: dict[Source, Column] = {}
        self._marks = Marks(self._is_genuine)
        self._world = World(Evidence(store=stand.snapshot, logs={}, lanes={}))

    def prove(self, lanes: Sequence[str]) -> bool:
        """Prove what can be; False if lanes were changed so that it must begin anew."""
        with no_cycles():
            return self._read_and_prove([lane for lane in lanes if self._knows_way(lane)])

    def _read_and_prove(self, lanes: Sequence[str]) -> bool:
        self._asked = self._read(lanes)
        later = self._later()
        if later is None:
            return False
        self._columns = {
            source: self._cut(column, later) for source, column in self._columns.items()
        }
        self.records = {source: len(column) for source, column in self._columns.items()}
        self._world = World(
            Evidence(
                store=self._stand.snapshot,
                logs={source: Log((), column.end) for source, column in self._columns.items()},
                lanes={},
                restored=self._stand.restored,
            )
        )
        topics = {source.topic for source in self._columns}
        lows = {s: low for topic in topics for s, low in self._stand.reach.bounds(topic).low}
        self._ground = Ground(self._world, self._columns, self._marks, lows)
        for at, lane in enumerate(lanes):
            self._report(f"prove {lane} ({at + 1} of {len(lanes)})", at, len(lanes))
            self._prove(self._ground, lane, self._asked[lane])
        return True

    def settle(self, lane: str) -> None:
        """Take a lane for proved that was in doubt, and that the checker of records found right.

        Otherwise every later proof would have to read its topics from here on, until retention has
        deleted them.
        """
        if self._ground is None or lane not in self._asked:
            return
        before = self._before.bases.get(lane)
        try:
            book, base = settled(self._ground, lane, self._asked[lane], before)
        except Doubt:
            return  # the next proof looks again
        self._bases[lane] = base
        self.buckets[lane] = digests_of(self._ground, book)

    def next(self) -> Proved:
        """Return what the next proof may begin with."""
        before = self._before
        found = Proved(dict(before.bases), dict(before.named), dict(before.positions))
        found.buckets = {lane: dict(buckets) for lane, buckets in before.buckets.items()}
        for lane, base in self._bases.items():
            found.bases[lane] = base
            found.named[lane] = (self._named[lane].words, self._named[lane].last)
            mine = found.buckets.setdefault(lane, {})
            for at, bucket in self.buckets[lane].items():
                mine[at] = mine.get(at, Bucket()).plus(bucket)
            for at in sorted(mine)[:-BUCKETS_MAX]:
                del mine[at]
        for source, column in self._columns.items():
            found.positions[source] = self._position(column, found.bases)
        return found

    def words(self, lane: str) -> str:
        """Say how the records of a lane are named."""
        return self._named[lane].words

    # Naming -----------------------------------------------------------------------------------

    def _knows_way(self, lane: str) -> bool:
        row, way = self._stand.rows[lane], self._terms.way_of(lane)
        if row is None:
            self.doubts[lane] = Doubt(None, "head row", "it cannot be read")
            return False
        base, span = self._before.bases.get(lane), self._spans.get(lane)
        begin = span.first if span is not None else base.ref.seq + 1 if base is not None else 1
        before = self._before.named.get(lane)
        found = named(_Sample(self._stand), lane, row, told=way, before=before, begin=begin)
        if found is None:
            self.doubts[lane] = Doubt(None, "its records", "nothing of a sample names them")
            return False
        self._named[lane] = found
        return True

    def _way(self, text: str | None) -> IdFrom:
        if text not in self._ways:
            # What an operator says was looked at before anything was read.
            self._ways[text] = way_of(text or PLACE) or id_from(text)
        return self._ways[text]

    def _is_genuine(self, mark: Mark, topic: bytes) -> bool:
        """Tell whether a header counts: its sender writes this topic, and may have sealed this."""
        sender = self._world.sender(mark.sender)
        if sender is None or topic not in sender.head.writes:
            return False
        last = kept_until(sender.head, mark.incarnation)
        return last is not None and mark.seq <= last

    # Reading ----------------------------------------------------------------------------------

    def _read(self, lanes: Sequence[str]) -> dict[str, LaneInput]:
        """Read every topic of these lanes once; return what each lane is asked with."""
        asked: dict[str, LaneInput] = {}
        ways: dict[TopicId, list[IdFrom]] = {}
        starts: dict[Source, int] = {}
        ends: dict[Source, int] = {}
        for lane in lanes:
            row = self._stand.rows[lane]
            assert row is not None, "lanes without a row are in doubt"
            found = self._named[lane]
            by_seals = {said: self._way(None if said == PLACE else said) for said in found.ways}
            asked[lane] = LaneInput(
                id_from=self._way(found.way),
                ways=by_seals,
                window_ms=self._terms.window_of(lane),
                seeded=seeded(self._stand.catalog, lane, row),
                due=due_of(row),
                span=self._spans.get(lane),
            )
            base = self._before.bases.get(lane)
            for source, _ in row.head.frontier:
                known = ways.setdefault(source.topic, [])
                mine = (asked[lane].id_from, *by_seals.values())
                known += [way for way in dict.fromkeys(mine) if way not in known]
            for source, start in self._starts(row, base).items():
                starts[source] = min(start, starts.get(source, start))
            for source, end in self._ends(lane, row):
                ends[source] = max(end, ends.get(source, end))
        for topic in dict.fromkeys(source.topic for source in starts):
            self._read_topic(topic, starts, ends, ways.get(topic, []))
        return asked

    def _starts(self, row: LaneRow, base: Base | None) -> dict[Source, int]:
        """Return from where on a lane needs the partitions of its topics."""
        starts: dict[Source, int] = {}
        bounds = self._stand.reach.bounds
        for source, _ in row.head.frontier:
            low = bounds(source.topic).low.at(source) or 0
            known = base.frontier.get(source, low) if base is not None else low
            starts[source] = max(low, known)
        for topic in dict.fromkeys(row.head.writes):
            for source, low in bounds(topic).low:
                before = self._before.positions.get(source, 0)
                known = low if base is None or base.trusted else max(low, before)
                starts[source] = min(known, starts.get(source, known))
        return starts

    def _ends(self, lane: str, row: LaneRow) -> Iterator[tuple[Source, int]]:
        """Yield up to where a lane needs the partitions that it reads.

        Of what another lane writes a copy far behind may show that something was not read.
        """
        span = self._spans.get(lane)
        for source, _ in row.head.frontier:
            high = self._stand.reach.bounds(source.topic).high.at(source) or 0
            if span is None or span.last >= row.head.ref.seq or source.topic in self._written:
                yield source, high
            else:
                yield source, min(high, span.end.at(source) or 0)

    def _read_topic(
        self,
        topic: TopicId,
        starts: Mapping[Source, int],
        ends: Mapping[Source, int],
        ways: Sequence[IdFrom],
    ) -> None:
        cluster, bounds = self._stand.cluster, self._stand.reach.bounds(topic)
        mine = {source: at for source, at in starts.items() if source.topic == topic}
        readings = {source: Reading(source, at, self._marks, ways) for source, at in mine.items()}
        highs = dict(bounds.high)
        upto = {source: max(at, ends.get(source, highs[source])) for source, at in mine.items()}
        low, high = Frontier.of(mine.items()), Frontier.of(upto.items())
        for batch in cluster.read(cluster.topics()[topic], low, high):
            readings[batch.source].take(batch)
        for source, reading in readings.items():
            self._columns[source] = reading.column(upto[source])

    def _later(self) -> set[int] | None:
        """Return the places of marks that were sealed after the rows were read."""
        later = set()
        for place, mark in enumerate(self._marks.every):
            is_later = self._stand.is_later(mark)
            if is_later is None:
                return None
            if is_later:
                later.add(place)
        return later

    @staticmethod
    def _cut(column: Column, later: set[int]) -> Column:
        if not later:
            return column
        mask = np.isin(column.marks, list(later))
        return column.without(mask) if mask.any() else column

    # Proving ----------------------------------------------------------------------------------

    def _prove(self, ground: Ground, lane: str, asked: LaneInput) -> None:
        row = self._stand.rows[lane]
        assert row is not None, "lanes without a row are in doubt"
        try:
            proof = prove(
                ground,
                lane,
                asked,
                self._before.bases.get(lane),
                finished=self._terms.finished,
            )
            check_senders(ground, set(row.head.writes))
        except Doubt as doubt:
            self.doubts[lane] = doubt
        else:
            self.proofs[lane] = proof
            self._bases[lane], self.buckets[lane] = proof.base, proof.buckets

    def _position(self, column: Column, bases: Mapping[str, Base]) -> int:
        """Return up to where a partition holds nothing that a next proof would have to read."""
        open_marks = [
            place
            for place, mark in enumerate(self._marks.every)
            if mark.sender not in bases or mark.seq > bases[mark.sender].ref.seq
        ]
        rows = np.flatnonzero(np.isin(column.marks, open_marks))
        return int(column.offsets[rows[0]]) if len(rows) else column.end


@contextmanager
def no_cycles() -> Iterator[None]:
    """Let nobody look for cycles: records make none, and looking through them takes a third."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Sample(Naming):
    """As much of the topics as tells how records are named, read when it is asked for."""

    def __init__(self, stand: Stand) -> None:
        super().__init__(stand.snapshot, stand.rows, {})
        self._stand = stand

    def _external_records(self, seal: Seal) -> list[Record]:
        spans = {s: (at, seal.end.at(s) or at) for s, at in seal.start}
        return [one for one in self._range(spans) if not self._is_ours(one)]

    def _external_below(self, row: LaneRow) -> list[Record]:
        spans = {s: (max(0, end - TAIL_OFFSETS), end) for s, end in row.head.frontier}
        return [one for one in self._range(spans) if not self._is_ours(one)]

    def _range(self, spans: Mapping[Source, tuple[int, int]]) -> list[Record]:
        found: list[Record] = []
        cluster = self._stand.cluster
        for source, (start, end) in spans.items():
            topic = cluster.topics()[source.topic]
            bounds = self._stand.reach.bounds(source.topic)
            first = max(start, bounds.low.at(source) or 0)
            last = min(end, first + SAMPLE_MAX, bounds.high.at(source) or 0)
            if first < last:
                low, high = (Frontier.of([(source, at)]) for at in (first, last))
                for batch in cluster.read(topic, low, high):
                    found += batch
        return found
