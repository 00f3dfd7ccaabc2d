"""An audit holds each record to the way of naming that its own seal says."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dedup.catalog.memory import MemoryStore
from delivery.broker import MemoryBroker
from delivery.checker import Kind
from delivery.naming import IdFrom, id_from, said_of
from delivery.operate.auditing import Audited, Terms, audit
from delivery.operate.compaction import Rules, tidy
from delivery.operate.logs import Cluster
from delivery.operate.opening import chosen
from delivery.operate.proving import Proved
from delivery.records import Record
from delivery.stage import Policy
from tests.unit.house import LANE, WINDOW_MS, House
from tests.unit.memory_kafka import MemoryClient

NOW_MS = 1_800_000_000_000


@pytest.fixture
def house() -> House:
    return House(MemoryStore())


def write(house: House, *names: str) -> None:
    """Write records that a header, a field and their key name, each otherwise."""
    for name in names:
        record = Record(
            value=b'{"reading_id": "%s"}' % name.encode(),
            key=b"key of " + name.encode(),
            headers=(("id", b"header of " + name.encode()),),
        )
        house.broker.append(house.source(), record)


def sealed(house: House, way: str | IdFrom | None, *names: str, silent: bool = False) -> None:
    """Write records and seal them, two at a time, named this way; a silent seal does not say it."""
    write(house, *names)
    policy = Policy(named="" if silent else said_of(way))
    house.done(house.runner(id_from=id_from(way), policy=policy), cut=2)


def audited(
    house: House, ways: Mapping[str, str] | None = None, proved: Proved | None = None
) -> Audited:
    catalog, cluster = house.catalog(), Cluster(MemoryClient(house.broker))
    terms = Terms(ways=ways or {}, finished=True)
    return audit(catalog, cluster, chosen(catalog), terms, proved=proved)


def closely(house: House, **ways: IdFrom) -> set[Kind]:
    """Ask the checker of records."""
    asked = house.inputs[LANE]
    house.inputs[LANE] = type(asked)(id_from=asked.id_from, ways=ways, window_ms=WINDOW_MS)
    return {finding.kind for finding in house.proved()}


def test_a_way_that_changed_is_exact_although_repeats_took_effect_again(house: House) -> None:
    sealed(house, "json:reading_id", "a", "b", "a")
    sealed(house, "key", "a", "b", "c", "c")
    assert len(house.sent()) == 2 + 3, "what was named otherwise counts as new"
    for ways in ({}, {"": "key"}, {"price": "json:reading_id"}):
        found = audited(house, ways)
        assert (found.verdict, found.findings, dict(found.looked_closer)) == ("exact", (), {})
        said = "by json:reading_id, from seal 3 on by key, as its seals say"
        assert found.proved == {LANE: said}


def test_both_checkers_hold_each_seal_to_its_own_way(house: House) -> None:
    sealed(house, "json:reading_id", "a", "b", "a")
    sealed(house, "key", "a", "b", "c", "c")
    json, key = id_from("json:reading_id"), id_from("key")
    assert closely(house, **{"json:reading_id": json, "key": key}) == set()
    assert Kind.NOT_ACCOUNTED in closely(house), "by one way alone nobody understands it"


@pytest.mark.parametrize("first", ["json:reading_id", "key", "header:id", None])
@pytest.mark.parametrize("then", ["json:reading_id", "key", "header:id", None])
def test_every_change_audits_as_exact(house: House, first: str | None, then: str | None) -> None:
    sealed(house, first, "a", "b", "a")
    sealed(house, then, "a", "c", "c")
    sealed(house, first, "a", "c", "d")
    assert audited(house).verdict == "exact"


def test_a_repeat_that_took_effect_within_one_way_is_still_found(house: House) -> None:
    sealed(house, "header:id", "a", "b")
    sealed(house, "key", "c")
    # An earlier release's process, let us say, that named records otherwise than it said.
    write(house, "c", "d")
    house.done(house.runner(id_from=id_from("header:id"), policy=Policy(named="key")), cut=2)
    assert audited(house).verdict == "broken"


def test_seals_that_do_not_say_it_are_understood_as_ever(house: House) -> None:
    sealed(house, "header:id", "a", "b", "a", silent=True)
    assert audited(house).proved == {LANE: "by header:id, as the ids it decided show"}
    sealed(house, "header:id", "a", "c")
    assert audited(house).proved == {LANE: "by header:id, as the ids it decided show"}
    sealed(house, "key", "a", "c")
    found = audited(house)
    said = "by header:id, as the ids it decided show, from seal 4 on by key, as its seals say"
    assert (found.verdict, found.proved) == ("exact", {LANE: said})
    assert audited(house, {"": "header:id"}).verdict == "exact"
    assert audited(house, {"": "json:reading_id"}).verdict == "broken", "it is held to it"


def test_a_function_is_found_out_or_asked_for(house: House) -> None:
    sealed(house, lambda record: record.key, "a", "b", "a")
    assert audited(house).proved == {LANE: "by key, as the ids it decided show"}
    sealed(house, "header:id", "a")
    assert audited(house).verdict == "exact"
    other = House(MemoryStore())
    sealed(other, lambda record: b"mine " + record.key, "a")
    assert "--id-from" in audited(other).unproved[LANE]


def test_an_audit_that_goes_on_knows_of_a_change_behind_what_it_proved(house: House) -> None:
    sealed(house, "json:reading_id", "a", "b", "a")
    before = audited(house)
    sealed(house, "key", "a", "c", "c")
    said = "by json:reading_id, from seal 3 on by key, as its seals say"
    found = audited(house, proved=before.next)
    assert (found.verdict, found.proved) == ("exact", {LANE: said})
    sealed(house, "key", "c", "d")
    found = audited(house, proved=found.next)
    assert (found.verdict, found.proved) == ("exact", {LANE: said})


def test_what_is_known_of_seals_that_are_gone_is_said(house: House) -> None:
    sealed(house, "json:reading_id", "a", "b", "a")
    rules = Rules(entries_ms=0)
    tidy(house.catalog(), LANE, rules, NOW_MS, perform=True)
    sealed(house, "key", "a", "c", "c")
    assert audited(house).verdict == "broken", "nobody knows how the others were named"
    found = audited(house, {"price": "json:reading_id"})
    said = "by json:reading_id, as you say, from seal 3 on by key, as its seals say"
    assert (found.verdict, found.proved) == ("exact", {LANE: said})


def test_records_of_stages_are_named_by_them(house: House) -> None:
    sealed(house, None, "a", "b")
    house.broker.create("end")
    ship = "shop/ship/out-0"
    runner = house.runner(
        ship, reads="out", writes=("end",), senders=(LANE,), policy=Policy(named="place")
    )
    house.done(runner, topic="out")
    assert isinstance(house.broker, MemoryBroker)
    assert audited(house).proved[ship] == "by the stages that made them"
