"""A column of headers that are alike is what a list of them would be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dedup.model import Source, TopicId
from delivery.batch import Alike, Batch, chained, taken
from delivery.naming import id_from, names_of

VALUES = st.lists(st.binary(max_size=5), max_size=9)


@given(VALUES, st.slices(9))
def test_it_is_the_list(values: list[bytes], part: slice) -> None:
    column = Alike("id", values)
    rows = [(("id", value),) for value in values]
    assert list(column) == rows
    assert column == rows
    assert len(column) == len(rows)
    assert list(column[part]) == rows[part]
    assert [column[at] for at in range(len(rows))] == rows


@given(VALUES, st.data())
def test_some_of_it_is_alike_too(values: list[bytes], data: st.DataObject) -> None:
    at = st.integers(0, max(0, len(values) - 1))
    rows = sorted(data.draw(st.sets(at))) if values else []
    some = taken(Alike("id", values), np.array(rows, dtype=np.intp))
    assert isinstance(some, Alike)
    assert list(some.values) == [values[row] for row in rows]


@given(VALUES, VALUES)
def test_columns_are_joined_as_lists_are(first: list[bytes], second: list[bytes]) -> None:
    one, same, other = Alike("id", first), Alike("id", second), Alike("no", second)
    assert type(chained([one, same])) is Alike
    assert list(chained([one, same])) == [*one, *same]
    assert list(chained([one, other])) == [*one, *other]
    assert list(chained([one, [None]])) == [*one, None]
    assert list(chained([[None], one])) == [None, *one]
    assert list(chained([])) == []


def test_records_have_their_headers_and_their_names() -> None:
    at = np.arange(3, dtype=np.int64)
    batch = Batch(
        Source(TopicId(bytes(16)), 0),
        at,
        at,
        [None] * 3,
        [b"v"] * 3,
        Alike("id", [b"a", b"", b"c"]),
    )
    rows = np.array([0, 1, 2], dtype=np.intp)
    assert [record.headers for record in batch] == [
        (("id", b"a"),),
        (("id", b""),),
        (("id", b"c"),),
    ]
    assert list(names_of(id_from("header:id"), batch, rows)) == [b"a", b"", b"c"]
    assert list(names_of(id_from("header:no"), batch, rows)) == [None] * 3
    assert list(names_of(id_from("header:id"), batch, rows[1:])) == [b"", b"c"]
