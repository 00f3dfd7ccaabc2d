"""Records as columns: what was read, what user code made of it, and what is sent.

What it is: `Batch` (rows of one source partition), `Rows` (a bundle's outputs) and `Emissions` (what
goes to the emitter), each a handful of columns of equal length.
What it must not know: lanes, verdicts, formats, who reads or sends.

Invariants:
    A column is never changed once its batch or emissions are made; a cut shares or copies it.
    The rows of a batch are in offset order; offsets may have holes.
    `Rows` grows at its end only, and is read only when it has grown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids, to_raw
from dedup.model import IDENTITY_BYTES, Frontier, RecordId, Source
from delivery.records import Headers, Output, Record

Bytes = bytes | None
_T = TypeVar("_T")
_VALUE, _KEY, _HEADERS, _EDGE = map(itemgetter, range(4))

#: No offset is as large.
OFFSET_MAX = (1 << 63) - 1


class Alike(Sequence[Headers]):
    """The headers of records each of which has one, of the same name: a column of its values."""

    __slots__ = ("name", "values")
    __hash__ = None  # type: ignore[assignment]  # equal to any column of the same headers

    def __init__(self, name: str, values: Sequence[bytes]) -> None:
        self.name = name
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, at: int) -> Headers: ...
    @overload
    def __getitem__(self, at: slice) -> Alike: ...
    def __getitem__(self, at: int | slice) -> Headers | Alike:
        if isinstance(at, slice):
            return Alike(self.name, self.values[at])
        return ((self.name, self.values[at]),)

    def __iter__(self) -> Iterator[Headers]:
        return zip(zip(repeat(self.name), self.values, strict=False), strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"Alike({self.name!r}, {len(self)} values)"


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Records of one source partition, in offset order."""

    source: Source
    offsets: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]
    keys: Sequence[Bytes]
    values: Sequence[Bytes]
    #: Empty, or None, for a record without headers.
    headers: Sequence[Headers | None]

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return _size(self.keys) + _size(self.values)

    def cut(self, start: int, end: int) -> Batch:
        """Return the rows whose offsets are in [start, end)."""
        offsets = self.offsets
        if not len(offsets) or (start <= offsets[0] and offsets[-1] < end):
            return self
        first, last = np.searchsorted(offsets, (start, end)).tolist()
        part = slice(first, last)
        return Batch(
            self.source,
            self.offsets[part],
            self.timestamps_ms[part],
            self.keys[part],
            self.values[part],
            self.headers[part],
        )

    def records(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> Iterator[Record]:
        """Yield these rows as user code sees them."""
        chosen = np.asarray(rows, dtype=np.intp)
        headers = taken(self.headers, chosen)
        columns = zip(
            taken(self.values, chosen),
            taken(self.keys, chosen),
            headers
            if isinstance(headers, Alike) or all(headers)
            else [some or () for some in headers],
            self.timestamps_ms[chosen].tolist(),
            repeat(self.source),
            self.offsets[chosen].tolist(),
            strict=False,
        )
        # A record is a tuple of just these; made so, no function of Python's runs for it.
        return map(partial(tuple.__new__, Record), columns)

    def __iter__(self) -> Iterator[Record]:
        return self.records(range(len(self)))


def _size(column: Sequence[Bytes]) -> int:
    return sum(map(len, filter(None, column)))


def taken(column: Sequence[_T], rows: npt.NDArray[np.intp]) -> Sequence[_T]:
    """Return some values of a column; the rows are in order, each at most once."""
    if len(rows) == len(column):
        return column
    if isinstance(column, Alike):
        return Alike(column.name, taken(column.values, rows))  # type: ignore[return-value]
    return list(map(column.__getitem__, rows.tolist()))


def chained(columns: Sequence[Sequence[_T]]) -> Sequence[_T]:
    """Return columns one after the other as one."""
    first = columns[0] if columns else ()
    if isinstance(first, Alike):
        alike = [one for one in columns if isinstance(one, Alike) and one.name == first.name]
        if len(alike) == len(columns):
            values = list(chain.from_iterable(one.values for one in alike))
            return Alike(first.name, values)  # type: ignore[return-value]
    return list(chain.from_iterable(columns))


def joined(batches: Sequence[Batch]) -> Batch:
    """Return batches of one source, in the order of their offsets, as one."""
    return Batch(
        batches[0].source,
        np.concatenate([batch.offsets for batch in batches]),
        np.concatenate([batch.timestamps_ms for batch in batches]),
        [key for batch in batches for key in batch.keys],
        [value for batch in batches for value in batch.values],
        chained([batch.headers for batch in batches]),
    )


def within(batches: Sequence[Batch], start: Frontier, end: Frontier) -> list[Batch]:
    """Return the rows of a range."""
    cut = (batch.cut(start.at(batch.source) or 0, end.at(batch.source) or 0) for batch in batches)
    return [batch for batch in cut if len(batch)]


def beyond(frontier: Frontier, batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """Return the rows that are not below a frontier."""
    cut = (batch.cut(frontier.at(batch.source) or 0, OFFSET_MAX) for batch in batches)
    return tuple(batch for batch in cut if len(batch))


def batches_of(records: Iterable[Record]) -> list[Batch]:
    """Return records, of one source after the other, as batches."""
    return [_batch(source, list(rows)) for source, rows in groupby(records, lambda r: r.source)]


def _batch(source: Source, rows: list[Record]) -> Batch:
    return Batch(
        source,
        np.array([record.offset for record in rows], dtype=np.int64),
        np.array([record.timestamp_ms for record in rows], dtype=np.int64),
        [record.key for record in rows],
        [record.value for record in rows],
        [record.headers for record in rows],
    )


class Row(NamedTuple):
    """One output with everything that is frozen when it is stored."""

    output: Output
    partition: int
    #: Partition and offset of the record it was made from.
    parent: tuple[int, int]
    #: The id of the input record, where re-keying keeps it; None: an id is minted.
    kept_id: RecordId | None = None


@dataclass(slots=True)
class Rows:
    """The outputs of a bundle, in order."""

    edges: list[int] = field(default_factory=list)
    keys: list[Bytes] = field(default_factory=list)
    values: list[Bytes] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    parent_partitions: list[int] = field(default_factory=list)
    parent_offsets: list[int] = field(default_factory=list)
    kept_ids: list[RecordId | None] = field(default_factory=list)
    #: Where each goes; filled when all are there.
    partitions: list[int] = field(default_factory=list)
    #: The code may not make the same again of the fresh records: a call of it failed, whatever came
    #: of the next one, or some of them were not made by it.
    unrepeatable: bool = False

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return _size(self.keys) + _size(self.values)

    def extend(self, outputs: Sequence[Output], source: Source, offsets: Sequence[int]) -> None:
        """Add one output of each of several records of a source; none keeps its id."""
        # Not by `zip(*outputs)`, whose iterator for each output sets the collector to work.
        self.values += map(_VALUE, outputs)
        self.keys += map(_KEY, outputs)
        self.headers += map(_HEADERS, outputs)
        self.edges += map(_EDGE, outputs)
        self.parent_partitions += repeat(source.partition, len(outputs))
        self.parent_offsets += offsets
        self.kept_ids += repeat(None, len(outputs))

    def add(self, outputs: Iterable[Output], parent: Record, kept_id: RecordId | None) -> None:
        """Add what one record became."""
        partition, offset = parent.source.partition, parent.offset
        for output in outputs:
            self.edges.append(output.edge)
            self.keys.append(output.key)
            self.values.append(output.value)
            self.headers.append(output.headers)
            self.parent_partitions.append(partition)
            self.parent_offsets.append(offset)
            self.kept_ids.append(kept_id)

    def __iter__(self) -> Iterator[Row]:
        columns = zip(
            self.values,
            self.keys,
            self.headers,
            self.edges,
            self.partitions,
            self.parent_partitions,
            self.parent_offsets,
            self.kept_ids,
            strict=True,
        )
        for value, key, headers, edge, partition, parent, offset, kept_id in columns:
            output = Output(value=value, key=key, headers=headers, edge=edge)
            yield Row(output, partition, (parent, offset), kept_id)

    @staticmethod
    def of(rows: Iterable[Row]) -> Rows:
        """Return rows as columns."""
        made = Rows()
        for row in rows:
            output = row.output
            made.edges.append(output.edge)
            made.keys.append(output.key)
            made.values.append(output.value)
            made.headers.append(output.headers)
            made.parent_partitions.append(row.parent[0])
            made.parent_offsets.append(row.parent[1])
            made.kept_ids.append(row.kept_id)
            made.partitions.append(row.partition)
        return made


class Emission(NamedTuple):
    """One record as it is sent, by whomever and however often."""

    edge: int
    partition: int
    key: Bytes
    value: Bytes
    headers: Headers
    id: RecordId


@dataclass(frozen=True, slots=True, eq=False)
class Emissions:
    """Records as they are sent, in order; `headers` are complete, ours included."""

    edges: Sequence[int]
    partitions: Sequence[int]
    keys: Sequence[Bytes]
    values: Sequence[Bytes]
    headers: Sequence[Headers]
    ids: Ids

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Emission]:
        raw = to_raw(self.ids)
        names = (
            RecordId(raw[at : at + IDENTITY_BYTES]) for at in range(0, len(raw), IDENTITY_BYTES)
        )
        return map(
            Emission, self.edges, self.partitions, self.keys, self.values, self.headers, names
        )

    def cut(self, first: int, last: int) -> Emissions:
        """Return the emissions in [first, last)."""
        part = slice(first, last)
        return Emissions(
            self.edges[part],
            self.partitions[part],
            self.keys[part],
            self.values[part],
            self.headers[part],
            self.ids[part],
        )

    @staticmethod
    def join(parts: Sequence[Emissions]) -> Emissions:
        """Return several one after the other."""
        if len(parts) == 1:
            return parts[0]
        return Emissions(
            [edge for part in parts for edge in part.edges],
            [partition for part in parts for partition in part.partitions],
            [key for part in parts for key in part.keys],
            [value for part in parts for value in part.values],
            chained([part.headers for part in parts]),
            np.concatenate([part.ids for part in parts])
            if parts
            else np.empty((0, 2), dtype=np.uint64),
        )
