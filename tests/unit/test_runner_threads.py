"""Several calls of user code at once: as many as asked for, their outputs in the order of the input."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from delivery import Delivery, InvalidUsage
from delivery.stage import RECORD_TRIES, Policy, StoppedByRecordError
from tests.unit.house import sealed_upto, seals, values

THREADS = 4
#: Generous: nobody waits so long unless something is wrong.
SECONDS_MAX = 30.0
LETTERS = Policy(dead_letter_edge=1)
NAMES = [f"{number:02}" for number in range(3 * THREADS)]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield pool


def test_as_many_calls_run_at_once_as_were_asked_for(house, pool):
    """Each call waits until three others are in it too: one after the other, none would end."""
    house.write(*NAMES)
    together = threading.Barrier(THREADS)

    def call(record):
        together.wait(SECONDS_MAX)
        return house.quote(record)

    house.done(house.runner(call=call, pool=pool))
    assert len(house.sent()) == len(NAMES)
    assert house.proved() == []


def test_outputs_keep_the_order_of_the_input_though_calls_end_in_the_opposite_one(house, pool):
    house.write(*NAMES[:THREADS])
    ended = [threading.Event() for _ in range(THREADS + 1)]
    ended[THREADS].set()
    order = []

    def call(record):
        assert ended[record.offset + 1].wait(SECONDS_MAX)
        order.append(record.offset)
        ended[record.offset].set()
        return record

    house.done(house.runner(call=call, pool=pool))
    assert order == [3, 2, 1, 0]
    assert values(house) == [name.encode() for name in NAMES[:THREADS]]
    assert house.proved() == []


def test_generators_run_in_their_calls_to_their_ends(house, pool):
    house.write(*NAMES)
    together = threading.Barrier(THREADS)

    def call(record):
        yield record.replace(value=record.value + b"-1")
        together.wait(SECONDS_MAX)
        yield record.replace(value=record.value + b"-2")

    house.done(house.runner(call=call, pool=pool))
    assert values(house) == [f"{name}-{part}".encode() for name in NAMES for part in (1, 2)]
    assert house.proved() == []


def test_a_record_that_fails_among_others_is_a_dead_letter_in_its_place(house, pool):
    house.write(*NAMES)
    house.broker.create("dead")
    together, tries = threading.Barrier(THREADS), []
    bad = {NAMES[1].encode(), NAMES[6].encode()}

    def call(record):
        if record.value not in bad or record.value not in tries:
            together.wait(SECONDS_MAX)  # the first time each
        if record.value in bad:
            tries.append(record.value)
            raise ConnectionError("no price")
        return record

    house.done(house.runner(call=call, pool=pool, writes=("out", "dead"), policy=LETTERS))
    assert sorted(tries) == sorted([*bad] * RECORD_TRIES)
    assert values(house, "dead") == sorted(bad)
    assert values(house) == [n for name in NAMES if (n := name.encode()) not in bad]
    assert sum(seal.counts.dead_letter for seal in seals(house)) == 2
    assert house.proved() == []


def test_without_dead_letters_a_record_that_fails_among_others_stops_the_stage(house, pool):
    house.write(*NAMES)
    together, tries = threading.Barrier(THREADS), []

    def call(record):
        if record.offset < THREADS and not tries:
            together.wait(SECONDS_MAX)
        if record.offset == 2:
            tries.append(record)
            raise ValueError("no price")
        return record

    # In one bundle: nothing of it counts, what went well beside it included.
    runner = house.runner(call=call, pool=pool)
    house.run(runner)
    assert isinstance(runner.state.error, StoppedByRecordError)
    assert "offset 2 of partition 0 (ValueError: no price, " in str(runner.state.error)
    assert (sealed_upto(house), house.sent()) == (0, [])


def test_whole_batches_and_calls_at_once_exclude_each_other():
    d = Delivery(catalog="memory:", kafka="nowhere:9092")
    with pytest.raises(InvalidUsage, match="nothing was started"):
        d.stage(reads="in", writes="out", batch=True, threads=2)(len)
    d.stage(reads="in", writes="out", threads=3)(len)
    assert [spec.threads for spec in d.stages] == [3]
