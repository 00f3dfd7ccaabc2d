"""Whether Kafka holds what a catalog promises: the independent checker over raw topics and rows.

What it is: `audit`, which gathers the evidence beside live jobs and hands it to `delivery.checker`.
What it must not know: the rules of the checker, how findings are shown.

Invariants:
    Catalog and topics are only read.
    Rows are read receivers first, topics after them, and what senders sealed meanwhile is left out
    of the logs by what the catalog says then: so that what is compared belongs together. What no
    seal stands behind stays in.
    A lane that cannot be proved, because a part of its evidence is gone, is named with the reason;
    it is never taken for proved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dedup.backup import downstream_first
from dedup.catalog.catalog import Catalog
from dedup.errors import Corrupt, Unavailable
from dedup.model import LaneRow, Seal, Source
from delivery.checker import Evidence, Finding, LaneInput, Log, check
from delivery.header import NAME, decode_header
from delivery.kafka.port import Topic
from delivery.naming import id_from
from delivery.operate.logs import Cluster
from delivery.operate.opening import database_of, name_of
from delivery.operate.snapshot import Snapshot
from delivery.operate.verification import finding_document, verified
from delivery.operate.ways import Naming, readable_seals
from delivery.records import Record

__all__ = ["Audited", "Terms", "audit"]

#: An audit of a catalog that is collected or restored meanwhile is begun anew, this often at most.
READS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What only the operator knows.

    Attributes:
        ways: how publishers name their records, by stage; "" for every other one. Found out where
            nothing is said.
        window_ms: how long ids that publishers name are held, if a compaction let some go; None:
            none were.
        finished: everything must be sealed and delivered by now.
    """

    ways: Mapping[str, str] = field(default_factory=dict)
    window_ms: int | None = None
    finished: bool = False

    def way_of(self, lane: str) -> str | None:
        """Return what is said of a lane's stage."""
        name = name_of(lane)
        for stage in (f"{name.pipeline}/{name.stage}", name.stage, ""):
            if stage in self.ways:
                return self.ways[stage]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What was found.

    Attributes:
        findings: everything that is wrong with what could be looked at.
        proved: the lanes that were, and how their records are named, where that was found out.
        unproved: lanes that could not be, and why.
        records, inputs: records in all topics, and those that proved lanes have read.
    """

    findings: tuple[Finding, ...]
    proved: Mapping[str, str]
    unproved: Mapping[str, str]
    records: int
    inputs: int

    @property
    def verdict(self) -> str:
        """Say it in a word: "broken", "unproved" or "exact"."""
        if self.findings:
            return "broken"
        return "unproved" if self.unproved or not self.proved else "exact"

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "verdict": self.verdict,
            "records": self.records,
            "inputs": self.inputs,
            "proved": dict(self.proved),
            "unproved": dict(self.unproved),
            "findings": [finding_document(finding) for finding in self.findings],
        }


def audit(
    catalog: Catalog,
    cluster: Cluster,
    lanes: Iterable[str],
    terms: Terms,
    report: Callable[[str], None] = lambda _: None,
) -> Audited:
    """Prove that every input of some lanes has one effect, and every output a sealed origin.

    Raises:
        Unavailable: Kafka or the catalog does not answer, or the catalog is collected or restored
            faster than it can be read.
        InvalidUsage: a way of naming records is none.
    """
    for way in terms.ways.values():
        id_from(way)
    lanes = list(lanes)
    for _ in range(READS_MAX):
        gathered = _Gathering(catalog, cluster, terms, report)
        found = gathered.audit(lanes)
        if found is not None:
            return found
    raise Unavailable(
        "audit a catalog",
        catalog.store.url,
        "it was collected or restored faster than it could be read; nothing was changed: stop that "
        "and run this again",
    )


class _Gathering:
    """One try at an audit: rows first, then logs."""

    def __init__(
        self, catalog: Catalog, cluster: Cluster, terms: Terms, report: Callable[[str], None]
    ) -> None:
        try:
            every = downstream_first(catalog)
        except Corrupt:
            every = sorted(catalog.lanes())  # the checker says what is wrong
        self._snapshot = Snapshot(catalog.store, every)
        self._catalog = Catalog(self._snapshot)
        self._cluster = cluster
        self._terms = terms
        self._report = report
        self._rows = {lane: self._row(lane) for lane in every}
        self._unproved: dict[str, str] = {}
        self._logs: dict[Source, Log] = {}
        self._lows: dict[Source, int] = {}

    def _row(self, lane: str) -> LaneRow | None:
        try:
            return self._catalog.load(lane)
        except Corrupt:
            return None

    def audit(self, lanes: Sequence[str]) -> Audited | None:
        """Gather and check; None if lanes were changed meanwhile so that it must begin anew."""
        wanted = [lane for lane in lanes if self._has_topics(lane)]
        for identity in dict.fromkeys(
            source for lane in wanted for source in self._topics_of(self._rows[lane])
        ):
            self._read(self._cluster.topics()[identity])
        for source, log in self._logs.items():
            cut = self._as_of_rows(log)
            if cut is None:
                return None
            self._logs[source] = cut
        proved: dict[str, str] = {}
        asked: dict[str, LaneInput] = {}
        for lane in wanted:
            if self._has_records(lane):
                given = self._asked(lane)
                if given is not None:
                    asked[lane], proved[lane] = given
        self._report(f"check {len(asked)} lanes")
        restored = any(row.head.past for row in self._rows.values() if row is not None)
        findings = check(
            Evidence(
                store=self._snapshot,
                logs=self._logs,
                lanes=asked,
                finished=self._terms.finished,
                restored=restored,
            )
        )
        for lane in self._unproved:
            # Its rows can be proved at least.
            findings += verified(self._snapshot, lane)[0]
        if findings and any(self._snapshot.moved(lane) for lane in self._rows):
            return None
        return Audited(
            findings=tuple(findings),
            proved=proved,
            unproved=self._unproved,
            records=sum(sum(r is not None for r in log.records) for log in self._logs.values()),
            inputs=sum(self._inputs(lane) for lane in asked),
        )

    # Topics -----------------------------------------------------------------------------------

    def _has_topics(self, lane: str) -> bool:
        """Tell whether what a lane reads and writes is in this cluster; say why not."""
        row = self._rows.get(lane)
        if row is None:
            return True  # the checker says what is wrong with it
        database = database_of(row.head)
        if database is not None:
            self._unproved[lane] = f"it is kept in {database}, which only its receiver opens"
            return False
        names = {identity: name for name, identity in row.head.topics}
        missing = [t for t in self._topics_of(row) if t not in self._cluster.topics()]
        if missing:
            words = ", ".join(names.get(identity, identity.hex()) for identity in missing)
            self._unproved[lane] = (
                f"there is no topic {words} of the identity it knows: it was deleted, or the sink is "
                "none of this Kafka"
            )
        return not missing

    def _topics_of(self, row: LaneRow | None) -> list[Any]:
        if row is None:
            return []
        return [*dict.fromkeys(s.topic for s, _ in row.head.frontier), *row.head.writes]

    def _read(self, topic: Topic) -> None:
        bounds = self._cluster.bounds(topic)
        records: dict[Source, list[Record]] = {source: [] for source in topic.sources}
        for batch in self._cluster.read(topic, bounds.low, bounds.high):
            records[batch.source] += batch
        ends, lows = dict(bounds.high), dict(bounds.low)
        for source, found in records.items():
            self._logs[source] = Log(found, ends[source])
            self._lows[source] = lows[source]

    def _as_of_rows(self, log: Log) -> Log | None:
        """Leave out what was sealed after the rows were read; None if a history changed since."""
        later: dict[tuple[str, bytes], tuple[int, int] | None] = {}
        kept = []
        for record in log.records:
            assert record is not None, "only records were read"
            value = next((v for name, v in reversed(record.headers) if name == NAME), None)
            header = decode_header(value) if value else None
            if header is not None and (row := self._rows.get(header.mark.sender)) is not None:
                key = (header.mark.sender, row.head.ref.incarnation)
                if key not in later:
                    later[key] = self._snapshot.sealed_since(header.mark.sender)
                since = later[key]
                if since is None:
                    return None
                current = header.mark.incarnation == row.head.ref.incarnation
                if current and since[0] < header.mark.seq <= since[1]:
                    continue
            kept.append(record)
        return replace(log, records=kept)

    # Lanes ------------------------------------------------------------------------------------

    def _has_records(self, lane: str) -> bool:
        """Tell whether all that a lane ever read and wrote is still in its topics; say why not."""
        row = self._rows[lane]
        if row is None:
            return True
        begun = self._begun(lane, row)
        names = self._cluster.names()
        for source, end in row.head.frontier:
            low = self._lows.get(source, 0)
            start = begun.start.at(source) if begun is not None else 0
            if low > (start or 0) and end > (start or 0):
                self._unproved[lane] = (
                    f"{names[source.topic]} partition {source.partition} begins at {low}: records "
                    f"before it, which the lane has read, are gone"
                )
                return False
        for topic in row.head.writes:
            for source, low in self._lows.items():
                if source.topic == topic and low > 0:
                    self._unproved[lane] = (
                        f"{names[topic]} partition {source.partition} begins at {low}: outputs may "
                        "have been there that are gone"
                    )
                    return False
        return True

    def _inputs(self, lane: str) -> int:
        row = self._rows[lane]
        if row is None:
            return 0
        return sum(
            sum(record is not None and record.offset < end for record in self._logs[source].records)
            for source, end in row.head.frontier
        )

    def _asked(self, lane: str) -> tuple[LaneInput, str] | None:
        """Return what the checker must be told of a lane, and how its records are named."""
        way, seeded = self._terms.way_of(lane), False
        told = f"by {way}, as you say" if way else "by the stages that made them"
        row = self._rows[lane]
        if row is not None:
            seeded = self._seeded(lane, row)
            if way is None:
                sure, way, external = self._naming().guess(lane, row)
                if not sure:
                    self._unproved[lane] = (
                        "nothing that its records carry explains the ids it has decided: say how "
                        "publishers name them with --id-from, as the stage does"
                    )
                    return None
                if external:
                    told = f"by {way or 'their place'}, as the ids it decided show"
        given = LaneInput(id_from=id_from(way), window_ms=self._terms.window_ms, seeded=seeded)
        return given, told

    def _naming(self) -> Naming:
        return Naming(self._snapshot, self._rows, self._logs)

    def _seeded(self, lane: str, row: LaneRow) -> bool:
        first = self._begun(lane, row)
        try:
            listed = self._catalog.segment_list(lane)
        except Corrupt:
            listed = None  # the checker says so
        return bool(first and first.segment.chunks) or bool(
            listed and any(slot.seq == 0 for slot in listed.slots)
        )

    def _begun(self, lane: str, row: LaneRow) -> Seal | None:
        """Return the seal that made a lane, if it is there and can be read."""
        found = readable_seals(self._catalog, lane, row.head.incarnation_of(0), 0, 0)
        return found[0] if found else None
