"""Benchmark of user code in its two forms: called with a record, or with an Arrow batch.

What it is: the same work on the same bundle through `delivery.stage`, without lanes and stores.
What it must not know: Kafka, catalogs.

Invariants:
    Both forms make the same rows, or the run ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.harness import Benchmark, Contestant, Goal, Lab, Turn
from bench.job import Job
from dedup.model import IDENTITY_BYTES, Source, TopicId
from delivery.batch import Batch, Rows
from delivery.ports import Output, Record, batches_of
from delivery.stage import Policy, run_fresh, stage_of

BUNDLE_ROWS = 20_000
BUNDLES = 5
#: What both forms put in front of a value.
STAMP = b"v1 "
_SOURCE = Source(TopicId(b"input".ljust(IDENTITY_BYTES)), 0)


def stamped(record: Record) -> Output:
    """Put a stamp in front of one value."""
    return record.replace(value=STAMP + (record.value or b""))


def stamped_batch(given: pa.RecordBatch) -> pa.RecordBatch:
    """Put a stamp in front of every value."""
    stamp, nothing = pa.scalar(STAMP, pa.binary()), pa.scalar(b"", pa.binary())
    return pa.record_batch(
        {"value": pc.binary_join_element_wise(stamp, given.column("value"), nothing)}
    )


@contextmanager
def _staged(lab: Lab) -> Iterator[list[Contestant]]:
    job, bundles = Job(), 1 if lab.quick else BUNDLES
    (batch,) = batches_of(
        job.record(offset)._replace(source=_SOURCE, offset=offset) for offset in range(BUNDLE_ROWS)
    )
    assert _run(stamped, batch, whole=False).values == _run(stamped_batch, batch, whole=True).values
    yield [
        Contestant(name="record", turn=partial(_turn, stamped, batch, bundles, whole=False)),
        Contestant(name="batch", turn=partial(_turn, stamped_batch, batch, bundles, whole=True)),
    ]


def _turn(call: Callable[..., Any], batch: Batch, bundles: int, *, whole: bool) -> Turn:
    begin = time.perf_counter()
    for _ in range(bundles):
        _run(call, batch, whole=whole)
    return Turn(seconds=(time.perf_counter() - begin,), amount=bundles * len(batch))


def _run(call: Callable[..., Any], batch: Batch, *, whole: bool) -> Rows:
    rows = Rows()
    stage, every = stage_of(call, batch=whole), np.arange(len(batch))
    run_fresh(stage, batch, every, Policy(), rows, kept=repeat(None))
    assert len(rows) == len(batch), "a row for each record"
    return rows


BENCHMARKS = (
    Benchmark(
        name="stage-forms",
        says=f"User code that puts {len(STAMP)} bytes in front of each value, a bundle of "
        f"{BUNDLE_ROWS} records at a time: a function of a record, and one of an Arrow batch.",
        unit="record",
        staged=_staged,
        baseline="record",
        rounds=(7, 1),
        goals=(
            Goal(
                says="a batch against the same records one by one",
                contestant="batch",
                measure="ratio",
                at_most=0.8,
            ),
        ),
    ),
)
