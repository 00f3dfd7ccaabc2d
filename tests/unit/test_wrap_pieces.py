"""Verdicts made in many tasks become those of one bundle, and what a run's tasks are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dedup.arrays import pack
from dedup.errors import InvalidUsage
from dedup.formats.dropped import Run, Verdict
from dedup.local.stats import Asked, Counters
from dedup.model import Attempt, Frontier, Head, HeadRef, Incarnation, RecordId, Source, TopicId
from delivery.batch import batches_of
from delivery.judge import CONFLICTS_SHOWN
from delivery.kafka.port import Fetched
from delivery.microbatch.columns import batch_of, split
from delivery.naming import id_from, names_of, per_topic
from delivery.records import Record
from delivery.verdicts import EXTERNAL, Conflict, Verdicts
from delivery.wrap import token as tokens
from delivery.wrap.judging import judge_range
from delivery.wrap.outputs import placing, rows_of
from delivery.wrap.pieces import Piece, Pieces, merged, piece_of, runs
from delivery.wrap.token import Token

TOPIC = TopicId(b"t" * 16)
A, B = Source(TOPIC, 0), Source(TOPIC, 1)
HEAD = Head(
    ref=HeadRef(Incarnation(b"i" * 16), 3, Attempt(b"a" * 16)),
    frontier=Frontier.of([(A, 4), (B, 2)]),
)


def piece(
    offsets: list[int], names: bytes, dropped: tuple[int, ...] = (), digests: tuple[int, ...] = ()
) -> Piece:
    """Return a piece whose fresh records have these one-letter ids."""
    return Piece(
        read=len(offsets) + len(dropped),
        newest=max(offsets, default=0),
        offsets=np.array(offsets, dtype=np.int64),
        ids=pack([RecordId(bytes([name]) * 16) for name in names]),
        buckets=np.full(len(offsets), EXTERNAL, dtype=np.int64),
        mark_of=np.full(len(offsets), -1, dtype=np.intp),
        digests=np.array(digests, dtype=np.uint16),
        dropped=np.array(dropped, dtype=np.int64),
        reasons=np.full(len(dropped), Verdict.REMNANT, dtype=np.uint8),
    )


def test_records_without_a_name_are_counted_over_all_pieces():
    one = piece_of([Verdicts(unnamed=2), Verdicts(unnamed=1)], 0, Asked())
    found = merged({A: one, B: replace(piece([2], b"c"), unnamed=1)})
    assert found.verdicts.unnamed == 4


def test_pieces_without_a_common_id_are_put_one_after_the_other():
    found = merged({B: piece([2, 3], b"cd"), A: piece([4, 6], b"ab", (5,))})
    assert found.drops == ()
    assert found.newest == 6
    counts = found.verdicts.counts
    assert (counts.read, counts.fresh, counts.remnant, counts.duplicate) == (5, 4, 1, 0)
    assert found.verdicts.dropped == [Run(A, 5, 1, Verdict.REMNANT)]
    assert b"".join(found.verdicts.raw_ids()) == b"".join(bytes([n]) * 16 for n in b"abcd")


def test_a_repeat_in_another_partition_is_dropped_there():
    found = merged({A: piece([4, 6], b"ab"), B: piece([2, 3, 4], b"bxa", (5,))})
    assert found.drops == (Run(B, 2, 1, Verdict.DUPLICATE), Run(B, 4, 1, Verdict.DUPLICATE))
    counts = found.verdicts.counts
    assert (counts.read, counts.fresh, counts.remnant, counts.duplicate) == (6, 3, 1, 2)
    assert found.verdicts.dropped == [
        Run(B, 2, 1, Verdict.DUPLICATE),
        Run(B, 4, 1, Verdict.DUPLICATE),
        Run(B, 5, 1, Verdict.REMNANT),
    ]


def test_a_repeat_in_another_partition_with_another_payload_is_a_conflict():
    pieces = {
        A: piece([4, 6], b"ab", digests=(1, 2)),
        B: piece([2, 3, 4], b"bxa", (5,), digests=(7, 1, 1)),
    }
    found = merged(pieces).verdicts
    assert found.counts.conflict == 1, "b says something else, a says the same again"
    assert found.conflicts == [Conflict(B, 2, b"b" * 16)]
    assert found.digests.tolist() == [1, 2, 1]
    without = merged(
        {source: replace(one, digests=one.digests[:0]) for source, one in pieces.items()}
    )
    assert without.verdicts.counts.conflict == 0, "the stage does not look"
    named = merged({A: pieces[A], B: replace(pieces[B], buckets=np.zeros(3, dtype=np.int64))})
    assert named.verdicts.counts.conflict == 0, "ids that a stage made are no publisher's"


def test_of_many_conflicts_across_partitions_all_are_counted_and_a_few_kept():
    count = 3 * CONFLICTS_SHOWN
    names, at = bytes(range(count)), list(range(count))
    pieces = {A: piece(at, names, digests=(1,) * count), B: piece(at, names, digests=(2,) * count)}
    found = merged(pieces).verdicts
    assert found.counts.conflict == count
    assert [one.offset for one in found.conflicts] == list(range(CONFLICTS_SHOWN))


def test_nothing_read_is_nothing_decided():
    found = merged({})
    assert (found.drops, found.newest, found.verdicts.counts.read) == ((), 0, 0)


def test_the_same_report_twice_is_one_and_another_is_noticed():
    pieces = Pieces()
    once = pieces.addInPlace(pieces.zero({}), {("run", A): piece([4], b"a")})
    assert not pieces.addInPlace(once, {("run", A): piece([4], b"a")})["run", A].mixed
    assert pieces.addInPlace(once, {("run", A): piece([4], b"b")})["run", A].mixed


def test_a_failure_is_kept_whatever_else_is_reported():
    pieces = Pieces()
    failed = Piece(failed={"kind": "Corrupt"})
    both = pieces.addInPlace({("run", A): piece([4], b"a")}, {("run", A): failed})
    assert pieces.addInPlace(both, {("run", A): piece([4], b"a")})["run", A].failed is not None


def test_runs_are_in_the_order_of_their_offsets():
    reasons = np.array([1, 1, 2], dtype=np.uint8)
    assert runs(A, np.array([9, 3, 4]), reasons) == [
        Run(A, 3, 1, Verdict.DUPLICATE),
        Run(A, 4, 1, Verdict.REMNANT),
        Run(A, 9, 1, Verdict.DUPLICATE),
    ]


def token(**more: object) -> Token:
    known = {
        "run": "r",
        "lane": "p/s/all",
        "head": HEAD,
        "topics": {"orders": TOPIC},
        "ranges": {A: (4, 9), B: (2, 2)},
    }
    return Token(**known | more)


class Busy:
    """A bench whose filters are asked, and found to be saturated, whenever it judges."""

    def __init__(self) -> None:
        self.index = self
        self.counters = Counters(probes=100, saturated=7)

    def judge(self, *asked: object) -> Any:
        if not asked:
            return self
        self.counters.probes += 10
        self.counters.saturated += 1
        return Verdicts()


def test_how_filters_did_while_a_range_was_judged_is_reported():
    (batch,) = batches_of([Record(b"7", source=A, offset=at) for at in range(4, 9)])
    rows = [Fetched(batch.cut(4, 6), 6), Fetched(batch.cut(6, 9), 9)]
    found = judge_range(token(), Busy(), A, rows)
    assert (found.asked.probes, found.saturated) == (20, 2)


def test_a_token_comes_back_as_it_was():
    told = token(judged=False, drops=(Run(A, 5, 2, Verdict.DUPLICATE),))
    assert Token.decode(told.encode()) == told


def test_a_token_that_is_too_large_for_a_property_is_refused(monkeypatch):
    monkeypatch.setattr(tokens, "BYTES_MAX", 10)
    with pytest.raises(InvalidUsage, match="maxOffsetsPerTrigger"):
        token().encode()


def test_a_name_is_one_within_its_topic():
    way = per_topic(id_from("value"))
    other = Source(TopicId(b"o" * 16), 0)
    first, second = (batches_of([Record(b"7", source=source)])[0] for source in (A, other))
    rows = np.array([0])
    assert names_of(way, first, rows) != names_of(way, second, rows)
    assert names_of(way, first, rows) == [way(Record(b"7", source=B))]
    assert names_of(per_topic(id_from(None)), first, rows) == [None]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def kafka_rows() -> pa.RecordBatch:
    """Return rows as Spark's Kafka source has them, of two partitions and two topics."""
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k", None, None, None], pa.binary()),
            "value": pa.array([b"a", b"b", None, b"d"], pa.binary()),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}], None, [], [{"key": "n", "value": None}]], HEADERS
            ),
            "topic": pa.array(["orders", "orders", "orders", "others"]),
            "partition": pa.array([0, 0, 1, 1], pa.int32()),
            "offset": pa.array([7, 9, 3, 3], pa.int64()),
            "timestamp": pa.array([1_000, 2_999, 0, 5_000], pa.timestamp("us", "UTC")),
        }
    )


def test_spark_s_rows_become_batches_of_one_partition_each():
    topics = {"orders": TOPIC, "others": TopicId(b"o" * 16)}
    found = [
        list(batch_of(part, source))
        for part, source in split(kafka_rows(), lambda name, number: Source(topics[name], number))
    ]
    other = Source(topics["others"], 1)
    assert found == [
        [Record(b"a", b"k", (("h", b"1"),), 1, A, 7), Record(b"b", None, (), 2, A, 9)],
        [Record(None, None, (), 0, B, 3)],
        [Record(b"d", None, (("n", b""),), 5, other, 3)],
    ]


def test_a_slice_has_its_own_headers():
    part = kafka_rows().slice(3, 1)
    assert next(iter(batch_of(part, A))).headers == (("n", b""),)


def test_no_rows_are_no_batches():
    assert list(split(kafka_rows().slice(0, 0), Source)) == []


def outputs(**columns: list[object]) -> pa.Table:
    count = len(columns["value"])
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": HEADERS,
        "topic": pa.string(),
        "partition": pa.int32(),
    }
    return pa.table(
        {name: pa.array(columns.get(name, [None] * count), kind) for name, kind in types.items()}
    )


def test_rows_of_a_plan_are_outputs_without_a_parent():
    table = outputs(value=[b"a", b"b"], topic=[None, "second"], partition=[None, 3])
    rows, chosen = rows_of(table, ("first", "second"))
    assert (rows.edges, rows.values, chosen) == ([0, 1], [b"a", b"b"], [None, 3])
    assert (rows.parent_partitions, rows.parent_offsets) == ([-1, -1], [-1, -1])
    assert placing(rows).parent_partitions == [0, 1]


def test_a_row_for_a_topic_that_was_not_said_is_refused():
    with pytest.raises(InvalidUsage, match="topic third"):
        rows_of(outputs(value=[b"a"], topic=["third"]), ("first", "second"))


def test_a_row_that_no_broker_takes_is_refused():
    with pytest.raises(InvalidUsage):
        rows_of(outputs(value=[b"x" * (1 << 20)]), ("first",))
