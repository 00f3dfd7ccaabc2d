"""The default engine: a blocked Bloom filter on the id's own bits, in numpy, and in C where that is.

What it is: lines of 512 bits; an id sets four bits in each of two words of one line.
What it must not know: files, lanes, tags.

Invariants:
    The two words of an id are distinct: one even, one odd.
    Of the 128 bits of an id only the middle 64 choose lines and bits. The outer 32 on either side
    are free for whoever shards, sorts or prefixes by id; a filter whose lines were chosen by the
    bits that also chose the shard would use a fraction of its lines.
    The patterns, and everything that leads from an id to its bits, are the same on every machine
    and with every numpy; `layout` notices if they are not.

How it is fast: no temporaries (fresh pages cost more than the arithmetic), and few operations: half
a dozen over the ids and two gathers, in pieces that stay in the second-level cache, and as many
again for what the first word lets through. Sorting a batch by
line costs five times what it saves, with filters of 200 MB as with small ones, because the gathers
do not wait for each other.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from functools import cache
from math import comb, log1p

import numpy as np
import numpy.typing as npt
import xxhash

from dedup.arrays import Ids, Mask
from dedup.compiled.kernels import kernels
from dedup.filters import sizing

Words = npt.NDArray[np.uint64]
Index = npt.NDArray[np.int64]

VERSION = "1"
#: Ids a piece; the five scratch arrays of one thread are 640 KiB.
PIECE_IDS = 16 * 1024
#: Lines that `fill` and `rate` look at.
SAMPLE_LINES = 4096
#: Lines that are counted at once when all of them are.
COUNTED_LINES = 16 * 1024

_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF_BITS = np.uint64(32)
#: 30 bits choose patterns and the second word: 12 the first pattern, 12 the second, 2 the word.
_CHOICE_SHIFT = np.uint64(34)
_CHOICE_MASK = np.uint64((1 << 30) - 1)
_FIRST_SHIFT = np.uint64(18)
_SECOND_SHIFT = np.uint64(6)
_PATTERN_MASK = np.uint64(sizing.PATTERNS - 1)
#: What the first word's number is crossed with: 1, 3, 5 or 7, so that the second is of the same
#: line and never the same word.
_APART_MASK = np.uint64(6)
_ODD = np.uint64(1)
#: What adds up the bytes of a word: of every second byte, and of four numbers of two bytes.
_EVEN_BYTES = np.uint64(0x00FF00FF00FF00FF)
_FOUR_ONES = np.uint64(0x0001000100010001)

#: What the keyed hash multiplies, each with a number of its own; one more number is added.
_QUARTERS = 4
#: The finaliser of splitmix64: shift and multiplier of its two rounds.
_PERMUTATION = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
#: Four lines and some ids, enough to see where every kind of bit goes.
_PROBE_LINES = 4
_PROBE_IDS = 64


class _Scratch(threading.local):
    """Arrays that every piece is computed in, one set a thread."""

    def __init__(self) -> None:
        self.words = [np.empty(PIECE_IDS, dtype=np.uint64) for _ in range(5)]
        self.truths = np.empty(PIECE_IDS, dtype=np.bool_)
        #: One more for filters with a key.
        self.quarter = np.empty(PIECE_IDS, dtype=np.uint64)


_scratch = _Scratch()


class BlockedBits:
    """The engine at work on memory of whole lines."""

    def __init__(self, memory: memoryview, key: bytes | None) -> None:
        self._bits: Words = np.frombuffer(memory, dtype=np.uint64)
        assert len(self._bits) % sizing.LINE_WORDS == 0, "memory is whole lines"
        self._words = np.uint64(len(self._bits))
        self._mixing = None if key is None else _mixing(key)

    def add(self, ids: Ids) -> None:
        """Set the bits of ids."""
        if (compiled := kernels()) is not None:
            compiled.filter_add(self._bits, patterns(), self._mixing, ids)
            return
        for start in range(0, len(ids), PIECE_IDS):
            piece = ids[start : start + PIECE_IDS]
            first, one, choice = self._first(piece)
            second, two = (array[: len(piece)] for array in _scratch.words[3:])
            self._second(first, choice, second, two)
            self._set(first.view(np.int64), one, choice)
            self._set(second.view(np.int64), two, choice)

    def maybe(self, ids: Ids) -> Mask:
        """Tell of each id whether all its bits are set."""
        if (compiled := kernels()) is not None:
            return compiled.filter_maybe(self._bits, patterns(), self._mixing, ids)
        found = np.empty(len(ids), dtype=np.bool_)
        for start in range(0, len(ids), PIECE_IDS):
            piece = ids[start : start + PIECE_IDS]
            hits = found[start : start + PIECE_IDS]
            first, one, choice = self._first(piece)
            word = _scratch.words[3][: len(piece)]
            self._bits.take(first.view(np.int64), out=word, mode="clip")
            np.bitwise_and(word, one, out=word)
            np.equal(word, one, out=hits)
            # Of strangers few come so far.
            rows = np.flatnonzero(hits)
            first, choice = first.take(rows), choice.take(rows)
            second, two = np.empty_like(first), np.empty_like(first)
            self._second(first, choice, second, two)
            hits[rows] = (self._bits.take(second.view(np.int64), mode="clip") & two) == two
        return found

    def fill(self) -> float:
        """Return the share of bits that are set, from evenly spaced lines."""
        counts = self._counts(self._lines()[:: self._step()])
        return float(counts.mean()) / sizing.WORD_BITS

    def rate(self) -> float:
        """Return what a random stranger meets, averaged over evenly spaced lines and their words.

        From the words as they are, so it also holds when ids do not spread as random ones do.
        """
        all_four = _chances()[self._counts(self._lines()[:: self._step()])]
        even, odd = all_four[:, 0::2].mean(axis=1), all_four[:, 1::2].mean(axis=1)
        return float((even * odd).mean())

    def crowded(self) -> bool:
        """Tell whether any line is fuller than random ids ever make one."""
        full = sizing.CROWDED_LINE_SHARE * sizing.LINE_BITS
        lines = self._lines()
        return any(
            bool((_summed(self._counts(lines[at : at + COUNTED_LINES])) >= full).any())
            for at in range(0, len(lines), COUNTED_LINES)
        )

    def _lines(self) -> Words:
        return self._bits.reshape(-1, sizing.LINE_WORDS)

    def _step(self) -> int:
        return max(1, len(self._bits) // sizing.LINE_WORDS // SAMPLE_LINES)

    @staticmethod
    def _counts(words: Words) -> npt.NDArray[np.uint8]:
        counts: npt.NDArray[np.uint8] = np.bitwise_count(words)
        return counts

    def _first(self, ids: Ids) -> tuple[Words, Words, Words]:
        """Return of each id its first word, the pattern for it, and what chooses the second.

        The word is (32 bits * words) >> 32: whole lines and the word in the line at once.
        """
        first, one, choice, spare, _ = (array[: len(ids)] for array in _scratch.words)
        if self._mixing is None:
            np.bitwise_and(ids[:, 0], _LOW_HALF, out=first)
            np.right_shift(ids[:, 1], _CHOICE_SHIFT, out=choice)
        else:
            self._mix(ids, self._mixing, first, choice)
        np.multiply(first, self._words, out=first)
        np.right_shift(first, _HALF_BITS, out=first)
        np.right_shift(choice, _FIRST_SHIFT, out=spare)
        patterns().take(spare.view(np.int64), out=one, mode="clip")
        return first, one, choice

    @staticmethod
    def _second(first: Words, choice: Words, second: Words, two: Words) -> None:
        """Fill in the second words and the patterns for them; what chose them is used up."""
        np.bitwise_and(choice, _APART_MASK, out=second)
        np.bitwise_or(second, _ODD, out=second)
        np.bitwise_xor(second, first, out=second)
        np.right_shift(choice, _SECOND_SHIFT, out=choice)
        np.bitwise_and(choice, _PATTERN_MASK, out=choice)
        patterns().take(choice.view(np.int64), out=two, mode="clip")

    @staticmethod
    def _mix(ids: Ids, numbers: Words, line: Words, choice: Words) -> None:
        """Fill `line` (32 bits) and `choice` (30 bits) with a keyed hash of ids.

        Multilinear hashing of the id's four quarters modulo 2**64, then a fixed permutation of 64
        bits. For any two ids, whoever does not know the key has one chance in 2**33 that they get
        the same 64 bits, whatever the ids are. SUBTLE: the permutation is needed. Multilinear
        hashing alone keeps straight lines straight: ids that are numbers in a row would be so in
        the filter's lines, and crowd there with some keys.
        """
        hashed, term = line, choice
        quarter = _scratch.quarter[: len(ids)]
        for place in range(_QUARTERS):
            half = ids[:, place // 2]
            if place % 2:
                np.bitwise_and(half, _LOW_HALF, out=quarter)
            else:
                np.right_shift(half, _HALF_BITS, out=quarter)
            np.multiply(quarter, numbers[place], out=term)
            np.add(term, numbers[_QUARTERS] if place == 0 else hashed, out=hashed)
        _permute(hashed, quarter)
        np.bitwise_and(hashed, _CHOICE_MASK, out=choice)
        np.right_shift(hashed, _HALF_BITS, out=line)

    def _set(self, places: Index, patterns: Words, spare: Words) -> None:
        """Set patterns: gather, or, scatter; then look whether a word came twice.

        Of two patterns for one word the scatter keeps one. Bits from before are in both, so none
        is ever unset; what is missing afterwards is set one by one. In a random batch that is a
        handful, in a chosen one it may be all of it, at 30 ns each.
        """
        self._bits.take(places, out=spare, mode="clip")
        np.bitwise_or(spare, patterns, out=spare)
        self._bits[places] = spare
        self._bits.take(places, out=spare, mode="clip")
        np.bitwise_and(spare, patterns, out=spare)
        lacking = _scratch.truths[: len(places)]
        np.not_equal(spare, patterns, out=lacking)
        lost = np.flatnonzero(lacking)
        if len(lost):
            np.bitwise_or.at(self._bits, places[lost], patterns[lost])


class BlockedEngine:
    """The kind of filter whose name is `blocked`."""

    name = "blocked"

    def version(self) -> str:
        """Return the version of this module's layout."""
        return VERSION

    def layout(self) -> int:
        """Return a checksum over what fixed ids do to an empty filter, without a key and with."""
        return _layout()

    def size(self, capacity: int, rate: float) -> int:
        """Return the bytes that so many ids need at that rate."""
        return sizing.lines(capacity, rate) * sizing.LINE_BITS // 8

    def over(
        self, memory: memoryview, capacity: int, rate: float, key: bytes | None
    ) -> BlockedBits:
        """Return the engine at work on memory of that size."""
        assert len(memory) == self.size(capacity, rate), "memory is what the capacity needs"
        return BlockedBits(memory, key)


@cache
def _layout() -> int:
    ids = _scrambled(np.arange(2 * _PROBE_IDS, dtype=np.uint64)).reshape(-1, 2)
    digest = xxhash.xxh3_64(sys.byteorder.encode())
    for key in (None, b"layout checksum."):
        memory = bytearray(_PROBE_LINES * sizing.LINE_BITS // 8)
        BlockedBits(memoryview(memory), key).add(ids)
        digest.update(memory)
    digest.update(patterns().tobytes())
    return digest.intdigest()


@cache
def patterns() -> Words:
    """Return the table of patterns: words with four bits set, all different.

    Drawn from a sequence that is written here, not from a library's generator, whose stream may
    change with its version.
    """
    drawn = _scrambled(np.arange(2 * sizing.PATTERNS, dtype=np.uint64))
    table = np.zeros(len(drawn), dtype=np.uint64)
    for place in range(sizing.PATTERN_BITS):
        which = (drawn >> np.uint64(6 * place)) & np.uint64(sizing.WORD_BITS - 1)
        table |= np.uint64(1) << which
    table = table[np.bitwise_count(table) == sizing.PATTERN_BITS]
    _, firsts = np.unique(table, return_index=True)
    chosen: Words = table[np.sort(firsts)][: sizing.PATTERNS].copy()
    assert len(chosen) == sizing.PATTERNS, "enough of the drawn words have four bits"
    chosen.flags.writeable = False
    return chosen


def _summed(counts: npt.NDArray[np.uint8]) -> Words:
    """Return the sum of the eight counts of each line: five times as fast as numpy's own."""
    eight = counts.view(np.uint64)[:, 0]
    pairs = (eight & _EVEN_BYTES) + (eight >> np.uint64(8) & _EVEN_BYTES)
    sums: Words = pairs * _FOUR_ONES >> np.uint64(48)
    return sums


def _scrambled(numbers: Words) -> Words:
    """Return the outputs of splitmix64 for a counter."""
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    _permute(mixed, np.empty_like(mixed))
    return mixed


def _permute(words: Words, spare: Words) -> None:
    """Mix 64 bits in place with the finaliser of splitmix64, which loses none."""
    for shift, multiplier in _PERMUTATION:
        np.right_shift(words, shift, out=spare)
        np.bitwise_xor(words, spare, out=words)
        np.multiply(words, multiplier, out=words)
    np.right_shift(words, np.uint64(31), out=spare)
    np.bitwise_xor(words, spare, out=words)


@cache
def _chances() -> npt.NDArray[np.float64]:
    """Return, for a word with so many bits set, the chance that it covers a pattern of the table.

    By chance, or because the pattern is one of those that the word consists of.
    """
    every = comb(sizing.WORD_BITS, sizing.PATTERN_BITS)
    chances = np.ones(sizing.WORD_BITS + 1, dtype=np.float64)
    for count in range(sizing.WORD_BITS):
        by_chance = comb(count, sizing.PATTERN_BITS) / every
        patterns_in = log1p(-count / sizing.WORD_BITS) / log1p(
            -sizing.PATTERN_BITS / sizing.WORD_BITS
        )
        chances[count] = by_chance + (1 - by_chance) * patterns_in / sizing.PATTERNS
    return chances


def _mixing(key: bytes) -> Words:
    """Stretch a key into the numbers of the mixing function."""
    stretched = hashlib.shake_256(key).digest(8 * (_QUARTERS + 1))
    return np.frombuffer(stretched, dtype="<u8").astype(np.uint64)
