"""What left the pipeline, held against what the seals of a lane promise, over whole columns.

What it is: `prove_sink`. It demands of every record that names the lane that a seal promises just
this one, and of every promise that was acknowledged that it is there.
What it must not know: who emitted what, or how often.

Invariants:
    Stricter than the checker of records, never laxer.
    Two digests of 64 bits stand for all that is frozen of a record.
"""

from __future__ import annotations

import numpy as np
import xxhash

from dedup.model import Seal, Source
from delivery.checker.chunks import minted_ids
from delivery.checker.columns.ground import Base, Doubt, Ground
from delivery.checker.columns.listed import Inputs
from delivery.checker.columns.same import (
    ABSENT,
    Mask,
    Words,
    among,
    distinct,
    firsts,
    in_order,
    matches,
)
from delivery.checker.columns.sent import Sent, by_topic, joined, promises, sealed_of, sent_by
from delivery.checker.evidence import Kind, Span
from delivery.checker.rows import Book, kept_until, owner
from delivery.header import NO_PARENT

__all__ = ["prove_sink"]


def prove_sink(
    ground: Ground, book: Book, inputs: Inputs, base: Base | None, span: Span | None = None
) -> Sent:
    """Return each record that the lane sent and that is not of the base, once.

    Raises:
        Doubt: it is not proved that just these belong there.
    """
    stored_rows, gone, recipes = promises(ground, book)
    _check_promises(ground, book, inputs, stored_rows)
    sent = sent_by(ground, book)
    _check_marks(ground, book)
    sent = _beyond(book, sent, base) if span is None else _asked(book, sent, span)
    promised = _held_to_rows(book, sent, stored_rows, gone)
    _held_to_attempts(book, inputs, sent.rows(~promised), gone)
    _check_remade(book, inputs, sent.rows(~promised), gone, recipes)
    _check_versions(book, sent)
    _check_delivered(ground, book)
    once = sent.rows(firsts(sent.name) == np.arange(len(sent)))
    _check_acknowledged(book, sent, once, stored_rows, gone=gone, recipes=recipes)
    return once


def _check_promises(ground: Ground, book: Book, inputs: Inputs, rows: Sent) -> None:
    """Hold what is stored against the topics and against the records that took effect."""
    writes = book.head.writes
    for at in distinct((rows.edges, rows.partitions)).tolist():
        edge, partition = int(rows.edges[at]), int(rows.partitions[at])
        if edge >= len(writes) or Source(writes[edge], partition) not in ground.columns:
            text = f"edge {edge}, partition {partition}"
            raise Doubt(Kind.TARGET, f"outputs of seal {int(rows.seqs[at])}", text)
    if (firsts((*rows.name, rows.seqs)) != np.arange(len(rows))).any():
        raise Doubt(None, "stored outputs", "an id is promised twice by one seal")
    _check_parents(inputs, rows)


def _check_parents(inputs: Inputs, rows: Sent) -> None:
    """Hold the parents of outputs against the records of their seal that took effect."""
    placed = (rows.parents[0] != NO_PARENT[0]) | (rows.parents[1] != NO_PARENT[1])
    bound = np.flatnonzero(placed | (rows.kept != 0))
    fresh = np.flatnonzero(inputs.fresh & (inputs.sources < len(inputs.every)))
    found = matches(
        (inputs.seqs[fresh], inputs.partitions[fresh], inputs.offsets[fresh]),
        (rows.seqs[bound], rows.parents[0][bound], rows.parents[1][bound]),
    )
    wrong = found == ABSENT
    parents = inputs.ids[fresh][found]
    wrong |= (rows.kept[bound] != 0) & (parents != rows.ids[bound]).any(axis=1)
    if wrong.any():
        at = int(bound[np.flatnonzero(wrong)[0]])
        text = f"partition {int(rows.parents[0][at])} offset {int(rows.parents[1][at])}"
        raise Doubt(Kind.PARENT, f"an output of seal {int(rows.seqs[at])}", text)


# Sent ---------------------------------------------------------------------------------------------


def _check_marks(ground: Ground, book: Book) -> None:
    """Hold the marks of this lane in its topics against its history."""
    head = book.latest
    met: set[int] = set()
    for topic in dict.fromkeys(head.writes):
        for column in ground.partitions(topic):
            met |= column.met
    for place in ground.senders(book.name).tolist():
        mark = ground.marks.every[place]
        last = kept_until(head, mark.incarnation)
        if place not in met:
            continue
        if last is None or mark.seq > last or owner(head, mark.seq) != mark.incarnation:
            # It may be abandoned, which is right: whoever looks closer knows.
            kind = None if head.past else Kind.UNSEALED
            raise Doubt(kind, "a record in the sink", f"seq {mark.seq}, sealed up to {last}")


def _beyond(book: Book, sent: Sent, base: Base | None) -> Sent:
    """Return what was not proved before; of what was, every copy must be the same again."""
    if base is None:
        return sent
    old = sent.rows(sent.seqs <= base.ref.seq)
    if not len(old):
        return sent
    columns = (old.ids[:, 0], old.ids[:, 1])
    again = sealed_of(book, old)
    found = matches(
        (base.sent[:, 0], base.sent[:, 1], base.sealed[:, 0], base.sealed[:, 1]),
        (*columns, again[:, 0], again[:, 1]),
    )
    wrong = (found == ABSENT) & ~_unknown(base, old)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        subject = f"record at {(int(old.partitions[at]), int(old.offsets[at]))}"
        raise Doubt(Kind.PAYLOAD, subject, f"seal {int(old.seqs[at])}, which was proved before")
    return sent.rows(sent.seqs > base.ref.seq)


def _asked(book: Book, sent: Sent, span: Span) -> Sent:
    """Return what is of the seals in question; what was made of their inputs must be."""
    mine = (sent.seqs >= span.first) & (sent.seqs <= span.last)
    if len({source.topic for source, _ in book.latest.frontier}) == 1:
        for source, end in span.end:
            at, offsets = sent.parents
            inside = (at == source.partition) & (offsets >= (span.start.at(source) or 0))
            wrong = np.flatnonzero(inside & (offsets < end) & ~mine)
            if len(wrong):
                one = int(wrong[0])
                subject = f"input {(source.partition, int(offsets[one]))}"
                raise Doubt(Kind.TWO_VERSIONS, subject, f"seal {int(sent.seqs[one])}")
    return sent.rows(mine)


def _unknown(base: Base, old: Sent) -> Mask:
    """Tell which copies may be of outputs that were forgotten."""
    ids = in_order(base.sent)
    return (old.seqs <= base.forgotten) & ~among(ids, old.ids)


def _held_to_rows(book: Book, sent: Sent, rows: Sent, gone: dict[int, Seal]) -> Mask:
    """Hold what was sent against stored rows; tell which has one."""
    of_topic = by_topic(book, rows)
    found = matches((*of_topic.name, of_topic.seqs), (*sent.name, sent.seqs))
    there: Mask = found != ABSENT
    for mine, right in zip(sent.frozen, of_topic.frozen, strict=True):
        wrong = there & (mine != right[found]) if len(right) else there & False
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            subject = f"record at {(int(sent.partitions[at]), int(sent.offsets[at]))}"
            raise Doubt(Kind.PAYLOAD, subject, f"seal {int(sent.seqs[at])}")
    lacking = np.unique(sent.seqs[~there]).tolist()
    for seq in lacking:
        if seq in book.seals and seq not in gone:
            raise Doubt(Kind.NOT_OF_SEAL, "a record in the sink", f"seal {seq}")
    return there


def _held_to_attempts(book: Book, inputs: Inputs, sent: Sent, gone: dict[int, Seal]) -> None:
    """Hold records whose rows are gone against what their attempts can have made."""
    found = firsts(sent.name)
    for column in sent.frozen:
        if (column != column[found]).any():
            raise Doubt(Kind.PAYLOAD, "copies of a record", "whose stored row is gone")
    placed = (sent.parents[0] != NO_PARENT[0]) | (sent.parents[1] != NO_PARENT[1])
    below = np.zeros(len(sent), dtype=np.bool_)
    for source, end in book.head.frontier:
        below |= (sent.parents[0] == source.partition) & (sent.parents[1] < end)
    if (placed & ~below).any():
        raise Doubt(Kind.NOT_OF_SEAL, "a record in the sink", "its parent was never read")
    mine = sent.rows(np.isin(sent.seqs, list(gone)))
    if not len(mine):
        return
    _check_parents(inputs, mine.rows(mine.kept != 0))
    _check_minted(book, mine.rows(mine.kept == 0), gone)
    seqs = np.array(sorted(gone), dtype=np.int64)
    seal_of = np.searchsorted(seqs, mine.seqs)
    minted = np.array([gone[seq].minted_at_ms for seq in seqs.tolist()], dtype=np.int64)
    within = (mine.parents[0] == NO_PARENT[0]) & (mine.parents[1] == NO_PARENT[1])
    for source, _ in book.head.frontier:
        spans = [(gone[seq].start.at(source), gone[seq].end.at(source)) for seq in seqs.tolist()]
        starts = np.array([start or 0 for start, _ in spans], dtype=np.int64)[seal_of]
        ends = np.array([end or 0 for _, end in spans], dtype=np.int64)[seal_of]
        offsets = mine.parents[1]
        within |= (mine.parents[0] == source.partition) & (starts <= offsets) & (offsets < ends)
    wrong = ~within | (minted[seal_of] != mine.minted)
    if wrong.any():
        seq = int(mine.seqs[np.flatnonzero(wrong)[0]])
        raise Doubt(Kind.NOT_OF_SEAL, "a record in the sink", f"seal {seq}")


def _check_minted(book: Book, sent: Sent, gone: dict[int, Seal]) -> None:
    """Hold ids against those that attempts mint, edge by edge and ordinal by ordinal."""
    parts, seqs = [np.empty((0, 2), dtype=np.uint64)], []
    for seq in np.unique(sent.seqs).tolist():
        parts.append(_made(book, gone[seq]))
        seqs += [seq] * len(parts[-1])
    ids = np.concatenate(parts)
    known = (ids[:, 0], ids[:, 1], np.array(seqs, dtype=np.int64))
    if (matches(known, (sent.ids[:, 0], sent.ids[:, 1], sent.seqs)) == ABSENT).any():
        raise Doubt(Kind.NOT_OF_SEAL, "a record in the sink", "its attempt cannot have made it")


def _made(book: Book, seal: Seal) -> Words:
    """Return the ids that the attempt of a seal mints, edge by edge and ordinal by ordinal."""
    edges, rows = len(book.head.writes), seal.outputs.rows
    pairs = np.repeat(np.arange(edges), rows), np.tile(np.arange(rows), edges)
    return minted_ids(seal.ref.attempt, *pairs)


def _check_remade(
    book: Book, inputs: Inputs, sent: Sent, gone: dict[int, Seal], recipes: dict[int, bytes]
) -> None:
    """Hold what was made again against the digests in the recipes, where all of it is there."""
    mine = sent.rows(np.isin(sent.seqs, list(recipes)))
    mine = mine.rows(firsts(mine.name) == np.arange(len(mine)))
    if (mine.kept != 0).any():
        raise Doubt(Kind.NOT_OF_SEAL, "a record in the sink", "it keeps an id, and its seal none")
    _check_parents(inputs, mine)
    topics = np.array([book.head.writes.index(topic) for topic in book.head.writes] or [0])
    for seq, digest in recipes.items():
        rows, count = mine.rows(mine.seqs == seq), gone[seq].outputs.rows
        if len(rows) < count:
            continue  # what is acknowledged is looked for elsewhere
        ids = _made(book, gone[seq])
        place = matches((ids[:, 0], ids[:, 1]), (rows.ids[:, 0], rows.ids[:, 1]))
        edges, order = place // max(count, 1), np.argsort(place % max(count, 1))
        if (topics[edges] != rows.edges).any():
            raise Doubt(Kind.TARGET, f"outputs of seal {seq}", "in the topic of another edge")
        made = xxhash.xxh3_128()
        for column in (edges, rows.partitions, *rows.parents, rows.values, rows.rests):
            made.update(
                column[order].astype("<i8" if column.dtype.kind == "i" else "<u8").tobytes()
            )
        if made.digest() != digest:
            raise Doubt(Kind.REMADE, f"outputs of seal {seq}", f"{len(rows)} records")


def _check_versions(book: Book, sent: Sent) -> None:
    """Demand one execution for each input."""
    placed = sent.rows(sent.parents[0] != NO_PARENT[0])
    several = len({source.topic for source, _ in book.head.frontier}) > 1
    key = (*placed.parents, placed.seqs) if several else placed.parents
    found = firsts(key)
    differ = (placed.seqs != placed.seqs[found]) | (placed.minted != placed.minted[found])
    if differ.any():
        at = int(np.flatnonzero(differ)[0])
        parent = (int(placed.parents[0][at]), int(placed.parents[1][at]))
        raise Doubt(Kind.TWO_VERSIONS, f"input {parent}", f"seal {int(placed.seqs[at])}")


# Acknowledged -------------------------------------------------------------------------------------


def _check_delivered(ground: Ground, book: Book) -> None:
    for source, offset in book.ack.delivered:
        column = ground.columns.get(source)
        if source.topic not in book.head.writes or column is None or offset > column.end:
            text = f"delivered {offset}"
            raise Doubt(Kind.DELIVERED_BEYOND, f"partition {source.partition}", text)


def _check_acknowledged(
    book: Book,
    sent: Sent,
    once: Sent,
    rows: Sent,
    *,
    gone: dict[int, Seal],
    recipes: dict[int, bytes],
) -> None:
    """Demand that what is acknowledged is there, below what was delivered."""
    remade = once.rows(np.isin(once.seqs, list(recipes)))
    due = by_topic(book, rows.rows(rows.seqs <= book.ack.seq))
    due = joined([due, remade.rows(remade.seqs <= book.ack.seq)])
    order = np.argsort(sent.offsets, kind="stable")
    found = matches([column[order] for column in sent.name], due.name)
    if (found == ABSENT).any():
        at = int(np.flatnonzero(found == ABSENT)[0])
        raise Doubt(Kind.LOST, f"an output of seal {int(due.seqs[at])}", "acknowledged")
    least = sent.offsets[order][found]
    for at in distinct((due.edges, due.partitions)).tolist():
        edge, partition = int(due.edges[at]), int(due.partitions[at])
        behind = book.ack.delivered.at(Source(book.head.writes[edge], partition)) or 0
        mine = (due.edges == edge) & (due.partitions == partition)
        if (least[mine] >= behind).any():
            text = f"partition {partition}, delivered {behind}"
            raise Doubt(Kind.DELIVERED_LOW, f"an output of seal {int(due.seqs[at])}", text)
    if not gone:
        return
    counts = dict(
        zip(*(one.tolist() for one in np.unique(once.seqs, return_counts=True)), strict=True)
    )
    for seq, seal in gone.items():
        due_now = seq not in recipes or seq <= book.ack.seq
        if due_now and counts.get(seq, 0) < seal.outputs.rows:
            text = f"{counts.get(seq, 0)} of {seal.outputs.rows}"
            raise Doubt(Kind.LOST, f"outputs of seal {seq}", text)
