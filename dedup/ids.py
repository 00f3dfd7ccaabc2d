"""Record ids: 128 bits that name one record for ever.

What it is: the ways an id is made. `xxhash` is the definition.
What it must not know: clocks, processes, Spark's batch, partition or attempt numbers.

Invariants:
    The same input makes the same id on every machine and in every release.
    Two records of one attempt never share an id, and neither do two attempts.
"""

from __future__ import annotations

import struct

import xxhash

from dedup.model import Attempt, RecordId, Source

#: 16 identity bytes and two little-endian numbers: one XXH3 message of 32 bytes.
_TWO = struct.Struct("<QQ")


def named(user_id: bytes) -> RecordId:
    """Return the id of a record whose publisher names it."""
    return RecordId(xxhash.xxh3_128_digest(user_id))


def positional(source: Source, offset: int) -> RecordId:
    """Return the id of a record that only its place in a topic names."""
    return RecordId(xxhash.xxh3_128_digest(source.topic + _TWO.pack(source.partition, offset)))


def minted(attempt: Attempt, edge: int, ordinal: int) -> RecordId:
    """Return the id of an attempt's output; only one attempt at a position is ever sealed."""
    return RecordId(xxhash.xxh3_128_digest(attempt + _TWO.pack(edge, ordinal)))


def named_many(names):
    from dedup.arrays import pack
    return pack([named(n) for n in names])


def positional_many(source, offsets):
    from dedup.arrays import pack
    return pack([positional(source, o) for o in offsets.tolist()])


def minted_many(attempt, edges, first):
    from dedup.arrays import pack
    return pack([minted(attempt, e, o) for o, e in enumerate(edges, first)])
