"""The core by events and instructions: start, adoption, overlap, seals, acknowledgement."""

from __future__ import annotations

import pytest

from dedup.model import Ack, Frontier
from delivery.protocol import messages as m
from delivery.protocol.state import Phase
from tests.unit.lane_story import (
    OWNER,
    TOPICS,
    Story,
    at,
    head,
    named,
    of,
    out,
    ref,
    row,
)

WON, LOST, UNKNOWN = m.Outcome.WON, m.Outcome.LOST, m.Outcome.UNKNOWN


# Beginning ------------------------------------------------------------------------------------


def test_a_lane_that_never_was_is_started_before_its_first_record_is_read():
    story = Story()
    assert story.tell(m.Opened(at(7))) == [m.Load()]
    assert story.tell(m.Loaded(None, TOPICS)) == [m.Start(at(7), TOPICS)]
    assert not story.lane.hungry, "nothing is read before the frontier is sealed"
    assert story.tell(m.Started(WON)) == [m.Load()]
    assert story.tell(m.Loaded(row(0, at(7)), TOPICS)) == [m.Release(at(7))]
    assert story.lane.hungry


def test_whoever_started_the_lane_its_frontier_counts():
    story = Story()
    story.tell(m.Opened(at(7)))
    story.tell(m.Loaded(None, TOPICS))
    assert story.tell(m.Started(LOST)) == [m.Load()]
    assert story.tell(m.Loaded(row(0, at(3)), TOPICS)) == [m.Release(at(3))]
    assert story.poll(3, 5)


def test_a_start_of_unknown_outcome_is_tried_a_bounded_number_of_times():
    story = Story(unknown_max=2)
    story.tell(m.Opened(at(0)))
    for _ in range(3):
        assert of(story.tell(m.Loaded(None, TOPICS)), m.Start)
        assert story.tell(m.Started(UNKNOWN)) == [m.Load()]
    story.tell(m.Loaded(None, TOPICS))
    assert story.ended is m.End.INDETERMINATE


def test_what_is_sealed_and_not_acknowledged_is_emitted_again_in_order():
    story = Story()
    asked = story.open(row(4, at(9), acked=2))
    assert asked == [m.Release(at(9)), m.Emit(3, OWNER), m.Emit(4, OWNER)]


def test_what_is_collected_is_not_emitted_again():
    story = Story()
    asked = story.open(row(4, at(9), acked=2, collected=3))
    assert of(asked, m.Emit) == [m.Emit(4, OWNER)]


# Overlap --------------------------------------------------------------------------------------


def test_a_bundle_is_classified_while_the_one_before_is_stored():
    story = Story()
    story.open(row(0, at(0)))
    assert story.poll(0, 2) == [m.Classify(0, at(0), at(2), head(0, at(0)), ())]
    assert story.poll(2, 5) == [], "user code runs one bundle at a time"
    assert story.tell(m.Classified(0, named("mine 0"), 0)) == [m.Run(0)]
    store, classify = story.tell(m.Ran(0))
    assert isinstance(store, m.Store)
    assert classify == m.Classify(1, at(2), at(5), head(0, at(0)), (0,))


def test_a_bundle_builds_on_the_pending_one_before_it():
    story = Story()
    story.open(row(3, at(0)))
    story.poll(0, 2)
    story.poll(2, 4)
    first, second = story.store(0), story.store(1)
    assert (first.ref, second.ref) == (ref(4, "mine 0"), ref(5, "mine 1"))
    assert (first.start, first.end, second.start, second.end) == (at(0), at(2), at(2), at(4))


def test_only_the_oldest_bundle_is_appended():
    story = Story()
    story.open(row(0, at(0)))
    story.poll(0, 2)
    story.poll(2, 4)
    first, second = story.store(0), story.store(1)
    assert of(story.stored(second), m.Append) == []
    (append,) = of(story.stored(first), m.Append)
    assert (append.ticket, append.expected) == (0, ref(0))
    (append,) = of(story.tell(m.Appended(0, WON)), m.Append)
    assert (append.ticket, append.expected) == (1, ref(1, "mine 0"))
    assert append.head.frontier == at(4)


def test_a_seal_comes_before_its_emission_and_releases_its_rows():
    story = Story()
    story.open(row(0, at(0)))
    story.poll(0, 2)
    story.append(0)
    assert of(story.asked, m.Emit) == []
    assert story.tell(m.Appended(0, WON)) == [m.Release(at(2)), m.Emit(1, OWNER, 0)]


def test_bundles_under_way_and_bundles_owed_are_bounded():
    story = Story(pending_max=2, owed_max=3)
    story.open(row(0, at(0)))
    for offset in range(6):
        story.poll(offset, offset + 1)
    for ticket in (0, 1):
        story.store(ticket)
    assert len(of(story.asked, m.Classify)) == 2, "two bundles are under way"
    story.stored(of(story.asked, m.Store)[1])
    story.stored(of(story.asked, m.Store)[0])
    story.tell(m.Appended(0, WON))
    story.tell(m.Appended(1, WON))
    story.seal(2)
    assert len(story.lane.owed) == 3
    assert len(of(story.asked, m.Classify)) == 4, "the fourth was begun before the third was owed"
    story.seal(3)
    assert not story.lane.hungry
    assert len(of(story.asked, m.Classify)) == 4, "nothing new while four are owed"
    story.tell(m.Delivered(1, out(1)))
    story.tell(m.Acknowledged(Ack(OWNER, 1, out(1)), WON))
    assert len(of(story.asked, m.Classify)) == 4
    story.tell(m.Delivered(2, out(2)))
    (acknowledge,) = of(story.asked, m.Acknowledge)[1:]
    assert of(story.tell(m.Acknowledged(acknowledge.ack, WON)), m.Classify) != []


def test_minted_at_increases_although_the_clock_jumps_back():
    story = Story()
    story.open(row(0, at(0), minted_at_ms=1000))
    minted = []
    for ticket, now_ms in enumerate((2000, 500, 500, 3000)):
        story.poll(ticket, ticket + 1)
        store = story.store(ticket, now_ms=now_ms)
        minted.append(store.minted_at_ms)
        story.stored(store)
        story.tell(m.Appended(ticket, WON))
    assert minted == [2000, 2001, 2002, 3000]


def test_lane_time_is_never_ahead_of_the_clock_and_never_falls():
    story = Story()
    story.open(row(0, at(0), lane_time_ms=100))
    found = []
    for ticket, (now_ms, newest) in enumerate([(1000, 500), (1000, 9999), (800, 900), (2000, -1)]):
        story.poll(ticket, ticket + 1)
        story.tell(m.Classified(ticket, named("mine"), now_ms, newest))
        (store,) = of(story.tell(m.Ran(ticket)), m.Store)
        found.append(store.lane_time_ms)
        story.stored(store)
        story.tell(m.Appended(ticket, WON))
    assert found == [500, 1000, 1000, 1000]


# Unknown outcomes -----------------------------------------------------------------------------


def resolving(**limits: int) -> Story:
    """A lane that has just been told nothing of its append."""
    story = Story(**limits)
    story.open(row(5, at(10)))
    story.poll(10, 12)
    story.append(0)
    assert story.tell(m.Appended(0, UNKNOWN)) == [m.Resolve(0, OWNER, 6)]
    return story


def test_an_unknown_append_whose_entry_is_mine_was_won():
    story = resolving()
    asked = story.tell(m.Resolved(0, row(6, at(12), acked=5, name="mine 0"), named("mine 0")))
    assert asked == [m.Release(at(12)), m.Emit(6, OWNER, 0)]


def test_an_unknown_append_that_others_have_built_on_was_won_too():
    story = resolving()
    story.tell(m.Resolved(0, row(9, at(30), acked=5), named("mine 0")))
    assert story.lane.known.ref == ref(6, "mine 0")


@pytest.mark.parametrize("entry", [named("another"), None], ids=["another's", "collected"])
def test_an_unknown_append_at_a_position_that_others_have_taken_was_lost(entry):
    story = resolving()
    asked = story.tell(m.Resolved(0, row(6, at(11), acked=6), entry))
    assert asked == [m.Discard(0), m.Load(1)]
    assert story.lane.phase is Phase.RELOADING


def test_an_absent_append_is_sent_again_as_the_same_attempt_and_then_given_up_as_unknown():
    story = resolving(unknown_max=3)
    (first,) = of(story.asked, m.Append)
    for _ in range(2):
        assert story.tell(m.Resolved(0, row(5, at(10)), None)) == [first]
        assert of(story.tell(m.Appended(0, UNKNOWN)), m.Resolve)
    assert story.tell(m.Resolved(0, row(5, at(10)), None)) == [first]
    story.tell(m.Appended(0, UNKNOWN))
    assert story.ended is m.End.INDETERMINATE
    assert of(story.asked, m.Emit) == [], "what may not be sealed is not emitted"


def test_a_refused_append_is_looked_into_because_a_driver_may_have_sent_it_twice():
    story = Story()
    story.open(row(0, at(0)))
    story.poll(0, 2)
    story.append(0)
    assert story.tell(m.Appended(0, LOST)) == [m.Resolve(0, OWNER, 1)]
    asked = story.tell(m.Resolved(0, row(1, at(2), acked=0, name="mine 0"), named("mine 0")))
    assert of(asked, m.Emit) == [m.Emit(1, OWNER, 0)]


def test_a_win_starts_the_count_of_unknown_outcomes_anew():
    story = Story(unknown_max=1)
    story.open(row(0, at(0)))
    for ticket in range(4):
        story.poll(ticket, ticket + 1)
        append = story.append(ticket)
        story.tell(m.Appended(ticket, UNKNOWN))
        found = row(ticket + 1, at(ticket + 1), acked=0)
        story.tell(m.Resolved(ticket, found, append.seal.ref.attempt))
    assert story.ended is None


# Lost races -----------------------------------------------------------------------------------


def test_a_loser_discards_all_it_built_backs_off_and_follows_the_winner():
    story = Story()
    story.open(row(0, at(0)))
    story.poll(0, 2)
    story.poll(2, 4)
    story.stored(story.store(0))
    story.store(1)
    story.tell(m.Appended(0, LOST))
    asked = story.tell(m.Resolved(0, row(1, at(3), acked=0), named("winner")))
    assert asked == [m.Discard(0), m.Discard(1), m.Load(1)]
    asked = story.tell(m.Loaded(row(1, at(3), acked=0), TOPICS))
    assert asked == [
        m.Release(at(3)),
        m.Emit(1, OWNER),
        m.Classify(2, at(3), at(4), head(1, at(3)), ()),
    ]


def test_a_loser_whose_rows_are_all_sealed_by_the_winner_begins_nothing():
    story = Story()
    story.open(row(0, at(0)))
    story.poll(0, 2)
    story.append(0)
    story.tell(m.Appended(0, LOST))
    story.tell(m.Resolved(0, row(2, at(5), acked=2), named("winner")))
    assert story.tell(m.Loaded(row(2, at(5)), TOPICS)) == [m.Release(at(5))]
    assert story.poll(2, 5) == [], "all of it is sealed"
    assert of(story.poll(2, 7), m.Classify)[0].start == at(5)


def test_who_loses_again_and_again_waits_longer_and_a_win_ends_it():
    story = Story()
    story.open(row(0, at(0)))
    story.poll(0, 9)
    for loss in (1, 2, 3):
        ticket = loss - 1
        story.append(ticket)
        story.tell(m.Appended(ticket, LOST))
        asked = story.tell(m.Resolved(ticket, row(loss, at(loss)), named("winner")))
        assert of(asked, m.Load) == [m.Load(loss)]
        story.tell(m.Loaded(row(loss, at(loss)), TOPICS))
    story.seal(3)
    assert story.lane.losses == 0


def test_ranges_offered_while_the_lane_is_read_again_wait():
    story = Story()
    story.open(row(0, at(0)))
    story.poll(0, 2)
    story.append(0)
    story.tell(m.Appended(0, LOST))
    story.tell(m.Resolved(0, row(1, at(1), acked=1), named("winner")))
    assert story.poll(2, 4) == []
    asked = story.tell(m.Loaded(row(1, at(1)), TOPICS))
    assert of(asked, m.Classify) == [m.Classify(1, at(1), at(2), head(1, at(1)), ())]
    assert [span.end for span in story.lane.held] == [at(4)]


# Acknowledgement ------------------------------------------------------------------------------


def test_only_a_contiguous_range_flushed_here_is_acknowledged():
    story = Story()
    story.open(row(3, at(9), acked=0, delivered=out(5)))
    assert story.tell(m.Delivered(3, out(20))) == []
    assert story.tell(m.Delivered(2, out(30))) == []
    acked, ack = Ack(OWNER, 0, out(5)), Ack(OWNER, 3, out(30))
    assert story.tell(m.Delivered(1, Frontier())) == [m.Acknowledge(acked, ack)]
    assert story.tell(m.Acknowledged(ack, WON)) == []
    assert story.lane.idle


def test_one_acknowledgement_is_under_way_at_a_time():
    story = Story()
    story.open(row(2, at(9), acked=0))
    (first,) = story.tell(m.Delivered(1, out(1)))
    assert story.tell(m.Delivered(2, out(2))) == []
    assert story.tell(m.Acknowledged(first.ack, WON)) == [
        m.Acknowledge(first.ack, Ack(OWNER, 2, out(2)))
    ]


@pytest.mark.parametrize("outcome", [LOST, UNKNOWN])
def test_an_acknowledgement_that_is_not_known_to_be_won_goes_on_from_what_is_there(outcome):
    story = Story()
    story.open(row(3, at(9), acked=0))
    (first,) = story.tell(m.Delivered(1, out(1)))
    assert story.tell(m.Acknowledged(first.ack, outcome)) == [m.ReadRow()]
    found = row(3, at(9), acked=2, delivered=out(7))
    assert story.tell(m.RowRead(found)) == []
    assert story.tell(m.Delivered(2, out(2))) == [], "nobody owes it any more"
    assert story.tell(m.Delivered(3, out(3))) == [m.Acknowledge(found.ack, Ack(OWNER, 3, out(7)))]


def test_an_acknowledgement_that_did_not_happen_is_sent_again_a_bounded_number_of_times():
    story = Story(unknown_max=2)
    story.open(row(1, at(9), acked=0))
    (first,) = story.tell(m.Delivered(1, out(1)))
    for _ in range(2):
        story.tell(m.Acknowledged(first.ack, UNKNOWN))
        assert story.tell(m.RowRead(row(1, at(9), acked=0))) == [first]
    story.tell(m.Acknowledged(first.ack, UNKNOWN))
    assert story.ended is m.End.INDETERMINATE


def test_what_others_acknowledged_while_the_lane_is_read_again_is_not_owed():
    story = Story()
    story.open(row(2, at(4), acked=0))
    story.poll(4, 6)
    story.append(0)
    story.tell(m.Appended(0, LOST))
    story.tell(m.Resolved(0, row(3, at(6), acked=2), named("winner")))
    story.tell(m.Loaded(row(3, at(6), acked=2), TOPICS))
    assert [debt.seq for debt in story.lane.owed] == [3]


def test_done_means_sealed_up_to_the_goal_and_acknowledged():
    story = Story()
    story.tell(m.Opened(at(0)))
    story.tell(m.Ending(at(4)))
    story.tell(m.Loaded(row(1, at(2), acked=0), TOPICS))
    story.tell(m.Delivered(1, out(1)))
    story.tell(m.Acknowledged(Ack(OWNER, 1, out(1)), WON))
    assert story.ended is None, "the goal is not sealed"
    story.poll(2, 4)
    story.seal(0)
    assert story.ended is None, "the last seal is not delivered"
    (acknowledge,) = story.tell(m.Delivered(2, out(2)))
    assert story.ended is None, "the last seal is not acknowledged"
    (stop,) = story.tell(m.Acknowledged(acknowledge.ack, WON))
    assert isinstance(stop, m.Stop)
    assert story.ended is m.End.DONE


def test_what_others_sealed_and_acknowledged_is_done_too():
    story = Story()
    story.tell(m.Opened(at(0)))
    story.tell(m.Ending(at(4)))
    story.tell(m.Loaded(row(5, at(6)), TOPICS))
    assert story.ended is m.End.DONE


def test_a_lane_that_is_told_its_goal_late_ends_at_once():
    story = Story()
    story.open(row(5, at(6)))
    story.tell(m.Ending(at(6)))
    assert story.ended is m.End.DONE
