"""Spark's Kafka rows as batches of one source each.

What it is: `split`, which cuts an Arrow batch where its topic or partition changes, and `batch_of`,
which takes the columns of such a piece the way the runner has them.
What it must not know: lanes, verdicts, where offsets begin or end.

Invariants:
    Rows keep their order; a piece is contiguous, so that a verdict's row number is one in it.
    A header without a value is one with no bytes, as our own clients read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dedup.model import Source
from delivery.batch import Alike, Batch
from delivery.buffers import bytes_of, numbers_of
from delivery.records import Headers

__all__ = ["COLUMNS", "batch_of", "split"]

#: What of Spark's columns a lane needs.
COLUMNS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")

_MICROSECONDS = 1000


def split(
    table: pa.RecordBatch, source_of: Callable[[str, int], Source]
) -> Iterator[tuple[pa.RecordBatch, Source]]:
    """Yield the stretches of rows that are of one partition, in order."""
    if not table.num_rows:
        return
    names = table.column("topic").dictionary_encode()
    partitions = numbers_of(table.column("partition"))
    topics = numbers_of(names.indices)
    changes = (np.diff(partitions) != 0) | (np.diff(topics) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), table.num_rows]
    for first, last in pairwise(bounds):
        name = names.dictionary[int(topics[first])].as_py()
        yield table.slice(first, last - first), source_of(name, int(partitions[first]))


def batch_of(table: pa.RecordBatch, source: Source) -> Batch:
    """Return the rows of one partition as the runner has them."""
    moments = table.column("timestamp").cast(pa.int64())
    return Batch(
        source,
        numbers_of(table.column("offset")).astype(np.int64, copy=False),
        numbers_of(moments) // _MICROSECONDS,
        bytes_of(table.column("key")),
        bytes_of(table.column("value")),
        _headers(table.column("headers")),
    )


def _headers(column: pa.ListArray) -> Sequence[Headers | None]:
    ends = numbers_of(column.offsets)
    first, last = int(ends[0]), int(ends[-1])
    if first == last:
        return [None] * len(column)
    # What a slice was cut from is behind it still, and not to be looked at again.
    pairs = column.values.slice(first, last - first)
    # Names are few, and are made into text once each.
    names = pairs.field("key").dictionary_encode()
    known, which = names.dictionary.to_pylist(), numbers_of(names.indices).tolist()
    values = bytes_of(pairs.field("value"))
    if len(known) == 1 and len(column) == len(pairs) and (np.diff(ends) == 1).all():
        return Alike(known[0], [value or b"" for value in values])
    flat = [(known[name], value or b"") for name, value in zip(which, values, strict=True)]
    return [tuple(flat[at:end]) for at, end in pairwise((ends - first).tolist())]
