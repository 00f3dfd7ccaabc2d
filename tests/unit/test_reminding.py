"""What the log says where repeats may count twice: once for a stage, and only where it is so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dedup.catalog.memory import MemoryStore
from dedup.model import Counts
from delivery.host import reminding
from delivery.host.reminding import remind_of_lanes, warn_grown, warn_unnamed
from delivery.host.spec import StageSpec
from delivery.naming import id_from, said_of
from delivery.stage import Policy
from tests.unit.house import LANE, House

SPEC = StageSpec(pipeline="shop", name="price", reads="in", writes=("out",), call=len)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said in this process yet."""
    monkeypatch.setattr(reminding, "_told", {})


def sealed(way: str | None) -> House:
    """Return a house whose lane was sealed with records named so."""
    house = House(MemoryStore())
    house.write("a", key=b"k")
    named = Policy(named=said_of(way))
    house.done(house.runner(id_from=id_from(way), policy=named))
    return house


def reminded(house: House, way: object, lanes: dict[str, int | None] | None = None) -> None:
    with house.untouched():
        remind_of_lanes(house.catalog(), replace(SPEC, named=way), lanes or {LANE: 0})


# Records are named otherwise ------------------------------------------------------------------


def test_a_start_says_that_records_are_named_otherwise_than_they_were(caplog):
    reminded(sealed("header:id"), "key")
    (said,) = caplog.messages
    assert "stage price names its records by key now" in said
    assert f"1 of its lanes were sealed with names by header:id ({LANE}, up to seq 1)" in said
    assert "takes effect a second time, until a window of 24 h" in said
    assert "put id_from= back" in said


@pytest.mark.parametrize(
    ("before", "now"), [("header:id", "header:id"), (None, None), (None, "header:id")]
)
def test_nothing_is_said_where_no_repeat_is_told_that_was_told_before(caplog, before, now):
    reminded(sealed(before), now)
    assert caplog.messages == []


def test_names_left_out_are_said(caplog):
    reminded(sealed("header:id"), None)
    assert "by place now" in caplog.text


def test_a_function_is_told_by_its_name(caplog):
    house = sealed("header:id")
    reminded(house, id_from)
    assert "by function id_from now" in caplog.text


def test_a_lane_that_never_sealed_says_nothing(caplog):
    reminded(House(MemoryStore()), "key", {LANE: 0, "shop/price/in-1": 1})
    assert caplog.messages == []


# Partitions -----------------------------------------------------------------------------------


def test_a_start_says_that_the_topic_has_grown(caplog):
    lanes = {LANE: 0, "shop/price/in-1": 1, "shop/price/in-2": 2}
    reminded(sealed("header:id"), "header:id", lanes)
    (said,) = caplog.messages
    assert said.startswith("stage price reads in: partitions appeared (1, 2), so keys have moved")
    assert "takes effect again" in said
    assert "delivery guarantee" in said


def test_partitions_that_appear_meanwhile_are_said_once(caplog):
    spec = replace(SPEC, named="key")
    seen: set[int] = set()
    for now in (range(2), range(2), range(3), range(3)):
        seen = warn_grown(spec, seen, now)
    assert seen == {0, 1, 2}
    (said,) = caplog.messages
    assert "appeared (2)" in said


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, named="key", rekeyed=True)])
def test_stages_that_lose_nothing_by_it_say_nothing(caplog, spec):
    warn_grown(spec, [0], [0, 1])
    assert caplog.messages == []


def test_a_lane_that_only_waited_is_none_that_appeared(caplog):
    warn_grown(replace(SPEC, named="key"), [0, 2], [0, 1, 2])
    assert caplog.messages == []


# Names that are missing -----------------------------------------------------------------------


def test_names_that_are_missing_are_said_once_for_all_lanes_of_a_stage(caplog, monkeypatch):
    spec = replace(SPEC, named="header:order_id")
    nothing = Counts(read=3, fresh=3, unnamed=3)
    for lane in range(14):
        warn_unnamed(spec, f"shop/price/in-{lane}", nothing)
    (said,) = caplog.messages
    assert "stage price: none of 3 records has the name that id_from='header:order_id'" in said
    assert "lane shop/price/in-0" in said
    warn_unnamed(replace(spec, name="ship"), "shop/ship/out-0", nothing)
    assert len(caplog.messages) == 2
    monkeypatch.setattr(reminding, "QUIET_SECONDS", 0.0)
    warn_unnamed(spec, "shop/price/in-0", nothing)
    assert len(caplog.messages) == 3


def test_a_bundle_with_some_names_says_nothing(caplog):
    warn_unnamed(replace(SPEC, named="key"), LANE, Counts(read=3, fresh=3, unnamed=2))
    assert caplog.messages == []
