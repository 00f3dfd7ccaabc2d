"""Which seals of each lane an audit of a range of time or of offsets is about.

What it is: `ranged`, which finds the seals of a range, what is believed of those before them, and
why some of what was asked for cannot be said.
What it must not know: how anything is proved.

Invariants:
    A seal is proved whole or not at all: one that read any offset of a range is in it.
    An entry that cannot be read, and that may be of the range, is in it.
    Offsets that were asked for and are not sealed are said; nothing is taken for proved instead.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dedup.errors import InvalidUsage
from dedup.model import Frontier, LaneRow, Seal, Source
from delivery.checker import Span
from delivery.checker.columns import Base, Doubt, assumed
from delivery.checker.evidence import Findings
from delivery.checker.rows import Book, read_lane, read_row
from delivery.operate.opening import inputs_of
from delivery.operate.reach import Offsets
from delivery.operate.stand import Stand

__all__ = ["Ranged", "range_document", "ranged"]


@dataclass(slots=True)
class Ranged:
    """What a range is in some lanes.

    Attributes:
        lanes: those that have something to do with it.
        spans: seals that are in question; of other lanes all are.
        bases: what is believed before them.
        unproved: lanes of which nothing can be said, and why.
        short: lanes of which not all can be said that was asked for, and why.
    """

    lanes: list[str] = field(default_factory=list)
    spans: dict[str, Span] = field(default_factory=dict)
    bases: dict[str, Base] = field(default_factory=dict)
    unproved: dict[str, str] = field(default_factory=dict)
    short: dict[str, str] = field(default_factory=dict)


def ranged(
    stand: Stand,
    lanes: Sequence[str],
    since_ms: int | None,
    until_ms: int | None,
    offsets: Sequence[Offsets],
) -> Ranged:
    """Return which seals of lanes were minted in a time, or read some offsets.

    Raises:
        InvalidUsage: none of the lanes reads a partition that is named.
    """
    found, names = Ranged(), _names(stand)
    _check_read(stand, lanes, offsets, names)
    for lane in lanes:
        row = stand.rows.get(lane)
        if row is None or not offsets:
            _take(found, stand, lane, _Time(since_ms, until_ms))
            continue
        inputs = inputs_of(row.head)
        wanted = {s: one for one in offsets for s, _ in inputs if one.holds(s, names)}
        if wanted:
            _take(found, stand, lane, _Places(wanted))
    return found


def _names(stand: Stand) -> dict[bytes, str]:
    return {
        identity: name
        for row in stand.rows.values()
        if row is not None
        for name, identity in row.head.topics
    }


def range_document(
    lane: str, span: Span, names: Mapping[bytes, str], states: Container[Source] = ()
) -> dict[str, Any]:
    """Return what was in question of a lane as plain data, without what is of no topic."""
    empty = span.last < span.first
    return {
        "lane": lane,
        "first": None if empty else span.first,
        "last": None if empty else span.last,
        "offsets": [
            {
                "topic": names.get(source.topic, source.topic.hex()),
                "partition": source.partition,
                "start": span.start.at(source) or 0,
                "end": end,
            }
            for source, end in span.end
            if source not in states
        ],
    }


# Which seals --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Time:
    """Seals that were minted at one time or later, and before another one."""

    since_ms: int | None
    until_ms: int | None

    def holds(self, seal: Seal) -> bool:
        return not self.before(seal) and not self.after(seal)

    def before(self, seal: Seal) -> bool:
        return self.since_ms is not None and seal.minted_at_ms < self.since_ms

    def after(self, seal: Seal) -> bool:
        return self.until_ms is not None and seal.minted_at_ms >= self.until_ms

    def why_none(self, book: Book) -> str | None:
        """Say why no seal is in it; None: there were none then."""
        return _COLLECTED if book.first > 0 and not any(map(self.before, _seals(book))) else None

    def why_short(self, _row: LaneRow) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class _Places:
    """Seals that read offsets of partitions."""

    wanted: Mapping[Source, Offsets]

    def holds(self, seal: Seal) -> bool:
        return any(
            start < (seal.end.at(source) or 0)
            and (seal.end.at(source) or 0) > one.first
            and (one.last is None or start <= one.last)
            for source, one in self.wanted.items()
            if (start := seal.start.at(source)) is not None
        )

    def before(self, seal: Seal) -> bool:
        ends = [(one, seal.end.at(source)) for source, one in self.wanted.items()]
        there = [end <= one.first for one, end in ends if end is not None]
        return bool(there) and all(there)

    def after(self, seal: Seal) -> bool:
        starts = [(one, seal.start.at(source)) for source, one in self.wanted.items()]
        there = [
            one.last is not None and start > one.last for one, start in starts if start is not None
        ]
        return bool(there) and all(there)

    def why_none(self, book: Book) -> str:
        """Say why no seal read any of it."""
        frontier = dict(book.head.frontier)
        if any(one.first >= frontier.get(source, 0) for source, one in self.wanted.items()):
            ends = ", ".join(f"{one}: up to {frontier.get(s, 0)}" for s, one in self.wanted.items())
            return f"none of these offsets is sealed yet ({ends})"
        if book.first > 0:
            return _COLLECTED
        return "these offsets lie before the one at which the lane began; it never reads them"

    def why_short(self, row: LaneRow) -> str | None:
        frontier = dict(row.head.frontier)
        late = [
            f"{one} was asked for, and sealed up to {frontier.get(source, 0)}"
            for source, one in self.wanted.items()
            if (one.last or 0) >= frontier.get(source, 0)
        ]
        return f"{', '.join(late)}; what is sealed of it was proved" if late else None


_COLLECTED = (
    "the seals that were asked for were collected: keep them longer with `delivery catalog compact "
    "--keep-entries`, or audit all there is"
)


def _take(found: Ranged, stand: Stand, lane: str, wanted: _Time | _Places) -> None:
    """Put a lane where it belongs."""
    store, quiet = stand.snapshot, Findings()
    book = read_row(store, lane, quiet)
    if book is None or quiet.found:
        found.lanes.append(lane)  # nothing that such a row says can be believed: all is in question
        return
    book = read_lane(store, lane, Findings())
    assert book is not None, "its row was read"
    span = _span(book, wanted)
    if span is None:
        why = wanted.why_none(book)
        if why is not None:
            found.unproved[lane] = why
        return
    if span.first:
        try:
            found.bases[lane] = assumed(store, lane, span)
        except Doubt as doubt:
            found.unproved[lane] = (
                f"what the catalog says of the seals before it cannot be believed ({doubt}): audit "
                "the lane without a range"
            )
            return
    found.lanes.append(lane)
    found.spans[lane] = span
    row = stand.rows[lane]
    short = wanted.why_short(row) if row is not None else None
    if short is not None:
        found.short[lane] = short


def _span(book: Book, wanted: _Time | _Places) -> Span | None:
    """Return the seals that are meant, with all that may be among them; None: there are none."""
    mine = [seal.ref.seq for seal in _seals(book) if wanted.holds(seal)]
    if mine:
        before = _seqs(book, lambda seal: seal.ref.seq < mine[0])
        after = _seqs(book, lambda seal: seal.ref.seq > mine[-1])
        if isinstance(wanted, _Places) and before == [0]:
            before = []  # it made the lane, and read nothing
    else:
        before, after = _seqs(book, wanted.before), _seqs(book, wanted.after)
    first = before[-1] + 1 if before else 0
    last = after[0] - 1 if after else book.head.ref.seq
    unread = last >= max(first, book.first)
    if not mine and not unread and not (isinstance(wanted, _Time) and before):
        return None
    return Span(first=first, last=last, start=_behind(book, first - 1), end=_behind(book, last))


def _seals(book: Book) -> Iterable[Seal]:
    return (book.seals[seq] for seq in sorted(book.seals))


def _seqs(book: Book, chosen: Callable[[Seal], bool]) -> list[int]:
    return [seal.ref.seq for seal in _seals(book) if chosen(seal)]


def _behind(book: Book, upto: int) -> Frontier:
    """Return what was sealed behind a seal, as far as seals that are there tell."""
    known: dict[Source, int] = {}
    if upto < 0:
        return Frontier()
    for seal in _seals(book):
        if seal.ref.seq <= upto:
            for source, offset in seal.end:
                known[source] = max(offset, known.get(source, 0))
        elif book.first > 0:
            # What seals that were collected have read, later ones begin behind.
            for source, offset in seal.start:
                known.setdefault(source, offset)
    if book.first > 0 or upto == book.head.ref.seq:
        for source, offset in book.head.frontier:
            known.setdefault(source, offset)
    return Frontier.of(known.items())


def _check_read(
    stand: Stand, lanes: Sequence[str], offsets: Sequence[Offsets], names: Mapping[bytes, str]
) -> None:
    rows = [row for lane in lanes if (row := stand.rows.get(lane)) is not None]
    sources = sorted({source for row in rows for source, _ in inputs_of(row.head)})
    for one in offsets:
        if not any(one.holds(source, names) for source in sources):
            known = sorted(f"{names.get(s.topic, s.topic.hex())}/{s.partition}" for s in sources)
            raise InvalidUsage(
                "audit offsets",
                f"{one} in {stand.catalog.store.url}",
                f"no lane in question reads it; nothing was read: they read {', '.join(known[:8])}",
            )
