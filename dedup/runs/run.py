"""A run: the sorted ids of one bucket in one memory-mapped file, each with the seal it came from.

What it is: the layout of the file, `open_run`, and the look-up of many ids in one pass.
What it must not know: the catalog, filters, which runs a lane has, when a bucket may go.

Invariants:
    A run never changes. It appears under its name complete, by a rename, so the death of a process
    cannot tear it: the header is checked whenever it is opened, the body only by `verify`.
    Nothing is forced to the disk. After a boot (a changed boot id) nobody vouches for the body:
    whoever keeps runs throws them away then, or lets `verify` read every byte.
    A run is a copy: whatever does not fit is no error but None, and is made anew from the catalog.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from dedup.arrays import Ids
from dedup.compiled.kernels import Mapped, kernels
from dedup.formats.segment import DIGEST_BYTES, ORIGINS_SHORT_MAX, Bucket, Origin
from dedup.model import IDENTITY_BYTES, Incarnation

VERSION = 1
MAGIC = b"XDRUN\0\0\0"
#: Rows up to this number are counted in four bytes.
ROWS_SHORT_MAX = (1 << 32) - 1
#: An entry of the prefix table for 4 to 8 ids: up to a byte an id, and a look-up reads one or two
#: neighbouring cache lines.
IDS_PER_PREFIX = 4
#: Of a larger run only the pages that somebody asks for are mapped.
TOUCHED_BYTES_MAX = 16 << 20
#: Sections begin at multiples of this, so that every array is aligned.
ALIGNED = 8
_HASH_BITS = 64
_HALF_MAX = (1 << 64) - 1
#: The two words of an id.
_HIGH, _LOW = 0, 1

#: magic, version, lane, origin of the bucket, number, span, count, bits of a prefix, bytes of a
#: prefix entry, bytes of an origin index, bytes of a digest, origins, stretches, checksum of body.
_HEADER = struct.Struct("<8sI16sIQQQIIIIQQ16s")
_CHECKSUM = struct.Struct("<Q")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
#: One incarnation among the origins: which, and the place of its first seq.
STRETCH = np.dtype([("incarnation", f"V{IDENTITY_BYTES}"), ("first", "<u8")])

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the header says; it decides where every section lies."""

    lane: bytes
    bucket: Bucket
    count: int
    prefix_bits: int
    prefix_bytes: int
    index_bytes: int
    digest_bytes: int
    origins: int
    stretches: int
    checksum: bytes

    def sizes(self) -> tuple[int, ...]:
        """Return the bytes of the sections in order: ids, prefixes, indexes, digests, origins."""
        return (
            self.count * IDENTITY_BYTES,
            ((1 << self.prefix_bits) + 1) * self.prefix_bytes,
            self.count * self.index_bytes,
            self.count * self.digest_bytes,
            self.origins * 8,
            self.stretches * STRETCH.itemsize,
        )

    @property
    def size(self) -> int:
        """How long the file is."""
        return HEADER_BYTES + sum(aligned(size) for size in self.sizes())

    def encode(self) -> bytes:
        """Return the header."""
        header = _HEADER.pack(
            MAGIC,
            VERSION,
            self.lane,
            self.bucket.origin,
            self.bucket.number,
            self.bucket.span,
            self.count,
            self.prefix_bits,
            self.prefix_bytes,
            self.index_bytes,
            self.digest_bytes,
            self.origins,
            self.stretches,
            self.checksum,
        )
        return header + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(header))


class Run:
    """The ids of one bucket. Reading it needs no lock; it stays readable after its file is deleted.

    Args:
        layout: what the header says.
        memory: the whole file.
    """

    def __init__(self, layout: Layout, memory: mmap.mmap) -> None:
        self.key = layout.lane
        self.bucket = layout.bucket
        self.count = layout.count
        self.nbytes = layout.size
        self._layout = layout
        self._memory = memory
        places, at = [], HEADER_BYTES
        for size in layout.sizes():
            places.append((at, size))
            at += aligned(size)
        ids, prefixes, indexes, digests, seqs, stretches = places
        #: Every id in order: two words each, mapped, not copied.
        self.ids: Ids = self._array("<u8", *ids).reshape(-1, 2)
        self._words = self.ids.reshape(-1)
        self._prefixes = self._array(f"<u{layout.prefix_bytes}", *prefixes)
        self._indexes = self._array(f"<u{layout.index_bytes or 1}", *indexes)
        self._digests = self._array("<u2", *digests)
        self._seqs = self._array("<u8", *seqs)
        found = self._array(STRETCH, *stretches)
        self._firsts: list[int] = found["first"].tolist()
        self._incarnations = [Incarnation(bytes(one)) for one in found["incarnation"]]

    @cached_property
    def mapped(self) -> Mapped:
        """The run as kernels see it; where there are none, its words may be of another order."""
        return Mapped(self.ids, self._prefixes)

    @property
    def has_digests(self) -> bool:
        """Whether the ids of this run have digests."""
        return self._layout.digest_bytes > 0

    @property
    def origins(self) -> tuple[tuple[Incarnation, int], ...]:
        """Every seal that ids of this run came from, oldest first. Made anew at each call."""
        return tuple(self.origin_at(index) for index in range(len(self._seqs)))

    def origin_at(self, index: int) -> tuple[Incarnation, int]:
        """Return one origin, without making all the others."""
        stretch = bisect_right(self._firsts, index) - 1
        return self._incarnations[stretch], int(self._seqs[index])

    def find(self, ids: Ids) -> Rows:
        """Return the row of each id, -1 where it is absent."""
        if not self.count or not len(ids):
            return np.full(len(ids), -1, dtype=np.int64)
        if (compiled := kernels()) is not None:
            return compiled.run_find(self.mapped, ids)
        high = np.ascontiguousarray(ids[:, 0])
        prefix = leading(high, self._layout.prefix_bits)
        start = self._prefixes.take(prefix, mode="clip").astype(np.int64)
        prefix += 1
        end = self._prefixes.take(prefix, mode="clip").astype(np.int64)
        rows = self._lower_high(high, start, end)
        near = np.flatnonzero(self._word(_HIGH, rows) == high)
        found = np.full(len(ids), -1, dtype=np.int64)
        if not near.size:
            return found
        rows, end = rows.take(near), end.take(near)
        # Behind the last row there is nothing, whatever is read in its place.
        hit = (self._word(_LOW, rows) == ids[:, 1].take(near)) & (rows < end)
        found[near] = np.where(hit, rows, -1)
        tied = np.flatnonzero(~hit)
        if tied.size:
            places = near.take(tied)
            found[places] = self._find_tied(
                ids.take(places, axis=0), rows.take(tied), end.take(tied)
            )
        return found

    def origin(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return for each row which of the origins its id came from."""
        if not self._layout.index_bytes:
            return np.zeros(len(rows), dtype=np.int64)
        return self._indexes[rows].astype(np.int64)

    def digest(self, rows: Rows) -> npt.NDArray[np.uint16]:
        """Return the digest of each row; the run must have them."""
        assert self.has_digests, "this run has no digests"
        return self._digests[rows].astype(np.uint16)

    def verify(self) -> bool:
        """Read every byte and tell whether it is what was written."""
        body = memoryview(self._memory)[HEADER_BYTES:]
        return xxhash.xxh3_128_digest(body) == self._layout.checksum

    def advise(self, *, sequential: bool) -> None:
        """Tell the system how the file will be read: end to end, or a line here and there."""
        self._memory.madvise(mmap.MADV_SEQUENTIAL if sequential else mmap.MADV_RANDOM)

    def touch(self) -> None:
        """Have its pages mapped, unless they are many: for whoever has time; who asks first pays else."""
        if self.nbytes <= TOUCHED_BYTES_MAX:
            np.frombuffer(self._memory, dtype=np.uint8)[:: mmap.PAGESIZE].max()

    def release(self, first: int = 0, end: int | None = None) -> None:
        """Let go of the pages that were touched; what is needed again comes from the system's cache.

        May be called while others read: they wait some microseconds for a page.

        Args:
            first: of the rows whose ids were read; 0, and no end: all there is.
            end: the row behind the last one.
        """
        if end is None:
            self._memory.madvise(mmap.MADV_DONTNEED)
            return
        start = (HEADER_BYTES + first * IDENTITY_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
        size = HEADER_BYTES + end * IDENTITY_BYTES - start
        self._memory.madvise(mmap.MADV_DONTNEED, start, size)

    def _array(self, dtype: npt.DTypeLike, at: int, size: int) -> npt.NDArray[Any]:
        kind = np.dtype(dtype)
        return np.frombuffer(self._memory, dtype=kind, count=size // kind.itemsize, offset=at)

    def _find_tied(self, ids: Ids, start: Rows, end: Rows) -> Rows:
        """Look for ids that share their high half with others: bisection over the low halves."""
        high, low = np.ascontiguousarray(ids[:, 0]), np.ascontiguousarray(ids[:, 1])
        # The first row above; where no half is above, the range itself ends there.
        above = self._lower(_HIGH, high + np.uint64(1), start, end)
        end = np.where(high == _HALF_MAX, end, above)
        rows = self._lower(_LOW, low, start, end)
        return np.where((rows < end) & (self._word(_LOW, rows) == low), rows, -1)

    def _lower_high(self, keys: npt.NDArray[np.uint64], start: Rows, end: Rows) -> Rows:
        """Return what `_lower` does for high halves, if each range is all that shares its prefix.

        Then whatever lies behind a range is above its key, and no step needs to look where it ends,
        but at the end of the file.
        """
        steps = int((end - start).max()).bit_length()
        place = start << 1
        if int(place.max()) + (2 << steps) > len(self._words):
            return self._lower(_HIGH, keys, start, end)
        below = place - 2
        value, less = np.empty_like(keys), np.empty(len(keys), np.bool_)
        for step in (2 << bit for bit in reversed(range(steps))):
            np.add(below, step, out=place)
            self._words.take(place, out=value, mode="clip")
            np.less(value, keys, out=less)
            below += np.multiply(less, step, out=place)
        below >>= 1
        below += 1
        return below

    def _lower(self, word: int, keys: npt.NDArray[np.uint64], start: Rows, end: Rows) -> Rows:
        """Return for each key the first row in [start, end) that is not below it, or end.

        All keys are bisected in step. The ranges are a few rows long unless somebody chose the ids;
        then it takes as many more steps as the longest range has bits.
        """
        below = start - 1
        step = (1 << int((end - start).max()).bit_length()) >> 1
        place, value = np.empty_like(below), np.empty_like(keys)
        inside, less = np.empty(len(keys), np.bool_), np.empty(len(keys), np.bool_)
        while step:
            np.add(below, step, out=place)
            np.less(place, end, out=inside)
            place <<= 1
            place += word
            self._words.take(place, out=value, mode="clip")
            np.less(value, keys, out=less)
            less &= inside
            below += np.multiply(less, step, out=place)
            step >>= 1
        below += 1
        return below

    def _word(self, word: int, rows: Rows) -> npt.NDArray[np.uint64]:
        """Return one half of the ids in these rows; behind the last row, of the last."""
        place = rows << 1
        place += word
        return self._words.take(place, mode="clip")


def open_run(path: Path, lane: str) -> Run | None:
    """Map a run; None if there is none, or it is torn, of another version or of another lane."""
    return open_keyed(path, lane_key(lane))


def open_keyed(path: Path, key: bytes) -> Run | None:
    """Map a run of the lane that a run names by this key; None as for `open_run`."""
    try:
        with path.open("rb") as file:
            layout = _layout(file.read(HEADER_BYTES))
            if layout is None or layout.lane != key:
                return None
            if layout.size != path.stat().st_size:
                return None
            memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except FileNotFoundError:
        return None
    run = Run(layout, memory)
    run.advise(sequential=False)
    return run


def lane_key(lane: str) -> bytes:
    """Return the bytes by which a run names its lane."""
    return xxhash.xxh3_128_digest(lane.encode())


def aligned(size: int) -> int:
    """Return how many bytes a section takes."""
    return -(-size // ALIGNED) * ALIGNED


def leading(high: npt.NDArray[np.uint64], bits: int) -> Rows:
    """Return the leading bits of high halves; of none of their bits, zeros."""
    if not bits:  # shifting by all 64 is undefined
        return np.zeros(len(high), dtype=np.int64)
    return (high >> np.uint64(_HASH_BITS - bits)).view(np.int64)


def prefix_bits(count: int) -> int:
    """Return how many leading bits the prefix table of so many ids tells apart."""
    return max(0, (count // IDS_PER_PREFIX).bit_length() - 1)


def index_bytes(origins: int) -> int:
    """Return how wide an index into so many origins is; with one origin there is none."""
    if origins <= 1:
        return 0
    return 2 if origins <= ORIGINS_SHORT_MAX else 4


def _layout(header: bytes) -> Layout | None:
    if len(header) != HEADER_BYTES or not header.startswith(MAGIC):
        return None
    (checksum,) = _CHECKSUM.unpack_from(header, _HEADER.size)
    if checksum != xxhash.xxh3_64_intdigest(header[: _HEADER.size]):
        return None
    _, version, lane, origin, number, span, count, *widths, body = _HEADER.unpack_from(header)
    if version != VERSION:
        return None
    bits, prefix_size, index_size, digest_size, origins, stretches = widths
    assert digest_size in (0, DIGEST_BYTES), "a digest has two bytes, or there is none"
    return Layout(
        lane=lane,
        bucket=Bucket(Origin(origin), number, span),
        count=count,
        prefix_bits=bits,
        prefix_bytes=prefix_size,
        index_bytes=index_size,
        digest_bytes=digest_size,
        origins=origins,
        stretches=stretches,
        checksum=body,
    )
