"""Judging record by record, with a dict and a set: what the judge's columns are held against.

What it is: records as they are drawn, and `reference`, which says what becomes of them.
What it must not know: columns, or how the judge goes about it.

Invariants:
    It shares no code with the judge: headers are looked up, not decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash
from hypothesis import strategies as st

from dedup.formats.dropped import Verdict
from dedup.formats.segment import BUCKET_MS
from dedup.ids import named, positional
from dedup.model import (
    Ack,
    Attempt,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    Kept,
    LaneRow,
    RecordId,
    Source,
    TopicId,
)
from delivery.header import NAME, Header, encode_header
from delivery.protocol.senders import Mark
from delivery.records import Record

SENDER, STRANGER = "shop/price/0", "elsewhere/x/0"
NOW, PAST, NEVER = (Incarnation(bytes([n]) * 16) for n in (3, 2, 9))
MID, OTHER = TopicId(b"m" * 16), TopicId(b"o" * 16)
#: What the lane reads: two partitions the sender writes, and one of another topic.
SOURCES = (Source(MID, 0), Source(MID, 1), Source(OTHER, 0))
LAST, KEPT, DELIVERED = 6, 3, 4

#: The sender sealed 1 to 3 before a restore and 4 to 6 after it.
ROW = LaneRow(
    head=Head(
        ref=HeadRef(NOW, LAST, Attempt(b"a" * 16)),
        frontier=Frontier(),
        writes=(MID,),
        past=(Kept(PAST, KEPT),),
    ),
    ack=Ack(NOW, LAST - 1, Frontier.of([(SOURCES[0], DELIVERED), (SOURCES[1], DELIVERED)])),
)


# What comes -----------------------------------------------------------------------------------


class Line(NamedTuple):
    """A record as it is drawn: everything but its place."""

    name: bytes | None
    value: bytes
    header: Header | None
    late: bool


ids = st.sampled_from([RecordId(bytes([n]) * 16) for n in (1, 2, 3)] + [named(b"a")])
marks = st.builds(
    Mark,
    st.just(SENDER),
    st.sampled_from([NOW, PAST, NEVER]),
    st.integers(1, LAST + 2),
    st.sampled_from([0, BUCKET_MS, 3 * BUCKET_MS]),
    kept=st.booleans(),
)
lines = st.builds(
    Line,
    st.sampled_from([b"a", b"b", b"c", None]),
    st.sampled_from([b"1", b"2", b""]),
    st.one_of(st.none(), st.builds(Header, ids, marks)),
    st.booleans(),
)
#: A bundle: rows of each source, with a hole now and then.
bundles = st.lists(
    st.tuples(*(st.lists(lines, max_size=7) for _ in SOURCES)), min_size=1, max_size=4
)


class Drawn(NamedTuple):
    """All of one run."""

    bundles: list[tuple[list[Line], ...]]
    #: Before which bundles everything pending is sealed.
    seals: list[bool]
    reads: dict[Incarnation, int]
    payloads: bool


runs = st.builds(
    Drawn,
    bundles,
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.dictionaries(st.sampled_from([NOW, PAST]), st.integers(0, LAST), max_size=2),
    st.booleans(),
)


def name_of(record: Record) -> bytes | None:
    return record.header("id")


def records_of(source: Source, drawn: list[Line], first: int) -> list[Record]:
    offset, made = first, []
    for line in drawn:
        headers = [] if line.name is None else [("id", line.name)]
        if line.header is not None:
            headers.append((NAME, encode_header(line.header)))
        headers.reverse() if line.late else None
        made.append(Record(line.value, None, tuple(headers), offset, source, offset))
        offset += 2 if line.late else 1
    return made


# The reference --------------------------------------------------------------------------------


@dataclass
class Known:
    """The ids that a lane decided: external ones with their digests, internal ones by bucket."""

    external: dict[bytes, int | None] = field(default_factory=dict)
    internal: set[tuple[int, bytes]] = field(default_factory=set)

    def has(self, one: bytes, bucket: int | None) -> bool:
        return one in self.external if bucket is None else (bucket, one) in self.internal


@dataclass
class Answer:
    """What one bundle comes to: place, id, bucket, mark and digest of what is fresh, and the rest."""

    fresh: list[tuple[Source, int, bytes, int | None, Mark | None, int]] = field(
        default_factory=list
    )
    dropped: dict[tuple[Source, int], Verdict] = field(default_factory=dict)
    conflicts: list[tuple[Source, int]] = field(default_factory=list)


def digest(record: Record) -> int:
    return xxhash.xxh3_64_intdigest(record.value or b"") & 0xFFFF


def mark_of(record: Record, reads: dict[Incarnation, int]) -> tuple[str, Header | None]:
    """Say what a record's header makes of it, by docs/protocol.md."""
    value = record.header(NAME)
    header = next((line for line in HEADERS if value == encode_header(line)), None)
    if header is None or record.source.topic != MID:
        return "external", None
    mark = header.mark
    last = {NOW: LAST, PAST: KEPT}.get(mark.incarnation)
    if last is None or (mark.seq > last and mark.incarnation == PAST):
        return "abandoned", header
    if mark.seq > last or (mark.incarnation == NOW) != (mark.seq > KEPT):
        return "external", None
    if reads.get(mark.incarnation, -1) >= mark.seq:
        return "remnant", header
    return ("kept" if mark.kept else "internal"), header


#: Headers are looked up, not decoded: the reference shares no code with the columns.
HEADERS: list[Header] = []


def reference(records: list[Record], known: Known, pending: list[Answer], drawn: Drawn) -> Answer:
    answer = Answer()
    first = {one: told for held in pending for _, _, one, _, _, told in held.fresh}
    for record in records:
        place = (record.source, record.offset)
        kind, header = mark_of(record, drawn.reads)
        if kind in ("abandoned", "remnant"):
            answer.dropped[place] = Verdict[kind.upper()]
            continue
        bucket = header.mark.minted_at_ms // BUCKET_MS if kind == "internal" else None
        if header is not None:
            one: bytes = header.id
        else:
            name = name_of(record)
            one = positional(record.source, record.offset) if name is None else named(name)
        told, decided = digest(record), known.has(one, bucket)
        if decided or one in first:
            answer.dropped[place] = Verdict.DUPLICATE
            if bucket is None and drawn.payloads:
                before = known.external[one] if decided else first[one]
                if before is not None and before != told:
                    answer.conflicts.append(place)
        else:
            answer.fresh.append(
                (*place, one, bucket, header.mark if bucket is not None else None, told)
            )
        first.setdefault(one, told)
    return answer
