"""The judge, a column at a time, beside one that takes record by record with a dict and a set."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from dedup.arrays import from_raw, pack
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.errors import InvalidUsage
from dedup.formats.dropped import Verdict
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part
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
    ReadSeq,
    RecordId,
    Source,
    TopicId,
)
from delivery.batch import batches_of
from delivery.header import NAME, Header, encode_header
from delivery.judge import CONFLICTS_SHOWN, Judge
from delivery.naming import Foreign
from delivery.protocol.senders import Mark
from delivery.records import Record
from delivery.verdicts import EXTERNAL, Verdicts

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


# Side by side ---------------------------------------------------------------------------------


class DictIndex:
    """The index port over the reference's own dicts."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.heads: list[Head] = []

    def catch_up(self, head):
        self.heads.append(head)

    def took(self, _seal, _parts):
        return True

    def decided(self, ids, buckets):
        asked = zip(ids, buckets.tolist(), strict=True)
        found = [self.known.has(raw(one), None if at == EXTERNAL else at) for one, at in asked]
        return np.array(found, dtype=np.bool_)

    def digests_of(self, ids):
        found = [self.known.external.get(raw(one)) for one in ids]
        known = np.array([one is not None for one in found], dtype=np.bool_)
        return known, np.array([one or 0 for one in found], dtype=np.uint16)


def raw(one) -> bytes:
    return one.astype(">u8").tobytes()


def judge_over(known: Known, *, payloads: bool, id_from=name_of) -> Judge:
    catalog = Catalog(MemoryStore())
    catalog.recreate(SENDER, ROW)
    return Judge(catalog, DictIndex(known), id_from, lambda: (SENDER,), payloads=payloads)


def head_after(reads: dict[Incarnation, int], end: Frontier) -> Head:
    read = tuple(sorted(ReadSeq(SENDER, one, MID, seq) for one, seq in reads.items()))
    return Head(ref=HeadRef(NOW, 1, Attempt(b"h" * 16)), frontier=end, read_seqs=read)


def seen_in(verdicts: Verdicts) -> Answer:
    """Return columns as the reference tells them."""
    answer, row = Answer(), 0
    for pick in verdicts.picks:
        for record in pick.batch.records(pick.rows):
            bucket, of = int(verdicts.buckets[row]), int(verdicts.mark_of[row])
            mark = verdicts.marks[of][0] if of >= 0 else None
            told = int(verdicts.digests[row]) if len(verdicts.digests) else digest(record)
            one = raw(verdicts.ids[row])
            internal = None if bucket == EXTERNAL else bucket
            answer.fresh.append((record.source, record.offset, one, internal, mark, told))
            row += 1
    for run in verdicts.dropped:
        for offset in range(run.offset, run.offset + run.count):
            answer.dropped[run.source, offset] = run.verdict
    answer.conflicts = [(conflict.source, conflict.offset) for conflict in verdicts.conflicts]
    return answer


def learned_at(end: Frontier) -> list[tuple[Incarnation, int]]:
    """What sealing up to `end` proves: both partitions are past what the sender delivered."""
    if any(
        (end.at(source) or 0) < DELIVERED for source in SOURCES[:2] if end.at(source) is not None
    ):
        return []
    return [(PAST, KEPT), (NOW, LAST - 1)]


def parts_of(answers: Answer, lane_time_ms: int, *, payloads: bool) -> list[Part]:
    """The segment that sealing an answer makes."""
    held: dict[Bucket, dict[bytes, int]] = {}
    seen: dict[Bucket, dict[tuple[Incarnation, TopicId], int]] = {}
    for source, _, one, bucket, mark, told in answers.fresh:
        at = (
            Bucket(Origin.EXTERNAL, lane_time_ms // BUCKET_MS)
            if bucket is None
            else Bucket(Origin.INTERNAL, bucket)
        )
        held.setdefault(at, {})[one] = told
        if mark is not None:
            key = (mark.incarnation, source.topic)
            highest = seen.setdefault(at, {})
            highest[key] = max(mark.seq, highest.get(key, 0))
    made = []
    for at in sorted(held):
        reads = [ReadSeq(SENDER, one, topic, seq) for (one, topic), seq in seen.get(at, {}).items()]
        digests = b""
        if payloads and at.origin is Origin.EXTERNAL:
            digests = b"".join(told.to_bytes(2, "little") for _, told in sorted(held[at].items()))
        made.append(Part(at, b"".join(sorted(held[at])), tuple(sorted(reads)), digests))
    return made


LINE = Line(b"a", b"1", None, late=False)


@given(runs)
@example(
    Drawn([([LINE, LINE._replace(value=b"2")] * 6, [LINE], [LINE])], [False] * 4, {}, payloads=True)
)
def test_the_columns_say_what_record_by_record_is_said(drawn):
    HEADERS[:] = list(
        {
            line.header
            for bundle in drawn.bundles
            for part in bundle
            for line in part
            if line.header is not None
        }
    )
    known, pending, held = Known(), [], []
    judge = judge_over(known, payloads=drawn.payloads)
    ends = dict.fromkeys(SOURCES, 0)
    sealed = Frontier.of(ends.items())
    for number, bundle in enumerate(drawn.bundles):
        if drawn.seals[number]:
            for answer in pending:
                for _, _, one, bucket, _, told in answer.fresh:
                    if bucket is None:
                        known.external.setdefault(one, told if drawn.payloads else None)
                    else:
                        known.internal.add((bucket, one))
            pending, held, sealed = [], [], Frontier.of(ends.items())
        records = []
        for source, part in zip(SOURCES, bundle, strict=True):
            records += records_of(source, part, ends[source])
            ends[source] += 2 * len(part)
        end = Frontier.of(ends.items())
        expected = reference(records, known, pending, drawn)
        head = head_after(drawn.reads, sealed)
        verdicts = judge.judge(batches_of(records), end, head, held)
        found = seen_in(verdicts)
        assert found.fresh == expected.fresh
        assert found.dropped == expected.dropped
        assert verdicts.conflict == len(expected.conflicts)
        assert found.conflicts == expected.conflicts[:CONFLICTS_SHOWN]
        assert [(read.incarnation, read.seq) for read in sorted(verdicts.learned)] == learned_at(
            end
        )
        kinds = list(expected.dropped.values())
        counts = verdicts.counts
        assert (counts.duplicate, counts.remnant, counts.abandoned) == tuple(
            kinds.count(kind) for kind in Verdict
        )
        assert (counts.read, counts.fresh) == (len(records), len(expected.fresh))
        lane_time = 7 * BUCKET_MS + number
        assert list(verdicts.parts(lane_time)) == parts_of(
            expected, lane_time, payloads=drawn.payloads
        )
        assert list(verdicts.raw_ids()) == [one for _, _, one, _, _, _ in expected.fresh]
        pending, held = [*pending, expected], [*held, verdicts]


# Senders that the catalog does not know -------------------------------------------------------


def strange(name: bytes) -> Record:
    mark = Mark(STRANGER, NOW, 1, 0)
    header = encode_header(Header(named(b"theirs"), mark))
    return Record(b"v", None, (("id", name), (NAME, header)), 0, SOURCES[0], 7)


def test_a_record_of_a_sender_that_nobody_knows_is_refused_and_named():
    judge = judge_over(Known(), payloads=False)
    head = head_after({}, Frontier())
    with pytest.raises(InvalidUsage, match="offset 7 of partition 0"):
        judge.judge(batches_of([strange(b"a")]), Frontier(), head, [])


def test_its_id_is_taken_as_a_foreign_one_where_the_stage_says_so():
    judge = judge_over(Known(), payloads=False, id_from=Foreign())
    twice = [strange(b"a"), strange(b"b")._replace(offset=8)]
    verdicts = judge.judge(batches_of(twice), Frontier(), head_after({}, Frontier()), [])
    assert list(verdicts.raw_ids()) == [named(named(b"theirs"))]
    assert (verdicts.ids == pack([named(named(b"theirs"))])).all()
    assert verdicts.buckets.tolist() == [EXTERNAL]
    assert (from_raw(verdicts.parts(0)[0].ids) == verdicts.ids).all()


# Senders that are read again ------------------------------------------------------------------


class Growing(Catalog):
    """A catalog whose sender has sealed more each time it is read."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.seq = 0

    def load(self, _lane):
        self.seq += 1
        head = replace(ROW.head, ref=replace(ROW.head.ref, seq=KEPT + self.seq))
        return replace(ROW, head=head, ack=Ack(NOW, 0))


def test_a_sender_whose_row_is_older_than_a_record_is_read_once_more_and_then_believed():
    catalog = Growing()
    judge = Judge(catalog, DictIndex(Known()), name_of, tuple)
    head = head_after({}, Frontier())

    def judged(seq: int) -> Verdicts:
        header = encode_header(Header(named(b"x"), Mark(SENDER, NOW, seq, 0)))
        record = Record(b"v", None, ((NAME, header),), 0, SOURCES[0], 0)
        return judge.judge(batches_of([record]), Frontier(), head, [])

    assert judged(KEPT + 1).buckets.tolist() == [0]
    assert catalog.seq == 1
    judged(KEPT + 1)
    assert catalog.seq == 1, "what was read before is enough"
    assert judged(KEPT + 2).buckets.tolist() == [0]
    assert judged(KEPT + 9).buckets.tolist() == [EXTERNAL], "after a fresh read, it is forged"
    judge.forget_senders()
    judged(KEPT + 1)
    assert catalog.seq == 4
