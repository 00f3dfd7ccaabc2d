"""Losers tell which stage answers differently when it runs again, and in which fields."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dedup.catalog.store import Blob
from dedup.model import Attempt, Seal, Slot
from delivery.batch import Row, Rows
from delivery.operate.differing import StageDifferences, _of_values, _rows, differences
from delivery.outputs import Origin, content_digest, decode_outputs, encode_outputs
from delivery.records import Output
from tests.unit.house import LANE, House
from tests.unit.operate_kit import SECOND, called, chained, document, housed

LOSER = Attempt(b"l" * 16)


@pytest.fixture
def shop(house: House) -> House:
    chained(house)
    return house


def told(house: House) -> dict[str, StageDifferences]:
    return {one.stage: one for one in differences(house.catalog(), [LANE, SECOND])}


def sealed(house: House) -> tuple[Seal, list[Row]]:
    """A seal with outputs, and what it sealed."""
    catalog = house.catalog()
    row = catalog.load(LANE)
    assert row is not None
    seals = catalog.seals(LANE, row.head.ref.incarnation, 1, row.head.ref.seq)
    seal = next(one for one in seals if one.outputs.rows > 1)
    chunks = catalog.get(Blob.OUTPUTS, LANE, seal)
    assert chunks is not None
    return seal, list(_rows(decode_outputs(chunks, "test")))


def lose(house: House, change: Callable[[Row], Row], *, noted: bool, stored: bool) -> None:
    """Leave what an attempt leaves that made something else of the same records."""
    seal, rows = sealed(house)
    slot = Slot(LANE, seal.ref.incarnation, seal.ref.seq, LOSER)
    made = Rows.of(change(row) for row in rows)
    if stored:
        origin = Origin(
            lane=LANE, ref=replace(seal.ref, attempt=LOSER), minted_at_ms=seal.minted_at_ms
        )
        house.store.put(Blob.OUTPUTS, slot, encode_outputs(origin, made))
    if noted:
        house.store.note_loser(slot, content_digest(made))


def same(row: Row) -> Row:
    return row


def other(row: Row) -> Row:
    return row._replace(output=remade(row.output, b"other", (("trace", b"1"),)))


def remade(output: Output, value: bytes, headers: tuple[tuple[str, bytes], ...] = ()) -> Output:
    return Output(
        value=value, key=output.key, headers=(*output.headers, *headers), edge=output.edge
    )


def test_nobody_lost_and_nothing_differs(shop: House) -> None:
    assert [one.document() | {"stage": ""} for one in told(shop).values()] == [
        StageDifferences("").document()
    ] * 2


@pytest.mark.parametrize("trace", ["noted", "stored"])
def test_a_loser_that_had_made_the_same_is_told(shop: House, trace: str) -> None:
    lose(shop, same, noted=trace == "noted", stored=trace == "stored")
    found = told(shop)["shop/price"]
    assert (found.lost, found.same, found.differs, found.unknown) == (1, 1, 0, 0)
    assert found.fields == {}


def test_a_digest_alone_tells_that_something_differs(shop: House) -> None:
    lose(shop, other, noted=True, stored=False)
    found = told(shop)["shop/price"]
    assert (found.lost, found.differs, found.compared) == (1, 1, 0)


def test_stored_rows_tell_which_field_differs(shop: House) -> None:
    seal, _ = sealed(shop)
    lose(shop, other, noted=True, stored=True)
    found = told(shop)["shop/price"]
    assert (found.lost, found.differs) == (1, 1)
    assert found.compared == found.unlike == seal.outputs.rows
    assert found.fields == dict.fromkeys(("value", "header trace"), seal.outputs.rows)
    assert found.examples[0]["seq"] == seal.ref.seq


def test_values_that_are_json_differ_by_field() -> None:
    one = {"order": 1, "quote": {"price": 7, "at": 1}, "gone": None}
    another = {"order": 1, "quote": {"price": 8, "at": 1}}
    found = _of_values(json.dumps(one).encode(), json.dumps(another).encode())
    assert sorted(found) == ["value.gone", "value.quote.price"]
    assert list(_of_values(b"a", b"b")) == ["value"]


def test_a_loser_that_died_while_it_stored_is_no_damage(shop: House) -> None:
    seal, _ = sealed(shop)
    slot = Slot(LANE, seal.ref.incarnation, seal.ref.seq, LOSER)
    shop.store.put(Blob.OUTPUTS, slot, [b"torn"])
    found = told(shop)["shop/price"]
    assert (found.lost, found.unknown) == (1, 1)


def test_the_verb_says_it(tmp_path: Path) -> None:
    def furnish(house: House) -> None:
        chained(house)
        lose(house, other, noted=True, stored=True)

    with housed(tmp_path / "shop.db", furnish):
        url = f"sqlite:{tmp_path / 'shop.db'}"
        found = document("differences", url, "price")
        assert [one["differs"] for one in found["stages"]] == [1]
        assert "shop/price: value" in called("differences", url).stdout
