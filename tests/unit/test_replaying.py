"""Sealed outputs are sent once more bit for bit; receivers drop them, and nothing is made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dedup.catalog.store import Blob
from dedup.errors import InvalidUsage
from dedup.model import Frontier
from delivery.batch import Emissions
from delivery.kafka.port import Topic
from delivery.operate.auditing import Terms, audit
from delivery.operate.logs import Cluster
from delivery.operate.opening import chosen
from delivery.operate.replaying import LaneWindow, Window, replay, surveyed
from delivery.records import Record
from tests.unit.house import LANE, House
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import SECOND, chained


class Sending(MemoryClient):
    """A cluster that can be written to as well."""

    def producer(self) -> Sending:
        return self

    def emit(self, topics: Sequence[Topic], emissions: Emissions) -> Frontier:
        for one in emissions:
            source = topics[one.edge].sources[one.partition]
            record = Record(value=one.value, key=one.key, headers=one.headers)
            self.broker.append(source, record)
        return Frontier.of([])


@pytest.fixture
def shop(house: House) -> House:
    chained(house)
    return house


def found(house: House, window: Window, lane: str = LANE) -> list[LaneWindow]:
    return surveyed(house.catalog(), Cluster(MemoryClient(house.broker)), [lane], window)


def content(records: Sequence[Record]) -> list[Any]:
    return [(record.key, record.value, record.headers) for record in records]


def test_everything_is_sent_again_as_it_was(shop: House) -> None:
    before = shop.sent("out")
    survey = found(shop, Window())
    assert (survey[0].records, survey[0].gone, survey[0].unread) == (len(before), 0, False)
    assert shop.sent("out") == before
    replay(shop.catalog(), Sending(shop.broker), survey, None)
    after = shop.sent("out")
    assert content(after[len(before) :]) == content(before)
    assert survey[0].sent == len(before)
    shop.done(
        shop.runner(SECOND, reads="out", writes=("end",), senders=(LANE,)), topic="out", cut=5
    )
    catalog = shop.catalog()
    proved = audit(
        catalog, Cluster(MemoryClient(shop.broker)), chosen(catalog), Terms(finished=True)
    )
    assert (proved.verdict, proved.findings) == ("exact", ())


def test_a_window_of_seqs_or_time_is_sent(shop: House) -> None:
    seals = shop.catalog().seals(LANE, shop.catalog().load(LANE).head.ref.incarnation, 1, 99)
    by_seq = found(shop, Window(first=2, last=3))[0]
    assert [seal.ref.seq for seal in by_seq.seals] == [2, 3]
    by_time = found(shop, Window(since_ms=seals[1].minted_at_ms, until_ms=seals[3].minted_at_ms))[0]
    assert [seal.ref.seq for seal in by_time.seals] == [2, 3]


def test_another_topic_takes_it(shop: House) -> None:
    shop.broker.create("copy")
    before = shop.sent("out")
    replay(shop.catalog(), Sending(shop.broker), found(shop, Window()), "copy")
    assert content(shop.sent("copy")) == content(before)
    assert shop.sent("out") == before
    with pytest.raises(InvalidUsage, match="there is no such topic"):
        replay(shop.catalog(), Sending(shop.broker), found(shop, Window()), "none")


def test_what_was_collected_is_said_and_left_out(shop: House) -> None:
    catalog = shop.catalog()
    survey = found(shop, Window())
    seal = survey[0].seals[0]
    row = catalog.load(LANE)
    assert row is not None
    assert catalog.raise_collected(LANE, row, seal.ref.seq)
    shop.store.delete(
        Blob.OUTPUTS,
        [slot for slot in shop.store.slots(Blob.OUTPUTS, LANE) if slot.seq == seal.ref.seq],
    )
    again = found(shop, Window())[0]
    # Small outputs ride in the seal, and go only with it.
    assert again.gone == (0 if seal.inline_outputs else seal.outputs.rows)
    assert again.gone_seals == (0 if seal.inline_outputs else 1)


def test_a_lane_that_writes_elsewhere_is_refused(shop: House) -> None:
    shop.broker.create("out")
    with pytest.raises(InvalidUsage, match="no topic of this Kafka"):
        found(shop, Window())
