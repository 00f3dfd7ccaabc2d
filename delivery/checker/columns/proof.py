"""One lane proved over columns, from its rows to its sink.

What it is: `prove`, and `Proof`, from which the next one may begin.
What it must not know: how columns were read, what is done about a doubt.

Invariants:
    What is proved here the checker of records finds nothing wrong with.
    A proof reaches up to what is acknowledged; what is sealed beyond it was looked at as well, and
    is looked at again.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from dedup.model import Incarnation, Seal, Source, TopicId
from delivery.checker.columns.base import following, proved_seals
from delivery.checker.columns.ground import Base, Doubt, Ground
from delivery.checker.columns.inputs import prove_inputs
from delivery.checker.columns.listed import ids_of
from delivery.checker.columns.same import Ints, among, firsts
from delivery.checker.columns.sink import prove_sink
from delivery.checker.evidence import Finding, Findings, Kind, LaneInput
from delivery.checker.prove import check_finished
from delivery.checker.reads import check_read_seqs
from delivery.checker.rows import Book, check_chain, leave_believed, read_lane, read_span
from delivery.checker.world import World

__all__ = ["Bucket", "Doubt", "Proof", "check_senders", "digests_of", "prove"]

#: Running digests are kept of so long.
BUCKET_MS = 600_000
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Bucket:
    """What was proved of ten minutes of seals: how much, and sums of the ids in two words."""

    seals: int = 0
    inputs: int = 0
    decided: int = 0
    sums: tuple[int, int] = (0, 0)

    def plus(self, other: Bucket) -> Bucket:
        """Return both together."""
        high, low = (mine + theirs for mine, theirs in zip(self.sums, other.sums, strict=True))
        return Bucket(
            self.seals + other.seals,
            self.inputs + other.inputs,
            self.decided + other.decided,
            (high & _WORD, low & _WORD),
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Proof:
    """A lane that is proved.

    Attributes:
        inputs: how many records were held against its seals.
        repeats: how many of them repeat an earlier one.
        dropped: how many took no effect, as the seals say.
        base: from which the next proof may begin.
        buckets: what this one has proved anew, by the time of the seals.
        late: what is not as it is due, if everything had to be finished.
    """

    inputs: int
    repeats: int
    dropped: int
    base: Base
    buckets: dict[int, Bucket]
    late: tuple[Finding, ...] = ()


def prove(
    ground: Ground, lane: str, asked: LaneInput, base: Base | None = None, *, finished: bool = False
) -> Proof:
    """Prove a lane, from the beginning or from what was proved.

    Raises:
        Doubt: it could not be.
    """
    store = ground.world.evidence.store
    quiet = Findings()
    if asked.span is not None:
        book = read_span(store, lane, asked.span, quiet)
    else:
        book = read_lane(store, lane, quiet, base.ref.seq if base is not None else 0)
    if book is None:
        raise Doubt(None, "head row", "it cannot be read")
    if base is not None:
        _follows(book, base)
    check_chain(book, quiet)
    if base is not None:
        leave_believed(book, base.ref.seq)
    if quiet.found:
        one = quiet.found[0]
        raise Doubt(one.kind, one.subject, one.text)
    inputs = prove_inputs(ground, book, asked, base)
    _check_reads(ground, book, base)
    sent = prove_sink(ground, book, inputs, base, asked.span)
    late = Findings()
    if finished:
        check_finished(World(ground.world.evidence, late), book, asked.due)
    return Proof(
        inputs=len(inputs.seqs) - inputs.known,
        repeats=int((~inputs.fresh & (inputs.seqs >= 0)).sum()),
        dropped=sum(seal.counts.duplicate + seal.counts.remnant for seal in book.seals.values()),
        base=following(ground, book, asked, base, sent, known=inputs.ids[inputs.old]),
        buckets=digests_of(ground, book),
        late=tuple(late.found),
    )


def check_senders(ground: Ground, topics: set[TopicId]) -> None:
    """Demand that every record in a topic is of a lane that writes it.

    Raises:
        Doubt: one is not.
    """
    for topic in sorted(topics):
        for column in ground.partitions(topic):
            for place in sorted(column.met):
                mark = ground.marks.every[place] if place >= 0 else None
                sender = ground.world.sender(mark.sender) if mark is not None else None
                if sender is None or topic not in sender.head.writes:
                    at = int(column.offsets[np.flatnonzero(column.marks == place)[0]])
                    text = f"its header names {mark.sender}" if mark else "it has no header of ours"
                    subject = f"partition {column.source.partition} offset {at}"
                    raise Doubt(Kind.STRANGER, subject, text)


def _follows(book: Book, base: Base) -> None:
    """Demand that the head is of the history that was proved."""
    at = base.ref
    entry = book.seals.get(at.seq)
    if entry is None and book.collected >= at.seq:
        same = book.head.ref.incarnation == at.incarnation and book.head.ref.seq >= at.seq
    else:
        same = entry is not None and entry.ref == at
    if not same:
        raise Doubt(None, f"seal {at.seq}", "it is not the one that was proved")
    following: Seal | None = book.seals.get(at.seq + 1)
    if following is not None and (
        following.minted_at_ms <= base.minted_at_ms or following.lane_time_ms < base.lane_time_ms
    ):
        raise Doubt(Kind.MINTED_AT, f"seal {at.seq + 1}", f"after {base.minted_at_ms}")


# Read seqs ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Firsts(World):
    """Where the first copies of what senders emitted end, by columns."""

    ground: Ground | None = None
    base: Base | None = None
    _ends: dict[Source, dict[tuple[str, Incarnation], tuple[list[int], list[int]]]] = field(
        default_factory=dict
    )

    def first_copies_end(
        self, source: Source, sender: str, incarnation: Incarnation, seq: int
    ) -> int:
        """Return the offset behind the first copies of all that a sender emitted up to `seq`."""
        if source not in self._ends:
            self._ends[source] = self._of(source)
        seqs, offsets = self._ends[source].get((sender, incarnation), ([], []))
        found = bisect_right(seqs, seq)
        return offsets[found - 1] + 1 if found else 0

    def _of(self, source: Source) -> dict[tuple[str, Incarnation], tuple[list[int], list[int]]]:
        ground = self.ground
        assert ground is not None, "made with its ground"
        column = ground.columns[source]
        rows = np.flatnonzero(column.marks >= 0)
        marks, ids, offsets = column.marks[rows], column.ids[rows], column.offsets[rows]
        names = sorted({mark.sender for mark in ground.marks.every})
        number = {name: at for at, name in enumerate(names)}
        sender = np.array([number[m.sender] for m in ground.marks.every], dtype=np.int64)
        first = firsts((sender[marks], ids[:, 0], ids[:, 1])) == np.arange(len(rows))
        if self.base is not None:
            # Ids that were read before what is looked at have their first copies there.
            first &= ~among(self.base.decided, ids)
            first &= ~ground.read_before(self.base, source.topic)[marks]
        highest: dict[tuple[str, Incarnation], dict[int, int]] = {}
        # Offsets rise, so that the last first copy of a mark is its highest.
        last = _last_of(marks[first], offsets[first])
        for place, offset in last.items():
            mark = ground.marks.every[place]
            seqs = highest.setdefault((mark.sender, mark.incarnation), {})
            seqs[mark.seq] = max(offset, seqs.get(mark.seq, 0))
        return {key: _running(seqs) for key, seqs in highest.items()}


def _last_of(marks: Ints, offsets: Ints) -> dict[int, int]:
    """Return the last offset of each mark."""
    every, places = np.unique(marks[::-1], return_index=True)
    return dict(zip(every.tolist(), offsets[::-1][places].tolist(), strict=True))


def _running(highest: dict[int, int]) -> tuple[list[int], list[int]]:
    seqs = sorted(highest)
    return seqs, np.maximum.accumulate([highest[seq] for seq in seqs]).tolist()


def _check_reads(ground: Ground, book: Book, base: Base | None) -> None:
    world = _Firsts(ground.world.evidence, Findings(), ground=ground, base=base)
    check_read_seqs(world, book)
    if world.findings.found:
        one = world.findings.found[0]
        raise Doubt(one.kind, one.subject, one.text)


# Running digests ----------------------------------------------------------------------------------


def digests_of(ground: Ground, book: Book) -> dict[int, Bucket]:
    """Return the running digests of the seals that a next proof will not look at again."""
    found: dict[int, Bucket] = {}
    for seq in proved_seals(book):
        seal = book.seals[seq]
        parts = ground.parts(book, seal, Findings()) or ()
        count, sums = 0, np.zeros(2, dtype=np.uint64)
        for part in parts:
            count += part.count
            sums += ids_of(part).sum(axis=0, dtype=np.uint64)
        one = Bucket(1, seal.counts.read, count, (int(sums[0]), int(sums[1])))
        at = seal.minted_at_ms // BUCKET_MS
        found[at] = found.get(at, Bucket()).plus(one)
    return found
