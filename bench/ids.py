"""Benchmarks of record ids: whole batches against the `xxhash` package, one message at a time.

What it is: `ids`, one table of all the ways an id is made, at the lengths that names have.
What it must not know: what becomes of an id.

Invariants:
    The loop over the package is the quickest there is. Where it begins with bytes objects that
    exist already it is ahead by what an Arrow column costs to take apart; both are shown.
    All ways make the same ids, which is looked at before anything is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from dedup.arrays import Ids, pack
from dedup.ids import minted, minted_many, named_many, positional, positional_many
from dedup.model import IDENTITY_BYTES, Attempt, Source, TopicId
from dedup.xxh3 import hash_column

#: Ids of one batch, and batches of one turn; as many different ones as fit no core's own cache.
BATCH = 10_000
BATCHES = 50
BATCHES_QUICK = 5
DIFFERENT = 8
#: Lengths of names: a UUID in bytes, two of them, a UUID in text.
WIDTHS = (16, 32, 36)
#: Names that count something: order-7 and order-1234567.
MIXED = (7, 14)
SEED = 5
#: Turns of some milliseconds meet whatever else the machine does; many of them have a median.
ROUNDS = (21, 1)
#: What one would do without arrays.
BASELINE = f"column as objects, {WIDTHS[0]} bytes"
SPEED_MIN = 1.5
COUNTED_SPEED_MIN = 3

Batch = TypeVar("Batch")
Numbers: TypeAlias = npt.NDArray[np.int64]
_Way: TypeAlias = Callable[[Numbers], Ids]

SOURCE = Source(TopicId(b"topic".ljust(IDENTITY_BYTES)), 3)
ATTEMPT = Attempt(b"attempt".ljust(IDENTITY_BYTES))


@contextmanager
def _ids(lab: Lab) -> Iterator[Sequence[Contestant]]:
    batches = BATCHES_QUICK if lab.quick else BATCHES
    generator = np.random.default_rng(SEED)
    contestants: list[Contestant] = []
    for label, low, high in (
        *((f"{width} bytes", width, width) for width in WIDTHS),
        (f"{MIXED[0]}-{MIXED[1] - 1} bytes", MIXED[0], MIXED[1] - 1),
    ):
        names = [
            [generator.bytes(n) for n in generator.integers(low, high + 1, BATCH).tolist()]
            for _ in range(DIFFERENT)
        ]
        columns = [pa.array(batch, type=pa.binary()) for batch in names]
        assert (named_many(names[0]) == hash_column(columns[0])).all(), "all make the same ids"
        contestants += [
            _contestant(f"objects, {label}", named_many, names, batches),
            _contestant(f"column as objects, {label}", _column_each, columns, batches),
            _contestant(f"column, {label}", hash_column, columns, batches),
        ]
    starts = [np.arange(BATCH, dtype=np.int64) + at * BATCH for at in range(DIFFERENT)]
    edges = [at % 2 for at in starts]
    ways: tuple[tuple[str, _Way, _Way, list[Numbers]], ...] = (
        ("offsets", _positional_each, partial(positional_many, SOURCE), starts),
        ("outputs", _minted_each, partial(minted_many, ATTEMPT, first_ordinal=0), edges),
    )
    for label, each, many, inputs in ways:
        assert (each(inputs[0]) == many(inputs[0])).all(), "all make the same ids"
        contestants += [
            _contestant(f"one by one, {label}", each, inputs, batches),
            _contestant(f"array, {label}", many, inputs, batches),
        ]
    yield contestants


def _column_each(column: pa.Array) -> Ids:
    return named_many(column.to_pylist())


def _positional_each(offsets: Numbers) -> Ids:
    return pack([positional(SOURCE, offset) for offset in offsets.tolist()])


def _minted_each(edges: Numbers) -> Ids:
    return pack([minted(ATTEMPT, edge, at) for at, edge in enumerate(edges.tolist())])


def _contestant(
    name: str, make: Callable[[Batch], Ids], inputs: Sequence[Batch], batches: int
) -> Contestant:
    return Contestant(name=name, turn=partial(_turn, make, inputs, batches))


def _turn(make: Callable[[Batch], Ids], inputs: Sequence[Batch], batches: int) -> Turn:
    seconds = []
    for at in range(batches):
        batch = inputs[at % len(inputs)]
        start = time.perf_counter()
        make(batch)
        seconds.append(time.perf_counter() - start)
    ns_per_id = statistics.median(seconds) / BATCH * 1e9
    return Turn(seconds=tuple(seconds), amount=batches * BATCH, facts={"ns per id": ns_per_id})


BENCHMARKS = (
    Benchmark(
        name="ids",
        says=f"Ids of {BATCH:,} records at a time; median and p99 are of one such batch.",
        unit="id",
        staged=_ids,
        baseline=BASELINE,
        rounds=ROUNDS,
        goals=(
            Goal(
                says="ids of a column of 16 bytes, to those of a loop",
                contestant="column, 16 bytes",
                measure="speed",
                unit="times as many",
                at_least=SPEED_MIN,
            ),
            Goal(
                says="ids of a column of 32 bytes, to the same",
                contestant="column, 32 bytes",
                measure="speed",
                unit="times as many",
                at_least=SPEED_MIN,
            ),
            Goal(
                says="ids of offsets, to the same",
                contestant="array, offsets",
                measure="speed",
                unit="times as many",
                at_least=COUNTED_SPEED_MIN,
            ),
        ),
    ),
)
