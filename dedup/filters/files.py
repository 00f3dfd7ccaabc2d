"""Filters in anonymous memory and in memory-mapped files.

What it is: `new_filter`, `create_filter`, `open_filter`, and the `Filter` they return.
What it must not know: where a host keeps its files, who holds the lane's lock, the catalog.

Invariants:
    One writer: whoever creates a file, or opens it `writable`, holds the lane's lock until it
    closes it. Readers map the file read-only and see the writer's bits appear.
    Bits BEFORE the tag that promises them.
    A file has its name only when it is whole. Nothing shortens a file or writes to it otherwise
    than through a mapping; it is replaced by another, and who still maps it keeps what it had.
    A file that is not exactly what is asked for is None, never an exception.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dedup.arrays import Ids, Mask
from dedup.errors import InvalidUsage, Unavailable
from dedup.filters.blocked import BlockedEngine
from dedup.filters.header import (
    PAGE_BYTES,
    Header,
    Maker,
    boot_id,
    encode_header,
    read_page,
    slot_of,
)
from dedup.filters.port import KEY_BYTES, Bits, Engine, Filter
from dedup.filters.pybloom import PybloomEngine
from dedup.formats.segment import Bucket
from dedup.model import HeadRef

RATE_DEFAULT = 0.001
ENGINES: dict[str, Engine] = {one.name: one for one in (BlockedEngine(), PybloomEngine())}
ENGINE_DEFAULT = BlockedEngine.name

#: A file that is being made. One name, because one process at a time makes it: what a dead one has
#: left is replaced by the next.
_UNFINISHED = ".new"
#: Where the system cannot reserve, this much is written at once.
_ZEROS_BYTES = 1 << 20


@dataclass(slots=True)
class _Page:
    """The first page of a mapped file."""

    mapping: mmap.mmap
    inode: int
    writable: bool

    def read(self) -> Header | None:
        """Return the newest header."""
        return read_page(lambda: self.mapping[:PAGE_BYTES])

    def write(self, header: Header) -> None:
        """Write a header over the older slot."""
        encoded = encode_header(header)
        at = slot_of(header)
        self.mapping[at : at + len(encoded)] = encoded


class HeldFilter:
    """A filter on memory of its own or on a mapped file; what both engines have in common."""

    def __init__(self, engine: Engine, header: Header, bits: Bits, page: _Page | None) -> None:
        self.engine = engine.name
        self.capacity = header.capacity
        self.target_rate = header.rate
        self.key = header.key
        self.nbytes = engine.size(header.capacity, header.rate)
        #: What was last written or read; of a file that somebody else writes, maybe outdated.
        self._header = header
        self._bits: Bits | None = bits
        self._page = page
        self._added = header.count

    @property
    def count(self) -> int:
        """How many ids were added, repeats included; of a reader, up to the writer's last tag."""
        if self._page is not None and not self._page.writable:
            return self._latest().count
        return self._added

    @property
    def tag(self) -> HeadRef | None:
        """The head whose ids are all in the bits."""
        return self._latest().tag

    def set_tag(self, tag: HeadRef) -> None:
        """Say that every id sealed up to `tag` was added."""
        self._check_writable()
        header = self._header
        header = replace(header, generation=header.generation + 1, count=self._added, tag=tag)
        # SUBTLE: bits before tag. The bits were stored by this thread, earlier; a kill cannot undo
        # a store nor let a later one be without it. A reader on another core sees stores in their
        # order on x86. Where the hardware may reorder them, who reads a tag to rely on it holds
        # the lane's lock, whose release and acquisition order everything. Rejected: msync between
        # the two, which waits for a disk that no promise here needs.
        if self._page is not None:
            self._page.write(header)
        self._header = header

    def add(self, ids: Ids) -> None:
        """Add ids."""
        self._check_writable()
        self._open().add(_checked(ids))
        self._added += len(ids)

    def maybe(self, ids: Ids) -> Mask:
        """Tell of each id whether it may have been added."""
        return self._open().maybe(_checked(ids))

    def fill(self) -> float:
        """Return the share of bits that are set."""
        return self._open().fill()

    def rate(self) -> float:
        """Return the share of random strangers that get a True now."""
        return self._open().rate()

    def crowded(self) -> bool:
        """Tell whether ids crowd together as random ones never do."""
        return self._open().crowded()

    def close(self) -> None:
        """Let go of the memory. A file keeps its bits, and the count of its last tag."""
        self._bits = None
        if self._page is not None:
            # An error on its way up may still hold the bits; then the mapping goes with it.
            with suppress(BufferError):
                self._page.mapping.close()

    def _open(self) -> Bits:
        assert self._bits is not None, "the filter is open"
        return self._bits

    def _check_writable(self) -> None:
        assert self._page is None or self._page.writable, "a reader changes nothing"

    def _latest(self) -> Header:
        if self._page is None or self._page.writable or self._bits is None:
            return self._header
        # Never without a header: one slot is whole while the other is written. Should the page
        # have been destroyed, the filter is exact for nothing.
        self._header = self._page.read() or replace(self._header, tag=None)
        return self._header


def new_filter(
    capacity: int,
    *,
    engine: str = ENGINE_DEFAULT,
    rate: float = RATE_DEFAULT,
    key: bytes | None = None,
) -> Filter:
    """Return an empty filter in anonymous memory.

    Raises:
        InvalidUsage: no such engine, its package is missing, or nothing can have that size.
    """
    kind = _engine(engine)
    # numpy's zeros are pages that nobody has touched yet; those of a bytearray are written.
    memory = np.zeros(kind.size(capacity, rate), dtype=np.uint8).data
    header = Header(maker=b"", capacity=capacity, rate=rate, key=_checked_key(key))
    return HeldFilter(kind, header, kind.over(memory, capacity, rate, key), None)


def create_filter(
    path: Path,
    capacity: int,
    *,
    lane: str,
    bucket: Bucket,
    engine: str = ENGINE_DEFAULT,
    rate: float = RATE_DEFAULT,
    key: bytes | None = None,
) -> Filter:
    """Make an empty filter without a tag and put it in the place of whatever is at `path`.

    The caller holds the lane's lock until it closes the filter. May be called again after any
    failure. Whoever has the former file open keeps it.

    Raises:
        InvalidUsage: no such engine, its package is missing, or nothing can have that size.
        Unavailable: the file system refused; there is no room, or no such directory.
    """
    kind = _engine(engine)
    size = PAGE_BYTES + kind.size(capacity, rate)
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        # Removed, not shortened: somebody may still map what a dead process left.
        unfinished.unlink(missing_ok=True)
        # 0600: the key in the header is a secret.
        file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _reserve(file, size)
            mapping = mmap.mmap(file, size, access=mmap.ACCESS_WRITE)
            page = _Page(mapping, os.fstat(file).st_ino, writable=True)
        finally:
            os.close(file)
        maker = _maker(kind, lane, bucket, page.inode)
        header = Header(maker=maker.encoded(), capacity=capacity, rate=rate, key=_checked_key(key))
        page.write(header)
        _put_in_place(unfinished, path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise Unavailable(
            "create a filter",
            str(path),
            f"{error}; no id was lost, filters are made from the catalog: see that the directory "
            f"exists and has room for {size} bytes",
        ) from error
    return _held(kind, header, page)


def open_filter(
    path: Path,
    *,
    lane: str,
    bucket: Bucket,
    engine: str = ENGINE_DEFAULT,
    writable: bool = False,
) -> Filter | None:
    """Return the filter at `path`; None if there is none to rely on, whatever the reason.

    Torn, short, of another lane, bucket, engine, version or boot, a copy, unreadable, gone: the
    caller makes another from the catalog. Who opens it `writable` holds the lane's lock until it
    closes it.

    Raises:
        InvalidUsage: no such engine, or its package is missing.
    """
    kind = _engine(engine)
    page = _mapped(path, writable=writable)
    if page is None:
        return None
    header = page.read()
    maker = _maker(kind, lane, bucket, page.inode)
    if header is None or not _fits(kind, header, page, maker):
        page.mapping.close()
        return None
    return _held(kind, header, page)


def _held(kind: Engine, header: Header, page: _Page) -> Filter:
    memory = memoryview(page.mapping)[PAGE_BYTES:]
    bits = kind.over(memory, header.capacity, header.rate, header.key)
    return HeldFilter(kind, header, bits, page)


def _mapped(path: Path, *, writable: bool) -> _Page | None:
    """Map a file, if there is one with more than a page."""
    try:
        file = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError:
        # Whoever makes the file anew is told what is wrong with the directory.
        return None
    try:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return _Page(mmap.mmap(file, 0, access=access), os.fstat(file).st_ino, writable)
    except (OSError, ValueError):
        # ValueError: the file is empty.
        return None
    finally:
        os.close(file)


def _fits(kind: Engine, header: Header, page: _Page, maker: Maker) -> bool:
    """Tell whether a file was made as we would make it, and has the size that goes with it."""
    if header.maker != maker.encoded():
        return False
    try:
        size = PAGE_BYTES + kind.size(header.capacity, header.rate)
    except InvalidUsage:
        return False
    return len(page.mapping) == size


def _maker(kind: Engine, lane: str, bucket: Bucket, inode: int) -> Maker:
    return Maker(
        engine=kind.name,
        engine_version=kind.version(),
        layout=kind.layout(),
        lane=lane,
        bucket=bucket,
        boot=boot_id(),
        inode=inode,
    )


def _reserve(file: int, size: int) -> None:
    """Give a file its size and its room: a hole that finds no room later kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    zeros = bytes(_ZEROS_BYTES)
    left = size
    while left:
        left -= os.write(file, zeros[:left])


def _put_in_place(unfinished: Path, path: Path) -> None:
    unfinished.replace(path)


def _engine(name: str) -> Engine:
    if name not in ENGINES:
        raise InvalidUsage(
            "choose a filter engine", name, f"nothing was changed: there are {', '.join(ENGINES)}"
        )
    return ENGINES[name]


def _checked(ids: Ids) -> Ids:
    assert ids.dtype == np.uint64, "ids are 64-bit words"
    assert ids.ndim == 2, "ids are rows"  # noqa: PLR2004 - of two words
    assert ids.shape[1] == 2, "an id is two words"  # noqa: PLR2004 - a high and a low one
    return ids


def _checked_key(key: bytes | None) -> bytes | None:
    assert key is None or len(key) == KEY_BYTES, "a key has 16 bytes"
    return key
