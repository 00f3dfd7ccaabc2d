"""The judge, a column at a time, beside one that takes record by record with a dict and a set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given

from dedup.arrays import from_raw, pack
from dedup.catalog.catalog import Catalog
from dedup.catalog.memory import MemoryStore
from dedup.errors import InvalidUsage
from dedup.formats.dropped import Verdict
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part
from dedup.ids import named
from dedup.model import (
    Ack,
    Attempt,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    ReadSeq,
    TopicId,
)
from delivery.batch import batches_of
from delivery.header import NAME, Header, encode_header
from delivery.judge import CONFLICTS_SHOWN, Judge
from delivery.naming import Foreign
from delivery.protocol.senders import Mark
from delivery.records import Record
from delivery.verdicts import EXTERNAL, Verdicts
from tests.property.judge_kit import (
    DELIVERED,
    HEADERS,
    KEPT,
    LAST,
    MID,
    NOW,
    PAST,
    ROW,
    SENDER,
    SOURCES,
    STRANGER,
    Answer,
    Drawn,
    Known,
    Line,
    digest,
    name_of,
    records_of,
    reference,
    runs,
)

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

    def first_seen(self, ids):
        return [None] * len(ids)

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
