"""Which inputs of a lane took effect, held against which should have, over whole columns.

What it is: `prove_inputs`. It demands of every seal that it decided the ids of exactly those of
its records that are the first of their id, and dropped exactly the others, each for a reason.
What it must not know: stored outputs, what was sent.

Invariants:
    It is stricter than the checker of records, never laxer: whatever that one finds is in doubt
    here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import numpy as np

from dedup.formats.dropped import Run, Verdict
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part
from dedup.model import Incarnation, Seal, Source, TopicId
from delivery.checker.chunks import read_dropped
from delivery.checker.columns.ground import Base, Doubt, Ground
from delivery.checker.columns.late import admit_late
from delivery.checker.columns.listed import OLD, Inputs, check_list, ids_of, in_hex, raise_first
from delivery.checker.columns.same import (
    ABSENT,
    Ints,
    Words,
    among,
    distinct,
    firsts,
    matches,
    occurring,
)
from delivery.checker.columns.table import Way
from delivery.checker.evidence import Findings, Kind, LaneInput
from delivery.checker.listed import SEEDS, read_list
from delivery.checker.rows import Book, is_held_longer
from delivery.checker.world import World

__all__ = ["prove_inputs"]

#: No offset is as large, whatever is stored.
_END = (1 << 63) - 1


def prove_inputs(ground: Ground, book: Book, asked: LaneInput, base: Base | None) -> Inputs:
    """Return the records of a lane, of which it is proved that the right ones took effect.

    Raises:
        Doubt: it is not proved.
    """
    quiet = Findings()
    listed = read_list(World(ground.world.evidence, quiet), book)
    seeds = _seeds(ground, book, quiet) if base is None else np.empty((0, 2), dtype=np.uint64)
    rows = _records(ground, book, asked, base, seeds)
    decided = list(_decided(ground, book, quiet))
    raise_first(quiet)
    ids, seqs, part_of = _flat(decided)
    admit_late(ground, book, rows, (ids, seqs), asked=asked, base=base)
    _check_decided(ground, book, rows, decided, (ids, seqs, part_of))
    _check_dropped(ground, book, rows, base)
    if base is None:
        check_list(ground, book, asked, rows, listed)
    return rows


def _records(
    ground: Ground, book: Book, asked: LaneInput, base: Base | None, seeds: Words
) -> Inputs:
    """Return every record below the frontier, with the seal that read it."""
    sources = tuple(sorted(source for source, _ in book.head.frontier))
    parts = [_of_source(ground, book, asked, base, one) for one in enumerate(sources)]
    seqs, places, offsets, ids, marks, values, read = (
        np.concatenate([part[number] for part in parts]) for number in range(7)
    )
    order = np.lexsort((offsets, places, seqs))
    seed_seq = SEEDS if base is None and SEEDS in book.seals else OLD
    count = len(seeds)
    ids = np.concatenate((seeds, ids[order]))
    first = firsts((ids[:, 0], ids[:, 1])) == np.arange(len(ids))
    if not first[:count].all():
        raise Doubt(Kind.DECIDED_TWICE, "what was brought in", "an id is there twice")
    if base is not None:
        # What was read of a sender was forgotten: every copy of that is a remnant.
        first &= ~among(base.decided, ids)
        first[count:] &= read[order] == 0
    return Inputs(
        every=sources,
        seqs=np.concatenate((np.full(count, seed_seq), seqs[order])),
        sources=np.concatenate((np.full(count, len(sources)), places[order])),
        offsets=np.concatenate((np.full(count, -1), offsets[order])),
        ids=ids,
        marks=np.concatenate((np.full(count, -1), marks[order])),
        values=np.concatenate((np.zeros(count, dtype=np.uint64), values[order])),
        fresh=first,
        known=count,
    )


def _of_source(
    ground: Ground, book: Book, asked: LaneInput, base: Base | None, at: tuple[int, Source]
) -> tuple[Ints | Words, ...]:
    place, source = at
    column, end = ground.columns[source], dict(book.head.frontier)[source]
    spans = _spans(book, source)
    begin = spans[0][0] if spans else end
    _check_contiguous(source, spans, begin, end)
    begun = book.seals.get(0)
    if base is not None:
        low = base.frontier.get(source, column.start)
        if spans and source in base.frontier and begin != low:
            text = f"partition {source.partition} goes on at {begin} after {low}"
            raise Doubt(Kind.FRONTIER_GAP, f"seal {spans[0][2]}", text)
    elif begun is not None:
        low = dict(begun.start).get(source, 0)
    else:
        low = column.start
    first, last = np.searchsorted(column.offsets, (low, end)).tolist()
    part = slice(first, last)
    offsets = column.offsets[part]
    if (base is not None or book.first == 0) and len(offsets) and offsets[0] < begin:
        text = f"partition {source.partition} offset {int(offsets[0])} lies in no seal's range"
        raise Doubt(Kind.NOT_DECIDED, "its frontier", text)
    ends = np.array([end for _, end, _ in spans], dtype=np.int64)
    numbers = np.array([seq for _, _, seq in spans] or [OLD], dtype=np.int64)
    held = np.minimum(np.searchsorted(ends, offsets, side="right"), len(numbers) - 1)
    seqs = np.where(offsets < begin, OLD, numbers[held])
    genuine = column.genuine[part]
    _check_strangers(ground, column.marks[part][~genuine], source)
    marks = np.where(genuine, column.marks[part], -1)
    read = np.zeros(len(offsets), dtype=np.int64)
    if base is not None:
        read = ground.read_before(base, source.topic)[marks].astype(np.int64)
    return (
        seqs,
        np.full(len(offsets), place),
        offsets,
        _named(book, asked, seqs, {way: ids[part] for way, ids in column.named.items()}),
        marks,
        column.values[part],
        read,
    )


def _named(book: Book, asked: LaneInput, seqs: Ints, ids: Mapping[Way, Words]) -> Words:
    """Return the ids of records, each by the way that the seal says which read it."""
    found = ids[asked.id_from]
    other = {said: way for said, way in asked.ways.items() if way is not asked.id_from}
    for said, way in other.items():
        mine = [seq for seq, seal in book.seals.items() if seal.named == said]
        if mine:
            found = np.where(np.isin(seqs, mine)[:, np.newaxis], ids[way], found)
    return found


def _spans(book: Book, source: Source) -> list[tuple[int, int, int]]:
    spans = []
    for seq, seal in book.seals.items():
        start, end = seal.start.at(source), seal.end.at(source)
        if start is not None and end is not None and end > start:
            spans.append((start, end, seq))
    return sorted(spans)


def _check_contiguous(
    source: Source, spans: list[tuple[int, int, int]], begin: int, end: int
) -> None:
    for start, until, seq in spans:
        if start != begin:
            raise Doubt(Kind.FRONTIER_GAP, f"seal {seq}", f"partition {source.partition}: {start}")
        begin = until
    if begin != end:
        raise Doubt(Kind.FRONTIER_HEAD, f"partition {source.partition}", f"{end} after {begin}")


def _check_strangers(ground: Ground, marks: Ints, source: Source) -> None:
    """Hold marks that do not count against what may be copied: all others are looked at."""
    for place in occurring(marks).tolist():
        if place == ABSENT:
            continue
        mark = ground.marks.every[place]
        sender = ground.world.sender(mark.sender)
        if sender is None or source.topic in sender.head.writes:
            text = f"{mark.sender} seq {mark.seq}, which its sender does not hold"
            raise Doubt(None, f"partition {source.partition}", text)


# What was decided ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Decision:
    """One part of the ids that a seal decided."""

    seal: Seal
    part: Part


def _seeds(ground: Ground, book: Book, quiet: Findings) -> Words:
    """Return the ids that a lane was made with."""
    seal = book.seals.get(SEEDS)
    if seal is None or not seal.segment.chunks:
        return np.empty((0, 2), dtype=np.uint64)
    parts = ground.parts(book, seal, quiet) or []
    return np.concatenate([ids_of(part) for part in parts])


def _decided(ground: Ground, book: Book, quiet: Findings) -> Iterator[_Decision]:
    for _, seal in sorted(book.seals.items()):
        parts = ground.parts(book, seal, quiet)
        for part in parts or ():
            yield _Decision(seal, part)


def _flat(decided: list[_Decision]) -> tuple[Words, Ints, Ints]:
    """Return all ids that were decided, the seal of each, and its part."""
    counts = np.array([one.part.count for one in decided], dtype=np.int64)
    part_of = np.repeat(np.arange(len(decided)), counts)
    ids = np.concatenate(
        [np.empty((0, 2), dtype=np.uint64), *(ids_of(one.part) for one in decided)]
    )
    return ids, np.array([one.seal.ref.seq for one in decided], dtype=np.int64)[part_of], part_of


def _check_decided(
    ground: Ground,
    book: Book,
    rows: Inputs,
    decided: list[_Decision],
    flat: tuple[Words, Ints, Ints],
) -> None:
    """Hold the ids of seals against the first record of each id in their ranges."""
    ids, seqs, part_of = flat
    due = np.flatnonzero(rows.fresh & (rows.seqs >= 0))
    found = matches(
        (rows.ids[due, 0], rows.ids[due, 1], rows.seqs[due]), (ids[:, 0], ids[:, 1], seqs)
    )
    if (found == ABSENT).any():
        at = int(np.flatnonzero(found == ABSENT)[0])
        raise Doubt(Kind.NEVER_INPUT, f"seal {int(seqs[at])}", f"id {in_hex(ids, at)}")
    taken = np.zeros(len(due), dtype=np.bool_)
    taken[found] = True
    if len(found) != len(due) or not taken.all():
        at = int(due[np.flatnonzero(~taken)[0]]) if not taken.all() else int(due[0])
        raise Doubt(Kind.NOT_DECIDED, f"seal {int(rows.seqs[at])}", f"id {in_hex(rows.ids, at)}")
    _check_fresh_counts(book, rows, seqs)
    _check_buckets(ground, rows, decided, part_of, due[found])


def _check_fresh_counts(book: Book, rows: Inputs, seqs: Ints) -> None:
    read = rows.seqs[rows.known :]
    for seq, seal in book.seals.items():
        ids, records = _count(seqs, seq), _count(read, seq)
        fresh = ids if seq > SEEDS else 0
        if (seal.counts.read, seal.counts.fresh, seal.segment.rows) != (records, fresh, ids):
            raise Doubt(Kind.COUNTS, f"seal {seq}", f"{records} records, {ids} ids")
        if seal.counts.abandoned:
            raise Doubt(None, f"seal {seq}", "it dropped records of an abandoned history")


def _count(ordered: Ints, number: int) -> int:
    first, last = np.searchsorted(ordered, (number, number + 1)).tolist()
    return int(last - first)


def _check_buckets(
    ground: Ground, rows: Inputs, decided: list[_Decision], part_of: Ints, record_of: Ints
) -> None:
    """Hold where ids lie against when they may be dropped, once for each kind of record there."""
    marks, sources = rows.marks[record_of], rows.sources[record_of]
    kinds = distinct((part_of, marks, sources))
    for at in kinds.tolist():
        one, source = decided[int(part_of[at])], int(sources[at])
        lane_time = Bucket(Origin.EXTERNAL, one.seal.lane_time_ms // BUCKET_MS)
        mark = ground.marks.every[int(marks[at])] if marks[at] != ABSENT else None
        if mark is None or mark.kept:
            right = one.part.bucket == lane_time or is_held_longer(one.part.bucket, one.seal)
        else:
            seen = {read.key: read.seq for read in one.part.seen}
            key = (mark.sender, mark.incarnation, rows.every[source].topic)
            bucket = Bucket(Origin.INTERNAL, mark.minted_at_ms // BUCKET_MS)
            right = one.part.bucket == bucket and seen.get(key, -1) >= mark.seq
        if not right:
            raise Doubt(Kind.BUCKET, f"seal {one.seal.ref.seq}", f"{one.part.bucket}")


# What was dropped ---------------------------------------------------------------------------------


def _check_dropped(ground: Ground, book: Book, rows: Inputs, base: Base | None) -> None:
    """Hold what seals dropped against the records that took no effect."""
    quiet = Findings()
    known: dict[tuple[str, Incarnation, TopicId], int] = dict(base.reads) if base else {}
    if base is None and not book.whole:
        known = {read.key: read.seq for read in book.head.read_seqs}
    starts, ends = [], []
    begins = _begins(rows)
    for seq, seal in sorted(book.seals.items()):
        runs = read_dropped(ground.world.evidence.store, book, seal, quiet) or []
        raise_first(quiet)
        counts = dict.fromkeys(Verdict, 0)
        for run, part in _held(rows, begins, seq, runs):
            if run.verdict is Verdict.ABANDONED:
                raise Doubt(None, f"seal {seq}", "it dropped records of an abandoned history")
            if run.verdict is Verdict.REMNANT:
                _check_remnants(ground, rows, part, known)
            starts.append(part.start)
            ends.append(part.stop)
            counts[run.verdict] += run.count
        said = (seal.counts.duplicate, seal.counts.remnant)
        if said != (counts[Verdict.DUPLICATE], counts[Verdict.REMNANT]):
            raise Doubt(Kind.COUNTS, f"seal {seq}", f"{said} said, {counts} dropped")
        if seal.counts.conflict:
            _check_conflicts(ground, rows, seal)
        for read in seal.learned:
            known[read.key] = max(read.seq, known.get(read.key, -1))
    changes = np.zeros(len(rows.seqs) + 1, dtype=np.int64)
    np.add.at(changes, np.array(starts, dtype=np.int64), 1)
    np.add.at(changes, np.array(ends, dtype=np.int64), -1)
    dropped = np.cumsum(changes[:-1])
    wrong = np.flatnonzero((dropped + rows.fresh != 1) & (rows.seqs >= 0))
    wrong = wrong[wrong >= rows.known]
    if len(wrong):
        at = int(wrong[0])
        kind = Kind.DROPPED_FRESH if rows.fresh[at] else Kind.NOT_ACCOUNTED
        subject = f"seal {int(rows.seqs[at])}, partition {int(rows.partitions[at])}"
        raise Doubt(kind, subject, f"offset {int(rows.offsets[at])}")


def _begins(rows: Inputs) -> dict[tuple[int, int], tuple[int, int]]:
    """Return which rows each seal read of each partition."""
    seqs, sources = rows.seqs[rows.known :], rows.sources[rows.known :]
    if not len(seqs):
        return {}
    changed = np.ones(len(seqs), dtype=np.bool_)
    changed[1:] = (seqs[1:] != seqs[:-1]) | (sources[1:] != sources[:-1])
    starts = np.flatnonzero(changed)
    ends = np.append(starts[1:], len(seqs))
    keys = zip(seqs[starts].tolist(), sources[starts].tolist(), strict=True)
    spans = zip((starts + rows.known).tolist(), (ends + rows.known).tolist(), strict=True)
    return dict(zip(keys, spans, strict=True))


def _held(
    rows: Inputs, begins: dict[tuple[int, int], tuple[int, int]], seq: int, runs: list[Run]
) -> Iterator[tuple[Run, slice]]:
    """Yield the runs of a seal, each with its rows, between which nothing else lies."""
    places = {source: at for at, source in enumerate(rows.every)}
    for source, group in groupby(runs, attrgetter("source")):
        some = list(group)
        first, last = begins.get((seq, places.get(source, -1)), (0, 0))
        said = [(min(run.offset, _END), min(run.offset + run.count, _END)) for run in some]
        found = np.searchsorted(rows.offsets[first:last], np.array(said, dtype=np.int64)) + first
        for run, (start, end) in zip(some, found.tolist(), strict=True):
            if end - start != run.count or not run.count:
                text = f"{run.count} offsets at {run.offset}, {end - start} records"
                raise Doubt(Kind.DROPPED_OUTSIDE, f"seal {seq}", text)
            yield run, slice(start, end)


def _check_remnants(
    ground: Ground,
    rows: Inputs,
    part: slice,
    known: dict[tuple[str, Incarnation, TopicId], int],
) -> None:
    kinds = distinct((rows.marks[part], rows.sources[part]))
    for at in (kinds + part.start).tolist():
        place = int(rows.marks[at])
        mark = ground.marks.every[place] if place != ABSENT else None
        topic = rows.every[int(rows.sources[at])].topic
        if mark is None or known.get((mark.sender, mark.incarnation, topic), -1) < mark.seq:
            subject = f"seal {int(rows.seqs[at])}, offset {int(rows.offsets[at])}"
            raise Doubt(Kind.DROPPED_WHY, subject, "dropped as a remnant")


def _check_conflicts(ground: Ground, rows: Inputs, seal: Seal) -> None:
    """Count repeats that may differ from what they repeat."""
    first, last = np.searchsorted(rows.seqs[rows.known :], (seal.ref.seq, seal.ref.seq + 1))
    mine = np.arange(first + rows.known, last + rows.known)
    mine = mine[~rows.fresh[mine]]
    internal = (rows.marks[mine] != ABSENT) & (ground.kept[rows.marks[mine]] == 0)
    found = firsts((rows.ids[:, 0], rows.ids[:, 1]))[mine]
    # Of an id that is known without a record, nothing can be told: the checker of records says no.
    differ = (found >= rows.known) & (rows.values[found] != rows.values[mine])
    # What repeats a record of the base may differ from it.
    differ |= ~rows.fresh[found]
    differ &= ~internal
    if seal.counts.conflict > int(differ.sum()):
        raise Doubt(None, f"seal {seal.ref.seq}", f"{seal.counts.conflict} repeats that differ")
