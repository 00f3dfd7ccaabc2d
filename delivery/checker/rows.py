"""A lane's rows, read raw and held against each other: head, acknowledgement, entries.

What it is: `read_lane` gives a lane's `Book`, `read_span` what it was behind one of its seals,
`check_chain` says whether its entries follow from one another and lead to its head.
What it must not know: how a lane is run, the catalog above the raw rows, what is in any log.

Invariants:
    Nothing is computed by the code that is checked; only formats and types are shared.
    What cannot be read is said once and left out of everything that would follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from dedup.catalog.store import RawLane, Store
from dedup.errors import Corrupt
from dedup.expiry import WINDOW_MS_MAX
from dedup.formats.lane import decode_ack, decode_head, decode_seal
from dedup.formats.segment import BUCKET_MS, Bucket, Origin
from dedup.model import Ack, Head, Incarnation, ReadSeq, Seal, Source
from delivery.checker.evidence import Findings, Kind, Span

#: Rows are small, and the explorer asks about the same ones again and again.
REMEMBERED = 4096
_head = lru_cache(maxsize=REMEMBERED)(decode_head)
_seal = lru_cache(maxsize=REMEMBERED)(decode_seal)
_ack = lru_cache(maxsize=REMEMBERED)(decode_ack)

#: Behind every seq; what stores keep seqs in.
SEQ_MAX = (1 << 63) - 1


@dataclass(slots=True, kw_only=True)
class Book:
    """A lane as its rows tell it. `seals` are those of the present history that can be read.

    `head` is that of the last seal in question, `latest` that of the lane.
    """

    name: str
    head: Head
    latest: Head
    ack: Ack
    collected: int
    seals: dict[int, Seal] = field(default_factory=dict)
    #: The first entry that is there; one above the head if there is none.
    first: int = 0

    @property
    def cut(self) -> bool:
        """Whether there are seals behind the last one in question."""
        return self.head is not self.latest

    @property
    def whole(self) -> bool:
        """Whether every seal that ever was can be read."""
        return len(self.seals) == self.head.ref.seq + 1

    @property
    def own(self) -> bool:
        """Whether the head's position was sealed in its own incarnation."""
        return owner(self.head, self.head.ref.seq) == self.head.ref.incarnation


def owner(head: Head, seq: int) -> Incarnation:
    """Return the incarnation whose seal stands at `seq` of the present history."""
    for kept in head.past:
        if seq <= kept.seq:
            return kept.incarnation
    return head.ref.incarnation


def kept_until(head: Head, incarnation: bytes) -> int | None:
    """Return the last seq that counts of an incarnation; None if the lane never had it."""
    if incarnation == head.ref.incarnation:
        return head.ref.seq
    return next((past.seq for past in head.past if past.incarnation == incarnation), None)


def read_head(store: Store, name: str, findings: Findings) -> Book | None:
    """Return a lane without its entries; None if it never was or cannot be read."""
    raw = store.read(name)
    if raw is None:
        return None
    try:
        head = _head(raw.head, f"head of {name}")
        ack = _ack(raw.ack.blob, f"acknowledgement of {name}")
    except Corrupt as error:
        findings.add(Kind.UNREADABLE, name, "head row", str(error))
        return None
    book = Book(name=name, head=head, latest=head, ack=ack, collected=raw.collected)
    _check_columns(book, raw, findings)
    return book


def read_row(store: Store, name: str, findings: Findings) -> Book | None:
    """Return a lane without its entries, its row held against itself; None as above."""
    book = read_head(store, name, findings)
    if book is not None:
        _check_head(book, findings)
    return book


def read_lane(
    store: Store, name: str, findings: Findings, first: int = 0, last: int = SEQ_MAX
) -> Book | None:
    """Return a lane with some of its entries; None if it never was or cannot be read."""
    book = read_row(store, name, findings)
    if book is not None:
        _read_entries(store, book, findings, first, last)
    return book


def read_span(store: Store, name: str, span: Span, findings: Findings) -> Book | None:
    """Return a lane as it was behind a span, with the seals of that and the one before it."""
    book = read_row(store, name, findings)
    if book is None:
        return None
    head, last = book.head, SEQ_MAX
    if span.last < head.ref.seq:
        last = span.last
        book.head = replace(head, ref=replace(head.ref, seq=last), frontier=span.end)
    _read_entries(store, book, findings, max(0, span.first - 1), last)
    return book


def leave_believed(book: Book, upto: int) -> None:
    """Take the last seal that is believed out of a book: what follows from it was looked at."""
    book.seals.pop(upto, None)
    book.first = max(book.first, upto + 1)


def check_chain(book: Book, findings: Findings) -> None:
    """Say where entries do not follow from one another, or do not lead to the head."""
    walk: dict[Source, int] = {}
    reads: dict[tuple[str, Incarnation, bytes], int] = {}
    before: Seal | None = None
    for seq in range(book.first, book.head.ref.seq + 1):
        seal = book.seals.get(seq)
        if seal is None:
            before, walk = None, {}
            continue
        _check_range(book, seal, walk, findings)
        walk.update(seal.end)
        _check_times(book, seal, before, findings)
        for read in seal.learned:
            reads[read.key] = max(read.seq, reads.get(read.key, -1))
        before = seal
    if book.cut:
        return  # the head is that of later seals
    _check_lead(book, before, walk, findings)
    _check_reads(book, reads, findings)


def is_held_longer(bucket: Bucket, seal: Seal) -> bool:
    """Tell whether ids lie where they go later than by lane time, and not as if for ever.

    Re-keyed ones may be ahead of it, and those of records whose time is trusted, by a window.
    """
    if bucket.origin is not Origin.EXTERNAL or bucket.number <= seal.lane_time_ms // BUCKET_MS:
        return False
    return bucket.number <= (seal.minted_at_ms + WINDOW_MS_MAX) // BUCKET_MS


def frontiers(book: Book) -> dict[int, dict[Source, int]]:
    """Return what each readable seal leaves sealed, as far as it is known."""
    walk: dict[Source, int] = {}
    known = {}
    for seq in sorted(book.seals):
        for source, offset in book.seals[seq].end:
            walk[source] = max(offset, walk.get(source, 0))
        known[seq] = dict(walk)
    return known


def _check_columns(book: Book, raw: RawLane, findings: Findings) -> None:
    if book.head.ref != raw.ref:
        findings.add(Kind.COLUMNS, book.name, "head", f"{book.head.ref} beside {raw.ref}")
    if (book.ack.incarnation, book.ack.seq) != (raw.ack.incarnation, raw.ack.seq):
        text = f"seq {book.ack.seq} beside {raw.ack.seq}"
        findings.add(Kind.COLUMNS, book.name, "acknowledgement", text)


def _check_head(book: Book, findings: Findings) -> None:
    head, ack, name = book.head, book.ack, book.name
    incarnations = [*(past.incarnation for past in head.past), head.ref.incarnation]
    seqs = [*(past.seq for past in head.past), head.ref.seq]
    if len(set(incarnations)) != len(incarnations) or seqs != sorted(seqs):
        findings.add(Kind.HISTORY, name, "head", f"kept seqs {seqs}")
    if ack.incarnation != head.ref.incarnation or not 0 <= ack.seq <= head.ref.seq:
        text = f"seq {ack.seq}, the head is at {head.ref.seq}"
        findings.add(Kind.ACK, name, "acknowledgement", text)
    if not 0 <= book.collected <= ack.seq:
        text = f"collected {book.collected}, acknowledged {ack.seq}"
        findings.add(Kind.COLLECTED, name, "head row", text)


def _read_entries(store: Store, book: Book, findings: Findings, first: int, last: int) -> None:
    head, name = book.latest, book.name
    there = set()
    for incarnation in (*(past.incarnation for past in head.past), head.ref.incarnation):
        for seq, blob in store.entries(name, incarnation, first, last):
            if seq > (kept_until(head, incarnation) or 0) and incarnation != head.ref.incarnation:
                continue  # a history that was given up; nothing refers to it
            if seq > head.ref.seq or owner(head, seq) != incarnation:
                text = f"the history has no entry of {incarnation.hex()[:8]} there"
                findings.add(Kind.ENTRY_FOREIGN, name, f"entry {seq}", text)
                continue
            there.add(seq)
            try:
                seal = _seal(blob, f"entry {seq} of {name}")
            except Corrupt as error:
                findings.add(Kind.UNREADABLE, name, f"entry {seq}", str(error))
                continue
            if (seal.ref.incarnation, seal.ref.seq) != (incarnation, seq):
                findings.add(Kind.COLUMNS, name, f"entry {seq}", f"it says {seal.ref}")
                continue
            book.seals[seq] = seal
    # Entries are collected from the oldest on, and none above `collected`.
    book.first = max(first, min((*there, book.collected + 1)))
    for seq in sorted(set(range(book.first, min(head.ref.seq, last) + 1)) - there):
        text = f"collected {book.collected}, the head is at {head.ref.seq}"
        findings.add(Kind.ENTRY_GAP, name, f"entry {seq}", text)


def _check_range(book: Book, seal: Seal, walk: dict[Source, int], findings: Findings) -> None:
    subject = f"seal {seal.ref.seq}"
    for source, offset in seal.start:
        expected = walk.get(source, offset)
        if offset != expected:
            kind = Kind.FRONTIER_GAP if offset > expected else Kind.FRONTIER_OVERLAP
            text = f"partition {source.partition} goes on at {offset} after {expected}"
            findings.add(kind, book.name, subject, text)
    starts = dict(seal.start)
    for source, offset in seal.end:
        if source not in starts:
            text = f"partition {source.partition} ends at {offset} and begins nowhere"
            findings.add(Kind.FRONTIER_GAP, book.name, subject, text)
        elif offset < starts[source]:
            text = f"partition {source.partition} goes back to {offset}"
            findings.add(Kind.FRONTIER_OVERLAP, book.name, subject, text)


def _check_times(book: Book, seal: Seal, before: Seal | None, findings: Findings) -> None:
    if before is None:
        return
    subject = f"seal {seal.ref.seq}"
    if seal.minted_at_ms <= before.minted_at_ms:
        text = f"{seal.minted_at_ms} after {before.minted_at_ms}"
        findings.add(Kind.MINTED_AT, book.name, subject, text)
    if seal.lane_time_ms < before.lane_time_ms:
        text = f"{seal.lane_time_ms} after {before.lane_time_ms}"
        findings.add(Kind.LANE_TIME, book.name, subject, text)


def _check_lead(book: Book, last: Seal | None, walk: dict[Source, int], findings: Findings) -> None:
    """Hold the head against its last seal; a new incarnation may have raised its times."""
    head, name = book.head, book.name
    frontier = dict(head.frontier)
    for source in walk.keys() | (frontier.keys() if book.whole else set()):
        if frontier.get(source) != walk.get(source):
            text = f"{frontier.get(source)}, its seals end at {walk.get(source)}"
            findings.add(Kind.FRONTIER_HEAD, name, f"partition {source.partition}", text)
    if last is None or last.ref.seq != head.ref.seq:
        return
    if book.own and last.ref != head.ref:
        text = "the entry at the head's position is of another attempt"
        findings.add(Kind.ENTRY_FOREIGN, name, f"entry {head.ref.seq}", text)
    for kind, mine, sealed in (
        (Kind.MINTED_AT, head.minted_at_ms, last.minted_at_ms),
        (Kind.LANE_TIME, head.lane_time_ms, last.lane_time_ms),
    ):
        if mine < sealed or (book.own and mine != sealed):
            findings.add(kind, name, "head", f"{mine}, its last seal says {sealed}")


def _check_reads(
    book: Book, learned: dict[tuple[str, Incarnation, bytes], int], findings: Findings
) -> None:
    mine: dict[tuple[str, Incarnation, bytes], int] = {}
    for read in book.head.read_seqs:
        if read.key in mine:
            findings.add(Kind.READ_SEQS, book.name, "head", f"{_words(read)} twice")
        mine[read.key] = read.seq
    for key in learned.keys() | (mine.keys() if book.whole else set()):
        has, must = mine.get(key, -1), learned.get(key, -1)
        if has < must or (book.whole and has != must):
            text = f"{key[0]} read up to {has}, its seals learned {must}"
            findings.add(Kind.READ_SEQS, book.name, "head", text)


def _words(read: ReadSeq) -> str:
    return f"{read.sender} up to {read.seq}"
