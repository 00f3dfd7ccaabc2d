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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.errors import Unavailable
from delivery.checker import Finding
from delivery.checker.columns import Bucket, assumed
from delivery.naming import id_from
from delivery.operate.gathering import Gathering
from delivery.operate.logs import Cluster
from delivery.operate.proved import bucket_document
from delivery.operate.proving import Proved, Proving
from delivery.operate.reach import Terms
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
    report: Callable[[str], None] = lambda _: None,
    *,
    proved: Proved | None = None,
) -> Audited:
    """Prove that every input of some lanes has one effect, and every output a sealed origin.

    Args:
        catalog: is only read.
        cluster: its topics, which are only read.
        lanes: which.
        terms: what only the operator knows.
        report: is told what is done.
        proved: what was proved before; only what came since is looked at. None: everything is.

    Raises:
        Unavailable: Kafka or the catalog does not answer, or the catalog is collected or restored
            faster than it can be read.
        InvalidUsage: a way of naming records is none.
    """
    for way in terms.ways.values():
        id_from(way)
    lanes = list(lanes)
    for _ in range(READS_MAX):
        found = _Auditing(catalog, cluster, terms, report).audit(lanes, proved or Proved())
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
        self, catalog: Catalog, cluster: Cluster, terms: Terms, report: Callable[[str], None]
    ) -> None:
        self._stand = Stand(catalog, cluster)
        self._terms, self._report = terms, report
        self._unproved: dict[str, str] = {}

    def audit(self, lanes: Sequence[str], before: Proved) -> Audited | None:
        """Prove; None if lanes were changed meanwhile so that it must begin anew."""
        stand = self._stand
        before = self._with_ranges(lanes, before)
        within = [lane for lane in lanes if self._is_within(lane, before)]
        proving = Proving(stand, self._terms, before, self._report)
        if not proving.prove(within):
            return None
        closer = self._closer(proving, before)
        if closer is None:
            return None
        gathering, findings = closer
        for lane in self._unproved:
            # Its rows can be proved at least.
            findings += verified(stand.snapshot, lane, self._terms.window_ms)[0]
        findings += [one for proof in proving.proofs.values() for one in proof.late]
        if findings and stand.changed():
            return None
        notes = tuple(finding for finding in findings if finding.is_note)
        findings = [finding for finding in findings if not finding.is_note]
        wrong = {finding.lane for finding in findings}
        if not findings:
            for lane in proving.doubts:
                if lane in gathering.named:
                    proving.settle(lane)
        names = {lane: proving.words(lane) for lane in proving.proofs} | gathering.named
        records = proving.records | gathering.records
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
            next=proving.next(),
        )

    def _with_ranges(self, lanes: Sequence[str], before: Proved) -> Proved:
        """Return what is taken for proved, if only a range is asked for."""
        since_ms = self._terms.since_ms
        if since_ms is None:
            return before
        trusted = dict(before.bases)
        for lane in lanes:
            base = assumed(self._stand.snapshot, lane, since_ms)
            if base is not None:
                trusted[lane] = base
        return Proved(trusted, before.named, before.positions)

    def _is_within(self, lane: str, before: Proved) -> bool:
        row = self._stand.rows.get(lane)
        if row is None:
            return True  # the checker says what is wrong with it
        why = self._stand.reach.why_not(lane, row, before.bases.get(lane), before.positions)
        if why is not None:
            self._unproved[lane] = why
        return why is None

    def _closer(self, proving: Proving, before: Proved) -> tuple[Gathering, list[Finding]] | None:
        """Look at doubtful lanes record by record; None if it must begin anew."""
        gathering = Gathering(self._stand, self._terms, self._report)
        findings: list[Finding] = []
        doubtful = []
        for lane, doubt in proving.doubts.items():
            row = self._stand.rows[lane]
            gone = (
                self._stand.reach.why_not(lane, row, None, {})
                if row is not None and lane in before.bases
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
