"""Whether Kafka holds what a catalog promises: proved over columns, and record by record in doubt.

What it is: `audit`, which proves what it can over whole columns, and hands what is left in doubt to
the checker that names what is wrong.
What it must not know: the rules of either, how findings are shown.

Invariants:
    Catalog and topics are only read.
    A lane that cannot be proved, because a part of its evidence is gone, is named with the reason;
    it is never taken for proved.
    A doubt is a finding only if the checker of records says so, or cannot be asked any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.errors import Unavailable
from delivery.checker import Finding
from delivery.checker.columns import Bucket
from delivery.naming import id_from
from delivery.operate.databases import Kept
from delivery.operate.gathering import Gathering
from delivery.operate.logs import Cluster
from delivery.operate.proved import bucket_document
from delivery.operate.proving import Proved, Proving
from delivery.operate.ranges import Ranged, range_document, ranged
from delivery.operate.reach import Terms
from delivery.operate.reporting import Report, silent
from delivery.operate.stand import Stand
from delivery.operate.verification import finding_document, verified

__all__ = ["Audited", "Terms", "audit"]

#: An audit of a catalog that is collected or restored meanwhile is begun anew, this often at most.
READS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What was found.

    Attributes:
        findings: everything that is wrong with what could be looked at.
        notes: what is right only if a stage's window is as it says; who says the window knows.
        proved: the lanes that were, and how their records are named, where that was found out.
        unproved: lanes that could not be, and why.
        records, inputs: records in all topics, and those that proved lanes have read; of those
            alone that were looked at now.
        repeats, dropped: inputs that repeat an earlier one, as the topics show it, and inputs that
            took no effect, as the seals say; of lanes that were proved over columns.
        looked_closer: lanes that were looked at record by record, and what was unusual there.
        buckets: running digests of what was proved now, by lane and time of the seals.
        next: what the next audit may begin with.
        ranges: of lanes of which only a part was asked about, which, as plain data.
        given_up: of proved lanes, what they have read of topics that are gone for good, in words: it
            is believed.
    """

    findings: tuple[Finding, ...]
    proved: Mapping[str, str]
    unproved: Mapping[str, str]
    records: int
    inputs: int
    notes: tuple[Finding, ...] = ()
    repeats: int = 0
    dropped: int = 0
    looked_closer: Mapping[str, str] = field(default_factory=dict)
    buckets: Mapping[str, Mapping[int, Bucket]] = field(default_factory=dict)
    next: Proved = field(default_factory=Proved)
    ranges: tuple[dict[str, Any], ...] = ()
    given_up: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Say it in a word: "broken", "unproved" or "exact"."""
        if self.findings:
            return "broken"
        return "unproved" if self.unproved or self.notes or not self.proved else "exact"

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "verdict": self.verdict,
            "records": self.records,
            "inputs": self.inputs,
            "repeats": self.repeats,
            "dropped": self.dropped,
            "proved": dict(self.proved),
            "unproved": dict(self.unproved),
            "ranges": list(self.ranges),
            "given_up": dict(self.given_up),
            "looked_closer": [
                {"lane": lane, "why": why} for lane, why in self.looked_closer.items()
            ],
            "digests": [
                {"lane": lane} | bucket_document(at, bucket)
                for lane, buckets in self.buckets.items()
                for at, bucket in sorted(buckets.items())
            ],
            "findings": [finding_document(finding) for finding in self.findings],
            "notes": [finding_document(finding) for finding in self.notes],
        }


def audit(
    catalog: Catalog,
    cluster: Cluster,
    lanes: Iterable[str],
    terms: Terms,
    report: Report = silent,
    *,
    proved: Proved | None = None,
    kept: Mapping[str, Kept] | None = None,
) -> Audited:
    """Prove that every input of some lanes has one effect, and every output a sealed origin.

    Args:
        catalog: is only read.
        cluster: its topics, which are only read.
        lanes: which.
        terms: what only the operator knows.
        report: is told what is done.
        proved: what was proved before; only what came since is looked at. None: everything is.
        kept: lanes of users' databases, as far as it was tried to read them.

    Raises:
        Unavailable: Kafka or the catalog does not answer, or the catalog is collected or restored
            faster than it can be read.
        InvalidUsage: a way of naming records is none, or nobody reads the offsets that are asked about.
    """
    for way in terms.ways.values():
        id_from(way)
    lanes = list(lanes)
    for _ in range(READS_MAX):
        found = _Auditing(catalog, cluster, terms, report, kept or {}).audit(
            lanes, proved or Proved()
        )
        if found is not None:
            return found
    raise Unavailable(
        "audit a catalog",
        catalog.store.url,
        "it was collected or restored faster than it could be read; nothing was changed: stop that "
        "and run this again",
    )


class _Auditing:
    """One try: rows first, then topics."""

    def __init__(
        self,
        catalog: Catalog,
        cluster: Cluster,
        terms: Terms,
        report: Report,
        kept: Mapping[str, Kept],
    ) -> None:
        self._stand = Stand(catalog, cluster)
        self._terms, self._report, self._kept = terms, report, kept
        self._unproved: dict[str, str] = {}
        self._ranged = Ranged()

    def audit(self, lanes: Sequence[str], before: Proved) -> Audited | None:
        """Prove; None if lanes were changed meanwhile so that it must begin anew."""
        stand, given = self._stand, before
        if self._terms.ranged:
            lanes, before = self._in_range(lanes, before)
        within = [lane for lane in lanes if self._is_within(lane, before)]
        proving = Proving(stand, self._terms, before, self._report, self._ranged.spans)
        if not proving.prove(within):
            return None
        closer = self._closer(proving, before)
        if closer is None:
            return None
        gathering, findings = closer
        for lane in () if self._terms.ranged else self._unproved:
            # Its rows can be proved at least.
            findings += verified(stand.snapshot, lane, self._terms.window_of(lane))[0]
        findings += [one for proof in proving.proofs.values() for one in proof.late]
        if findings and stand.changed():
            return None
        notes = tuple(finding for finding in findings if finding.is_note)
        findings = [finding for finding in findings if not finding.is_note]
        wrong = {finding.lane for finding in findings}
        if not findings and not self._terms.ranged:
            for lane in proving.doubts:
                if lane in gathering.named:
                    proving.settle(lane)
        names = {lane: proving.words(lane) for lane in proving.proofs} | gathering.named
        records = proving.records | gathering.records
        for lane, why in self._ranged.short.items():
            self._unproved.setdefault(lane, why)
            names.pop(lane, None)
        return Audited(
            findings=tuple(findings),
            notes=notes,
            proved=names,
            unproved=self._unproved,
            records=sum(records.values()),
            inputs=gathering.inputs + sum(one.inputs for one in proving.proofs.values()),
            repeats=sum(one.repeats for one in proving.proofs.values()),
            dropped=sum(one.dropped for one in proving.proofs.values()),
            looked_closer={lane: str(doubt) for lane, doubt in proving.doubts.items()},
            buckets={
                lane: buckets for lane, buckets in proving.buckets.items() if lane not in wrong
            },
            next=given if self._terms.ranged else proving.next(),
            ranges=self._documents(),
            given_up={lane: why for lane, why in self._given_up() if lane in names},
        )

    def _in_range(self, lanes: Sequence[str], before: Proved) -> tuple[Sequence[str], Proved]:
        """Return the lanes that a range is about, and what is taken for proved of them."""
        terms = self._terms
        self._ranged = ranged(self._stand, lanes, terms.since_ms, terms.until_ms, terms.offsets)
        self._unproved |= self._ranged.unproved
        return self._ranged.lanes, Proved(self._ranged.bases, before.named)

    def _given_up(self) -> Iterator[tuple[str, str]]:
        for lane, found in self._stand.given_up.items():
            ends = ", ".join(f"{s.topic.hex()}/{s.partition} below {at}" for s, at in found.items())
            why = (
                f"what it had read of a topic that was deleted and given up ({ends}) is nowhere to be "
                "read again, and is believed; everything since is proved"
            )
            yield lane, why

    def _documents(self) -> tuple[dict[str, Any], ...]:
        names = self._stand.cluster.names()
        spans, states = self._ranged.spans, self._stand.states
        return tuple(range_document(lane, spans[lane], names, states) for lane in sorted(spans))

    def _is_within(self, lane: str, before: Proved) -> bool:
        row = self._stand.rows.get(lane)
        if row is None:
            return True  # the checker says what is wrong with it
        base, span = before.bases.get(lane), self._ranged.spans.get(lane)
        kept = self._kept.get(lane)
        if kept is not None and kept.unread is not None:
            self._unproved[lane] = (
                f"its user's database {kept.database} was not read: {kept.unread}"
            )
            return False
        why = self._stand.reach.why_not(lane, row, base, before.positions, span)
        if why is not None:
            self._unproved[lane] = why
        return why is None

    def _closer(self, proving: Proving, before: Proved) -> tuple[Gathering, list[Finding]] | None:
        """Look at doubtful lanes record by record; None if it must begin anew."""
        gathering = Gathering(self._stand, self._terms, self._report, self._ranged.spans)
        findings: list[Finding] = []
        doubtful = []
        for lane, doubt in proving.doubts.items():
            row = self._stand.rows[lane]
            gone = (
                self._stand.reach.why_not(lane, row, None, {})
                if row is not None and lane in before.bases and not self._terms.ranged
                else None
            )
            if gone is None:
                doubtful.append(lane)
                continue
            # What was proved before cannot be read again, so that the doubt stands.
            finding = doubt.finding(lane)
            if finding is None:
                self._unproved[lane] = f"{doubt}, and {gone}"
            else:
                findings.append(finding)
        if doubtful:
            self._stand.ask_again()
            closer = gathering.findings(doubtful)
            if closer is None:
                return None
            findings += closer
            self._unproved |= gathering.unproved
        return gathering, findings
