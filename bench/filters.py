"""Benchmarks of the filters beside pybloom-live as it comes and a Python set.

What it is: test and add of batches of 10,000 fresh ids, into filters that already hold most of
what they were made for.
What it must not know: lanes, catalogs, how ids are hashed.

Invariants:
    Every contestant is given the form of id that it would be given in a job: rows of an array,
    hex strings, bytes. Making that form is outside of what is timed; our port for pybloom-live is
    a contestant of its own, and makes its strings inside.
    A contestant that forgets an id ends the run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from pybloom_live import BloomFilter

from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from dedup.arrays import Ids, to_raw
from dedup.filters import KEY_BYTES, RATE_DEFAULT, Filter, new_filter
from dedup.model import IDENTITY_BYTES

BATCH_IDS = 10_000
#: Batches a turn: enough that most of them find their bits in the cache as they were left.
BATCHES = 10
ROUNDS = (5, 1)
WARMUPS = 1
#: Ids that are made at once when a contestant is filled.
BLOCK_IDS = 100_000
KEY = bytes(range(KEY_BYTES))
PYBLOOM = "pybloom-live"
#: Filling takes minutes beyond, and shows what pybloom-live itself shows.
PORT_CAPACITY_MAX = 1_000_000


class Fresh:
    """Ids that nobody has seen, the same for every contestant."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(0)

    def ids(self, count: int) -> Ids:
        """Return the next ones."""
        return self._generator.integers(0, 2**64, (count, 2), dtype=np.uint64)


class OfFilter:
    """One of our filters."""

    def __init__(self, one: Filter) -> None:
        self._one = one

    def spelled(self, ids: Ids) -> Ids:
        """Rows of an array."""
        return ids

    def test_and_add(self, ids: Ids) -> int:
        """Return how many were unknown."""
        unknown = ids[~self._one.maybe(ids)]
        self._one.add(unknown)
        return len(unknown)

    def knows(self, ids: Ids) -> bool:
        """Tell whether all are known."""
        return bool(self._one.maybe(ids).all())

    def nbytes(self) -> int:
        """What it takes."""
        return self._one.nbytes


class OfPybloom:
    """The package as its documentation shows it."""

    def __init__(self, capacity: int) -> None:
        self._bloom = BloomFilter(capacity=capacity, error_rate=RATE_DEFAULT)

    def spelled(self, ids: Ids) -> list[str]:
        """Strings, the only keys that it hashes by their content."""
        return [one.hex() for one in _cut(ids)]

    def test_and_add(self, keys: list[str]) -> int:
        """Return how many were unknown; `add` tests as it adds."""
        return sum(not self._bloom.add(key) for key in keys)

    def knows(self, keys: list[str]) -> bool:
        """Tell whether all are known."""
        return all(key in self._bloom for key in keys)

    def nbytes(self) -> int:
        """What it takes."""
        return int(self._bloom.bitarray.nbytes)


class OfSet:
    """A set of bytes: exact, and what a job without a filter would hold."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def spelled(self, ids: Ids) -> list[bytes]:
        """Bytes objects."""
        return _cut(ids)

    def test_and_add(self, ids: list[bytes]) -> int:
        """Return how many were unknown."""
        unknown = [one for one in ids if one not in self._known]
        self._known.update(unknown)
        return len(unknown)

    def knows(self, ids: list[bytes]) -> bool:
        """Tell whether all are known."""
        return self._known.issuperset(ids)

    def nbytes(self) -> int:
        """What it takes, its bytes objects included."""
        return sys.getsizeof(self._known) + len(self._known) * sys.getsizeof(bytes(IDENTITY_BYTES))


def _cut(ids: Ids) -> list[bytes]:
    raw = to_raw(ids)
    return [raw[at : at + IDENTITY_BYTES] for at in range(0, len(raw), IDENTITY_BYTES)]


def _filled(one: Any, count: int) -> Any:
    fresh = Fresh()
    while count:
        ids = fresh.ids(min(BLOCK_IDS, count))
        one.test_and_add(one.spelled(ids))
        count -= len(ids)
    return one


def _turn(one: Any, fresh: Fresh, capacity: int) -> Turn:
    """Test and add batches nobody has seen; then check that they are known."""
    seconds, testing, unknown = [], [], 0
    for _ in range(BATCHES):
        batch = one.spelled(fresh.ids(BATCH_IDS))
        begin = time.perf_counter()
        unknown += one.test_and_add(batch)
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        assert one.knows(batch), "no id is ever denied"
        testing.append(time.perf_counter() - begin)
    facts = {
        "bytes/id": one.nbytes() / capacity,
        # The best of a turn: what it takes when nobody else has the core.
        "best ms": min(seconds) * 1000,
        "test alone ms": min(testing) * 1000,
        "false positives %": 100 * (1 - unknown / (BATCHES * BATCH_IDS)),
    }
    return Turn(seconds=tuple(seconds), facts=facts)


@contextmanager
def _staged(capacity: int, lab: Lab) -> Iterator[Sequence[Contestant]]:
    added = (ROUNDS[1 if lab.quick else 0] + WARMUPS) * BATCHES * BATCH_IDS
    capacity = max(added, capacity // 10) if lab.quick else capacity
    makers: dict[str, Callable[[], Any]] = {
        "blocked": lambda: OfFilter(new_filter(capacity)),
        "blocked with a key": lambda: OfFilter(new_filter(capacity, key=KEY)),
        PYBLOOM: lambda: OfPybloom(capacity),
        "Python set": OfSet,
    }
    if capacity <= PORT_CAPACITY_MAX:
        makers["pybloom through the port"] = lambda: OfFilter(
            new_filter(capacity, engine="pybloom-live")
        )
    contestants = []
    for name, make in makers.items():
        lab.report(f"filling {name} with {capacity - added:,} ids")
        one = _filled(make(), capacity - added)
        # Other ids than it was filled with, and the same for all.
        fresh = Fresh()
        fresh.ids(capacity)
        contestants.append(Contestant(name=name, turn=partial(_turn, one, fresh, capacity)))
    yield contestants


def _benchmark(name: str, capacity: int, goals: tuple[Goal, ...]) -> Benchmark:
    return Benchmark(
        name=name,
        says=f"Test and add of {BATCH_IDS:,} fresh ids at a time, at a rate of {RATE_DEFAULT:.1%}, "
        f"into what ends with {capacity:,} ids.",
        unit="batch",
        staged=partial(_staged, capacity),
        baseline=PYBLOOM,
        rounds=ROUNDS,
        warmups=WARMUPS,
        goals=goals,
    )


def _faster(times: float) -> Goal:
    return Goal(
        says="times as fast as pybloom-live",
        contestant="blocked",
        measure="speed",
        at_least=times,
    )


BENCHMARKS = (
    _benchmark(
        "filter-1m",
        1_000_000,
        (
            _faster(30),
            Goal(
                says="test and add of 10,000 ids, the best batch of a turn",
                contestant="blocked",
                measure="best ms",
                unit="ms",
                at_most=0.4,
            ),
            Goal(
                says="memory an id",
                contestant="blocked",
                measure="bytes/id",
                unit="bytes",
                at_most=3,
            ),
        ),
    ),
    _benchmark("filter-10m", 10_000_000, (_faster(30),)),
)
