"""Which ids may be forgotten: by sequence if they are ours, by lane time if a publisher's."""

from __future__ import annotations

import pytest

from dedup.expiry import WINDOW_MS_DEFAULT, WINDOW_MS_MAX, forgettable
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part
from dedup.model import Attempt, Frontier, Head, HeadRef, Incarnation, ReadSeq, TopicId

OURS, OTHERS = Incarnation(b"i" * 16), Incarnation(b"j" * 16)
TOPIC, ELSEWHERE = TopicId(b"t" * 16), TopicId(b"u" * 16)
IDS = b"a" * 16 + b"b" * 16
WINDOW_MS = 3 * BUCKET_MS


def head(lane_time_ms: int = 0, *reads: ReadSeq) -> Head:
    ref = HeadRef(OURS, 9, Attempt(b"a" * 16))
    return Head(ref=ref, frontier=Frontier(), lane_time_ms=lane_time_ms, read_seqs=reads)


def external(time_ms: int) -> Part:
    return Part(Bucket.at(Origin.EXTERNAL, time_ms), IDS)


def internal(*seen: ReadSeq, time_ms: int = 0) -> Part:
    return Part(Bucket.at(Origin.INTERNAL, time_ms), IDS, seen)


def read(seq: int, sender: str = "s", owner: Incarnation = OURS, topic: TopicId = TOPIC) -> ReadSeq:
    return ReadSeq(sender, owner, topic, seq)


def test_an_external_id_is_held_for_the_window_behind_the_end_of_its_bucket():
    part = external(5 * BUCKET_MS + 1)
    last = 6 * BUCKET_MS + WINDOW_MS
    assert not forgettable(part, head(last - 1), WINDOW_MS)
    assert forgettable(part, head(last), WINDOW_MS)


def test_no_bucket_is_younger_than_its_last_id():
    """An id of the bucket's last millisecond is held for the whole window too."""
    part = external(6 * BUCKET_MS - 1)
    assert not forgettable(part, head(6 * BUCKET_MS - 1 + WINDOW_MS), WINDOW_MS)


def test_lane_time_decides_and_nothing_that_was_read():
    part = external(0)
    assert not forgettable(part, head(0, read(99)), WINDOW_MS)


def test_an_internal_part_goes_when_everything_up_to_its_highest_seq_was_read():
    part = internal(read(5))
    assert not forgettable(part, head(0, read(4)), WINDOW_MS)
    assert forgettable(part, head(0, read(5)), WINDOW_MS)
    assert forgettable(part, head(0, read(6)), WINDOW_MS)


def test_no_lane_time_however_late_replaces_a_read_seq():
    part = internal(read(5))
    assert not forgettable(part, head(1 << 50), WINDOW_MS)


def test_every_sender_seen_in_a_part_must_be_read():
    part = internal(read(5, "s"), read(2, "t"))
    assert not forgettable(part, head(0, read(5, "s")), WINDOW_MS)
    assert not forgettable(part, head(0, read(5, "s"), read(1, "t")), WINDOW_MS)
    assert forgettable(part, head(0, read(5, "s"), read(2, "t")), WINDOW_MS)


@pytest.mark.parametrize(
    "other",
    [read(99, "t"), read(99, owner=OTHERS), read(99, topic=ELSEWHERE)],
    ids=["another sender", "another incarnation", "another topic"],
)
def test_what_was_read_of_others_says_nothing(other):
    assert not forgettable(internal(read(5)), head(0, other), WINDOW_MS)


def test_the_default_window_is_a_day_and_the_longest_thirty():
    assert WINDOW_MS_MAX == 30 * WINDOW_MS_DEFAULT == 30 * 24 * 3600 * 1000
    part = external(0)
    assert not forgettable(part, head(WINDOW_MS_MAX), WINDOW_MS_MAX)
    assert forgettable(part, head(WINDOW_MS_MAX + BUCKET_MS), WINDOW_MS_MAX)
