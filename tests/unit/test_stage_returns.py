"""What a stage may return, and what is said of everything else."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from types import MappingProxyType

import numpy as np
import pytest

from dedup.errors import InvalidUsage
from delivery.batch import Rows, batches_of
from delivery.records import Output, Record
from delivery.stage import ERROR, Function, Policy, StoppedByRecordError, run_fresh, run_record
from tests.unit.house import House, broken

RECORD = Record(value=b"in", key=b"k", headers=(("h", b"1"),))
MAY = (
    "a stage returns None, one output (Record, Output, dict, str or bytes; "
    "record.replace(value=...) makes one of any JSON), or an iterable of them"
)


def returning(result: object) -> Callable[[Record], object]:
    def price(_record: Record) -> object:
        return result

    return price


def returned(result: object) -> list[Output]:
    return list(Function(returning(result)).run(RECORD))


@pytest.mark.parametrize(
    ("result", "values"),
    [
        (None, []),
        ([], []),
        ((), []),
        (iter(()), []),
        (b"x", [b"x"]),
        ("x", [b"x"]),
        ({"a": 1}, [b'{"a":1}']),
        (OrderedDict(a=1), [b'{"a":1}']),
        (RECORD, [b"in"]),
        (RECORD.replace(value=5), [b"5"]),
        ([RECORD, {"a": 1}, "x", b"y", Output(b"z")], [b"in", b'{"a":1}', b"x", b"y", b"z"]),
        ((b"x", b"y"), [b"x", b"y"]),
        ({"a": b"x", "b": b"y"}.values(), [b"x", b"y"]),
        (map(str, [1, 2]), [b"1", b"2"]),
    ],
    ids=repr,
)
def test_what_a_stage_may_return(result, values):
    assert [output.value for output in returned(result)] == values


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (42, "an int"),
        (True, "a bool"),
        (1.5, "a float"),
        (object(), "an object"),
        ({"a"}, "a set"),
        (frozenset("a"), "a frozenset"),
        (MappingProxyType({"a": 1}), "a mappingproxy"),
        ({"a": 1}.keys(), "a dict_keys"),
        (bytearray(b"x"), "a bytearray"),
        (memoryview(b"x"), "a memoryview"),
    ],
    ids=repr,
)
def test_what_it_may_not_return_is_said_with_the_function_and_its_line(result, kind):
    with pytest.raises(TypeError) as refused:
        returned(result)
    line = returning(result).__code__.co_firstlineno
    assert str(refused.value) == f"price returned {kind}: {MAY}; it is at {__file__}:{line}"


@pytest.mark.parametrize(
    ("item", "kind"),
    [(5, "an int"), (None, "None"), ({"a"}, "a set"), ([RECORD], "a list"), ((b"k",), "a tuple")],
    ids=repr,
)
@pytest.mark.parametrize("kind_of", [list, tuple, iter])
def test_what_is_no_output_is_none_in_a_list_either(kind_of, item, kind):
    with pytest.raises(TypeError, match=rf"price has among its outputs {kind}: a stage returns"):
        returned(kind_of([RECORD, item]))


def test_a_coroutine_is_called_by_its_name():
    async def price(record: Record) -> Record:
        return record

    with closing(price(RECORD)) as made, pytest.raises(TypeError, match="returned a coroutine: a"):
        returned(made)


@pytest.mark.parametrize("result", [42, [5], {"a"}, [RECORD, 5]], ids=repr)
def test_it_stops_the_stage_or_becomes_a_dead_letter_in_every_way_records_are_run(result):
    stage = Function(returning(result))
    with pytest.raises(StoppedByRecordError, match=re.escape(MAY)):
        run_record(stage, RECORD, Policy())
    (letter,), dead, _ = run_record(stage, RECORD, Policy(dead_letter_edge=1))
    assert (dead, letter.value) == (1, b"in")
    assert MAY.encode() in dict(letter.headers)[ERROR]
    (batch,) = batches_of([RECORD, RECORD._replace(offset=1)])
    rows, ids = Rows(), iter([None, None])
    whole = np.arange(2)
    assert run_fresh(stage, batch, whole, Policy(dead_letter_edge=1), rows, kept=ids) == 2
    assert rows.values == [b"in", b"in"]


def test_an_output_that_there_is_not_is_told_with_those_there_are(house: House):
    def price(record: Record) -> Output:
        return record.replace(value=b"x").to(2)

    house.broker.create("flagged")
    house.write("a")
    policy = Policy(writes=("out", "flagged"))
    error = broken(house, house.runner(writes=("out", "flagged"), call=price, policy=policy))
    assert isinstance(error, InvalidUsage)
    assert str(error) == (
        "send an output: to output 2, of offset 0 of partition 0: the stage has 2 outputs, numbered "
        "from 0: 0 is out, 1 is flagged; nothing of its bundle was sealed: mend what the code says "
        f"to .to(...), at {__file__}:{price.__code__.co_firstlineno}"
    )


def test_outputs_without_names_are_counted(house: House):
    house.write("a")
    error = broken(house, house.runner(call=lambda record: record.replace(value=b"x").to(-1)))
    assert "to output -1, of" in str(error)
    assert "the stage has 1 outputs, numbered from 0; nothing" in str(error)


def test_a_stage_without_outputs_is_not_asked_about_their_numbers(house: House):
    house.write("a")
    call = lambda record: record  # noqa: E731 - the error says where it stands
    error = broken(house, house.runner(writes=(), call=call, policy=Policy()))
    assert "declared without writes=; nothing of its bundle was sealed: say writes=" in str(error)
