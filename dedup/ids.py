"""Record ids: 128 bits that name one record for ever.

What it is: the ways an id is made, of one record and of many at once. `xxhash` is the definition.
What it must not know: clocks, processes, Spark's batch, partition or attempt numbers.

Invariants:
    The same input makes the same id on every machine and in every release.
    Two records of one attempt never share an id, and neither do two attempts.
    What is made of many records is, bit for bit, what is made of each.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from dedup.arrays import Ids
from dedup.model import Attempt, RecordId, Source
from dedup.xxh3 import hash_counted, hash_names, hash_rows

#: 16 identity bytes and two little-endian numbers: one XXH3 message of 32 bytes.
_TWO = struct.Struct("<QQ")
_ONE = struct.Struct("<Q")
#: The same message as an array's item.
_MESSAGE = np.dtype([("identity", "V16"), ("first", "<u8"), ("second", "<u8")])


def named(user_id: bytes) -> RecordId:
    """Return the id of a record whose publisher names it."""
    return RecordId(xxhash.xxh3_128_digest(user_id))


def positional(source: Source, offset: int) -> RecordId:
    """Return the id of a record that only its place in a topic names."""
    return RecordId(xxhash.xxh3_128_digest(source.topic + _TWO.pack(source.partition, offset)))


def minted(attempt: Attempt, edge: int, ordinal: int) -> RecordId:
    """Return the id of an attempt's output; only one attempt at a position is ever sealed."""
    return RecordId(xxhash.xxh3_128_digest(attempt + _TWO.pack(edge, ordinal)))


def named_many(user_ids: Sequence[bytes]) -> Ids:
    """Return `named` of every record; `hash_column` does the same for a column."""
    return hash_names(user_ids)


def positional_many(source: Source, offsets: npt.NDArray[np.int64]) -> Ids:
    """Return `positional` of every offset of one source."""
    assert not len(offsets) or offsets.min() >= 0, "offsets are not negative"
    return hash_counted(source.topic + _ONE.pack(source.partition), offsets.astype(np.uint64))


def minted_many(attempt: Attempt, edges: npt.NDArray[np.integer[Any]], first_ordinal: int) -> Ids:
    """Return `minted` of outputs in a row, each with its edge, counted from an ordinal on."""
    count = len(edges)
    ordinals = np.arange(first_ordinal, first_ordinal + count, dtype=np.uint64)
    if count == 0 or (edges == edges[0]).all():
        edge = int(edges[0]) if count else 0
        return hash_counted(attempt + _ONE.pack(edge), ordinals)
    assert edges.min() >= 0, "edges are not negative"
    messages = np.empty(count, dtype=_MESSAGE)
    messages["identity"] = np.void(attempt)
    messages["first"] = edges
    messages["second"] = ordinals
    return hash_rows(messages.view(np.uint8).reshape(count, _MESSAGE.itemsize))
