"""Deduplication changed there and back, killed at every write: no id is left behind, none is twice."""

from __future__ import annotations

import pytest

from dedup.catalog.memory import MemoryStore
from dedup.errors import InvalidUsage
from delivery.kafka.port import Topic
from delivery.life.dedup import change_dedup
from delivery.life.deeds import ids_of
from delivery.operate.verification import verify
from delivery.protocol.rest import Kind, rest_of
from tests.unit.house import LANE, House
from tests.unit.life_kit import hands, killed_everywhere
from tests.unit.memory_kafka import MemoryClient
from tests.unit.test_life import owing

FRONT = "shop/price.by-id/0"
INTERNAL = "shop.price.by-id"
BEHIND = [f"shop/price/{INTERNAL}-{number}" for number in (0, 1)]


def change(it, to: str, aside: tuple[str, ...] = ()) -> None:
    client = MemoryClient(it.catalog.store.house.broker)

    def make(name: str) -> Topic:
        broker = client.broker
        if name not in broker.names:
            broker.create(name, partitions=2)
        return client.describe([name])[name]

    change_dedup(it, "price", to, make, aside=aside, perform=True)


def changed(house: House, to: str) -> None:
    change(named(house), to)


def named(house: House):
    """Hands whose store knows its house: topics are made there."""
    it = hands(house)
    it.catalog.store.house = house
    return it


def furnish(house: House) -> None:
    owing(house)
    house.store.house = house


def keyed(house: House) -> None:
    furnish(house)
    changed(house, "topic")


def known(house: House, *lanes: str) -> list[int]:
    return [len(ids_of(hands(house), lane)) for lane in lanes]


def whole(house: House) -> None:
    assert verify(house.store, house.catalog().lanes()).findings == ()


def check_topic(house: House) -> None:
    """What is so once a stage deduplicates a whole topic."""
    catalog = house.catalog()
    front = catalog.load(FRONT)
    assert rest_of(catalog.load(LANE).head.state).kind is Kind.REKEYED
    assert rest_of(front.head.state) is None
    assert front.head.frontier.at(house.source()) == 21
    assert front.head.writes == (house.broker.names[INTERNAL],)
    assert len({record.value for record in house.sent("out")}) == 19, "what was owed is delivered"
    assert known(house, FRONT) == [19]
    assert sum(known(house, *BEHIND)) == 19
    assert all(rest_of(catalog.load(lane).head.state) is None for lane in BEHIND)
    whole(house)


def check_partition(house: House) -> None:
    """What is so once it deduplicates partition by partition again."""
    catalog = house.catalog()
    row = catalog.load(LANE)
    assert rest_of(row.head.state) is None
    assert row.head.frontier.at(house.source()) == 21
    assert row.head.writes == (house.broker.names["out"],)
    assert known(house, LANE) == [19]
    for lane in (FRONT, *BEHIND):
        assert rest_of(catalog.load(lane).head.state).kind is Kind.REKEYED
    whole(house)


def test_to_a_whole_topic_killed_anywhere():
    count = 0
    for house in killed_everywhere(furnish, lambda it: change(it, "topic")):
        check_topic(house)
        count += 1
    assert count > 20


def test_with_dead_letters_what_rekeys_has_them_too():
    for house in killed_everywhere(furnish, lambda it: change(it, "topic", ("dead-letters",))):
        out, internal = house.broker.names["out"], house.broker.names[INTERNAL]
        assert house.catalog().load(FRONT).head.writes == (internal, out), "the last edge of all"
        assert {house.catalog().load(lane).head.writes for lane in BEHIND} == {(out,)}


def test_back_to_partitions_killed_anywhere():
    count = 0
    for house in killed_everywhere(keyed, lambda it: change(it, "partition")):
        check_partition(house)
        count += 1
    assert count > 20


def test_what_comes_after_is_judged_by_all_that_was_known_before():
    for house in killed_everywhere(keyed, lambda it: change(it, "partition")):
        before = len(house.sent("out"))
        house.done(house.runner(), cut=5)
        # Two of the records from 21 on are new, one repeats the very first.
        assert len(house.sent("out")) == before + 2
        break


def test_there_and_back_and_there_again_killed_anywhere():
    def back(house: House) -> None:
        keyed(house)
        changed(house, "partition")

    for house in killed_everywhere(back, lambda it: change(it, "topic")):
        check_topic(house)


def test_what_it_does_already_needs_nothing():
    house = House(MemoryStore(), inline_bytes_max=0)
    furnish(house)
    with house.untouched():
        changed(house, "partition")
    changed(house, "topic")
    with house.untouched():
        changed(house, "topic")


def test_it_is_not_changed_back_while_something_is_in_between():
    house = House(MemoryStore(), inline_bytes_max=0)
    keyed(house)
    house.write("stray", topic=INTERNAL)
    with house.untouched(), pytest.raises(InvalidUsage, match="are not sealed yet"):
        changed(house, "partition")
