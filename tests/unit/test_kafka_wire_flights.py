"""Batches of a partition leave in order with numbers of their own, and leave again in that order."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.kafka.wire import codecs, flights
from delivery.kafka.wire.encoding import encode
from delivery.kafka.wire.flights import REQUESTS_MAX, Flight, Runway

#: Where a batch says which of its producer's records is its first.
SEQUENCE_AT = 53
LATER = 1e12


def flight(count: int = 2) -> Flight[str]:
    rows = [b"v"] * count
    data = encode([None] * count, rows, [()] * count, timestamp_ms=0, codec=codecs.NONE)
    return Flight(data, count, "sending")


def numbered(one: Flight[str]) -> int:
    return int(struct.unpack_from(">i", one.data, SEQUENCE_AT)[0])


def leave_all(runway: Runway[str]) -> list[Flight[str]]:
    left = []
    while runway.may_leave(LATER):
        left.append(runway.leave(7, 0))
    return left


def test_numbers_have_no_gap_and_no_more_leave_than_a_broker_knows_again() -> None:
    runway: Runway[str] = Runway()
    for count in (3, 1, 4, 1, 5, 9, 2):
        runway.add(flight(count))
    left = leave_all(runway)
    assert [numbered(one) for one in left] == [0, 3, 4, 8, 9]
    assert len(left) == REQUESTS_MAX
    runway.landed(left[0])
    assert [numbered(one) for one in leave_all(runway)] == [14]


@given(st.lists(st.booleans(), min_size=1, max_size=REQUESTS_MAX), st.randoms())
def test_what_failed_leaves_again_in_order_and_with_its_number(fates, dice) -> None:
    runway: Runway[str] = Runway()
    batches = [flight() for _ in range(len(fates) + 2)]
    for one in batches:
        runway.add(one)
    flying = [runway.leave(7, 0) for _ in fates]
    answers = list(zip(flying, fates, strict=True))
    dice.shuffle(answers)
    for at, (one, fine) in enumerate(answers):
        (runway.landed if fine else runway.fail)(one)
        failed = not all(fate for _, fate in answers[: at + 1])
        if failed and at + 1 < len(answers):
            assert not runway.may_leave(LATER), "behind a failure nothing leaves"
    again = [one for one, fine in zip(flying, fates, strict=True) if not fine]
    assert leave_all(runway) == (again + batches[len(fates) :])[:REQUESTS_MAX]
    assert [numbered(one) for one in flying] == [2 * at for at in range(len(flying))]


def test_what_failed_waits_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    runway: Runway[str] = Runway()
    runway.add(flight())
    monkeypatch.setattr(flights.time, "monotonic", lambda: 100.0)
    runway.fail(runway.leave(7, 0))
    assert not runway.may_leave(100.0)
    assert runway.may_leave(100.0 + flights.RETRY_SECONDS)


def test_numbers_go_round_where_kafkas_do() -> None:
    runway: Runway[str] = Runway()
    runway._next_sequence = 0x7FFFFFFF
    runway.add(flight(2))
    runway.add(flight(1))
    assert [numbered(one) for one in leave_all(runway)] == [0x7FFFFFFF, 1]
