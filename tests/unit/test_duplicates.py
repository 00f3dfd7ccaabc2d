"""Records that took no effect, told in an output of their own: which, why, and where they were first."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from delivery import Delivery, InvalidUsage
from delivery.checker import Kind
from delivery.header import NAME, decode_header
from delivery.records import RECORD_BYTES_MAX, Record
from delivery.repeats import repeats_of
from delivery.repeats import told as tell
from delivery.stage import Policy
from tests.unit.house import LANE, House, seals

TOLD = Policy(duplicate_edge=1)
TOPICS = ("out", "again")


@pytest.fixture
def shop(house: House) -> House:
    house.broker.create("again")
    return house


def runner(shop: House, **more: Any):
    return shop.runner(**{"writes": TOPICS, "policy": TOLD, **more})


def said(record: Record) -> dict:
    return json.loads(record.header("delivery-duplicate"))


def parent(record: Record) -> int:
    return decode_header(record.header(NAME)).parent[1]


def test_a_repeat_is_told_as_it_came_with_where_its_id_was_first(shop):
    shop.write(*"abca")
    shop.done(runner(shop), cut=2)
    shop.write("c", "d", "b")
    shop.done(runner(shop), cut=2)
    assert shop.proved() == []
    assert len(shop.sent()) == 4
    again = shop.sent("again")
    assert [(parent(r), r.value, r.header("id")) for r in again] == [
        (offset, name, name) for offset, name in ((3, b"a"), (4, b"c"), (6, b"b"))
    ]
    assert {r.header("id") for r in again} == {b"a", b"b", b"c"}
    for record in again:
        found = said(record)
        assert (found["reason"], found["lane"]) == ("duplicate", LANE)
    counts = [seal.counts for seal in seals(shop)]
    assert sum(count.duplicate for count in counts) == 3
    assert sum(count.fresh for count in counts) == 4


def test_the_seal_that_decided_an_id_is_named_where_the_index_knows_it(shop):
    """What is decided, what is about to be, and what stands further up in the same bundle."""
    shop.write("a", "b", "a", "c", "a", "b", "d", "d")
    shop.done(runner(shop), cut=2)
    shop.write("c")
    shop.done(runner(shop))
    assert shop.proved() == []
    by_offset = {parent(record): said(record) for record in shop.sent("again")}
    seqs = {offset: found.get("seq") for offset, found in by_offset.items()}
    expected = {2: 1, 4: 1, 5: 1, 7: 4, 8: 2}
    if shop.home is None:
        # An index that keeps ids alone knows no seal but those of this process's own bundles.
        assert all(seq in (None, expected[offset]) for offset, seq in seqs.items())
        assert seqs[7] == 4
    else:
        assert seqs == expected
    assert (by_offset[7]["partition"], by_offset[7]["offset"]) == (0, 6)


def test_a_remnant_is_told_with_the_sender_whose_seq_was_read(shop):
    shop.broker.create("end")
    shop.write(*"ab")
    shop.done(shop.runner())
    second = "shop/ship/0"

    def ship():
        return shop.runner(
            second, reads="out", writes=("end", "again"), senders=(LANE,), policy=TOLD
        )

    shop.done(ship(), topic="out")
    shop.write("c")
    shop.done(shop.runner())
    shop.done(ship(), topic="out")
    shop.broker.append(shop.source("out"), shop.sent("out")[0])
    shop.done(ship(), topic="out")
    assert shop.proved() == []
    (record,) = shop.sent("again")
    found = said(record)
    assert (found["reason"], found["sender"], found["sender_seq"]) == ("remnant", LANE, 1)
    assert found["id"] == decode_header(shop.sent("out")[0].header(NAME)).id.hex()
    assert record.value == shop.sent("out")[0].value


def test_who_sends_again_sends_the_same_bytes_under_the_same_ids(shop):
    """They are part of the seal: a process that dies behind it leaves them to the next."""
    shop.write(*"aba")
    first = runner(shop)
    shop.begin(first)
    while not shop.sent("again"):
        shop.turn(first)
    shop.done(runner(shop))
    copies = shop.sent("again")
    assert len(copies) > 1
    assert len({(record.value, record.headers) for record in copies}) == 1
    assert shop.proved() == []


def test_what_is_read_by_the_next_stage_counts_once(shop):
    shop.broker.create("end")
    shop.write(*"aabba")
    shop.done(runner(shop))
    second = "shop/look/0"
    for _ in range(2):
        shop.done(
            shop.runner(second, reads="again", writes=("end",), senders=(LANE,)), topic="again"
        )
    assert shop.proved() == []
    assert len(shop.sent("end")) == 3


def test_a_kept_id_is_that_of_the_record_that_took_effect_alone(shop):
    shop.write(*"aa")
    shop.done(runner(shop, policy=replace(TOLD, keep_ids=True), call=lambda record: record))
    assert shop.proved() == []
    (effect,), (record,) = shop.sent(), shop.sent("again")
    kept, told = (decode_header(one.header(NAME)) for one in (effect, record))
    assert kept.mark.kept
    assert not told.mark.kept
    assert kept.id != told.id
    assert said(record)["id"] == kept.id.hex()


def test_a_repeat_too_large_to_go_out_again_is_cut(shop):
    large = Record(value=bytes(RECORD_BYTES_MAX), headers=(("id", b"a"),))
    shop.write("a")
    shop.broker.append(shop.source(), large)
    shop.done(runner(shop))
    assert shop.proved() == []
    (record,) = shop.sent("again")
    assert json.loads(record.header("delivery-truncated"))["value_bytes"] == RECORD_BYTES_MAX
    assert (said(record)["reason"], said(record)["offset"]) == ("duplicate", 0)


def test_beside_dead_letters_each_has_its_own(shop):
    shop.broker.create("dead")
    shop.write(*"aab")

    def call(record):
        if record.value == b"b":
            raise ValueError("no price")
        return record

    both = Policy(duplicate_edge=1, dead_letter_edge=2)
    shop.done(runner(shop, writes=(*TOPICS, "dead"), policy=both, call=call))
    assert shop.proved() == []
    assert [[r.value for r in shop.sent(t)] for t in (*TOPICS, "dead")] == [[b"a"], [b"a"], [b"b"]]


def test_without_being_asked_for_nothing_is_told(shop):
    shop.write(*"aa")
    shop.done(shop.runner(writes=TOPICS))
    assert shop.sent("again") == []
    assert shop.proved() == []


LIES = {
    "another reason": ({"reason": "remnant"}, Kind.REPEAT),
    "another id": ({"id": "00" * 16}, Kind.REPEAT),
    "another lane": ({"lane": "shop/other/0"}, Kind.PARENT),
    "a seal that decided something else": ({"seq": 2, "offset": None}, Kind.REPEAT),
    "a seal that is yet to come": ({"seq": 99}, Kind.REPEAT),
    "another place": ({"offset": 7}, Kind.REPEAT),
    "no reason at all": (None, Kind.PARENT),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_is_told_and_does_not_hold_is_found(shop, monkeypatch, lie):
    """The checker does not ask the code that tells."""
    changed, kind = LIES[lie]

    def lying(repeat, lane, edge):
        output = tell(repeat, lane, edge)
        *theirs, (name, value) = output.headers
        text = json.loads(value) | (changed or {})
        text = {key: what for key, what in text.items() if what is not None}
        lied = () if changed is None else ((name, json.dumps(text).encode()),)
        return output._replace(headers=(*theirs, *lied))

    monkeypatch.setattr("delivery.runner.told", lying)
    shop.write("a", "a")
    shop.done(runner(shop))
    shop.write("b")
    shop.done(runner(shop))
    assert {finding.kind for finding in shop.proved()} == {kind}


def test_a_repeat_that_is_not_told_beside_others_is_found(shop, monkeypatch):

    def forgetful(*given: Any):
        return list(repeats_of(*given))[1:]

    monkeypatch.setattr("delivery.judge.repeats_of", forgetful)
    shop.write(*"aaa")
    shop.done(runner(shop))
    assert {finding.kind for finding in shop.proved()} == {Kind.REPEAT}


def test_user_code_that_runs_on_a_repeat_is_a_second_effect_all_the_same(shop, monkeypatch):
    """An output of a dropped record counts as told only if it is that record, and says so."""

    def effect(repeat, lane, edge):
        return tell(repeat, lane, edge)._replace(value=b"new")

    monkeypatch.setattr("delivery.runner.told", effect)
    shop.write(*"aa")
    shop.done(runner(shop))
    assert {finding.kind for finding in shop.proved()} == {Kind.REPEAT}


@pytest.mark.parametrize("topic", ["in", "out"])
def test_where_they_would_take_effect_they_are_refused(topic):
    d = Delivery(catalog="memory:", kafka="nowhere:9092")
    with pytest.raises(InvalidUsage, match="nothing was started"):
        d.stage(reads="in", writes="out", duplicates=topic)(len)


def test_declared_they_stand_between_the_outputs_and_the_dead_letters():
    d = Delivery(catalog="memory:", kafka="nowhere:9092")
    declared = {"duplicates": "again", "dead_letters": "dead", "id_from": "key"}
    d.stage(reads="in", writes=("one", "two"), dedup="topic", name="s", **declared)(len)
    front, stage = d.stages
    assert stage.topics == ("one", "two", "again", "dead")
    assert (stage.duplicate_edge, stage.dead_letter_edge) == (2, 3)
    assert front.topics == ("main.s.by-id", "again", "dead")
    assert (front.duplicate_edge, front.dead_letter_edge) == (1, 2)
    d.stage(reads="in", writes="one", name="t")(len)
    assert (d.stages[-1].duplicate_edge, d.stages[-1].dead_letter_edge) == (None, None)
