"""Runs against a dictionary: whatever ids they hold, chosen by an adversary or not."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.arrays import Ids
from dedup.formats.segment import Bucket, Origin
from dedup.model import Incarnation
from dedup.runs import Run, merge_runs, open_run, write_run

#: With the compiled library and without it.
pytestmark = pytest.mark.usefixtures("both_ways")

LANE = "lane"
WORDS = st.sampled_from([0, 1, 2, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1])
HALVES = WORDS | st.integers(0, (1 << 64) - 1)
PAIRS = st.tuples(HALVES, HALVES)
OWNER = Incarnation(b"i" * 16)
#: Of each id the seq it came from and its digest.
HELD = st.dictionaries(PAIRS, st.tuples(st.integers(0, 5), st.integers(0, 65535)), max_size=60)
modest = settings(deadline=None, max_examples=150)


def array(pairs: list[tuple[int, int]]) -> Ids:
    return np.array(pairs, dtype=np.uint64).reshape(-1, 2)


def write(path: Path, held: dict[tuple[int, int], tuple[int, int]]) -> Run:
    pairs = sorted(held)
    seqs = sorted({seq for seq, _ in held.values()})
    return write_run(
        path,
        LANE,
        Bucket(Origin.EXTERNAL, 1),
        array(pairs),
        origins=[(OWNER, seq) for seq in seqs],
        origin_of=np.array([seqs.index(held[pair][0]) for pair in pairs], dtype=np.int64),
        digests=np.array([held[pair][1] for pair in pairs], dtype=np.uint16),
    )


def read(run: Run, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, int]]:
    rows = run.find(array(pairs))
    there = rows[rows >= 0]
    found = zip(run.origin(there).tolist(), run.digest(there).tolist(), strict=True)
    hits = [pair for pair, row in zip(pairs, rows.tolist(), strict=True) if row >= 0]
    values = [(run.origin_at(origin)[1], digest) for origin, digest in found]
    return dict(zip(hits, values, strict=True))


@modest
@given(HELD, st.lists(PAIRS, max_size=60))
def test_a_run_holds_what_was_written_and_nothing_else(held, others):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run"
        write(path, held)
        run = open_run(path, LANE)
        asked = [*held, *others]
        assert read(run, asked) == {pair: held[pair] for pair in asked if pair in held}
        assert list(map(tuple, run.ids.tolist())) == sorted(held)
        assert run.verify()


@modest
@given(HELD.filter(bool))
def test_what_is_written_at_once_is_what_is_written_piece_by_piece(held):
    with tempfile.TemporaryDirectory() as directory:
        whole, merged = Path(directory) / "whole", Path(directory) / "merged"
        merge_runs(merged, [write(whole, held)], lambda *_: True)
        assert merged.read_bytes() == whole.read_bytes()


@modest
@given(st.lists(HELD, min_size=1, max_size=4), st.sets(st.integers(0, 5)))
def test_a_merge_keeps_of_each_id_the_oldest_seal_that_counts(several, dropped):
    expected: dict[tuple[int, int], tuple[int, int]] = {}
    for held in several:
        for pair, (seq, digest) in held.items():
            if seq not in dropped and seq < expected.get(pair, (9, 0))[0]:
                expected[pair] = (seq, digest)
    with tempfile.TemporaryDirectory() as directory:
        runs = [write(Path(directory) / str(at), held) for at, held in enumerate(several)]
        merged = merge_runs(Path(directory) / "m", runs, lambda _, seq: seq not in dropped)
        assert merged.count == len(expected)
        if any(several):
            found = read(merged, [pair for held in several for pair in held])
            assert {pair: seq for pair, (seq, _) in found.items()} == {
                pair: seq for pair, (seq, _) in expected.items()
            }
