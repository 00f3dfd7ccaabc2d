"""The first page of a filter's file: whose filter it is, how it was made, what it is exact for.

What it is: `Header`, its bytes, and the two slots of the page that it is written to in turn.
What it must not know: engines, bits, where the file is.

Invariants:
    A slot is whole or it is nothing: its checksum covers all of it.
    A header is written over the older of the two slots. Whoever dies while writing leaves the
    newer one; whoever reads meanwhile finds the newer one, or reads again.
    Nothing in a page makes a reader fail: what is not exactly right is None.

The file needs no fsync, and its bits need no checksum. The death of a process cannot tear a shared
mapping: the pages are the kernel's, and every store made before the kill is in them. What can
tear them is the death of the kernel, and then the boot id differs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path

import psutil
import xxhash

from dedup.errors import Corrupt
from dedup.filters.port import KEY_BYTES
from dedup.formats.envelope import Reader, Writer
from dedup.formats.segment import Bucket
from dedup.model import IDENTITY_BYTES, Attempt, HeadRef, Incarnation

VERSION = 1
#: The bits begin at a page of their own.
PAGE_BYTES = 4096
SLOT_BYTES = PAGE_BYTES // 2
#: A reader that found both slots half written reads again. Each time a writer must have moved the
#: tag twice during one copy of a page, so even a second time is a rarity.
READS_MAX = 16

_MAGIC = b"XD-FILTR"
#: magic, xxh3_64 over what follows, length of the body.
_PREFIX = struct.Struct("<8sQI")
_NUMBERS = struct.Struct("<d")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: psutil computes the time of boot from the clock, which may be set; so much is not another boot.
_BOOT_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Everything that must be as expected; anything else means rebuild."""

    engine: str
    engine_version: str
    layout: int
    lane: str
    bucket: Bucket
    boot: str
    #: Of the file. A copy of the file may have been taken between two stores.
    inode: int

    def encoded(self) -> bytes:
        """Return the spelling that is compared."""
        out = Writer().uint(VERSION).text(self.engine).text(self.engine_version).uint(self.layout)
        out.text(self.lane)
        for number in astuple(self.bucket):
            out.uint(number)
        return out.text(self.boot).uint(self.inode).body()


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What one slot says."""

    #: `Maker.encoded`.
    maker: bytes
    capacity: int
    rate: float
    #: A secret.
    key: bytes | None = field(repr=False)
    #: Grows with every write of this file; the greater of two slots is the newer.
    generation: int = 0
    count: int = 0
    tag: HeadRef | None = None


def slot_of(header: Header) -> int:
    """Return where in the page a header is written: never over the one before it."""
    return header.generation % 2 * SLOT_BYTES


def encode_header(header: Header) -> bytes:
    """Return the bytes of a slot."""
    out = Writer().data(header.maker).uint(header.generation)
    out.uint(header.capacity).raw(_NUMBERS.pack(header.rate)).data(header.key or b"")
    out.uint(header.count)
    if header.tag is not None:
        out.raw(header.tag.incarnation).uint(header.tag.seq).raw(header.tag.attempt)
    body = out.body()
    checksum = xxhash.xxh3_64_intdigest(body)
    encoded = _PREFIX.pack(_MAGIC, checksum, len(body)) + body
    assert len(encoded) <= SLOT_BYTES, "a header fits its slot"
    return encoded


def read_page(read: Callable[[], bytes]) -> Header | None:
    """Return the newest header of a page that may be written while it is read.

    Args:
        read: returns the page as it is now.
    """
    for _ in range(READS_MAX):
        page = read()
        slots = (_decoded(page[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES))
        whole = [header for header in slots if header is not None]
        if whole:
            return max(whole, key=lambda header: header.generation)
    return None


def _decoded(slot: bytes) -> Header | None:
    if len(slot) < _PREFIX.size:
        return None
    magic, checksum, length = _PREFIX.unpack_from(slot)
    body = slot[_PREFIX.size : _PREFIX.size + length]
    if magic != _MAGIC or len(body) != length or checksum != xxhash.xxh3_64_intdigest(body):
        return None
    try:
        return _read(Reader(body, "a filter's header"))
    except (AssertionError, Corrupt):
        # Only another release writes a whole slot that is not ours to read.
        return None


def _read(body: Reader) -> Header:
    maker, generation, capacity = body.data(), body.uint(), body.uint()
    (rate,) = _NUMBERS.unpack(body.raw(_NUMBERS.size))
    key = body.data()
    assert len(key) in {0, KEY_BYTES}, "a key has its length"
    count, tag = body.uint(), body.rest()
    return Header(
        maker=maker,
        capacity=capacity,
        rate=rate,
        key=key or None,
        generation=generation,
        count=count,
        tag=_tag(Reader(tag, "a filter's tag")) if tag else None,
    )


def _tag(body: Reader) -> HeadRef:
    incarnation = Incarnation(body.raw(IDENTITY_BYTES))
    tag = HeadRef(incarnation, body.uint(), Attempt(body.raw(IDENTITY_BYTES)))
    body.end()
    return tag


def boot_id() -> str:
    """Return what is another one after every start of the machine.

    Linux names each boot. Elsewhere it is the time of boot, rounded, because it is computed from a
    clock that is being corrected; at the edge of the rounding a filter may be rebuilt in vain.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"booted {round(psutil.boot_time() / _BOOT_SECONDS)}"
