"""What a mark makes of a record, and what a sealed range proves to have been read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

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
    Source,
    TopicId,
)
from delivery.protocol.rest import Kind, Rest
from delivery.protocol.senders import Horizon, Mark, Standing, learned, standing

SENDER = "shop/price/0"
NOW, PAST, OLDEST = (Incarnation(bytes([n]) * 16) for n in (3, 2, 1))
MID, OTHER = TopicId(b"m" * 16), TopicId(b"o" * 16)

#: The lane sealed 1 to 4 first, 5 and 6 after a restore, 7 to 9 after another one.
ROW = LaneRow(
    head=Head(
        ref=HeadRef(NOW, 9, Attempt(b"a" * 16)),
        frontier=Frontier(),
        writes=(OTHER, MID),
        past=(Kept(OLDEST, 4), Kept(PAST, 6)),
    ),
    ack=Ack(NOW, 8, Frontier.of([(Source(MID, 0), 20), (Source(MID, 1), 5)])),
)


def mark(seq: int, incarnation: Incarnation = NOW, **more: bool) -> Mark:
    return Mark(SENDER, incarnation, seq, 0, **more)


def judged(found: Mark, row: LaneRow | None = ROW, topic: TopicId = MID, reads=None) -> Standing:
    """What a record is once its sender's row was read after it."""
    return standing(found, row, topic, reads or {}, fresh=True)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (mark(9), Standing.INTERNAL),
        (mark(7), Standing.INTERNAL),
        (mark(6, PAST), Standing.INTERNAL),
        (mark(4, OLDEST), Standing.INTERNAL),
        (mark(9, kept=True), Standing.KEPT),
        (mark(6, PAST, kept=True), Standing.KEPT),
        (mark(10), Standing.EXTERNAL),
        (mark(7, PAST), Standing.ABANDONED),
        (mark(5, OLDEST), Standing.ABANDONED),
        (mark(9, kept=True, incarnation=OLDEST), Standing.ABANDONED),
        (mark(1, Incarnation(b"x" * 16)), Standing.ABANDONED),
        (mark(6), Standing.EXTERNAL),
        (mark(4, PAST), Standing.EXTERNAL),
    ],
    ids=[
        "the head",
        "the first of the current incarnation",
        "the last kept of a past one",
        "the last kept of the oldest",
        "re-keyed",
        "re-keyed in the past",
        "above the head: forged",
        "beyond what a past incarnation kept",
        "beyond what the oldest kept",
        "beyond, and re-keyed",
        "of an incarnation that is not the lane's",
        "the current incarnation never sealed so low: forged",
        "a past incarnation never sealed so low: forged",
    ],
)
def test_a_mark_counts_only_on_the_history_of_its_sender(found, expected):
    assert judged(found) is expected


def test_a_mark_on_a_topic_that_its_lane_does_not_write_is_copied():
    assert judged(mark(9), topic=TopicId(b"x" * 16)) is Standing.EXTERNAL
    assert judged(mark(9, kept=True), topic=TopicId(b"x" * 16)) is Standing.EXTERNAL


def test_a_mark_of_a_lane_that_the_catalog_does_not_know_is_a_strangers():
    assert judged(mark(9), row=None) is Standing.STRANGER


@pytest.mark.parametrize(
    ("found", "row"),
    [
        (mark(10), ROW),
        (mark(7, PAST), ROW),
        (mark(1, Incarnation(b"x" * 16)), ROW),
        (mark(6), ROW),
        (mark(9), replace(ROW, head=replace(ROW.head, writes=(OTHER,)))),
        (mark(9), None),
    ],
)
def test_nothing_is_held_against_a_record_by_a_row_older_than_it(found, row):
    assert standing(found, row, MID, {}, fresh=False) is Standing.REREAD


def test_an_old_row_is_good_enough_for_what_it_knows():
    assert standing(mark(9), ROW, MID, {}, fresh=False) is Standing.INTERNAL


@pytest.mark.parametrize("kept", [False, True])
def test_what_was_read_past_is_a_remnant_also_if_re_keyed(kept):
    reads = {(SENDER, NOW, MID): 8}
    assert judged(mark(8, kept=kept), reads=reads) is Standing.REMNANT
    assert judged(mark(7, kept=kept), reads=reads) is Standing.REMNANT
    assert judged(mark(9, kept=kept), reads=reads) is not Standing.REMNANT


@pytest.mark.parametrize(
    "key",
    [("shop/price/1", NOW, MID), (SENDER, PAST, MID), (SENDER, NOW, OTHER)],
    ids=["another lane", "another incarnation", "another topic"],
)
def test_a_read_seq_is_of_one_sender_one_incarnation_and_one_topic(key):
    assert judged(mark(8), reads={key: 99}) is Standing.INTERNAL


def test_what_is_not_on_the_history_is_no_remnant():
    """A copied or abandoned record is not dropped as a repeat of something it is not."""
    reads = {(SENDER, NOW, MID): 99, (SENDER, PAST, MID): 99}
    assert judged(mark(10), reads=reads) is Standing.EXTERNAL
    assert judged(mark(7, PAST), reads=reads) is Standing.ABANDONED


# What is proven -------------------------------------------------------------------------------


def sealed(**offsets: int) -> Frontier:
    """A receiver's sealed frontier, by partition."""
    return Frontier.of((Source(MID, int(name[1:])), offset) for name, offset in offsets.items())


def test_a_sealed_frontier_at_the_delivered_offset_proves_every_incarnation():
    assert learned(SENDER, ROW, sealed(p0=20)) == [
        ReadSeq(SENDER, NOW, MID, 8),
        ReadSeq(SENDER, OLDEST, MID, 4),
        ReadSeq(SENDER, PAST, MID, 6),
    ]


def test_a_frontier_one_record_short_proves_nothing():
    assert learned(SENDER, ROW, sealed(p0=19)) == []


def test_a_lane_that_reads_several_partitions_must_be_past_all_of_them():
    assert learned(SENDER, ROW, sealed(p0=20, p1=4)) == []
    assert learned(SENDER, ROW, sealed(p0=19, p1=5)) == []
    assert learned(SENDER, ROW, sealed(p0=20, p1=5)) != []


def test_a_partition_that_the_sender_never_wrote_to_has_been_read():
    assert learned(SENDER, ROW, sealed(p2=0)) != []


def test_a_topic_that_the_sender_does_not_write_proves_nothing():
    elsewhere = Frontier.of([(Source(TopicId(b"x" * 16), 0), 99)])
    assert learned(SENDER, ROW, elsewhere) == []


def test_each_topic_is_proven_by_its_own_partitions():
    both = Frontier.of([(Source(MID, 0), 19), (Source(OTHER, 0), 0)])
    assert {read.topic for read in learned(SENDER, ROW, both)} == {OTHER}


def test_no_more_is_proven_than_was_acknowledged():
    """An acknowledgement from before a restore says less than what was kept."""
    row = replace(ROW, ack=Ack(NOW, 5, Frontier.of([(Source(MID, 0), 7)])))
    assert [(read.incarnation, read.seq) for read in learned(SENDER, row, sealed(p0=7))] == [
        (NOW, 5),
        (OLDEST, 4),
        (PAST, 5),
    ]


# How far in time what is re-keyed has come ----------------------------------------------------

RAW = TopicId(b"r" * 16)


def sender(partition: int, *, at: int, time_ms: int, delivered: int, ack: int = 9) -> LaneRow:
    """A lane that re-keys a partition, read up to an offset, delivered up to another in `MID`."""
    head = replace(
        ROW.head, frontier=Frontier.of([(Source(RAW, partition), at)]), lane_time_ms=time_ms
    )
    return LaneRow(head=head, ack=Ack(NOW, ack, Frontier.of([(Source(MID, 0), delivered)])))


def ends(*offsets: int) -> Frontier:
    """Where the log ends that is re-keyed, by partition."""
    return Frontier.of((Source(RAW, number), offset) for number, offset in enumerate(offsets))


def look(*rows: LaneRow, high: Frontier, read: int, **more: Any) -> Horizon:
    """One look at all senders, each named by its place."""
    named = {str(place): row for place, row in enumerate(rows)}
    low = more.pop("low", ends(*(0 for _ in high)))
    times = more.pop("delivered_ms", {n: r.head.lane_time_ms for n, r in named.items()})
    return more.pop("before", Horizon()).looked(named, times, low, high, sealed(p0=read))


FAST, SLOW = sender(0, at=50, time_ms=900, delivered=7), sender(1, at=3, time_ms=100, delivered=5)


def test_the_slowest_lane_that_re_keys_says_how_far_time_has_come():
    assert look(FAST, SLOW, high=ends(60, 9), read=7).time_ms(sealed(p0=7)) == 100


def test_a_lane_that_read_its_log_to_the_end_counts_as_the_latest():
    assert look(FAST, SLOW, high=ends(60, 3), read=7).time_ms(sealed(p0=7)) == 900
    assert look(FAST, SLOW, high=ends(50, 9), read=7).time_ms(sealed(p0=7)) == 100
    assert look(FAST, SLOW, high=ends(50, 3), read=7).time_ms(sealed(p0=7)) == 900


def test_a_lane_at_its_end_that_has_not_delivered_all_of_it_counts_as_far_as_it_has():
    behind = sender(1, at=3, time_ms=100, delivered=5, ack=8)
    seen = look(FAST, behind, high=ends(60, 3), read=7, delivered_ms={"0": 900, "1": 40})
    assert seen.time_ms(sealed(p0=7)) == 40
    unknown = look(FAST, behind, high=ends(60, 3), read=7, delivered_ms={"0": 900})
    assert unknown.time_ms(sealed(p0=7)) == 0, "the seal is gone, and its time with it"


def test_a_look_proves_what_it_saw_once_that_is_read_and_nothing_before():
    seen = look(FAST, SLOW, high=ends(60, 9), read=4)
    assert [seen.time_ms(sealed(p0=read)) for read in (4, 5, 6, 7, 8)] == [0, 0, 0, 100, 100]


def test_a_bundle_that_was_given_up_proves_nothing():
    seen = look(FAST, SLOW, high=ends(60, 9), read=7)
    assert seen.time_ms(sealed(p0=7)) == 100
    assert seen.time_ms(sealed(p0=6)) == 0


def test_what_is_awaited_is_kept_whoever_runs_ahead_meanwhile():
    seen = look(FAST, SLOW, high=ends(60, 9), read=4)
    ahead = sender(0, at=55, time_ms=950, delivered=70)
    again = look(ahead, SLOW, high=ends(60, 9), read=6, before=seen)
    assert again.awaits("0", sealed(p0=6))
    assert again.time_ms(sealed(p0=7)) == 100
    further = look(ahead, SLOW, high=ends(60, 3), read=7, before=again)
    assert further.time_ms(sealed(p0=7)) == 900, "0 as it was seen first, 1 at its end"
    assert further.time_ms(sealed(p0=70)) == 950


def test_a_partition_without_a_lane_holds_time_back_unless_it_has_nothing():
    assert look(FAST, SLOW, high=ends(60, 9, 1), read=7).time_ms(sealed(p0=7)) == 0
    assert look(FAST, SLOW, high=ends(60, 9, 0), read=7).time_ms(sealed(p0=7)) == 100
    emptied = look(FAST, SLOW, high=ends(60, 9, 8), low=ends(0, 0, 8), read=7)
    assert emptied.time_ms(sealed(p0=7)) == 100


def test_a_topic_that_is_gone_or_another_one_is_no_end():
    assert look(FAST, SLOW, high=Frontier(), read=7).time_ms(sealed(p0=7)) == 100
    other = Frontier.of([(Source(OTHER, 0), 1)])
    assert look(FAST, SLOW, high=other, low=other, read=7).time_ms(sealed(p0=7)) == 100


@pytest.mark.parametrize("kind", list(Kind))
def test_a_lane_that_rests_for_good_holds_nothing_back_and_speaks_for_no_partition(kind):
    state = Rest(kind=kind, verb="retire").encode()
    rests = replace(SLOW, head=replace(SLOW.head, state=state), ack=replace(SLOW.ack, seq=9))
    found = look(FAST, rests, high=ends(60), read=7).time_ms(sealed(p0=7))
    under_way = kind in (Kind.UNDER_WAY, Kind.COPIED)
    assert found == (100 if under_way else 900)
    covered = look(FAST, rests, high=ends(60, 9), read=7).time_ms(sealed(p0=7))
    assert covered == (100 if under_way else 0)


def test_what_was_seen_before_a_restore_counts_no_more():
    seen = look(FAST, SLOW, high=ends(60, 9), read=7)
    ref = replace(SLOW.head.ref, incarnation=Incarnation(b"x" * 16))
    back = replace(SLOW, head=replace(SLOW.head, ref=ref, lane_time_ms=10))
    assert look(FAST, back, high=ends(60, 9), read=7, before=seen).time_ms(sealed(p0=7)) == 10


def test_nothing_is_known_without_a_look():
    assert Horizon().time_ms(sealed(p0=7)) == 0
    assert not Horizon().awaits("0", sealed(p0=0))
