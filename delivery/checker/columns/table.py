"""Records as numbers: a topic-partition in columns, and every mark that occurs once.

What it is: `Reading`, which takes batches in and keeps about 70 bytes a record, `Column`, what
becomes of them, and `Marks`.
What it must not know: lanes' rows, what is right.

Invariants:
    Keys, values and headers are kept as digests only: two of 64 bits for a record.
    A record whose header of ours is not the last one has a digest that no stored row has.
    What a header says counts only where `Marks.standing` says so; every other record is named by
    its publisher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import xxhash

from dedup.model import Source
from delivery.checker.chunks import NOTHING, external
from delivery.checker.columns.same import Ints, Mask, Words, occurring
from delivery.checker.evidence import named_by
from delivery.header import NAME, NO_PARENT, HeaderColumns, decode_headers
from delivery.protocol.senders import Mark

if TYPE_CHECKING:
    from delivery.batch import Batch
    from delivery.records import Headers

__all__ = ["Column", "Marks", "Reading", "Way", "digests", "payload", "rest_digests"]

#: How publishers name their records; it is given a record.
Way = Callable[[Any], bytes | None]
#: What a record says that carries no header of ours.
NO_MARK = -1
_digest = xxhash.xxh3_64_intdigest
_EMPTY = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Marks:
    """Every mark that occurs, each once, with what the rows of its sender make of it.

    Args:
        standing: tells whether what a mark says is so for a topic.
    """

    standing: Callable[[Mark, bytes], bool]
    every: list[Mark] = field(default_factory=list)
    _place: dict[Mark, int] = field(default_factory=dict)
    _genuine: dict[tuple[int, bytes], bool] = field(default_factory=dict)

    def places(self, marks: Sequence[Mark]) -> list[int]:
        """Return the places of marks."""
        return [self._of(mark) for mark in marks]

    def genuine(self, place: int, topic: bytes) -> bool:
        """Tell whether a record of a topic counts by a mark."""
        key = (place, topic)
        if key not in self._genuine:
            self._genuine[key] = self.standing(self.every[place], topic)
        return self._genuine[key]

    def column(self, name: str) -> Ints:
        """Return a number that marks say, in the order of their places, and `NO_MARK` at the end."""
        return np.array([*(getattr(mark, name) for mark in self.every), NO_MARK], dtype=np.int64)

    def _of(self, mark: Mark) -> int:
        place = self._place.get(mark)
        if place is None:
            place = self._place[mark] = len(self.every)
            self.every.append(mark)
        return place


@dataclass(frozen=True, eq=False, kw_only=True)
class Column:
    """One topic-partition, from some offset on.

    Attributes:
        start, end: offsets that were read, the end not included.
        offsets: of its records.
        ids: of every record by its header; 0 where there is none of ours.
        marks: places in `Marks`.
        parents: partition and offset, two arrays.
        values, rests: digests of the value, and of key and other headers.
        genuine: where a record counts by its header.
        named: ids by every way in which a lane names records, by header where that counts.
    """

    source: Source
    start: int
    end: int
    offsets: Ints
    ids: Words
    marks: Ints
    parents: tuple[Ints, Ints]
    values: Words
    rests: Words
    genuine: Mask
    named: dict[Way, Words]

    def __len__(self) -> int:
        return len(self.offsets)

    @cached_property
    def met(self) -> frozenset[int]:
        """Which places in `Marks` occur, and whether none does."""
        return frozenset(occurring(self.marks).tolist())

    def without(self, mask: Mask) -> Column:
        """Return it without some records."""
        kept = ~mask
        return replace(
            self,
            offsets=self.offsets[kept],
            ids=self.ids[kept],
            marks=self.marks[kept],
            parents=(self.parents[0][kept], self.parents[1][kept]),
            values=self.values[kept],
            rests=self.rests[kept],
            genuine=self.genuine[kept],
            named={way: ids[kept] for way, ids in self.named.items()},
        )


class Reading:
    """A topic-partition that is being read.

    Args:
        source: which.
        start: where reading begins.
        marks: of all that is read.
        ways: how lanes that read it name records.
    """

    def __init__(self, source: Source, start: int, marks: Marks, ways: Sequence[Way]) -> None:
        self._source, self._start, self._marks, self._ways = source, start, marks, ways
        self._parts: list[Column] = []

    def take(self, batch: Batch) -> None:
        """Take records in; they come in order."""
        values, theirs = _parted(batch.headers)
        found = decode_headers(values) if values is not None else _none(len(batch))
        places = np.array([*self._marks.places(found.marks), NO_MARK], dtype=np.int64)
        topic = self._source.topic
        sure = [self._marks.genuine(place, topic) for place in places[:-1].tolist()]
        genuine = np.array([*sure, False], dtype=np.bool_)[found.mark_of]
        rests = np.zeros(len(batch), dtype=np.uint64)
        if values is not None:
            rests = rest_digests(batch.keys, theirs)
        self._parts.append(
            Column(
                source=self._source,
                start=self._start,
                end=self._start,
                offsets=batch.offsets,
                ids=found.ids,
                marks=places[found.mark_of],
                parents=(found.partitions.astype(np.int64), found.offsets),
                values=digests(batch.values),
                rests=rests,
                genuine=genuine,
                named={way: _named(way, batch, found.ids, genuine) for way in self._ways},
            )
        )

    def column(self, end: int) -> Column:
        """Return all that was read, up to `end`."""
        parts = self._parts
        none = np.empty((0, 2), dtype=np.uint64)
        words = np.empty(0, dtype=np.uint64)

        def joined(name: str, empty: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.concatenate([empty, *(getattr(part, name) for part in parts)])

        return Column(
            source=self._source,
            start=self._start,
            end=end,
            offsets=joined("offsets", _EMPTY),
            ids=joined("ids", none),
            marks=joined("marks", _EMPTY),
            parents=(
                np.concatenate([_EMPTY, *(part.parents[0] for part in parts)]),
                np.concatenate([_EMPTY, *(part.parents[1] for part in parts)]),
            ),
            values=joined("values", words),
            rests=joined("rests", words),
            genuine=joined("genuine", np.empty(0, dtype=np.bool_)),
            named={
                way: np.concatenate([none, *(part.named[way] for part in parts)])
                for way in self._ways
            },
        )


def digests(fields: Sequence[bytes | None]) -> Words:
    """Return a digest of every field."""
    count = len(fields)
    if None not in fields:
        there = cast("Sequence[bytes]", fields)
        return np.fromiter(map(_digest, there), dtype=np.uint64, count=count)
    if fields.count(None) == count:
        return np.full(count, NOTHING, dtype=np.uint64)
    found = (NOTHING if one is None else _digest(one) for one in fields)
    return np.fromiter(found, dtype=np.uint64, count=count)


def rest_digests(
    keys: Sequence[bytes | None], others: Mapping[int, Sequence[tuple[str, bytes]]]
) -> Words:
    """Return a digest of every record's key and other headers.

    Args:
        keys: of all.
        others: by row, of those records that have other headers than ours.
    """
    found = digests(keys)
    for at, pairs in others.items():
        found[at] ^= np.uint64(_digest(payload(pairs)))
    return found


def payload(pairs: Sequence[tuple[str, bytes]]) -> bytes:
    """Return headers as bytes that no other headers have."""
    parts = (part for name, value in pairs for part in (name.encode(), value))
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def _parted(
    headers: Sequence[Headers | None],
) -> tuple[Sequence[bytes | None] | None, Mapping[int, Sequence[tuple[str, bytes]]]]:
    """Take headers apart: the value of the last one of ours of each record, and the others, by row.

    The first is None if there is none of ours at all; then nobody asks for the others.
    """
    if headers and None not in headers:
        there = cast("Sequence[Headers]", headers)
        if set(map(len, there)) == {1}:  # nearly always, and then nearly always all alike
            flat = list(chain.from_iterable(there))
            names = set(map(itemgetter(0), flat))
            if NAME not in names:
                return None, {}
            if len(names) == 1:
                return list(map(itemgetter(1), flat)), {}
    found = [
        (pairs[-1][1] if pairs[-1][0] == NAME else _buried(pairs) if len(pairs) > 1 else None)
        if pairs
        else None
        for pairs in headers
    ]
    if found.count(None) == len(found):
        return None, {}
    return found, {
        at: pairs[:-1] if pairs[-1][0] == NAME else pairs
        for at, pairs in enumerate(headers)
        if pairs and (len(pairs) > 1 or pairs[0][0] != NAME)
    }


def _buried(pairs: Headers) -> bytes | None:
    return next((value for name, value in reversed(pairs) if name == NAME), None)


def _none(count: int) -> HeaderColumns:
    """Return the headers of records that have none of ours."""
    return HeaderColumns(
        ids=np.zeros((count, 2), dtype=np.uint64),
        marks=(),
        mark_of=np.full(count, NO_MARK, dtype=np.int32),
        partitions=np.full(count, NO_PARENT[0], dtype=np.int32),
        offsets=np.full(count, NO_PARENT[1], dtype=np.int64),
    )


def _named(way: Way, batch: Batch, ids: Words, genuine: Mask) -> Words:
    """Return the ids of records by their header where that counts, else by what names them."""
    found = ids.copy()
    rows = np.flatnonzero(~genuine)
    if not len(rows):
        return found
    source = batch.source
    names = _names(way, batch, rows)
    if None not in names:
        raw = b"".join(map(xxhash.xxh3_128_digest, cast("Sequence[bytes]", names)))
    else:
        raw = b"".join(
            external(name, source.topic, source.partition, offset)
            for name, offset in zip(names, batch.offsets[rows].tolist(), strict=True)
        )
    found[rows] = np.frombuffer(raw, dtype=">u8").reshape(-1, 2)
    return found


def _names(way: Way, batch: Batch, rows: Ints) -> Sequence[bytes | None]:
    column = getattr(way, "column", None)
    if column is not None:
        names: Sequence[bytes | None] = column(batch, rows)
        return names
    return [named_by(way, record) for record in batch.records(rows)]
