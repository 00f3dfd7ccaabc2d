"""JSON of records: a faster library does it, and nothing comes out otherwise than by Python's own."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delivery.records import Record, as_bytes

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
#: What Python takes though JSON does not know it, and what nobody takes.
_ODD = ("NaN", "-Infinity", "1e400", '"\\ud800"', "2" * 400, "-0", "[1", "", " ", "nul", '{"a":1}x')


def same(one: object, other: object) -> bool:
    return repr(one) == repr(other)


@given(_VALUES)
def test_a_value_is_read_as_the_standard_library_reads_it(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        data = text.encode(errors="surrogatepass")
        assert same(Record(value=data).json(), json.loads(data))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("text", _ODD)
def test_odd_texts_are_read_or_refused_as_by_the_standard_library(text, encoding):
    data = text.encode(encoding)
    try:
        expected = json.loads(data) if data else None
    except ValueError as error:
        with pytest.raises(type(error)):
            Record(value=data).json()
    else:
        assert same(Record(value=data).json(), expected)


@pytest.mark.parametrize("data", [b"\xff", b'"\xff"', b'{"a":"\xc3"}'])
def test_bytes_that_are_no_text_are_refused_as_by_the_standard_library(data):
    with pytest.raises(UnicodeDecodeError):
        json.loads(data)
    with pytest.raises(UnicodeDecodeError):
        Record(value=data).json()


@given(_VALUES.filter(lambda value: not isinstance(value, str)))
@example({"a": math.nan, "b": [math.inf, -math.inf]})
@example({True: None, 2: "null", 2.5: 2**70})
@example([(1, 2), "é\u2028"])
def test_a_value_is_written_so_that_it_is_read_as_it_was(value):
    try:
        expected = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        with pytest.raises(UnicodeEncodeError):
            as_bytes(value)
        return
    made = as_bytes(value)
    assert same(json.loads(made), json.loads(expected))
    assert b" " not in made.replace(b" ", b"", expected.count(b" ")), "compact"


@pytest.mark.parametrize("value", [object(), {"a": {1j}}, [lambda: None]])
def test_what_has_no_json_is_refused_as_by_the_standard_library(value):
    with pytest.raises(TypeError, match="not JSON serializable"):
        as_bytes(value)
