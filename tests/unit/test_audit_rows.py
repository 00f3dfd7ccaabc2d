"""Rows of columns are found, told apart and named as dictionaries and loops would do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.checker.chunks import mint, minted_ids
from delivery.checker.columns.same import (
    ABSENT,
    among,
    distinct,
    firsts,
    matches,
    merged,
    occurring,
)

_ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**63 - 1) | st.integers(0, 2)))


def columns(rows: list[tuple[int, int]]) -> tuple[Any, Any]:
    return (
        np.array([one for one, _ in rows], dtype=np.int64),
        np.array([other for _, other in rows], dtype=np.uint64),
    )


@given(_ROWS)
def test_firsts_are_those_of_a_dictionary(rows: list[tuple[int, int]]) -> None:
    met: dict[tuple[int, int], int] = {}
    expected = [met.setdefault(row, at) for at, row in enumerate(rows)]
    assert firsts(columns(rows)).tolist() == expected


@given(_ROWS, _ROWS)
def test_matches_are_those_of_a_dictionary(
    known: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    met: dict[tuple[int, int], int] = {}
    for at, row in enumerate(known):
        met.setdefault(row, at)
    expected = [met.get(row, ABSENT) for row in asked]
    assert matches(columns(known), columns(asked)).tolist() == expected


_IDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), unique=True)


@given(_IDS, _IDS)
def test_ids_are_found_among_ordered_ones(
    known: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    def ids(rows: list[tuple[int, int]]) -> Any:
        return np.array(rows, dtype=np.uint64).reshape(-1, 2)

    half, rest = ids(known[::2]), ids(known[1::2])
    numbers = (np.arange(len(half)), np.arange(len(half), len(known)))
    half, numbers = (
        half[order := np.lexsort((half[:, 1], half[:, 0]))],
        (numbers[0][order], numbers[1]),
    )
    every, beside = merged((half, numbers[0]), (rest, numbers[1]))
    assert among(every, ids(asked)).tolist() == [one in known for one in asked]
    mixed = [*known[::2], *known[1::2]]
    assert [mixed[at] for at in beside.tolist()] == [tuple(one) for one in every.tolist()]


def test_rows_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delivery.checker.columns.same._mixed", lambda words: words[0] * 0)
    rows = [(1, 5), (2, 5), (1, 6), (2, 5), (1, 5)]
    assert firsts(columns(rows)).tolist() == [0, 1, 2, 1, 0]
    assert distinct(columns(rows)).tolist() == [0, 1, 2]
    assert matches(columns(rows[1:3]), columns(rows)).tolist() == [ABSENT, 0, 1, 0, ABSENT]
    assert matches(columns(rows[:1]), columns(rows)).tolist() == [0, ABSENT, ABSENT, ABSENT, 0]


def test_ids_of_a_seal_are_minted_as_one_is() -> None:
    first, second = np.array([0, 0, 3, 65535]), np.array([0, 1, 7, 2**40])
    made = minted_ids(b"a" * 16, first, second)
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    assert made.astype(">u8").tobytes() == b"".join(mint(b"a" * 16, *pair) for pair in pairs)


@given(st.lists(st.integers(ABSENT, 9)))
def test_places_occur_where_a_set_has_them(places: list[int]) -> None:
    assert occurring(np.array(places, dtype=np.int64)).tolist() == sorted(set(places))


@given(_ROWS)
def test_kinds_are_those_of_a_dictionary(rows: list[tuple[int, int]]) -> None:
    twice = [row for row in rows for _ in range(2)]
    expected = [at for at, row in enumerate(twice) if row not in twice[:at]]
    assert distinct(columns(twice)).tolist() == expected
