"""The envelope round every blob, and the few primitives its bodies are written with.

What it is: `wrap` and `unwrap` (magic, kind, version, length, checksum), and `Writer` / `Reader`
for bodies.
What it must not know: what the bodies mean.

Invariants:
    `unwrap` returns exactly what was wrapped, or raises `Corrupt` naming the place.
    A version that this release does not know is refused with what to do, never guessed at.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import xxhash

from dedup.errors import Corrupt, InvalidUsage

MAGIC = b"XD"
#: magic, kind, version, length of the body, xxh3_64 of kind, version, length and body.
_PREFIX = struct.Struct("<2sBBI")
_CHECKSUM = struct.Struct("<Q")
ENVELOPE_BYTES = _PREFIX.size + _CHECKSUM.size

_U64_MAX = (1 << 64) - 1
_VARINT_BYTES_MAX = 10
#: LEB128: seven bits a byte, the high bit says that more follows.
_CONTINUES = 0x80
#: The numbers of one byte.
_SHORT = tuple(bytes([number]) for number in range(_CONTINUES))


class Kind(IntEnum):
    """What a blob is. Numbers are for ever."""

    SEAL = 1
    HEAD = 2
    ACK = 3
    OUTPUTS = 4
    SEGMENT = 5
    SEGMENT_LIST = 6
    BACKUP = 7
    DROPPED = 8
    RECIPE = 9


def wrap(kind: Kind, version: int, body: bytes) -> bytes:
    """Return `body` in its envelope."""
    prefix = _PREFIX.pack(MAGIC, kind, version, len(body))
    checksum = xxhash.xxh3_64_intdigest(prefix + body)
    return prefix + _CHECKSUM.pack(checksum) + body


def unwrap(blob: bytes, kind: Kind, *, version_max: int, place: str) -> tuple[int, bytes]:
    """Return (version, body) of a blob of `kind`.

    Raises:
        Corrupt: the bytes are torn, flipped, or of another kind; `place` says where they were.
        InvalidUsage: a newer release wrote them.
    """
    if len(blob) < ENVELOPE_BYTES:
        raise _corrupt(place, f"{len(blob)} bytes are too few for an envelope")
    magic, found, version, length = _PREFIX.unpack_from(blob)
    if magic != MAGIC:
        raise _corrupt(place, "the bytes do not begin with our magic")
    body = blob[ENVELOPE_BYTES:]
    (checksum,) = _CHECKSUM.unpack_from(blob, _PREFIX.size)
    if length != len(body) or checksum != xxhash.xxh3_64_intdigest(blob[: _PREFIX.size] + body):
        raise _corrupt(place, "length or checksum do not agree with the bytes")
    if found != kind:
        raise _corrupt(place, f"a {kind.name} belongs here, the bytes are of kind {found}")
    if not 1 <= version <= version_max:
        raise InvalidUsage(
            "read a stored blob",
            place,
            f"its format version is {version} and this release reads up to {version_max}; nothing "
            "was changed: install the release that wrote it, or a newer one",
        )
    return version, body


def is_kind(blob: bytes, kind: Kind) -> bool:
    """Tell whether an envelope says that it is of a kind; whether that is so, `unwrap` tells."""
    return blob[:3] == MAGIC + bytes([kind])


def wrapped_bytes(blob: bytes, place: str) -> int:
    """Return how long the envelope at the beginning of `blob` says it is."""
    if len(blob) < ENVELOPE_BYTES:
        raise _corrupt(place, f"{len(blob)} bytes are too few for an envelope")
    magic, _, _, length = _PREFIX.unpack_from(blob)
    if magic != MAGIC:
        raise _corrupt(place, "the bytes do not begin with our magic")
    return ENVELOPE_BYTES + int(length)


def _corrupt(place: str, what: str) -> Corrupt:
    return Corrupt(
        "read a stored blob",
        place,
        f"{what}; nothing was written: restore this catalog from a backup",
    )


class Writer:
    """Collects the fields of a body."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def uint(self, number: int) -> Writer:
        """Write an unsigned LEB128 number."""
        assert 0 <= number <= _U64_MAX, "an unsigned 64-bit number"
        if number < _CONTINUES:
            self._parts.append(_SHORT[number])
            return self
        out = bytearray()
        while number >= _CONTINUES:
            out.append(number & 0x7F | _CONTINUES)
            number >>= 7
        out.append(number)
        self._parts.append(bytes(out))
        return self

    def raw(self, data: bytes) -> Writer:
        """Write bytes whose length the reader knows."""
        self._parts.append(data)
        return self

    def data(self, data: bytes) -> Writer:
        """Write bytes behind their length."""
        return self.uint(len(data)).raw(data)

    def text(self, text: str) -> Writer:
        """Write UTF-8 behind its length."""
        return self.data(text.encode())

    def body(self) -> bytes:
        """Return everything written."""
        return b"".join(self._parts)


class Reader:
    """Takes the fields of a body off again; whatever does not fit is `Corrupt`."""

    __slots__ = ("_at", "_body", "_place")

    def __init__(self, body: bytes, place: str) -> None:
        self._body = body
        self._place = place
        self._at = 0

    def uint(self) -> int:
        """Read an unsigned LEB128 number."""
        first = self._body[self._at : self._at + 1]
        if first and first[0] < _CONTINUES:  # nearly all are
            self._at += 1
            return first[0]
        number = 0
        for index in range(_VARINT_BYTES_MAX):
            byte = self.raw(1)[0]
            number |= (byte & 0x7F) << (7 * index)
            if byte < _CONTINUES:
                if number > _U64_MAX:
                    break
                return number
        raise _corrupt(self._place, "a number is longer than 64 bits")

    def raw(self, length: int) -> bytes:
        """Read `length` bytes."""
        data = self._body[self._at : self._at + length]
        if len(data) != length:
            raise _corrupt(self._place, "the body ends too early")
        self._at += length
        return data

    def data(self) -> bytes:
        """Read bytes behind their length."""
        return self.raw(self.uint())

    def text(self) -> str:
        """Read UTF-8 behind its length."""
        try:
            return self.data().decode()
        except UnicodeDecodeError as error:
            raise _corrupt(self._place, "a name is not UTF-8") from error

    def rest(self) -> bytes:
        """Read everything that is left."""
        return self.raw(len(self._body) - self._at)

    def end(self) -> None:
        """Check that nothing is left over."""
        if self._at != len(self._body):
            raise _corrupt(self._place, "the body is longer than its fields")
