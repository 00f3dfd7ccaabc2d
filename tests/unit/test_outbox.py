"""What a lane sends beside others: in order, as far as there is room, again when it fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dedup.errors import Indeterminate
from dedup.model import Frontier, Incarnation
from delivery.batch import Rows
from delivery.host.outbox import OUTBOX_BYTES_MAX, REQUESTS_MAX, SMALL_ROWS_MAX, Outbox, Road
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

    def __init__(self, *bundles: list[int], sends: bool = True, value: bytes = b"") -> None:
        self.ways: list[Way] = []
        self.landed: list[str] = []
        #: Seqs of which `begin` fails, and of which every try fails for good.
        self.unbegun: set[int] = set()
        self.broken: set[int] = set()
        self.told: list[Any] = []
        self.performed: list[int] = []
        work = {
            seq: SimpleNamespace(
                rows=Rows(edges=[0] * len(to), values=[value] * len(to), partitions=to)
            )
            for seq, to in enumerate(bundles)
        }
        self.state = SimpleNamespace(work=work, lane=SimpleNamespace(end=None))
        self.outbox = Outbox(cast("Any", self), cast("Any", self if sends else object()))
        for seq in work:
            self.outbox.add(m.Emit(seq, INCARNATION, seq))

    def begin(self, rows: str) -> Way:
        if int(rows.split()[1]) in self.unbegun:
            raise Indeterminate("emit records", "here", "the queue stayed full")
        self.ways.append(Way(rows))
        return self.ways[-1]

    def emissions(self, emit: m.Emit) -> str:
        return f"rows {emit.seq}"

    def perform(self, emit: m.Emit) -> m.Event:
        self.performed.append(emit.seq)
        if emit.seq in self.broken:
            return m.Broke("no broker took it")
        return m.Delivered(emit.seq, Frontier())

    def delivered(self, emit: m.Emit, offsets: Frontier) -> m.Delivered:
        return m.Delivered(emit.seq, offsets)

    def tell(self, answer: m.Event) -> None:
        self.told.append(answer)
        if isinstance(answer, m.Broke):
            self.state.lane.end = m.End.BROKEN

    def add(self, seq: int, to: list[int]) -> None:
        rows = Rows(edges=[0] * len(to), values=[b""] * len(to), partitions=to)
        self.state.work[seq] = SimpleNamespace(rows=rows)
        self.outbox.add(m.Emit(seq, INCARNATION, seq))


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
    house = House([0] * (SMALL_ROWS_MAX + 1)) if known else House()
    if not known:  # of a process before this one
        house.outbox.add(m.Emit(0, INCARNATION, None))
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
    house.state.lane.end = m.End.FENCED
    assert not house.outbox.begin()
    house.ways[0].arrived = True
    assert house.outbox.look()
    assert not house.outbox


def test_behind_a_bundle_that_nobody_takes_nothing_is_sent():
    # The next owner sends it, and what is behind it after it: so order within a partition is kept.
    house = House([0], [1], [2], [3])
    house.outbox.begin(2)
    house.broken = {0}
    house.ways[0].arrived = False
    assert house.outbox.look()
    assert house.performed == [0], "what was begun behind it is not tried again"
    assert not house.outbox.begin(), "and what waited is not begun"
    assert not house.outbox


def test_where_a_beginning_fails_what_was_begun_before_it_goes_again_before_it():
    # A producer that is thrown away takes with it what it holds.
    house = House([0], [1], [2])
    house.unbegun = {1}
    house.outbox.begin()
    assert house.performed == [0, 1]
    assert [way.rows for way in house.ways] == ["rows 0", "rows 2"]


def test_what_needs_the_road_for_itself_gets_it_beside_lanes_that_never_leave_it():
    busy, large = House(), House()
    road, begun = Road(), 0
    for turn in range(2 * REQUESTS_MAX):
        busy.add(turn, [0])
        if turn == 1:
            large.add(0, [0, 1, 2, 3, 4])
        road.begin([busy.outbox, large.outbox])
        for way in busy.ways[:begun]:  # a turn later
            way.arrived = True
        busy.outbox.look()
        begun = len(busy.ways)
    assert large.ways, "it waited for the others for ever"


def test_lanes_that_share_a_road_begin_no_more_than_it_takes():
    houses = [House([0, 1]) for _ in range(3)]
    road, outboxes = Road(), [house.outbox for house in houses]
    assert road.begin(outboxes), "an empty road takes everything"
    for house in houses:
        house.add(1, [0])
    assert not road.begin(outboxes), "six requests are under way"
    for house in houses[:2]:
        house.ways[0].arrived = True
        house.outbox.look()
    assert not road.begin(outboxes), "somebody waits, so that it empties"
    houses[2].ways[0].arrived = True
    houses[2].outbox.look()
    assert road.begin(outboxes)
    assert [len(house.ways) for house in houses] == [2, 2, 2]


def test_a_lane_holds_so_much_and_no_more_that_has_not_landed():
    half = b"x" * (OUTBOX_BYTES_MAX // 2)
    house = House([0], value=half)
    assert not house.outbox.full
    house = House([0], [0], value=half)
    assert house.outbox.full
    house.outbox.begin()
    assert house.outbox.full, "what is on its way is held as well"
    house.ways[0].arrived = True
    house.outbox.look()
    assert not house.outbox.full
