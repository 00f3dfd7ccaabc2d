"""XXH3-128 of many short messages at once, in numpy; bit for bit what the `xxhash` package says.

What it is: the published algorithm (seed 0, default secret) for messages of 1 to
`VECTOR_BYTES_MAX` bytes, with one array operation where the original has one instruction.
What it must not know: what is hashed, or when this pays.

Invariants:
    Words are read as little-endian and computed with as numbers, so that the host's byte order
    does not matter. An id's high word stands first, as in the digest's bytes.
    Intermediate results live in registers that a thread makes once: fresh arrays would cost three
    times the computing, in page faults. They are as many for ten rows as for ten million.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dedup.arrays import Ids

Words: TypeAlias = npt.NDArray[np.uint64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

#: Longest message that can be hashed so; the algorithm takes another shape behind it.
VECTOR_BYTES_MAX: Final = 240
#: Rows that go through the arithmetic together. An operation on an array has a fixed price, so
#: that a bundle should be one block; and what a block needs should stay in a core's own cache.
BLOCK_ROWS: Final = 16_384
#: What `counted` puts in front of every number: with it, four words.
PREFIX_BYTES: Final = 24

_P32_2: Final = 0x85EBCA77
_P64_1: Final = 0x9E3779B185EBCA87
_P64_2: Final = 0xC2B2AE3D27D4EB4F
_P64_3: Final = 0x165667B19E3779F9
_P64_4: Final = 0x85EBCA77C2B2AE63
_MIX_1: Final = 0x165667919E3779F9
_MIX_2: Final = 0x9FB21C651E98DF25
_LOW_32: Final = 0xFFFF_FFFF
_LOW_64: Final = 0xFFFF_FFFF_FFFF_FFFF
#: As much of the default secret as messages of these lengths meet.
_SECRET: bytes = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3eb"
)


class _Registers(NamedTuple):
    """What one block of rows is computed in, one word a row each."""

    #: The accumulator, and in the end the hash.
    high: Words
    low: Words
    #: Two words of the message, and the sum of two.
    left: Words
    right: Words
    total: Words
    #: A product of 128 bits.
    above: Words
    below: Words
    #: What `_multiply` halves and adds in.
    spare_a: Words
    spare_b: Words
    spare_c: Words
    spare_d: Words


class _Workspace(threading.local):
    """The registers of one thread."""

    def __init__(self) -> None:
        self._all = np.empty((len(_Registers._fields), BLOCK_ROWS), dtype=np.uint64)

    def registers(self, count: int) -> _Registers:
        """Return registers for a block of `count` rows; nobody else uses them meanwhile."""
        return _Registers(*self._all[:, :count])


_workspace = _Workspace()


def secret() -> Bytes:
    """Return as much of the default secret as messages of these lengths meet."""
    return np.frombuffer(_SECRET, dtype=np.uint8)


def hash_vectors(messages: Bytes) -> Ids:
    """Return the hash of every row of an array of shape (n, length)."""
    count, length = messages.shape
    assert 0 < length <= VECTOR_BYTES_MAX, "longer ones are hashed differently"
    shape = next(shape for length_max, shape in _SHAPES if length <= length_max)
    ids = np.empty((count, 2), dtype=np.uint64)
    for start in range(0, count, BLOCK_ROWS):
        rows = messages[start : start + BLOCK_ROWS]
        # Words are read across bytes that must lie side by side.
        rows = rows if rows.strides[1] == 1 else np.ascontiguousarray(rows)
        r = _workspace.registers(len(rows))
        shape(rows, length, r)
        _store(r, ids[start : start + BLOCK_ROWS])
    return ids


def counted(prefix: bytes, numbers: Words) -> Ids:
    """Return the hash of `prefix` and each number behind it, in 8 bytes, little-endian.

    All but the number is the same in every message, and so is half of the arithmetic.
    """
    assert len(prefix) == PREFIX_BYTES, "one message is four words"
    assert numbers.dtype == np.uint64, "numbers of 64 bits without a sign"
    first, second, third = (int.from_bytes(prefix[at : at + 8], "little") for at in (0, 8, 16))
    product = (first ^ _secret(0)) * (second ^ _secret(8))
    low = (32 * _P64_1 + (product >> 64 ^ product & _LOW_64)) & _LOW_64
    ids = np.empty((len(numbers), 2), dtype=np.uint64)
    for start in range(0, len(numbers), BLOCK_ROWS):
        block = numbers[start : start + BLOCK_ROWS]
        r = _workspace.registers(len(block))
        np.bitwise_xor(block, _secret(24), out=r.left)
        _multiply(r.left, third ^ _secret(16), r)
        np.bitwise_xor(r.above, r.below, out=r.high)
        np.bitwise_xor(r.high, (first + second) & _LOW_64, out=r.high)
        np.add(block, third, out=r.low)
        np.bitwise_xor(r.low, low, out=r.low)
        _fold_middle(32, r)
        _store(r, ids[start : start + BLOCK_ROWS])
    return ids


def _store(r: _Registers, ids: Ids) -> None:
    ids[:, 0] = r.high
    ids[:, 1] = r.low


def _hash_1_to_3(rows: Bytes, length: int, r: _Registers) -> None:
    # The low word is made of the bytes last, length, first, middle; the high one of the same in
    # the other order, rotated by 13 of 32 bits.
    r.low[:] = rows[:, length - 1]
    r.left[:] = rows[:, 0]
    r.right[:] = rows[:, length >> 1]
    np.left_shift(r.low, 24, out=r.high)
    np.bitwise_or(r.low, length << 8, out=r.low)
    np.bitwise_or(r.high, length << 16, out=r.high)
    for byte, up, down in ((r.left, 16, 8), (r.right, 24, 0)):
        np.left_shift(byte, up, out=r.total)
        np.bitwise_or(r.low, r.total, out=r.low)
        np.left_shift(byte, down, out=r.total)
        np.bitwise_or(r.high, r.total, out=r.high)
    np.right_shift(r.high, 19, out=r.total)
    np.left_shift(r.high, 13, out=r.high)
    np.bitwise_or(r.high, r.total, out=r.high)
    np.bitwise_and(r.high, _LOW_32, out=r.high)
    for word, at in ((r.low, 0), (r.high, 8)):
        np.bitwise_xor(word, _secret(at, 4) ^ _secret(at + 4, 4), out=word)
        _scatter(word, (33, _P64_2, 29, _P64_3, 32), r)


def _hash_4_to_8(rows: Bytes, length: int, r: _Registers) -> None:
    _read(rows, 0, r.left, 4)
    _read(rows, length - 4, r.right, 4)
    np.left_shift(r.right, 32, out=r.right)
    np.bitwise_or(r.left, r.right, out=r.left)
    np.bitwise_xor(r.left, _secret(16) ^ _secret(24), out=r.left)
    _multiply(r.left, _P64_1 + (length << 2), r)
    np.left_shift(r.below, 1, out=r.total)
    np.add(r.above, r.total, out=r.high)
    np.right_shift(r.high, 3, out=r.total)
    np.bitwise_xor(r.below, r.total, out=r.low)
    _scatter(r.low, (35, _MIX_2, 28), r)
    _scatter(r.high, (37, _MIX_1, 32), r)


def _hash_9_to_16(rows: Bytes, length: int, r: _Registers) -> None:
    _read(rows, 0, r.left)
    _read(rows, length - 8, r.right)
    np.bitwise_xor(r.left, r.right, out=r.left)
    np.bitwise_xor(r.left, _secret(32) ^ _secret(40), out=r.left)
    _multiply(r.left, _P64_1, r)
    np.add(r.below, (length - 1) << 54, out=r.low)
    np.bitwise_xor(r.right, _secret(48) ^ _secret(56), out=r.right)
    np.add(r.above, r.right, out=r.high)
    np.bitwise_and(r.right, _LOW_32, out=r.right)
    np.multiply(r.right, _P32_2 - 1, out=r.right)
    np.add(r.high, r.right, out=r.high)
    r.total[:] = r.high
    r.total.byteswap(inplace=True)
    np.bitwise_xor(r.low, r.total, out=r.low)
    _multiply(r.low, _P64_2, r)
    np.multiply(r.high, _P64_2, out=r.high)
    np.add(r.high, r.above, out=r.high)
    r.low[:] = r.below
    _scatter(r.low, (37, _MIX_1, 32), r)
    _scatter(r.high, (37, _MIX_1, 32), r)


def _hash_17_to_128(rows: Bytes, length: int, r: _Registers) -> None:
    r.low[:] = length * _P64_1 & _LOW_64
    r.high[:] = 0
    # From the middle outwards, two pieces of 16 bytes at a time, one from either end.
    for at in range((length - 1) // 32 * 16, -1, -16):
        _mix(rows, at, length - 16 - at, at * 2, r)
    _fold_middle(length, r)


def _hash_129_to_240(rows: Bytes, length: int, r: _Registers) -> None:
    r.low[:] = length * _P64_1 & _LOW_64
    r.high[:] = 0
    for at in range(0, 128, 32):
        _mix(rows, at, at + 16, at, r)
    _scatter(r.low, (37, _MIX_1, 32), r)
    _scatter(r.high, (37, _MIX_1, 32), r)
    for at in range(128, length - 31, 32):
        _mix(rows, at, at + 16, at - 125, r)
    _mix(rows, length - 16, length - 32, 103, r)
    _fold_middle(length, r)


def _mix(rows: Bytes, near: int, far: int, secret: int, r: _Registers) -> None:
    """Add two pieces of 16 bytes to the accumulator."""
    _read(rows, near, r.left)
    _read(rows, near + 8, r.right)
    np.add(r.left, r.right, out=r.total)
    _add_product(r.low, secret, r)
    _read(rows, far, r.left)
    _read(rows, far + 8, r.right)
    np.add(r.left, r.right, out=r.spare_a)
    np.bitwise_xor(r.low, r.spare_a, out=r.low)
    _add_product(r.high, secret + 16, r)
    np.bitwise_xor(r.high, r.total, out=r.high)


def _add_product(accumulator: Words, secret: int, r: _Registers) -> None:
    np.bitwise_xor(r.left, _secret(secret), out=r.left)
    np.bitwise_xor(r.right, _secret(secret + 8), out=r.right)
    _multiply(r.left, r.right, r)
    np.bitwise_xor(r.above, r.below, out=r.above)
    np.add(accumulator, r.above, out=accumulator)


def _fold_middle(length: int, r: _Registers) -> None:
    """Make the hash of what messages of 17 to 240 bytes have accumulated."""
    np.multiply(r.low, _P64_1, out=r.left)
    np.add(r.low, r.high, out=r.low)
    np.multiply(r.high, _P64_4, out=r.high)
    np.add(r.high, r.left, out=r.high)
    np.add(r.high, length * _P64_2 & _LOW_64, out=r.high)
    _scatter(r.low, (37, _MIX_1, 32), r)
    _scatter(r.high, (37, _MIX_1, 32), r)
    np.subtract(0, r.high, out=r.high)


#: As arrays, because numpy looks longer at a number of Python's than it takes to compute.
_HALF: Final[Words] = np.array(32, dtype=np.uint64)
_LOW_HALF: Final[Words] = np.array(_LOW_32, dtype=np.uint64)


def _multiply(left: Words, right: Words | int, r: _Registers) -> None:
    """Put the 128 bits of a product into `above` and `below`, from products of 32-bit halves."""
    np.bitwise_and(left, _LOW_HALF, out=r.spare_a)
    np.right_shift(left, _HALF, out=r.above)
    right_low: Words | int
    right_high: Words | int
    if isinstance(right, int):
        right_low, right_high = right & _LOW_32, right >> 32
    else:
        right_low = np.bitwise_and(right, _LOW_HALF, out=r.spare_b)
        right_high = np.right_shift(right, _HALF, out=r.spare_c)
    np.multiply(r.spare_a, right_low, out=r.below)
    np.right_shift(r.below, _HALF, out=r.below)
    np.multiply(r.above, right_low, out=r.spare_d)
    # A product of halves leaves room for one more half: neither of these sums overflows.
    np.add(r.below, r.spare_d, out=r.below)
    np.bitwise_and(r.below, _LOW_HALF, out=r.spare_d)
    np.multiply(r.spare_a, right_high, out=r.spare_a)
    np.add(r.spare_a, r.spare_d, out=r.spare_a)
    np.multiply(r.above, right_high, out=r.above)
    np.right_shift(r.below, _HALF, out=r.below)
    np.add(r.above, r.below, out=r.above)
    np.right_shift(r.spare_a, _HALF, out=r.spare_a)
    np.add(r.above, r.spare_a, out=r.above)
    np.multiply(left, right, out=r.below)


def _scatter(word: Words, steps: tuple[int, ...], r: _Registers) -> None:
    """Let every bit reach every other: shift and xor, multiply, shift and xor, and so on."""
    for place, step in enumerate(steps):
        if place % 2:
            np.multiply(word, step, out=word)
        else:
            np.right_shift(word, step, out=r.total)
            np.bitwise_xor(word, r.total, out=word)


def _read(rows: Bytes, at: int, word: Words, width: int = 8) -> None:
    """Read the little-endian word at one place of every row."""
    word[:] = rows[:, at : at + width].view(f"<u{width}")[:, 0]


def _secret(at: int, width: int = 8) -> int:
    return int.from_bytes(_SECRET[at : at + width], "little")


#: The algorithm's shapes, each with the longest message it is for.
_SHAPES: Final = (
    (3, _hash_1_to_3),
    (8, _hash_4_to_8),
    (16, _hash_9_to_16),
    (128, _hash_17_to_128),
    (VECTOR_BYTES_MAX, _hash_129_to_240),
)
