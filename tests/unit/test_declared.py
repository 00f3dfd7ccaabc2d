"""A function that was declared a stage is run in a unit test with the outputs that it has."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from delivery import Delivery, InvalidUsage, Output, Record
from delivery.declared import declare_outputs, declared_outputs
from delivery.testing import run

ABC = [Record(value=name.encode()) for name in "abc"]


@pytest.fixture
def pipeline() -> Delivery:
    return Delivery(catalog="memory:", kafka="localhost:9092")


def test_it_has_its_outputs_from_there(pipeline):
    @pipeline.stage(reads="letters", writes=("loud", "copies"), dead_letters="bad")
    def split(record: Record) -> Iterator[Output]:
        yield record.replace(value=b"loud")
        yield record.replace(value=b"copy").to(1)

    assert [len(edge) for edge in run(split, ABC, crash="everywhere").edges] == [3, 3]
    with pytest.raises(InvalidUsage, match="output 1: it is run with 1 outputs"):
        run(split, ABC, edges=1)


def test_declared_twice_it_has_the_outputs_of_the_stage_with_most(pipeline):
    def copy(record: Record) -> Output:
        return record.replace(value=b"copy").to(1)

    pipeline.stage(reads="letters", writes=("loud", "copies"))(copy)
    pipeline.stage(name="again", reads="letters", writes="loud")(copy)
    assert [len(edge) for edge in run(copy, ABC).edges] == [0, 3]


def test_a_stage_without_outputs_is_run_with_one(pipeline):
    @pipeline.stage(reads="letters")
    def watch(_record: Record) -> None:
        pass

    assert run(watch, ABC).edges == [[]]


def test_what_is_no_function_of_a_users_is_not_remembered():
    declare_outputs(str, 2)
    assert declared_outputs(str) is None


def test_nothing_keeps_a_function_alive():
    def gone(_record: Record) -> None:
        pass

    declare_outputs(gone, 2)
    there = weakref.ref(gone)
    assert vars(gone) == {}
    del gone
    gc.collect()
    assert there() is None
