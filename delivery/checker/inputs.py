"""Which inputs took effect, held against which should have: ledger, segments, read seqs.

What it is: for one lane, every record below its frontier and the ids that its seals decided.
What it must not know: filters and indexes, the order in which anything was asked.

Invariants:
    The first record of an id, in the order of seals and offsets, takes effect, and no other; one of
    a publisher's may again, once the window is past.
    A record counts by its header only if its sender, as the catalog knows it, writes this topic
    and sealed that position; copied headers make a record external, id included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from enum import IntEnum
from itertools import pairwise

from dedup.formats.dropped import Verdict
from dedup.formats.segment import Part
from dedup.model import Incarnation, RecordId, Seal, SegmentList, Source, TopicId
from delivery.checker.account import Account, Input, Range, Reads, external_at, fits
from delivery.checker.again import Again
from delivery.checker.believed import Believed
from delivery.checker.chunks import external, read_dropped, read_parts
from delivery.checker.evidence import Findings, Kind, LaneInput
from delivery.checker.listed import SEEDS, counting, read_list
from delivery.checker.reads import check_read_seqs
from delivery.checker.rows import Book, is_held_longer, kept_until, owner
from delivery.checker.world import Seen, World
from delivery.header import Header


class Place(IntEnum):
    """Where a record lies that is in no readable seal's range."""

    #: Its entry was collected.
    OLD = -1
    #: Its entry cannot be read; that is said elsewhere.
    UNKNOWN = -2
    #: Below the frontier, but in no seal's range.
    SKIPPED = -3
    #: Not sealed yet.
    ABOVE = -4


#: Places of records whose seal nobody can name any more.
_UNPLACED = (Place.OLD, Place.UNKNOWN)


class Ledger:
    """One lane's inputs. `check` says what is wrong; `parents` is known after it."""

    def __init__(self, world: World, book: Book, asked: LaneInput) -> None:
        self._world, self._book, self._asked = world, book, asked
        #: Per id the seal that must have decided it, or the place of its first record.
        self._due: dict[RecordId, int] = {}
        self._first: dict[RecordId, Input] = {}
        self._abandoned: set[RecordId] = set()
        self._ranges: dict[int, Range] = defaultdict(Range)
        #: Ids of records that were dropped as repeats.
        self._repeats: set[RecordId] = set()
        span = asked.span
        #: Seals before this one are believed.
        self._begin = span.first if span is not None else 0
        self._starts = dict(span.start) if span is not None else {}
        self._believed = Believed.before(world.evidence.store, book.name, span)
        self._again = Again(book.head, self._believed.seals | book.seals, asked.window_ms)
        #: Per id the seals of its repeats that may have come later than the window.
        self._late: dict[RecordId, list[int]] = defaultdict(list)
        #: Per seal the places of the records it decided, with their ids.
        self.parents: dict[int, set[tuple[tuple[int, int], RecordId]]] = {}
        #: Per seal what it dropped, and why.
        self.dropped: dict[int, dict[tuple[int, int], tuple[Input, Verdict]]] = {}

    def check(self) -> None:
        """Say which records took effect that should not have, and which did not."""
        listed, held = self._known()
        for seq, seen in self._ordered():
            self._take(seq, seen)
        holders: dict[RecordId, list[int]] = defaultdict(list)
        unread: set[int] = {Place.OLD, Place.UNKNOWN, Place.ABOVE}
        reads = self._reads()
        for seq, seal in sorted(self._book.seals.items()):
            parts = read_parts(self._world.evidence.store, self._book, seal, self._world.findings)
            if parts is None:
                unread.add(seq)
                continue
            ids = [record_id for part in parts for record_id in part]
            for record_id in ids:
                holders[record_id].append(seq)
            inputs = self._ranges[seq].inputs
            self.parents[seq] = {(inputs[i].seen.place, i) for i in ids if i in inputs}
            self._check_counts(seal, len(ids))
            self._check_account(seal, set(ids), reads[seq])
            self._check_buckets(seal, parts)
        for record_id, seqs in holders.items():
            self._check_holders(record_id, seqs)
        for record_id, seq in self._due.items():
            if (
                record_id not in holders
                and not 0 <= seq < self._begin
                and seq not in unread | self._forgotten(record_id)
            ):
                skipped = seq == Place.SKIPPED
                text = "it lies in no seal's range" if skipped else f"due in seal {seq}"
                self._say(Kind.NOT_DECIDED, record_id, text)
        self._check_list(listed, held, holders)
        check_read_seqs(self._world, self._book)

    def _known(self) -> tuple[SegmentList, list[tuple[RecordId, int | None]]]:
        """Take ids that need no record; return the segment list and its ids, if it is in question."""
        if self._begin:
            self._due.update(self._believed.ids)
            return SegmentList(), []
        listed = read_list(self._world, self._book)
        held = list(counting(self._world, self._book, listed))
        self._take_seeds(held)
        return listed, held

    # Seeds ------------------------------------------------------------------------------------

    def _take_seeds(self, listed: list[tuple[RecordId, int | None]]) -> None:
        """Take the ids that the lane was made with: records of them take no effect."""
        seal = self._book.seals.get(SEEDS)
        seeds = {record_id for record_id, seq in listed if seq == SEEDS}
        if seal is not None and seal.segment.chunks:
            # What cannot be read is said when the seals are gone through.
            store, quiet = self._world.evidence.store, Findings()
            for part in read_parts(store, self._book, seal, quiet) or ():
                seeds.update(part)
        place = SEEDS if seal is not None else Place.OLD
        self._due.update(dict.fromkeys(seeds, int(place)))

    def _forgotten(self, record_id: RecordId) -> set[int]:
        """Return the seal of a repeat of what the lane was made with and has forgotten since."""
        due = self._due[record_id]
        seeded = self._asked.seeded and self._book.first > SEEDS
        return {due} if seeded and record_id in self._repeats else set()

    # The ledger -------------------------------------------------------------------------------

    def _ordered(self) -> list[tuple[int, Seen]]:
        """Return every record with the seal it belongs to, in the order they take effect."""
        ordered = [
            (seq, seen)
            for source, spans in self._spans().items()
            for seen in self._world.seen(source)
            if (seq := self._place(source, spans, seen.record.offset)) is not None
        ]
        # What was collected comes first, what no seal holds comes last.
        late = self._book.head.ref.seq + 1
        ordered.sort(
            key=lambda one: (
                one[0] if one[0] >= Place.OLD else late - one[0],
                one[1].source,
                one[1].record.offset,
            )
        )
        return ordered

    def _spans(self) -> dict[Source, list[tuple[int, int, int]]]:
        """Return (start, end, seq) of every seal by source, in the order of offsets."""
        spans: dict[Source, list[tuple[int, int, int]]] = {
            source: [] for source, _ in self._book.head.frontier
        }
        for seq, seal in self._book.seals.items():
            ends = dict(seal.end)
            for source, start in seal.start:
                end = ends.get(source, start)
                self._ranges[seq].read += len(self._world.seen(source, start, end))
                spans.setdefault(source, [])
                if end > start:
                    spans[source].append((start, end, seq))
        return {source: sorted(found) for source, found in spans.items()}

    def _place(self, source: Source, spans: list[tuple[int, int, int]], offset: int) -> int | None:
        """Return the seal of a record, or its place; None for one that is not the lane's."""
        found = bisect_right(spans, offset, key=lambda span: span[0]) - 1
        if found >= 0 and offset < spans[found][1]:
            return spans[found][2]
        begun = self._book.seals.get(0)
        starts = dict(begun.start) if begun is not None else self._starts
        if offset < starts.get(source, 0):
            return None
        if offset >= dict(self._book.head.frontier).get(source, 0):
            return Place.ABOVE
        if found < 0 and self._book.first > 0 and not self._begin:
            return Place.OLD
        readable = len(self._book.seals) == self._book.head.ref.seq + 1 - self._book.first
        return Place.SKIPPED if readable else Place.UNKNOWN

    def _take(self, seq: int, seen: Seen) -> None:
        if seen.header is not None and self._is_abandoned(seen.header, seen.source):
            self._abandoned.add(seen.header.id)
            self._ranges[seq].add(Input(seen, seen.header.id, seen.header, abandoned=True))
            return
        header = self._genuine(seq, seen)
        if header is None:
            seal = self._book.seals.get(seq)
            # What no seal holds yet will be named as by now.
            now = self._book.head.named if seq == Place.ABOVE else ""
            name = self._asked.name_of(seen.record, seal.named if seal is not None else now)
            source = seen.source
            one = Input(
                seen, external(name, source.topic, source.partition, seen.record.offset), None
            )
        else:
            one = Input(seen, header.id, header)
        due = self._due.setdefault(one.id, seq)
        if due != seq >= 0 and one.external and self._may_again(due, seq):
            self._late[one.id].append(seq)
        self._first.setdefault(one.id, one)
        self._ranges[seq].add(one)

    def _is_abandoned(self, header: Header, source: Source) -> bool:
        sender = self._world.sender(header.mark.sender)
        if sender is None or source.topic not in sender.head.writes:
            return False
        last = kept_until(sender.head, header.mark.incarnation)
        current = header.mark.incarnation == sender.head.ref.incarnation
        return last is None or (header.mark.seq > last and not current)

    def _genuine(self, seq: int, seen: Seen) -> Header | None:
        """Return the header of a record whose sender sealed it, as far as its rows can tell."""
        if seen.header is None:
            return None
        sender = self._world.sender(seen.header.mark.sender)
        if sender is None:
            if self._world.knows(seen.header.mark.sender):
                return seen.header  # its rows cannot be read, so its word is taken
            if seq >= Place.OLD:
                self._world.findings.add(
                    Kind.STRANGER,
                    self._book.name,
                    _place_words(seen),
                    f"sealed, though the catalog does not know {seen.header.mark.sender}",
                )
            return None
        if seen.source.topic not in sender.head.writes:
            return None
        return seen.header if seen.header.mark.seq <= sender.head.ref.seq else None

    # Seals against the ledger -----------------------------------------------------------------

    def _check_counts(self, seal: Seal, ids: int) -> None:
        counts, found = seal.counts, self._ranges[seal.ref.seq]
        pairs = [
            ("read", counts.read, found.read),
            # Seeds are no record's effect.
            ("fresh", counts.fresh, ids if seal.ref.seq > SEEDS else 0),
            ("ids", seal.segment.rows, ids),
        ]
        if self._current(seal):
            pairs.append(("abandoned", counts.abandoned, found.abandoned))
        for what, said, seen in pairs:
            if said != seen:
                text = f"{what}: {said} said, {seen} found"
                self._world.findings.add(Kind.COUNTS, self._book.name, f"seal {seal.ref.seq}", text)

    def _current(self, seal: Seal) -> bool:
        """Tell whether senders' histories are those that a seal was judged by.

        What an earlier incarnation judged may have been abandoned since.
        """
        head = self._book.head
        current = owner(head, seal.ref.seq) == head.ref.incarnation
        return current or not self._world.evidence.restored

    def _check_account(self, seal: Seal, ids: set[RecordId], reads: Reads) -> None:
        """Hold what a seal dropped against what it read and what it decided."""
        world = self._world
        runs = read_dropped(world.evidence.store, self._book, seal, world.findings)
        if runs is None:
            return
        account = Account(
            lane=self._book.name,
            seal=seal,
            range=self._ranges[seal.ref.seq],
            ids=ids,
            runs=runs,
            current=self._current(seal),
            reads=reads,
            first=self._first,
            believed=self._believed.ids,
        )
        account.check(world.findings)
        self._repeats |= account.repeats
        self.dropped[seal.ref.seq] = account.dropped

    def _check_buckets(self, seal: Seal, parts: list[Part]) -> None:
        inputs = self._ranges[seal.ref.seq].inputs
        for part in parts:
            if seal.ref.seq == SEEDS and part.bucket != external_at(seal.lane_time_ms):
                self._say(Kind.BUCKET, next(iter(part)), f"a seed is kept in {part.bucket}")
            seen = {read.key: read.seq for read in part.seen}
            for record_id in part:
                one = inputs.get(record_id)
                if one is None or (one.external and is_held_longer(part.bucket, seal)):
                    continue
                if not fits(one, part, seen, seal.lane_time_ms):
                    text = f"seal {seal.ref.seq} keeps it in {part.bucket}"
                    self._say(Kind.BUCKET, record_id, text)

    def _check_holders(self, record_id: RecordId, seqs: list[int]) -> None:
        due, late = self._due.get(record_id), self._late.get(record_id, ())
        # What brought the id in, or decided it first, may be gone.
        pairs = [*pairwise(seqs)]
        if due is not None and due < max(self._begin, SEEDS + 1) and seqs[0] in late:
            pairs = [(due, seqs[0]), *pairs]
            due = seqs[0]
        if any(seq not in late or not self._may_again(before, seq) for before, seq in pairs):
            self._say(Kind.DECIDED_TWICE, record_id, f"by the seals {seqs}")
            return
        if not all(self._again.knows(self._again.end_ms(before), seq) for before, seq in pairs):
            least = min(self._again.past_ms(*pair) for pair in pairs)
            text = f"by the seals {seqs}: right if ids were held for {least} ms at most"
            self._say(Kind.LATE_REPEAT, record_id, text)
        if due is None:
            kind = Kind.ABANDONED if record_id in self._abandoned else Kind.NEVER_INPUT
            self._say(kind, record_id, f"by seal {seqs[0]}")
        elif due not in (seqs[0], Place.UNKNOWN):
            where = f"seal {due}" if due >= 0 else Place(due).name
            self._say(Kind.DECIDED_ELSEWHERE, record_id, f"by seal {seqs[0]}, due: {where}")

    def _may_again(self, earlier: int, later: int) -> bool:
        return self._again.may(self._again.end_ms(earlier), later)

    def _check_list(
        self,
        listed: SegmentList,
        inside: list[tuple[RecordId, int | None]],
        holders: dict[RecordId, list[int]],
    ) -> None:
        """Check the ids whose entries may be gone: they must be in the segment list."""
        if self._begin:
            return
        held: Counter[RecordId] = Counter()
        for record_id, seq in inside:
            late = self._late.get(record_id, ())
            due = self._due.get(record_id, seq)
            if seq is not None and due not in (seq, *_UNPLACED) and seq not in late:
                self._say(Kind.DECIDED_ELSEWHERE, record_id, f"listed as of seal {seq}")
            later = (seq for seq in holders[record_id] if seq > listed.upto)
            if held[record_id] > len(late) or any(seq not in late for seq in later):
                self._say(Kind.DECIDED_TWICE, record_id, "in the segment list, and again")
            held[record_id] += 1
            if record_id not in self._due:
                kind = Kind.ABANDONED if record_id in self._abandoned else Kind.NEVER_INPUT
                self._say(kind, record_id, "in the segment list")
        for record_id, seq in self._due.items():
            behind = seq == Place.OLD or 0 <= seq <= listed.upto
            if behind and record_id not in held and not self._may_be_forgotten(record_id):
                self._say(Kind.NOT_DECIDED, record_id, "its entry may go, and no list holds it")

    def _may_be_forgotten(self, record_id: RecordId) -> bool:
        """Tell whether no copy of an id can come any more that would have to be looked up."""
        head, first = self._book.head, self._first.get(record_id)
        if first is None or first.header is None or first.external:
            # Where its seal is gone its bucket is too, and only what no window has reached is certain.
            return self._again.may_by_now(self._due[record_id])
        mark = first.header.mark
        key = (mark.sender, mark.incarnation, first.seen.source.topic)
        return any(read.key == key and read.seq >= mark.seq for read in head.read_seqs)

    def _reads(self) -> dict[int, Reads]:
        """Return for each seal what was read of the senders before it, or more."""
        seals = self._book.seals
        if not self._book.whole:
            now = {read.key: read.seq for read in self._book.head.read_seqs}
            return dict.fromkeys(seals, now)
        known: dict[tuple[str, Incarnation, TopicId], int] = {}
        before: dict[int, Reads] = {}
        for seq in sorted(seals):
            before[seq] = dict(known)
            for read in seals[seq].learned:
                known[read.key] = max(read.seq, known.get(read.key, -1))
        return before

    def _say(self, kind: Kind, record_id: RecordId, text: str) -> None:
        one = self._first.get(record_id)
        where = f" of {_place_words(one.seen)}" if one else ""
        subject = f"id {record_id.hex()}{where}"
        self._world.findings.add(kind, self._book.name, subject, text)


def _place_words(seen: Seen) -> str:
    return f"partition {seen.source.partition} offset {seen.record.offset}"
