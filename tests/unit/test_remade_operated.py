"""What operators are told of outputs that are not stored, and what is refused because of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dedup.catalog.memory import MemoryStore
from dedup.collect import Keep, collect
from dedup.errors import InvalidUsage
from dedup.model import Slot
from delivery import Delivery, Record
from delivery.batch import Row, Rows
from delivery.checker import Kind
from delivery.life.change import Change
from delivery.life.rename import rename
from delivery.life.reset import Begin, reset
from delivery.life.undertaking import Hands
from delivery.operate.auditing import Audited, Terms, audit
from delivery.operate.cautions import of_stage
from delivery.operate.differing import differences
from delivery.operate.explaining import explain
from delivery.operate.logs import Cluster
from delivery.operate.lookup import look_up_offset
from delivery.operate.planning import Load, plan_of
from delivery.operate.proving import Proved
from delivery.operate.replaying import Window, surveyed
from delivery.operate.verification import verify
from delivery.outputs import content_digest
from delivery.protocol import messages as m
from delivery.protocol.rest import rest_of
from tests.unit.house import LANE, House, seals
from tests.unit.life_kit import hands
from tests.unit.memory_kafka import MemoryClient
from tests.unit.remade_kit import priced, remaking, sealed_only

VERBS: dict[str, Callable[[Hands], Change]] = {
    "rename": lambda given: rename(given, "price", "cost", perform=True),
    "reset": lambda given: reset(given, "price", Begin(at="earliest"), perform=True),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_refuses_what_only_the_code_of_the_stage_can_deliver(verb):
    house = House(MemoryStore())
    house.write(*"abc")
    # It rests first, before it is found that the other one may not.
    other = "shop/price/-1"
    house.broker.create("in-1")
    house.write("x", topic="in-1")
    house.done(remaking(house, lane=other, reads="in-1"), topic="in-1")
    before = house.sent()
    sealed_only_beside(house, before)
    with pytest.raises(InvalidUsage, match="only its code makes them again") as refused:
        VERBS[verb](hands(house))
    assert "1 of its seals are not delivered" in str(refused.value)
    assert house.sent() == before
    for lane in (LANE, other):
        row = house.catalog().load(lane)
        assert row is not None
        assert rest_of(row.head.state) is None, "it was woken, so that the stage can run"
    house.done(remaking(house))
    assert VERBS[verb](hands(house)).done


def sealed_only_beside(house: House, before: list[Record]) -> None:
    house.broker.partitions[house.source("out")] = ()
    sealed_only(house)
    house.broker.partitions[house.source("out")] = tuple(before)


def test_a_replay_is_refused_and_says_why(house):
    house.write(*"abc")
    house.done(remaking(house))
    cluster = Cluster(MemoryClient(house.broker))
    with pytest.raises(InvalidUsage, match="the seal keeps a digest and no outputs"):
        surveyed(house.catalog(), cluster, [LANE], Window())
    (found,) = surveyed(house.catalog(), cluster, [LANE], Window(first=7))
    assert found.seals == []


def test_a_story_is_told_from_the_copies_and_says_that_nothing_is_stored(house):
    house.write(*"abz")
    sealed_only(house)

    def told(offset: int):
        return explain(house.catalog(), Cluster(MemoryClient(house.broker)), "in", 0, offset)

    (reading,) = told(1).readings
    assert (reading.fate, reading.remade, reading.outputs) == ("fresh", True, ())
    house.done(remaking(house))
    (reading,) = told(1).readings
    assert [len(output.copies) for output in reading.outputs] == [1, 1]
    (read,) = look_up_offset(house.catalog(), "in", 0, 1, [LANE])
    assert (read.remade, read.outputs) == (True, None)


def test_the_catalog_is_in_order_and_there_is_nothing_to_collect(house):
    house.write(*"abcab")
    house.done(remaking(house), cut=3)
    assert verify(house.store, [LANE]).findings == ()
    sizes = [len(house.store.entries(LANE, seals(house)[0].ref.incarnation, 0, 9))]
    collect(house.catalog(), LANE, Keep(window_ms=1))
    assert sizes == [3]
    assert verify(house.store, [LANE]).findings == ()
    assert house.proved() == []


def audited(house: House, proved: Proved | None = None, **terms: Any) -> Audited:
    cluster = Cluster(MemoryClient(house.broker))
    return audit(house.catalog(), cluster, [LANE], Terms(**terms), proved=proved)


def test_what_is_made_again_is_proved_without_a_closer_look(house: House) -> None:
    """By the digests in the seals, held against what is in the topic."""
    house.write(*"abcab")
    house.done(remaking(house), cut=2)
    first = audited(house)
    house.write(*"defa")
    sealed = remaking(house)
    house.begin(sealed)
    while not isinstance(next(iter(sealed.state.todo), None), m.Emit):
        assert house.turn(sealed)
    owing = audited(house, first.next)
    assert (owing.verdict, dict(owing.looked_closer)) == ("exact", {}), "what is owed is no loss"
    house.done(remaking(house))
    for proved in (first.next, owing.next, None):
        found = audited(house, proved, finished=True)
        assert (found.verdict, dict(found.looked_closer)) == ("exact", {})
    last = house.sent()[-1]
    log = house.broker.partitions[house.source("out")]
    house.broker.partitions[house.source("out")] = (*log[:-1], last._replace(key=b"other"))
    assert [one.kind for one in audited(house, first.next).findings] == [Kind.REMADE]


def test_losers_are_compared_with_the_digest_in_the_recipe(house):
    house.write(*"ab")
    house.done(remaking(house))
    ref = seals(house)[1].ref
    mine = [
        Row(output=one, partition=0, parent=(0, offset))
        for offset, name in enumerate((b"a", b"b"))
        for one in priced(Record(value=name))
    ]
    for number, rows in enumerate((mine, [*mine[1:], mine[0]])):
        slot = Slot(LANE, ref.incarnation, ref.seq, bytes([number]) * 16)
        house.store.note_loser(slot, content_digest(Rows.of(rows)))
    (found,) = differences(house.catalog(), [LANE])
    assert (found.lost, found.same, found.differs) == (2, 1, 1)


def steady(record: Record) -> Record:
    return record


def drawn(record: Record) -> Record:
    import uuid  # noqa: PLC0415 - read by the plan, not run

    return record.replace(value=uuid.uuid4().hex)


def declared(call: Callable[[Record], Record], **more: object) -> Delivery:
    delivery = Delivery(catalog="sqlite:shop.db", kafka="localhost:1", home="/var/x")
    delivery.stage(reads="orders", **{"writes": "out", "deterministic": True} | more)(call)
    return delivery


def test_a_plan_says_that_rows_are_not_stored():
    load = Load(per_second=1000.0, record_bytes=100, partitions=4, keep_days=2)
    (stage,) = plan_of(declared(steady), load).stages
    assert (stage.deterministic, stage.outputs_a_day, stage.kept) == (True, 0, 0)
    (stage,) = plan_of(declared(steady, deterministic=False), load).stages
    assert stage.outputs_a_day > 0


def test_a_plan_warns_of_code_that_is_not_what_it_says():
    (spec,) = declared(drawn).stages
    told = {one.about: one.text for one in of_stage(spec, {})}
    assert "BREAKS THE STAGE: it is declared deterministic" in told["chance"]
    assert "nothing can be replayed" in told["deterministic"]


@pytest.mark.parametrize("writes", ["files:/tmp/x", ("out", "cassandra://h:1/k/t")])
def test_outputs_that_are_no_topics_are_refused_where_they_are_declared(writes):
    with pytest.raises(InvalidUsage, match="for topics of Kafka's alone"):
        declared(steady, writes=writes)
