"""Arrow arrays made of buffers are those that Arrow makes itself."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.buffers import blobs, bytes_of, numbers, numbers_of

INTS = {
    pa.uint16(): (0, 2**16 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
}
#: A process of its own: this one has long imported whatever the tests need.
STORES = """
import sys
from dedup.model import Attempt, HeadRef, Incarnation
from delivery.batch import Rows
from delivery.outputs import Origin, decode_outputs, encode_outputs
ref = HeadRef(Incarnation(b"i" * 16), 1, Attempt(b"a" * 16))
rows = Rows([0], [b"k"], [b"v"], [(("h", b"x"),)], [0], [7], [None], [0])
(emission,) = decode_outputs(encode_outputs(Origin(lane="l", ref=ref, minted_at_ms=1), rows), "here")
assert emission.value == b"v", emission
print("pandas" in sys.modules)
"""

patient = settings(deadline=None)


def nullable(values):
    return st.lists(st.none() | values, max_size=20)


@patient
@given(data=st.data())
@pytest.mark.parametrize("kind", INTS, ids=str)
def test_numbers_are_those_of_arrow(kind, data):
    values = data.draw(nullable(st.integers(*INTS[kind])))
    made = numbers(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


@patient
@given(data=st.data())
@pytest.mark.parametrize("kind", INTS, ids=str)
def test_numbers_come_back_from_a_part_of_a_column(kind, data):
    values = data.draw(st.lists(st.integers(*INTS[kind]), max_size=20))
    first = data.draw(st.integers(0, len(values)))
    rows = data.draw(st.integers(0, len(values) - first))
    found = numbers_of(pa.array(values, kind).slice(first, rows))
    assert found.tolist() == values[first : first + rows]


@patient
@given(values=nullable(st.binary(max_size=9)))
def test_bytes_are_those_of_arrow(values):
    made = blobs(values, pa.binary())
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.binary()))


@patient
@given(values=nullable(st.binary(max_size=9)), data=st.data())
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_bytes_come_back_from_a_part_of_a_column(kind, values, data):
    first = data.draw(st.integers(0, len(values)))
    rows = data.draw(st.integers(0, len(values) - first))
    column = pa.array(values, kind).slice(first, rows)
    assert bytes_of(column) == values[first : first + rows]


@patient
@given(values=nullable(st.binary(min_size=16, max_size=16)))
def test_bytes_of_one_width_are_those_of_arrow(values):
    made = blobs(values, pa.binary(16))
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.binary(16)))


@patient
@given(values=nullable(st.text(max_size=9)))
def test_text_is_that_of_arrow(values):
    made = blobs([None if value is None else value.encode() for value in values], pa.string())
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))


def test_a_value_of_another_width_is_a_programming_error():
    with pytest.raises(AssertionError, match="width of its column"):
        blobs([b"a" * 15, b"b" * 17], pa.binary(16))


def test_storing_and_reading_a_row_does_not_import_pandas():
    ended = subprocess.run(
        [sys.executable, "-c", STORES], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("False\n", "")
