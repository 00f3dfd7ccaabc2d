"""Records as user code and the runner see them.

What it is: `Record` (what was read) and `Output` (what user code made of it).
What it must not know: lanes, seals, where records come from or go to.

Invariants:
    Both are immutable tuples, the cheapest objects there are: one is made for every record.
    A record is at most `RECORD_BYTES_MAX` with key and headers, or it is refused where it is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import msgspec

from dedup.errors import InvalidUsage
from dedup.model import IDENTITY_BYTES, Source, TopicId

#: Kafka brokers and clients refuse a mebibyte with headers and overhead; this leaves room.
RECORD_BYTES_MAX = 768 * 1024

#: What Kafka adds to each header at most: two lengths of up to three bytes. Of a record that is
#: nothing but headers this is most of it.
HEADER_BYTES = 6

#: A value of this size needs no closer look where it is alone, or has a key of such a size.
_PLAIN_BYTES_MAX = RECORD_BYTES_MAX // 2

#: Where a record comes from that was made by hand, as in a unit test.
NOWHERE = Source(topic=TopicId(bytes(IDENTITY_BYTES)), partition=0)

Headers = tuple[tuple[str, bytes], ...]

#: Five to ten times as fast as Python's own, which has the last word wherever they could differ.
_FAST_DECODE = msgspec.json.Decoder().decode
_FAST_ENCODE = msgspec.json.Encoder().encode
_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
#: What the fast encoder makes of numbers that JSON does not have, and of nothing else but None.
_NULL = b"null"


class Record(NamedTuple):
    """One record of an input edge."""

    value: bytes | None = None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = 0
    source: Source = NOWHERE
    offset: int = 0

    def json(self) -> Any:
        """Return the value parsed as JSON, as `json.loads` does."""
        try:
            return _FAST_DECODE(self.value or _NULL)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # NaN, half a surrogate, UTF-16: Python takes what no standard knows; or it is no JSON.
            return json.loads(self.value or _NULL)

    def header(self, name: str) -> bytes | None:
        """Return the last header of that name, as Kafka clients do."""
        return next((value for key, value in reversed(self.headers) if key == name), None)

    def replace(
        self,
        *,
        value: Any = None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> Output:
        """Return an output like this record, but for what is given; a non-bytes value is JSON."""
        if value is None:
            value = self.value
        elif type(value) is not bytes:
            value = as_bytes(value)
        if key is None:
            key = self.key
        if key is None and headers is None and value is not None and len(value) <= _PLAIN_BYTES_MAX:
            # What `Output` would find to be plain; most are, and a call is a third of this one.
            return tuple.__new__(Output, (value, None, (), 0))
        return Output(value, key, tuple(headers.items()) if headers is not None else ())


class _Output(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: Headers
    edge: int


class Output(_Output):
    """One record for an output edge; `edge` says which of the stage's outputs, 0 is the first."""

    __slots__ = ()

    def __new__(
        cls,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        edge: int = 0,
    ) -> Self:
        """Refuse what no broker would take, before anything is stored."""
        # Most outputs are small values with bytes for a key: those need no closer look.
        if headers or type(value) is not bytes or key is not None or len(value) > _PLAIN_BYTES_MAX:
            _check(value, key, headers)
        # As namedtuples make themselves, one call less.
        return tuple.__new__(cls, (value, key, headers, edge))

    def to(self, edge: int) -> Output:
        """Return the same record for another output of the stage."""
        return self._replace(edge=edge)


def _check(value: object, key: object, headers: Headers) -> None:
    plain = not headers and type(value) is bytes and type(key) is bytes
    if plain and max(len(value), len(key)) <= _PLAIN_BYTES_MAX:  # type: ignore[arg-type]
        return
    parts: list[Any] = [b"" if part is None else part for part in (value, key)]
    parts += [value for _, value in headers]
    wrong = [type(part).__name__ for part in parts if not isinstance(part, bytes)]
    if wrong:
        raise InvalidUsage(
            "make an output record",
            f"{wrong[0]} as a key, a value or the value of a header",
            "nothing of its bundle was stored: give bytes, or make it with "
            "record.replace(value=...), which encodes a value",
        )
    size = len(parts[0]) + len(parts[1]) + headers_bytes(headers)
    if size > RECORD_BYTES_MAX:
        raise InvalidUsage(
            "make an output record",
            f"{size} bytes with key and headers",
            f"the limit is {RECORD_BYTES_MAX}; nothing of its bundle was stored: store the "
            "large part elsewhere and send a reference, or split the record",
        )


def headers_bytes(headers: Iterable[tuple[str, bytes]]) -> int:
    """Return what headers weigh in a record."""
    return sum(HEADER_BYTES + len(name.encode()) + len(value) for name, value in headers)


def as_bytes(value: Any) -> bytes:
    """Return bytes as they are, text in UTF-8, anything else as compact JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        made = _FAST_ENCODE(value)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError, UnicodeEncodeError):
        return _ENCODE(value).encode()
    return made if _NULL not in made else _ENCODE(value).encode()
