"""Lanes record by record: the evidence gathered for the checker that names what is wrong.

What it is: `Gathering`, which reads the topics of some lanes whole, leaves out what was sealed
since the rows were read, and calls `delivery.checker.check`.
What it must not know: why these lanes are asked about, how findings are shown.

Invariants:
    Catalog and topics are only read.
    What no seal stands behind stays in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dedup.model import Frontier, LaneRow, Source, TopicId
from delivery.checker import Evidence, Finding, LaneInput, Log, Span, check
from delivery.header import NAME, decode_header
from delivery.naming import PLACE, id_from, way_of
from delivery.operate.reach import Terms, due_of, seeded, topics_of
from delivery.operate.reporting import Report
from delivery.operate.stand import Stand
from delivery.operate.ways import BY_STAGES, Named, Naming, named
from delivery.records import Record

__all__ = ["Gathering"]


class Gathering:
    """One try.

    Args:
        stand: the catalog as it stood, and what the cluster has.
        terms: what only the operator knows.
        report: is told what is done.
        spans: of these lanes only some seals are in question.
    """

    def __init__(
        self,
        stand: Stand,
        terms: Terms,
        report: Report,
        spans: Mapping[str, Span] | None = None,
    ) -> None:
        self._stand, self._terms, self._report = stand, terms, report
        self._spans = spans or {}
        #: Lanes whose records nobody can name, and why.
        self.unproved: dict[str, str] = {}
        #: The others, and how their records are named.
        self.named: dict[str, str] = {}
        self.inputs = 0
        self.records: dict[Source, int] = {}

    def findings(self, lanes: Sequence[str]) -> list[Finding] | None:
        """Gather and check; None if lanes were changed meanwhile so that it must begin anew."""
        stand, rows = self._stand, self._stand.rows
        logs: dict[Source, Log] = {}
        for identity in dict.fromkeys(t for lane in lanes for t in topics_of(rows[lane])):
            for source, log in self._read(identity).items():
                cut = self._as_of_rows(log)
                if cut is None:
                    return None
                logs[source] = cut
                self.records[source] = len(cut.records)
        naming = Naming(stand.snapshot, rows, logs)
        asked = {lane: given for lane in lanes if (given := self._asked(lane, naming)) is not None}
        self._report(f"check {len(asked)} lanes record by record")
        found = check(
            Evidence(
                store=stand.snapshot,
                logs=logs,
                lanes=asked,
                finished=self._terms.finished,
                restored=stand.restored,
            )
        )
        self.inputs = sum(_inputs(rows[lane], logs, self._spans.get(lane)) for lane in asked)
        return found

    def _read(self, topic: TopicId) -> dict[Source, Log]:
        found = self._stand.cluster.topics()[topic]
        bounds = self._stand.reach.bounds(topic)
        records: dict[Source, list[Record]] = {source: [] for source in found.sources}
        for batch in self._stand.cluster.read(found, bounds.low, bounds.high):
            records[batch.source] += batch
        ends = dict(bounds.high)
        return {source: Log(held, ends[source]) for source, held in records.items()}

    def _as_of_rows(self, log: Log) -> Log | None:
        """Leave out what was sealed after the rows were read; None if a history changed since."""
        kept = []
        for record in log.records:
            assert record is not None, "only records were read"
            value = next((v for name, v in reversed(record.headers) if name == NAME), None)
            header = decode_header(value) if value else None
            later = self._stand.is_later(header.mark) if header is not None else False
            if later is None:
                return None
            if not later:
                kept.append(record)
        return replace(log, records=kept)

    def _asked(self, lane: str, naming: Naming) -> LaneInput | None:
        """Return what the checker must be told of a lane; None if nobody knows."""
        row = self._stand.rows[lane]
        way, span = self._terms.way_of(lane), self._spans.get(lane)
        if row is None:
            found = Named(
                words=f"by {way}, as you say" if way else BY_STAGES, way=way, ways={}, last=way
            )
        else:
            begin = span.first if span is not None else 1
            known = named(naming, lane, row, told=way, begin=begin)
            if known is None:
                self.unproved[lane] = _UNSAID
                return None
            found = known
        self.named[lane] = found.words
        brought_in = row is not None and seeded(self._stand.catalog, lane, row)
        return LaneInput(
            id_from=way_of(found.way or PLACE) or id_from(found.way),
            ways=found.ways,
            window_ms=self._terms.window_of(lane),
            seeded=brought_in,
            due=due_of(row),
            span=span,
        )


_UNSAID = (
    "nothing that its records carry explains the ids it has decided: say how publishers name them "
    "with --id-from, as the stage does"
)


def _inputs(row: LaneRow | None, logs: Mapping[Source, Log], span: Span | None) -> int:
    if row is None:
        return 0
    start, ends = (span.start, span.end) if span is not None else (Frontier(), row.head.frontier)
    return sum(
        sum(
            record is not None and (start.at(source) or 0) <= record.offset < end
            for record in logs[source].records
        )
        for source, end in ends
    )
