"""Which partition a record goes to: Kafka's own choice for keys, a fixed rule for records without.

What it is: murmur2 as Kafka's Java client computes it, for one key and for many at once.
What it must not know: clients, topics.

Invariants:
    Bit for bit what Java's default partitioner does with a key, so that a topic may be written by
    both.
    A function of key, parent and partition count alone: the same output always goes to the same
    place, in whatever attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["NULL_KEY_RUN", "murmur2", "murmur2_many", "partition_of", "partitions_of"]

#: Records without a key go round the partitions in runs of this many parents: the outputs of a
#: small bundle share a partition, and so a request; over a large one all get their share.
NULL_KEY_RUN = 64

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_WORD = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_WORD_BYTES = 4
#: Longer keys are rare, and hashing them one by one spares a matrix as wide as the longest.
_VECTOR_BYTES_MAX = 64
#: Fewer keys than this are hashed faster one by one.
_VECTOR_KEYS_MIN = 16

_U32 = npt.NDArray[np.uint32]


def murmur2(data: bytes) -> int:
    """Return the hash of one key, as an unsigned 32-bit number."""
    length = len(data)
    h = _SEED ^ length
    whole = length - length % _WORD_BYTES
    for at in range(0, whole, _WORD_BYTES):
        k = int.from_bytes(data[at : at + _WORD_BYTES], "little") * _MULTIPLIER & _WORD
        k = (k ^ k >> _SHIFT) * _MULTIPLIER & _WORD
        h = h * _MULTIPLIER & _WORD ^ k
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _WORD
    h = (h ^ h >> 13) * _MULTIPLIER & _WORD
    return h ^ h >> 15


def murmur2_many(keys: Sequence[bytes]) -> _U32:
    """Return the hashes of many keys."""
    hashes = np.empty(len(keys), dtype=np.uint32)
    lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        same = [keys[place] for place in places.tolist()]
        if length > _VECTOR_BYTES_MAX or len(same) < _VECTOR_KEYS_MIN:
            hashes[places] = np.fromiter(map(murmur2, same), dtype=np.uint32, count=len(same))
        else:
            hashes[places] = _murmur2_same_length(same, length)
    return hashes


def _murmur2_same_length(keys: Sequence[bytes], length: int) -> _U32:
    """Hash keys of one length side by side; numpy's unsigned words wrap as Java's do."""
    matrix = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), length)
    whole = length - length % _WORD_BYTES
    words = np.ascontiguousarray(matrix[:, :whole]).view("<u4").astype(np.uint32)
    multiplier = np.uint32(_MULTIPLIER)
    h = np.full(len(keys), _SEED ^ length, dtype=np.uint32)
    for column in range(whole // _WORD_BYTES):
        k = words[:, column] * multiplier
        k ^= k >> np.uint32(_SHIFT)
        k *= multiplier
        h *= multiplier
        h ^= k
    if whole != length:
        for place in range(length - whole):
            h ^= matrix[:, whole + place].astype(np.uint32) << np.uint32(8 * place)
        h *= multiplier
    h ^= h >> np.uint32(13)
    h *= multiplier
    h ^= h >> np.uint32(15)
    return h


def partition_of(key: bytes | None, parent: tuple[int, int], count: int) -> int:
    """Return the partition of one record.

    Args:
        key: its key; None: the parent decides.
        parent: partition and offset of the record it was made from.
        count: how many partitions the topic has.
    """
    if key is None:
        return (parent[0] + parent[1] // NULL_KEY_RUN) % count
    return (murmur2(key) & _POSITIVE) % count


def partitions_of(
    keys: Sequence[bytes | None],
    parent_partitions: Sequence[int],
    parent_offsets: Sequence[int],
    count: int,
) -> npt.NDArray[np.int64]:
    """Return the partitions of many records; see `partition_of`."""
    partitions = np.asarray(parent_partitions, dtype=np.int64)
    partitions = (partitions + np.asarray(parent_offsets, dtype=np.int64) // NULL_KEY_RUN) % count
    keyed = np.fromiter((key is not None for key in keys), dtype=np.bool_, count=len(keys))
    present = [key for key in keys if key is not None]
    if present:
        hashes = murmur2_many(present) & np.uint32(_POSITIVE)
        partitions[keyed] = hashes.astype(np.int64) % count
    return partitions
