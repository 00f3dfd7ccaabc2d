"""Compression by Kafka's numbers of it.

What it is: `compress` and `decompress` of the records of one batch, by the fastest package at hand.
What it must not know: what a record batch is, where the bytes come from.

Invariants:
    What does not decompress raises `Garbled`, whatever package found out, and before it has taken
    memory out of all proportion to what came.
    LZ4 blocks are independent of each other: Kafka reads no others. Arrow's and cramjam's are not.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import pyarrow as pa

__all__ = [
    "CODEC_MAX",
    "GZIP",
    "LZ4",
    "NONE",
    "SNAPPY",
    "ZSTD",
    "Garbled",
    "NoCodec",
    "compress",
    "decompress",
]

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
CODEC_MAX: Final = ZSTD

_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

#: Most of what gzip can gain for a fraction of its time.
_GZIP_LEVEL = 1
#: What the xerial library puts before snappy's blocks: its mark, its version, the oldest compatible.
_XERIAL_MARK = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MARK + struct.pack(">ii", 1, 1)
#: The xerial library's own block; readers need a buffer of that size.
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")
#: Snappy's best: 64 bytes for a copy of two.
_SNAPPY_GAIN_MAX = 64

_Data = bytes | bytearray | memoryview
_Packer = Callable[[_Data], bytes]


def _package(name: str) -> Any:
    """Return what kafka-python brings if asked to, None if it was not."""
    try:
        return import_module(name)
    except ImportError:
        return None


_lz4: Any = _package("lz4.frame")
_zstd: Any = _package("zstandard")
_snappy: Any = pa.Codec("snappy") if pa.Codec.is_available("snappy") else None


class NoCodec(ValueError):
    """Records are compressed, or were to be, with what cannot be had here."""


class Garbled(ValueError):
    """Bytes that are not what their codec makes."""


def compress(codec: int, data: _Data) -> bytes:
    """Return data compressed by the codec of a number.

    Raises:
        NoCodec: there is none of this number, or its package is missing.
    """
    return _found(_COMPRESS, codec)(data)


def decompress(codec: int, data: _Data) -> bytes:
    """Return what was compressed by the codec of a number.

    Raises:
        NoCodec: there is none of this number, or its package is missing.
        Garbled: it is not what that codec makes.
    """
    unpack = _found(_DECOMPRESS, codec)
    if codec and not len(data):
        # Python's gzip takes this for nothing, compressed.
        raise Garbled(f"{_NAMES[codec]} does not decompress: no bytes")
    try:
        return unpack(data)
    except _FAILURES as error:
        raise Garbled(f"{_NAMES[codec]} does not decompress: {error}") from None


def _found(packers: tuple[_Packer | None, ...], codec: int) -> _Packer:
    packer = packers[codec] if 0 <= codec <= CODEC_MAX else None
    if packer is None:
        name = _NAMES[codec] if 0 <= codec <= CODEC_MAX else "unknown to us"
        raise NoCodec(
            f"codec {codec} ({name}) cannot be had: install kafka-python[lz4,snappy,zstd]"
        )
    return packer


def _to_gzip(data: _Data) -> bytes:
    return gzip.compress(data, _GZIP_LEVEL, mtime=0)


def _to_snappy(data: _Data) -> bytes:
    parts, view = [_XERIAL_HEADER], memoryview(data)
    for at in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = _snappy.compress(view[at : at + _XERIAL_BLOCK_BYTES], asbytes=True)
        parts += _BLOCK_LENGTH.pack(len(block)), block
    return b"".join(parts)


def _of_snappy(data: _Data) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MARK)] != _XERIAL_MARK:
        return _of_snappy_block(view)
    parts, at = [], len(_XERIAL_HEADER)
    while at < len(view):
        if at + _BLOCK_LENGTH.size > len(view):
            raise Garbled("a block without its length")
        (length,) = _BLOCK_LENGTH.unpack_from(view, at)
        at += _BLOCK_LENGTH.size
        if not 0 <= length <= len(view) - at:
            raise Garbled("a block that ends elsewhere than its length says")
        parts.append(_of_snappy_block(view[at : at + length]))
        at += length
    return b"".join(parts)


def _of_snappy_block(block: memoryview) -> bytes:
    """Return a block's content; Arrow wants its size, which is what the block begins with."""
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte <= 0x7F:  # noqa: PLR2004  the last of a number's bytes
            break
    if size > _SNAPPY_GAIN_MAX * len(block):
        raise Garbled(f"{len(block)} bytes said to hold {size}")
    return bytes(_snappy.decompress(block, size, asbytes=True))


def _to_lz4(data: _Data) -> bytes:
    # Without its size, as Kafka's own clients write it: old readers know of none.
    return bytes(_lz4.compress(data, block_linked=False, store_size=False))


def _of_lz4(data: _Data) -> bytes:
    return bytes(_lz4.decompress(data))


def _to_zstd(data: _Data) -> bytes:
    # One a call: a compressor belongs to one thread.
    return bytes(_zstd.ZstdCompressor().compress(data))


def _of_zstd(data: _Data) -> bytes:
    # As a stream: what the frame says of its own size would be taken at once.
    stream = _zstd.ZstdDecompressor().decompressobj()
    content = bytes(stream.decompress(data))
    if not stream.eof:
        raise Garbled("the frame has no end")
    return content


_COMPRESS: tuple[_Packer | None, ...] = (
    bytes,
    _to_gzip,
    _to_snappy if _snappy else None,
    _to_lz4 if _lz4 else None,
    _to_zstd if _zstd else None,
)
_DECOMPRESS: tuple[_Packer | None, ...] = (
    bytes,
    gzip.decompress,
    _of_snappy if _snappy else None,
    _of_lz4 if _lz4 else None,
    _of_zstd if _zstd else None,
)
#: What the packages raise about bytes that are not theirs.
_FAILURES: tuple[type[Exception], ...] = (
    *(ValueError, RuntimeError, OSError, EOFError, MemoryError, zlib.error),
    *((_zstd.ZstdError,) if _zstd else ()),
)
