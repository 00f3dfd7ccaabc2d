"""The core by events: how a lane ends, what may not come, and what comes too late."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from enum import Enum
from types import UnionType
from typing import get_args

import pytest

from dedup.model import Frontier, Incarnation, Source, TopicId
from delivery.protocol import lane as core
from delivery.protocol import messages as m
from delivery.protocol import state
from delivery.protocol.state import STORY_LENGTH, IllegalTransitionError, Lane, Phase, Step
from tests.unit.lane_story import (
    OTHER,
    OWNER,
    TOPIC,
    TOPICS,
    Story,
    at,
    head,
    named,
    of,
    out,
    ref,
    row,
    sealed,
)

WON, LOST, UNKNOWN = m.Outcome.WON, m.Outcome.LOST, m.Outcome.UNKNOWN


def foreign(seq: int) -> state.HeadRef:
    return ref(seq, owner=OTHER)


def fenced_row(seq: int = 5):
    """The lane's row after a restore."""
    found = row(seq, at(10))
    return type(found)(
        head=type(found.head)(ref=foreign(seq), frontier=at(10), topics=TOPICS),
        ack=type(found.ack)(OTHER, seq),
    )


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


def in_resolution() -> Story:
    story = Story()
    story.open(row(5, at(10)))
    story.poll(10, 12)
    story.append(0)
    story.tell(m.Appended(0, UNKNOWN))
    return story


def in_reload() -> Story:
    story = in_resolution()
    story.tell(m.Resolved(0, row(6, at(11)), named("winner")))
    return story


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


# Illegal, late, closed ------------------------------------------------------------------------

SOURCE_EVENTS: tuple[m.Event, ...] = (
    m.Opened(at(0)),
    m.Loaded(row(3, at(5)), TOPICS),
    m.Started(WON),
    m.Polled(at(5), at(6)),
    m.Classified(0, named("mine"), 0),
    m.Ran(0),
    m.Stored(0, sealed(m.Store(0, ref(4), at(5), at(6), 1, 0))),
    m.Appended(0, WON),
    m.Resolved(0, row(3, at(5)), None),
    m.Delivered(3, Frontier()),
    m.Missing(3),
    m.Acknowledged(row(3, at(5)).ack, WON),
    m.RowRead(row(3, at(5))),
    m.Ending(at(9)),
    m.Broke("it broke"),
)


def in_phase(phase: Phase) -> Story:
    """A lane in a phase, without a bundle."""
    story = Story()
    if phase is Phase.NEW:
        return story
    story.tell(m.Opened(at(5)))
    if phase is Phase.STARTING:
        story.tell(m.Loaded(None, TOPICS))
    elif phase is not Phase.LOADING:
        story.tell(m.Loaded(row(3, at(5)), TOPICS))
    if phase is Phase.RELOADING:
        story.poll(5, 6)
        story.append(0)
        story.tell(m.Appended(0, UNKNOWN))
        story.tell(m.Resolved(0, row(4, at(6)), named("winner")))
    elif phase is Phase.CLOSED:
        story.tell(m.Broke("it broke"))
    assert story.lane.phase is phase
    return story


LEGAL = {
    Phase.NEW: {m.Opened},
    Phase.LOADING: {m.Loaded},
    Phase.STARTING: {m.Started},
    Phase.OPEN: set(core._WHILE_OPEN),
    Phase.RELOADING: {m.Loaded, *core._WHILE_OPEN},
    Phase.CLOSED: {type(event) for event in SOURCE_EVENTS} - {m.Opened, m.Ending, m.Broke},
}


def test_the_examples_are_one_of_each_event():
    assert [type(event) for event in SOURCE_EVENTS] == list(get_args(m.Event))


@pytest.mark.parametrize("event", SOURCE_EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("phase", list(Phase), ids=lambda phase: phase.value)
def test_every_event_in_every_phase_is_in_the_table_or_raises(phase, event):
    story = in_phase(phase)
    if type(event) in LEGAL[phase] | {m.Ending, m.Broke}:
        story.tell(event)
        return
    before = story.lane
    with pytest.raises(IllegalTransitionError, match=type(event).__name__):
        story.tell(event)
    assert story.lane == before


@pytest.mark.parametrize("event", [e for e in SOURCE_EVENTS if hasattr(e, "ticket")])
@pytest.mark.parametrize("step", list(Step), ids=lambda step: step.value)
def test_every_answer_at_every_step_of_a_bundle_moves_it_on_or_raises(step, event):
    story = Story()
    story.open(row(3, at(5)))
    story.poll(5, 6)
    (bundle,) = story.lane.pending
    seal = sealed(m.Store(0, ref(4), at(5), at(6), 1, 0))
    bundle = replace(bundle, step=step, ref=ref(4), seal=seal)
    story.lane = replace(story.lane, pending=(bundle,))
    if (step, type(event)) in core._BY_STEP:
        story.tell(event)
        assert all(bundle.step is not step for bundle in story.lane.pending)
    else:
        with pytest.raises(IllegalTransitionError):
            story.tell(event)


def test_an_illegal_transition_tells_the_lanes_story_of_bounded_length():
    story = Story()
    story.open(row(0, at(0)))
    for offset in range(50):
        story.poll(offset, offset + 1)
    with pytest.raises(IllegalTransitionError) as raised:
        story.tell(m.Started(WON))
    told = str(raised.value)
    assert "Started(outcome=<Outcome.WON" in told
    assert told.count("Polled(") == STORY_LENGTH
    assert len(story.lane.story) == STORY_LENGTH + 1


@pytest.mark.parametrize("event", [e for e in SOURCE_EVENTS if hasattr(e, "ticket")])
@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.RELOADING])
def test_a_late_answer_to_a_discarded_ticket_changes_nothing(phase, event):
    story = in_reload()
    if phase is Phase.OPEN:
        story.tell(m.Loaded(row(6, at(12)), TOPICS))
    assert story.lane.phase is phase
    before = story.lane
    assert story.tell(event) == []
    assert story.lane == before


@pytest.mark.parametrize("event", SOURCE_EVENTS[1:], ids=lambda event: type(event).__name__)
def test_whatever_comes_late_to_a_lane_that_has_stopped_changes_nothing(event):
    story = in_phase(Phase.CLOSED)
    before = story.lane
    assert story.tell(event) == []
    assert story.lane == before


def test_a_delivery_that_nobody_owes_changes_nothing():
    story = Story()
    story.open(row(3, at(5)))
    before = story.lane
    assert story.tell(m.Delivered(2, out(9))) == []
    assert story.lane == before


# The values -----------------------------------------------------------------------------------


def members(union: UnionType) -> list[type]:
    return list(get_args(union))


VALUES = [
    *members(m.Event),
    *members(m.Instruction),
    Lane,
    state.Bundle,
    state.Owed,
    state.Limits,
]


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_every_value_of_the_core_is_frozen_and_slotted(kind):
    blank = kind.__new__(kind)
    assert not hasattr(blank, "__dict__")
    name = next((field.name for field in fields(kind)), "anything")
    with pytest.raises((FrozenInstanceError, TypeError)):
        setattr(blank, name, None)


def test_every_value_of_the_core_is_in_a_union_and_lanes_are_hashable():
    made = {
        kind
        for kind in vars(m).values()
        if isinstance(kind, type) and kind.__module__ == m.__name__ and not issubclass(kind, Enum)
    }
    assert made == {*members(m.Event), *members(m.Instruction)}
    story = in_resolution()
    assert hash(story.lane) == hash(replace(story.lane, story=()))
    assert story.lane == replace(story.lane, story=())


def test_heads_differ_by_incarnation_seq_and_attempt():
    mine = head(1, at(1)).ref
    others = [ref(1, owner=Incarnation(OTHER)), ref(2), ref(1, "another")]
    assert mine not in others
    assert mine == ref(1)
    assert mine.incarnation == OWNER
