"""Whether a catalog is whole: every checksum, every reference, every lane without a gap.

What it is: `verify`, over the independent checker's readers of raw rows and chunks.
What it must not know: any log: what an audit holds against topics is not asked here.

Invariants:
    The catalog is only read. What a collector took away meanwhile is no finding: the lane is read
    again.
    Nothing is computed by the code that wrote what is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dedup import arrays
from dedup.catalog.store import Store
from dedup.errors import Unavailable
from dedup.formats.dropped import Run, Verdict
from dedup.formats.segment import BUCKET_MS, Origin, Part
from dedup.model import Seal
from delivery.checker.chunks import read_dropped, read_listed, read_outputs, read_parts
from delivery.checker.evidence import Evidence, Finding, Findings, Kind
from delivery.checker.listed import read_list
from delivery.checker.rows import Book, check_chain, read_head, read_lane
from delivery.checker.world import World
from delivery.operate.opening import database_of
from delivery.operate.reporting import Report, silent
from delivery.operate.snapshot import Reading, Snapshot

__all__ = ["Verified", "finding_document", "verified", "verify"]

#: A lane that is collected while it is read is read again, this often at most.
READS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was found, and how much was read.

    Attributes:
        findings: everything that is wrong.
        notes: ids that are held again, which is right if the window had passed.
        lanes: how many lanes were read.
        entries, chunks, size: how much of them.
        ids: how many ids their segments hold.
    """

    findings: tuple[Finding, ...]
    lanes: int
    entries: int
    chunks: int
    size: int
    ids: int
    notes: tuple[Finding, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        figures = {
            name: getattr(self, name) for name in ("lanes", "entries", "chunks", "size", "ids")
        }
        found = [finding_document(finding) for finding in self.findings]
        notes = [finding_document(finding) for finding in self.notes]
        return {"whole": self.whole, **figures, "findings": found, "notes": notes}


def finding_document(finding: Finding) -> dict[str, str]:
    """Return a finding as plain data."""
    return {
        "kind": finding.kind.name,
        "meaning": finding.kind.value,
        "lane": finding.lane,
        "subject": finding.subject,
        "text": finding.text,
    }


def verify(
    store: Store,
    lanes: Iterable[str],
    report: Report = silent,
    *,
    window_of: Callable[[str], int | None] = lambda _: None,
) -> Verified:
    """Read lanes and all that they refer to, and say what is wrong.

    Args:
        store: the raw store.
        lanes: their names.
        report: is told each lane.
        window_of: how long ids that publishers name are held, by lane; None: as the seals say, and
            what is held again in a later bucket is noted where they do not.

    Raises:
        Unavailable: a lane was collected faster than it could be read.
    """
    findings: list[Finding] = []
    total, ids, count = Reading(), 0, 0
    lanes = list(lanes)
    for lane in lanes:
        report(f"verify {lane}", count, len(lanes))
        found, reading, held = _settled(store, lane, window_of(lane))
        findings += found
        total.entries += reading.entries
        total.chunks += reading.chunks
        total.size += reading.size
        ids += held
        count += 1
    return Verified(
        findings=tuple(finding for finding in findings if not finding.is_note),
        notes=tuple(finding for finding in findings if finding.is_note),
        lanes=count,
        entries=total.entries,
        chunks=total.chunks,
        size=total.size,
        ids=ids,
    )


def _settled(store: Store, lane: str, window_ms: int | None) -> tuple[list[Finding], Reading, int]:
    """Verify a lane of which nothing was taken away meanwhile."""
    for _ in range(READS_MAX):
        snapshot = Snapshot(store, [lane])
        found, ids = verified(snapshot, lane, window_ms)
        if not found or not snapshot.moved(lane):
            return found, snapshot.reading, ids
    raise Unavailable(
        "verify a catalog",
        lane,
        "it was collected faster than it could be read; nothing was changed: stop the collection "
        "and run this again",
    )


def verified(
    snapshot: Snapshot, lane: str, window_ms: int | None = None
) -> tuple[list[Finding], int]:
    """Return what is wrong with a lane as it stood, and how many ids it holds."""
    findings = Findings()
    head = read_head(snapshot, lane, Findings())
    kept_elsewhere = head is not None and database_of(head.head) is not None
    # Of a lane in a user's database the catalog has no entries, but the row and the segments.
    book = (read_head if kept_elsewhere else read_lane)(snapshot, lane, findings)
    if book is None:
        return findings.found, 0
    held: list[Part] = []
    if not kept_elsewhere:
        check_chain(book, findings)
    listed = read_list(World(Evidence(store=snapshot, logs={}, lanes={}), findings), book)
    for _, part in read_listed(snapshot, listed.slots, findings):
        held.append(part.of_history(book.head) if part.origins else part)
    for seq, seal in sorted(book.seals.items()):
        read_outputs(snapshot, book, seal, findings)
        runs = read_dropped(snapshot, book, seal, findings)
        # The ids of an entry that the list covers are the list's, which may have forgotten them.
        parts = None if seq <= listed.upto else read_parts(snapshot, book, seal, findings)
        if parts is not None:
            held += parts
        _check_counts(book, seal, parts, runs, findings)
    return findings.found, _count(book, held, window_ms, findings)


def _count(book: Book, held: list[Part], window_ms: int | None, findings: Findings) -> int:
    """Return how many ids a lane holds, and say if one is held twice without need."""
    if not held:
        return 0
    ids = np.concatenate([arrays.from_raw(part.ids) for part in held])
    twice = len(ids) - len(arrays.sorted_unique(ids))
    if not twice:
        return len(ids)
    least_ms, sure = (window_ms, True) if window_ms is not None else _said(book)
    late = _late(held, ids, least_ms) if least_ms is not None else 0
    unsure = 0 if sure else _late(held, ids, 0) - late
    if late + unsure < twice:
        text = f"{twice - late - unsure} of {len(ids)} ids are held more than once"
        findings.add(Kind.DECIDED_TWICE, book.name, "segments", text)
    elif unsure:
        text = f"{unsure} of {len(ids)} ids are held again in a later bucket: say --window"
        findings.add(Kind.LATE_REPEAT, book.name, "segments", text)
    return len(ids)


def _said(book: Book) -> tuple[int | None, bool]:
    """Return the shortest window that a lane's seals say, and whether none can have been shorter.

    What an earlier seal had let go for good is held again however long a later window is.
    """
    said = [seal.window_ms for seq, seal in book.seals.items() if seq]
    windows = [window_ms for window_ms in (*said, book.head.window_ms) if window_ms]
    return min(windows, default=None), book.whole and all(said) and bool(windows)


def _late(held: list[Part], ids: arrays.Ids, window_ms: int) -> int:
    """Return how many ids of publishers are held again after a window, as far as buckets tell."""
    starts = [part.bucket.number * BUCKET_MS for part in held]
    ends = [part.bucket.end_ms for part in held]
    outside = [part.bucket.origin is Origin.EXTERNAL for part in held]
    part_of = np.repeat(np.arange(len(held)), [part.count for part in held])
    # Beside each other, in the order of their buckets; a merged one has an end, not a place in it.
    order = np.lexsort((np.array(ends)[part_of], ids[:, 1], ids[:, 0]))
    same = (ids[order[1:]] == ids[order[:-1]]).all(axis=1)
    first, again = part_of[order[:-1]][same], part_of[order[1:]][same]
    past = np.array(ends)[again] - np.array(starts)[first] - BUCKET_MS
    right = np.array(outside)[again] & np.array(outside)[first] & (past > window_ms)
    return int(right.sum())


def _check_counts(
    book: Book, seal: Seal, parts: list[Part] | None, runs: list[Run] | None, findings: Findings
) -> None:
    """Hold what a seal counts against what is stored beside it."""
    counts, dropped = seal.counts, Counter[Verdict]()
    pairs = []
    if parts is not None:
        ids = sum(part.count for part in parts)
        # What a lane was made with is no record's effect.
        pairs += [
            ("ids", seal.segment.rows, ids),
            ("fresh", counts.fresh, ids if seal.ref.seq else 0),
        ]
    if runs is not None:
        for run in runs:
            dropped[run.verdict] += run.count
        pairs += [
            ("duplicate", counts.duplicate, dropped[Verdict.DUPLICATE]),
            ("remnant", counts.remnant, dropped[Verdict.REMNANT]),
            ("abandoned", counts.abandoned, dropped[Verdict.ABANDONED]),
        ]
    for what, said, found in pairs:
        if said != found:
            text = f"{what}: {said} said, {found} stored"
            findings.add(Kind.COUNTS, book.name, f"seal {seal.ref.seq}", text)
