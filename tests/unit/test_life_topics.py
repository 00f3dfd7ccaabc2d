"""Topics deleted and created again on purpose: no late copy counts twice, and nothing passes for foreign."""

from __future__ import annotations

import pytest

from dedup.catalog.memory import MemoryStore
from dedup.errors import InvalidUsage
from delivery.life.accept import accept_topic
from delivery.operate.verification import verify
from tests.unit.house import LANE, House
from tests.unit.life_kit import hands, killed_everywhere
from tests.unit.operate_kit import SECOND, chained
from tests.unit.test_life import finish, owing


@pytest.fixture
def house() -> House:
    found = House(MemoryStore(), inline_bytes_max=0)
    chained(found, rounds=2)
    return found


def test_an_input_created_again_is_read_from_its_beginning_with_the_ids_of_before(house):
    house.broker.create("in")
    house.write("r0-1", "new-1")
    assert "accept-topic" in house.run(house.runner()).why
    change = accept_topic(hands(house), "in", perform=True)
    assert [lane.after for lane in change.lanes] == [{"in/0": 0}]
    before = len(house.sent("out"))
    finish(house)
    assert len(house.sent("out")) == before + 1, "one of the two was there before"
    assert house.proved() == []


def between(house: House) -> None:
    """The topic between two stages is created again, while the first owes what it has sealed."""
    owing(house)
    house.broker.create("out")


def test_a_topic_between_two_stages_is_accepted_by_both_writers_first(house):
    late = house.sent("out")
    house.broker.create("out")
    change = accept_topic(hands(house), "out", perform=True)
    assert [lane.lane for lane in change.lanes] == [LANE, SECOND]
    for record in late:  # a zombie sends all that it ever sent into the new one
        house.broker.append(house.source("out"), record)
    house.write("new-1")
    before = len(house.sent("end"))
    finish(house)
    assert len(house.sent("end")) == before + 1
    assert verify(house.store, house.catalog().lanes()).findings == ()


def test_it_can_be_killed_anywhere():
    for house in killed_everywhere(between, lambda it: _accepted(it, "out")):
        before = len(house.sent("end"))
        finish(house)
        # What was sealed and not emitted, and what was not read yet.
        assert len({record.value for record in house.sent("out")}) == 3
        assert len(house.sent("end")) == before + 3
        assert verify(house.store, house.catalog().lanes()).findings == ()


def _accepted(it, topic: str) -> None:
    try:
        accept_topic(it, topic, perform=True)
    except InvalidUsage as error:
        if "nothing to accept" not in error.hint:
            raise


def test_what_nobody_remembers_is_asked_for(house):
    house.broker.create("end")
    with house.untouched(), pytest.raises(InvalidUsage, match="--written-by"):
        accept_topic(hands(house), "end", perform=True)
    with house.untouched(), pytest.raises(InvalidUsage, match="no such stage"):
        accept_topic(hands(house), "end", writers=["nobody"], perform=True)
    accept_topic(hands(house), "end", writers=["ship"], perform=True)
    house.write("new-1")
    finish(house)
    assert len(house.sent("end")) == 1


def test_a_dry_run_says_what_is_lost(house):
    house.write("new-1")
    house.done(house.runner(), cut=5)
    house.broker.create("out")
    with house.untouched():
        change = accept_topic(hands(house), "out")
    assert any("1 offset delivered to the old topic" in text for text in change.means)
