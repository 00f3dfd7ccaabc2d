"""The core by events: how a lane ends, whom it fences, and what it refuses to read."""

from __future__ import annotations

import pytest

from dedup.model import Ack, Frontier, Head, LaneRow, Source, TopicId
from delivery.protocol import messages as m
from tests.unit.lane_story import (
    OTHER,
    TOPIC,
    TOPICS,
    Story,
    at,
    in_reload,
    in_resolution,
    named,
    of,
    out,
    ref,
    row,
)

WON, LOST, UNKNOWN = m.Outcome.WON, m.Outcome.LOST, m.Outcome.UNKNOWN


def fenced_row(seq: int = 5) -> LaneRow:
    """The lane's row after a restore."""
    fenced = Head(ref=ref(seq, owner=OTHER), frontier=at(10), topics=TOPICS)
    return LaneRow(head=fenced, ack=Ack(OTHER, seq))


# Missing outputs ------------------------------------------------------------------------------


def test_outputs_that_are_gone_because_somebody_settled_them_are_owed_no_more():
    story = Story()
    story.open(row(2, at(9), acked=0))
    assert story.tell(m.Missing(1)) == [m.ReadRow(1)]
    assert story.tell(m.RowRead(row(2, at(9), acked=1, collected=1), 1)) == []
    assert [debt.seq for debt in story.lane.owed] == [2]
    assert story.ended is None


def test_outputs_that_are_gone_and_not_settled_are_corrupt():
    story = Story()
    story.open(row(2, at(9), acked=0))
    story.tell(m.Missing(2))
    story.tell(m.RowRead(row(2, at(9), acked=1, collected=1), 2))
    assert story.ended is m.End.CORRUPT
    assert "seal 2" in story.why


def test_outputs_that_nobody_owes_may_be_gone():
    story = Story()
    story.open(row(2, at(9), acked=1))
    assert story.tell(m.Missing(1)) == []


def test_an_acknowledgement_under_way_survives_outputs_found_missing():
    story = Story()
    story.open(row(2, at(9), acked=0))
    (acknowledge,) = story.tell(m.Delivered(1, out(1)))
    story.tell(m.Missing(2))
    assert story.tell(m.RowRead(row(2, at(9), acked=2), 2)) == []
    assert story.lane.acking == acknowledge.ack


# Fencing and rows that cannot be --------------------------------------------------------------


def test_a_new_incarnation_fences_whoever_resolves_an_append():
    story = in_resolution()
    story.tell(m.Resolved(0, fenced_row(6), named("mine 0")))
    assert story.ended is m.End.FENCED, "even if an entry of that name is there"


def test_a_new_incarnation_fences_whoever_reads_the_lane_again():
    story = in_reload()
    story.tell(m.Loaded(fenced_row(9), TOPICS))
    assert story.ended is m.End.FENCED


@pytest.mark.parametrize("missing", [None, 6])
def test_a_new_incarnation_fences_whoever_reads_the_row_again(missing):
    story = Story()
    story.open(row(6, at(10), acked=5))
    story.tell(m.RowRead(fenced_row(6), missing))
    assert story.ended is m.End.FENCED


@pytest.mark.parametrize("event", [m.Resolved(0, None, None), m.RowRead(None)])
def test_a_lane_that_is_gone_fences(event):
    story = in_resolution()
    story.tell(event)
    assert story.ended is m.End.FENCED


def test_a_row_that_is_gone_when_the_lane_is_read_again_is_corrupt():
    story = in_reload()
    story.tell(m.Loaded(None, TOPICS))
    assert story.ended is m.End.CORRUPT


@pytest.mark.parametrize(
    "found", [row(4, at(12)), row(6, at(9))], ids=["an older seq", "an older frontier"]
)
def test_a_head_that_moved_backwards_is_corrupt(found):
    story = in_reload()
    story.tell(m.Loaded(found, TOPICS))
    assert story.ended is m.End.CORRUPT


def test_a_head_of_the_same_seq_that_somebody_else_wrote_is_corrupt():
    story = in_resolution()
    story.tell(m.Resolved(0, row(5, at(10), name="not who it was"), None))
    assert story.ended is m.End.CORRUPT


def test_what_broke_ends_the_lane_and_what_was_pending_is_disposable():
    story = in_resolution()
    story.tell(m.Broke("user code failed on offset 11"))
    assert story.ended is m.End.BROKEN
    assert story.why == "user code failed on offset 11"


# Gaps, new partitions, other logs -------------------------------------------------------------


def test_a_range_that_begins_behind_the_frontier_is_a_gap():
    story = Story()
    story.open(row(0, at(5)))
    story.poll(6, 9)
    assert story.ended is m.End.REFUSED
    assert "continues at 5" in story.why
    assert "planned from 6" in story.why


def test_a_range_that_begins_behind_what_is_under_way_is_a_gap():
    story = Story()
    story.open(row(0, at(5)))
    story.poll(5, 7)
    story.poll(8, 9)
    assert story.ended is m.End.REFUSED


def test_what_is_sealed_or_under_way_is_cut_off_a_range():
    story = Story()
    story.open(row(0, at(5)))
    (classify,) = story.poll(0, 8)
    assert (classify.start, classify.end) == (at(5), at(8))
    assert story.poll(4, 8) == []
    story.poll(4, 9)
    assert [(span.start, span.end) for span in story.lane.held] == [(at(8), at(9))]


def two(first: int, second: int) -> Frontier:
    return at(first, second)


def test_a_new_partition_begins_at_its_first_offset_wherever_the_reader_is():
    story = Story()
    story.open(row(0, at(5)))
    first = Frontier.of([(Source(TOPIC, 1), 3)])
    (classify,) = story.tell(m.Polled(two(5, 0), two(6, 8), first))
    assert classify.start == two(5, 3)


@pytest.mark.parametrize("first", [Frontier(), Frontier.of([(Source(TOPIC, 1), 3)])])
def test_a_new_partition_that_the_reader_would_begin_later_is_a_gap(first):
    story = Story()
    story.open(row(0, at(5)))
    story.tell(m.Polled(two(5, 4), two(6, 8), first))
    assert story.ended is m.End.REFUSED
    assert "partition 1" in story.why


def test_a_range_with_an_end_for_a_source_without_a_start_is_refused():
    story = Story()
    story.open(row(0, at(5)))
    story.tell(m.Polled(at(5), two(6, 8)))
    assert story.ended is m.End.REFUSED


def test_a_range_of_a_topic_that_the_lane_never_read_is_refused():
    """As after a topic was deleted and created again while the lane ran."""
    story = Story()
    story.open(row(0, at(5)))
    again = Frontier.of([(Source(TopicId(b"u" * 16), 0), 0)])
    end = Frontier.of([(Source(TopicId(b"u" * 16), 0), 4)])
    story.tell(m.Polled(again, end, again))
    assert story.ended is m.End.REFUSED
    assert "topic" in story.why


def test_a_topic_that_was_created_again_is_refused():
    story = Story()
    story.tell(m.Opened(at(0)))
    story.tell(m.Loaded(row(3, at(5)), (("in", TopicId(b"u" * 16)),)))
    assert story.ended is m.End.REFUSED
    assert "topic in was deleted and created again" in story.why


def test_an_output_topic_that_was_created_again_is_refused():
    """Receivers know the lane as a writer of the old one: they would take copies for new records."""
    story = Story()
    story.open(row(3, at(5)), writes=(TopicId(b"u" * 16),))
    assert story.ended is m.End.REFUSED
    assert "output" in story.why


def test_a_log_that_begins_behind_the_frontier_is_refused_with_what_is_lost():
    story = Story()
    story.open(row(3, at(5)), low=at(8), high=at(20))
    assert story.ended is m.End.REFUSED
    assert "offsets 5 to 8 of partition 0 are gone unread" in story.why


def test_a_log_that_ends_below_the_frontier_is_refused():
    story = Story()
    story.open(row(3, at(5)), low=at(0), high=at(4))
    assert story.ended is m.End.REFUSED
    assert "ends at 4, below" in story.why


def test_a_log_that_begins_and_ends_at_the_frontier_is_fine():
    story = Story()
    story.open(row(3, at(5)), low=at(5), high=at(5))
    assert story.ended is None


@pytest.mark.parametrize(("low", "high"), [(at(8), at(9)), (at(0), at(4))])
def test_a_lane_is_not_created_where_its_log_is_not(low, high):
    """Its first frontier would be refused for ever."""
    story = Story()
    story.tell(m.Opened(at(5)))
    assert of(story.tell(m.Loaded(None, TOPICS, low, high)), m.Start) == []
    assert story.ended is m.End.REFUSED
