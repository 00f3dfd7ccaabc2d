"""The tables of the core: every event in every phase, what comes too late, frozen values."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from enum import Enum
from types import UnionType
from typing import get_args

import pytest

from dedup.model import Frontier, Incarnation
from delivery.protocol import lane as core
from delivery.protocol import messages as m
from delivery.protocol import state
from delivery.protocol.state import STORY_LENGTH, IllegalTransitionError, Lane, Phase, Step
from tests.unit.lane_story import (
    OTHER,
    OWNER,
    TOPICS,
    Story,
    at,
    head,
    in_reload,
    in_resolution,
    named,
    out,
    ref,
    row,
    sealed,
)

WON, LOST, UNKNOWN = m.Outcome.WON, m.Outcome.LOST, m.Outcome.UNKNOWN


# Illegal, late, closed ------------------------------------------------------------------------

EVENTS: tuple[m.Event, ...] = (
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
    Phase.CLOSED: {type(event) for event in EVENTS} - {m.Opened, m.Ending, m.Broke},
}


def test_the_examples_are_one_of_each_event():
    assert [type(event) for event in EVENTS] == list(get_args(m.Event))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
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


@pytest.mark.parametrize("event", [e for e in EVENTS if hasattr(e, "ticket")])
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


@pytest.mark.parametrize("event", [e for e in EVENTS if hasattr(e, "ticket")])
@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.RELOADING])
def test_a_late_answer_to_a_discarded_ticket_changes_nothing(phase, event):
    story = in_reload()
    if phase is Phase.OPEN:
        story.tell(m.Loaded(row(6, at(12)), TOPICS))
    assert story.lane.phase is phase
    before = story.lane
    assert story.tell(event) == []
    assert story.lane == before


@pytest.mark.parametrize("event", EVENTS[1:], ids=lambda event: type(event).__name__)
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
