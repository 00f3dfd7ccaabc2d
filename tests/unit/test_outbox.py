"""What a lane sends beside others: in order, as far as there is room, again when it fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dedup.errors import Indeterminate
from dedup.model import Frontier, Incarnation
from delivery.batch import Rows
from delivery.host.outbox import SMALL_ROWS_MAX, Outbox
from delivery.protocol import messages as m

INCARNATION = Incarnation(b"i" * 16)


class Way:
    """Records on their way: they arrive, or fail, when the test says so."""

    def __init__(self, rows: str) -> None:
        self.rows = rows
        self.arrived: bool | None = None

    def done(self, _seconds: float) -> Frontier | None:
        if self.arrived is None:
            return None
        if not self.arrived:
            raise Indeterminate("emit records", "here", "not in time")
        return Frontier()


class House:
    """A runner with sealed bundles, and an emitter; both tell what was asked of them."""

    def __init__(self, *bundles: list[int], sends: bool = True) -> None:
        self.ways: list[Way] = []
        self.told: list[Any] = []
        self.performed: list[int] = []
        work = {
            seq: SimpleNamespace(
                rows=Rows(edges=[0] * len(to), values=[b""] * len(to), partitions=to)
            )
            for seq, to in enumerate(bundles)
        }
        self.state = SimpleNamespace(work=work, stopped=None)
        self.outbox = Outbox(cast("Any", self), cast("Any", self if sends else object()))
        for seq in work:
            self.outbox.add(m.Emit(seq, INCARNATION, seq))

    def begin(self, rows: str) -> Way:
        self.ways.append(Way(rows))
        return self.ways[-1]

    def emissions(self, emit: m.Emit) -> str:
        return f"rows {emit.seq}"

    def perform(self, emit: m.Emit) -> m.Delivered:
        self.performed.append(emit.seq)
        return m.Delivered(emit.seq, Frontier())

    def delivered(self, emit: m.Emit, offsets: Frontier) -> m.Delivered:
        return m.Delivered(emit.seq, offsets)

    def tell(self, answer: m.Event) -> None:
        self.told.append(answer)


def test_what_is_next_is_begun_in_order_and_told_in_order():
    house = House([0], [1])
    assert house.outbox.begin()
    assert [way.rows for way in house.ways] == ["rows 0", "rows 1"]
    house.ways[1].arrived = True
    assert not house.outbox.look(), "the first has not arrived"
    house.ways[0].arrived = True
    assert house.outbox.look()
    assert [told.seq for told in house.told] == [0, 1]
    assert not house.outbox


def test_what_does_not_fit_beside_others_waits():
    house = House([0, 1, 1], [2], [3])
    assert not house.outbox.begin(1), "the first goes to two partitions"
    assert house.outbox.begin(3)
    assert house.outbox.requests == 3
    assert len(house.ways) == 2, "there is no room for the third"
    assert house.outbox.begin(1)
    assert house.outbox.requests == 4


@pytest.mark.parametrize("known", [False, True])
def test_what_may_be_many_requests_waits_until_nothing_is_beside_it(known):
    house = House([0] * (SMALL_ROWS_MAX + 1))
    if not known:  # of a process before this one
        house.state.work.clear()
    assert not house.outbox.begin(4)
    assert house.outbox.begin()
    assert house.outbox.requests == 1


def test_after_a_failure_everything_behind_it_goes_again():
    house = House([0], [1], [2])
    house.outbox.begin()
    house.ways[0].arrived, house.ways[1].arrived = True, False
    assert house.outbox.look()
    assert house.performed == [1, 2]
    assert [told.seq for told in house.told] == [0, 1, 2]
    assert not house.outbox


def test_an_emitter_that_cannot_begin_is_waited_for():
    house = House([0], [1], sends=False)
    assert house.outbox.begin()
    assert house.performed == [0, 1]
    assert not house.outbox


def test_a_lane_that_has_stopped_begins_nothing():
    house = House([0], [1])
    assert house.outbox.begin(1)
    house.state.stopped = m.Stop(m.End.FENCED, "it was restored")
    assert not house.outbox.begin()
    house.ways[0].arrived = True
    assert house.outbox.look()
    assert not house.outbox
