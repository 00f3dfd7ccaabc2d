"""What a proof ends with and the next one begins with: a base, from the catalog and the sink.

What it is: `following`, which makes one of what is proved, and `settled`, which makes one of a lane
that the checker of records has found right although a proof had doubts.
What it must not know: rules of proofs, topics.

Invariants:
    Which ids were decided is what the catalog says: it is proved by then that it says the right ones.
    It does not grow for ever. A publisher's id is held for `HELD_WINDOWS` windows, the longest that
    seals say, of `WINDOW_MS_MAX` each where nobody says how long one is; an index holds none longer
    than a window and a quarter. An internal id is held until every copy of it is a remnant, an output
    until its topic lets it go.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dedup.expiry import WINDOW_MS_MAX
from dedup.formats.segment import Bucket, Origin, Part
from dedup.model import HeadRef, ReadSeq, Source
from delivery.checker.again import Again
from delivery.checker.columns.ground import Base, Doubt, Ground, Group
from delivery.checker.columns.listed import ids_of, listed_parts, raise_first
from delivery.checker.columns.same import (
    Ints,
    Words,
    among,
    distinct,
    firsts,
    in_order,
    merged,
)
from delivery.checker.columns.sent import Sent, sealed_of, sent_by
from delivery.checker.evidence import Findings, LaneInput
from delivery.checker.listed import read_list
from delivery.checker.rows import Book, frontiers, read_lane
from delivery.checker.world import World

__all__ = ["HELD_WINDOWS", "Decided", "following", "proved_seals", "settled"]

#: By an index ids are held up to a quarter of a window longer than one; here for so many.
HELD_WINDOWS = 2


class Decided:
    """Ids that the catalog says were decided, by bucket."""

    def __init__(self) -> None:
        self._ids: list[Words] = [np.empty((0, 2), dtype=np.uint64)]
        self._group_of: list[Ints] = [np.empty(0, dtype=np.int64)]
        self._places: dict[Bucket, int] = {}
        self._seen: dict[Bucket, dict[object, ReadSeq]] = {}

    def add(self, ids: Words, part: Part) -> None:
        """Take ids of a part in."""
        seen = self._seen.setdefault(part.bucket, {})
        for read in part.seen:
            if read.key not in seen or seen[read.key].seq < read.seq:
                seen[read.key] = read
        place = self._places.setdefault(part.bucket, len(self._places))
        self._ids.append(ids)
        self._group_of.append(np.full(len(ids), place))

    def add_base(self, base: Base) -> None:
        """Know the groups of a base, in their order; its ids stay where they are."""
        for group in base.groups:
            self.add(self._ids[0], Part(group.bucket, b"", group.seen))

    def of_seals(self, ground: Ground, book: Book, upto: int) -> None:
        """Take in what seals have decided, up to one of them."""
        quiet = Findings()
        for _, seal in sorted(one for one in book.seals.items() if one[0] <= upto):
            for part in ground.parts(book, seal, quiet) or ():
                self.add(ids_of(part), part)
        raise_first(quiet)

    def of_list(self, ground: Ground, book: Book, upto: int | None = None) -> None:
        """Take in what the segment list holds, up to one of the seals if it is named."""
        quiet = Findings()
        listed = read_list(World(ground.world.evidence, quiet), book)
        raise_first(quiet)
        store = ground.world.evidence.store
        for part, ids, _ in listed_parts(store, book, listed.slots, upto):
            self.add(ids, part)

    @property
    def ids(self) -> Words:
        """All of them, one behind the other."""
        return np.concatenate(self._ids)

    @property
    def group_of(self) -> Ints:
        """Their places among the groups."""
        return np.concatenate(self._group_of)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups."""
        return tuple(
            Group(bucket, tuple(self._seen[bucket][key] for key in self._seen[bucket]))
            for bucket in self._places
        )


def following(
    ground: Ground,
    book: Book,
    asked: LaneInput,
    base: Base | None,
    sent: Sent,
    *,
    known: Words | None = None,
) -> Base:
    """Return what is proved up to the last acknowledged seal.

    Args:
        ground: the evidence.
        book: the seals in question.
        asked: the window, if it is not what the seals say.
        base: what was proved before them.
        sent: each record that the lane has sent since, once.
        known: ids that were decided by seals that are gone.

    Raises:
        Doubt: the catalog does not say enough.
    """
    upto, head = min(book.ack.seq, book.head.ref.seq), book.head
    last = book.seals.get(upto)
    if last is None and base is not None and upto <= base.ref.seq:
        return base
    walk = dict(base.frontier) if base is not None else {}
    if last is not None:
        walk |= frontiers(book).get(upto, {})
        ref, times = last.ref, (last.minted_at_ms, last.lane_time_ms)
    elif upto == head.ref.seq:
        walk |= dict(head.frontier)
        ref, times = head.ref, (head.minted_at_ms, head.lane_time_ms)
    else:
        raise Doubt(None, f"seal {upto}", "the last acknowledged entry is gone")
    found = _base(ground, book, base, (ref, *times), upto=upto, known=known)
    seals = {seq: seal for seq, seal in book.seals.items() if seq <= upto}
    again = Again(head, seals, asked.window_ms, base.let_go_ms if base is not None else 0)
    found = replace(found, frontier=walk, let_go_ms=again.let_go_ms)
    window_ms = asked.window_ms or _longest(book)
    return _forgotten(_sent(found, book, sent.rows(sent.seqs <= upto)), ground, window_ms)


def proved_seals(book: Book) -> list[int]:
    """Return the seals that a next proof will not look at again."""
    upto = min(book.ack.seq, book.head.ref.seq)
    return sorted(seq for seq in book.seals if seq <= upto)


def settled(ground: Ground, lane: str, asked: LaneInput, base: Base | None) -> tuple[Book, Base]:
    """Return the seals and the base of a lane whose seals are right, as the checker of records says.

    Raises:
        Doubt: the catalog does not say enough.
    """
    quiet = Findings()
    first = base.ref.seq if base is not None else 0
    book = read_lane(ground.world.evidence.store, lane, quiet, first)
    if book is None:
        raise Doubt(None, "head row", "it cannot be read")
    raise_first(quiet)
    if base is not None:
        book.seals.pop(base.ref.seq, None)
    sent = sent_by(ground, book)
    if base is not None:
        sent = sent.rows(sent.seqs > base.ref.seq)
    sent = sent.rows(firsts(sent.name) == np.arange(len(sent)))
    return book, following(ground, book, asked, base, sent)


def _base(
    ground: Ground,
    book: Book,
    base: Base | None,
    last: tuple[HeadRef, int, int],
    *,
    upto: int,
    known: Words | None,
) -> Base:
    """Return a base that knows of what was decided and read, not yet of what was sent."""
    decided = Decided()
    if base is not None:
        decided.add_base(base)
    else:
        decided.of_list(ground, book)
    decided.of_seals(ground, book, upto)
    if known is not None and len(known):
        # Of what no list holds any more, nobody knows the bucket: it is held as if it were new.
        there = in_order(decided.ids)
        decided.add(known[~among(there, known)], Part(Bucket.at(Origin.EXTERNAL, last[2]), b""))
    none = np.empty((0, 2), dtype=np.uint64)
    before = (base.decided, base.group_of) if base is not None else (none, np.empty(0, np.int64))
    ids, group_of = merged(before, (decided.ids, decided.group_of))
    reads = dict(base.reads) if base is not None else {}
    if upto not in book.seals:
        reads |= {read.key: read.seq for read in book.head.read_seqs}
    for seq in proved_seals(book):
        for read in book.seals[seq].learned:
            reads[read.key] = max(read.seq, reads.get(read.key, -1))
    return Base(
        ref=last[0],
        frontier={},
        reads=reads,
        minted_at_ms=last[1],
        lane_time_ms=last[2],
        decided=ids,
        group_of=group_of,
        groups=decided.groups,
        sent=base.sent if base is not None else none,
        sealed=base.sealed if base is not None else none,
        places=base.places if base is not None else np.empty((0, 3), dtype=np.int64),
        sources=base.sources if base is not None else (),
        forgotten=base.forgotten if base is not None else -1,
    )


def _sent(base: Base, book: Book, sent: Sent) -> Base:
    """Return a base that knows of what was sent as well."""
    sources = {source: at for at, source in enumerate(base.sources)}
    places = np.empty((len(sent), 3), dtype=np.int64)
    places[:, 1], places[:, 2] = sent.offsets, sent.seqs
    for at in distinct((sent.edges, sent.partitions)).tolist():
        edge, partition = int(sent.edges[at]), int(sent.partitions[at])
        source = Source(book.head.writes[edge], partition)
        mine = (sent.edges == edge) & (sent.partitions == partition)
        places[mine, 0] = sources.setdefault(source, len(sources))
    return replace(
        base,
        sent=np.concatenate((base.sent, sent.ids)),
        sealed=np.concatenate((base.sealed, sealed_of(book, sent))),
        places=np.concatenate((base.places, places)),
        sources=tuple(sources),
    )


def _longest(book: Book) -> int:
    """Return the longest window that is said; the longest there can be if none is."""
    said = [seal.window_ms for seal in book.seals.values()]
    return max([book.head.window_ms, *said]) or WINDOW_MS_MAX


def _forgotten(base: Base, ground: Ground, window_ms: int) -> Base:
    """Return a base without what can matter to no proof any more."""
    held_ms = HELD_WINDOWS * window_ms
    left = [group for group in base.groups if not _can_go(group, base, held_ms)]
    place = {group.bucket: at for at, group in enumerate(left)}
    to = np.array([place.get(group.bucket, -1) for group in base.groups] or [-1], dtype=np.int64)
    groups = to[base.group_of]
    kept = groups >= 0
    lows = [ground.lows.get(source, 0) for source in base.sources] or [0]
    gone = base.places[:, 1] < np.array(lows, dtype=np.int64)[base.places[:, 0]]
    if len(left) == len(base.groups) and not gone.any():
        return base
    return replace(
        base,
        decided=base.decided[kept],
        group_of=groups[kept],
        groups=tuple(left),
        sent=base.sent[~gone],
        sealed=base.sealed[~gone],
        places=base.places[~gone],
        forgotten=max([base.forgotten, *base.places[gone, 2].tolist()]),
    )


def _can_go(group: Group, base: Base, held_ms: int) -> bool:
    if group.bucket.origin is Origin.EXTERNAL:
        return base.lane_time_ms >= group.bucket.end_ms + held_ms
    return all(base.reads.get(one.key, -1) >= one.seq for one in group.seen)
