"""Numbers, bytes and headers within a record, read one at a time.

What it is: what both ways of `decode` share: the one for few records, and what records of many
kinds leave to be read singly.
What it must not know: batches, columns.

Invariants:
    A null has a negative length, as Kafka itself reads it; not only minus one.
    Reading behind the data raises IndexError, or returns a place behind it: callers look.
"""

from __future__ import annotations

from typing import Final

from delivery.records import Headers

__all__ = ["INT_BYTES_MAX", "LONG_BYTES_MAX", "LOW", "Broken", "blob", "headers_at", "varint"]

#: Bytes of the longest number of 32 and of 64 bits.
INT_BYTES_MAX: Final = 5
LONG_BYTES_MAX: Final = 10
#: Seven bits of a number a byte; the eighth says that there are more.
LOW: Final = 0x7F
_ALL_BITS = (1 << 64) - 1


class Broken(Exception):
    """Why a batch is broken, said where its offset is not known."""


def varint(data: bytes, at: int, bytes_max: int = INT_BYTES_MAX) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    found = data[at]
    if found <= LOW:
        return (found >> 1) ^ -(found & 1), at + 1
    found &= LOW
    for place in range(1, bytes_max):
        byte = data[at + place]
        found |= (byte & LOW) << 7 * place
        if byte <= LOW:
            found &= _ALL_BITS
            return (found >> 1) ^ -(found & 1), at + place + 1
    raise Broken("a number does not end")


def blob(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the bytes behind their length, and the place behind them."""
    length, at = varint(data, at)
    if length < 0:
        return None, at
    return data[at : at + length], at + length


def headers_at(data: bytes, at: int, count: int) -> tuple[Headers | None, int]:
    """Return so many headers, None if they cannot be read, and the place behind them."""
    if count < 0:
        raise Broken("a record has less than no headers")
    headers: list[tuple[str, bytes]] = []
    readable = True
    for _ in range(count):
        raw, at = blob(data, at)
        value, at = blob(data, at)
        if raw is None:
            raise Broken("a header has no name")
        try:
            headers.append((raw.decode(), value or b""))
        except UnicodeDecodeError:
            readable = False
    return tuple(headers) if readable else None, at
