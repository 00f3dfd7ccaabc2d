"""Topics deleted and created again on purpose: no late copy counts twice, and nothing passes for foreign."""

from __future__ import annotations

import pytest

from dedup.catalog.memory import MemoryStore
from dedup.errors import InvalidUsage
from delivery.life.accept import accept_topic
from delivery.operate.auditing import Audited, Terms, audit
from delivery.operate.logs import Cluster
from delivery.operate.verification import verify
from tests.unit.house import LANE, House
from tests.unit.life_kit import hands, killed_everywhere
from tests.unit.memory_kafka import MemoryClient
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


# What can be proved then ---------------------------------------------------------------------------


def audited(house: House) -> Audited:
    catalog, cluster = house.catalog(), Cluster(MemoryClient(house.broker))
    return audit(catalog, cluster, list(catalog.lanes()), Terms(finished=True))


@pytest.mark.parametrize("topic", ["in", "out"])
def test_what_comes_after_a_topic_was_accepted_is_proved(house, topic):
    """What was read of the old one is believed, and said to be: it is there no more."""
    house.broker.create(topic)
    unproved = audited(house)
    assert unproved.verdict == "unproved"
    assert all("accept-topic" in why for why in unproved.unproved.values())
    accept_topic(hands(house), topic, perform=True)
    house.write("new-1", "r0-1", "new-2")
    finish(house)
    found = audited(house)
    assert (found.findings, found.unproved, found.verdict) == ((), {}, "exact")
    reader = LANE if topic == "in" else SECOND
    assert set(found.given_up) == {reader}
    assert "believed" in found.given_up[reader]
    assert set(found.proved) == {LANE, SECOND}


def test_what_is_wrong_after_a_topic_was_accepted_is_found(house):
    house.broker.create("in")
    accept_topic(hands(house), "in", perform=True)
    house.write("new-1", "new-2")
    finish(house)
    house.broker.append(house.source("end"), house.sent("in")[0])
    assert audited(house).verdict == "broken"


def test_seals_that_read_the_old_topic_and_are_kept_are_not_proved():
    """They are owed: nobody lets go of them before they are delivered."""
    house = House(MemoryStore(), inline_bytes_max=0)
    owing(house)
    house.broker.create("in")
    accept_topic(hands(house), "in", perform=True)
    found = audited(house)
    assert "have read a topic that was deleted" in found.unproved[LANE]
    assert "--keep-entries" in found.unproved[LANE]
