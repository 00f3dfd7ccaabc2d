"""Where seeded ids come from: records of a topic, or a column of Arrow data.

What it is: `of_topic` and `of_column`, which yield ids batch by batch, as publishers name them.
What it must not know: lanes, catalogs, what becomes of the ids.

Invariants:
    An id is made as a stage makes it of the same name; whoever has none is counted, and has no id.
    One batch is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from dedup.arrays import Ids
from dedup.errors import InvalidUsage, Unavailable
from dedup.ids import named_many
from dedup.model import Source
from dedup.xxh3 import hash_column
from delivery.kafka.port import Client, Topic
from delivery.kafka.ranges import STALL_SECONDS_MAX, read_ranges
from delivery.naming import IdFrom, names_of

__all__ = ["Named", "of_column", "of_topic"]

#: Rows that are hashed together.
BATCH_ROWS = 128 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """The ids of one batch.

    Attributes:
        ids: of the records that name themselves.
        records: how many records there were, those without a name included.
        source: the partition they were read from; None if they are of no topic.
    """

    ids: Ids
    records: int
    source: Source | None = None


def of_topic(
    client: Client, topic: Topic, ranges: Mapping[int, tuple[int, int]], way: IdFrom
) -> Iterator[Named]:
    """Yield the ids of the records in some ranges of a topic.

    Raises:
        InvalidUsage: a name cannot be taken out of a record.
        Unavailable: the topic cannot be read just now.
    """
    spans = {Source(topic.id, number): span for number, span in ranges.items() if span[0] < span[1]}
    if not spans:
        return
    read = read_ranges(
        client,
        topic.name,
        {source: start for source, (start, _) in spans.items()},
        {source: end for source, (_, end) in spans.items()},
        stalled=partial(_stalled, topic.name, spans),
        records_max=BATCH_ROWS,
    )
    for fetched in read:
        batch = fetched.batch
        names = names_of(way, batch, np.arange(len(batch), dtype=np.intp))
        known = [name for name in names if name is not None]
        yield Named(named_many(known), len(names), batch.source)


def _stalled(
    topic: str, spans: Mapping[Source, tuple[int, int]], waiting: Mapping[Source, int]
) -> Unavailable:
    rest = ", ".join(f"{s.partition} from {waiting[s]} to {spans[s][1]}" for s in sorted(waiting))
    return Unavailable(
        "read the ids of a topic",
        f"{topic}, partitions {rest}",
        f"nothing came for {STALL_SECONDS_MAX:.0f} s; nothing counts that was stored: see whether "
        "the brokers that lead them are up, and run it again",
    )


def of_column(data: Any, column: str | None) -> Iterator[Named]:
    """Yield the ids of a column of Arrow data.

    Args:
        data: path of a Parquet file or a directory of them, or anything that Arrow can read:
            a reader of record batches, a table, a dataset.
        column: its name; None: there is only one.

    Raises:
        InvalidUsage: there is no such data or column, or a value names nobody.
    """
    for batch in _batches(data, column):
        values = batch.column(0)
        if pa.types.is_integer(values.type):
            # As JSON spells it: what id_from="json:FIELD" takes of the same number.
            values = values.cast(pa.string())
        yield Named(hash_column(values), len(values))


def _batches(data: Any, column: str | None) -> Iterator[pa.RecordBatch]:
    try:
        if isinstance(data, str | Path):
            data = ds.dataset(data, format="parquet")
        if isinstance(data, ds.Dataset):
            chosen = _chosen(data.schema, column)
            yield from data.to_batches(columns=[chosen], batch_size=BATCH_ROWS)
            return
        reader = _reader(data)
        chosen = _chosen(reader.schema, column)
        for batch in reader:
            yield batch.select([chosen])
    except (pa.ArrowException, OSError) as error:
        raise InvalidUsage(
            "read a column of ids",
            str(data) if isinstance(data, str | Path) else type(data).__name__,
            f"{error}; nothing was written: give a Parquet file, or a reader of record batches",
        ) from error


def _reader(data: Any) -> pa.RecordBatchReader:
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    raise InvalidUsage(
        "read a column of ids",
        type(data).__name__,
        "Arrow cannot read it; nothing was written: give a path of Parquet, a table, a dataset or a "
        "reader of record batches",
    )


def _chosen(schema: pa.Schema, column: str | None) -> str:
    names = list(schema.names)
    if column is None and len(names) == 1:
        return str(names[0])
    if column is None or names.count(column) != 1:
        raise InvalidUsage(
            "read a column of ids",
            f"column={column!r}",
            f"the columns are {', '.join(names)}; nothing was written: name the one with the ids",
        )
    return column
