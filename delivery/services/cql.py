"""As much of Cassandra's native protocol as a health check needs.

What it is: `query`, one CQL statement over one connection, version 4 of the protocol.
What it must not know: servers we started, retries, prepared statements. It is no driver: health
checks must work where the `cassandra` extra is not installed, and start without its import time.

Invariants:
    Every read is bounded in time, every frame in size.
    Values are returned as text; whoever selects something else gets what its bytes say.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

from dedup.errors import InvalidUsage, Unavailable

__all__ = ["ALL", "ONE", "QUORUM", "query"]

#: Consistency levels, as the protocol numbers them.
ONE: Final = 1
QUORUM: Final = 4
ALL: Final = 5

#: The protocol's own limit for a frame is 256 MB; a health check's answer is small.
FRAME_BYTES_MAX = 1024 * 1024

_VERSION = 4
_ERROR, _STARTUP, _READY, _AUTHENTICATE, _QUERY, _RESULT = 0x00, 0x01, 0x02, 0x03, 0x07, 0x08
_ROWS = 2
_GLOBAL_TABLE, _MORE_PAGES, _NO_METADATA = 0x01, 0x02, 0x04


class _Reader:
    """A cursor over a frame's body."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._body):
            raise ValueError("the frame is shorter than it says")
        self._at += count
        return self._body[self._at - count : self._at]

    def number(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def short(self) -> int:
        return int(struct.unpack(">H", self.take(2))[0])

    def string(self) -> str:
        return self.take(self.short()).decode()


def query(
    host: str, port: int, statement: str, *, seconds: float, consistency: int = ONE
) -> list[list[str | None]]:
    """Run one statement and return its rows as text.

    Raises:
        Unavailable: no connection, no answer in time, or an answer that says it was not done.
        InvalidUsage: the server wants a login.
    """
    deadline = time.monotonic() + seconds
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            options = struct.pack(">HH11sH5s", 1, 11, b"CQL_VERSION", 5, b"3.0.0")
            opcode, _ = _ask(connection, _STARTUP, options, deadline)
            if opcode == _AUTHENTICATE:
                raise InvalidUsage(
                    "ask Cassandra", f"{host}:{port}", "it wants a login, which a check has not"
                )
            text = statement.encode()
            body = struct.pack(f">i{len(text)}sHB", len(text), text, consistency, 0)
            opcode, reader = _ask(connection, _QUERY, body, deadline)
            return _rows(reader) if opcode == _RESULT else []
    except (OSError, ValueError) as error:
        raise Unavailable(
            "ask Cassandra",
            f"{host}:{port}",
            f"{type(error).__name__}: {error}; what it holds is untouched",
        ) from error


def _ask(
    connection: socket.socket, opcode: int, body: bytes, deadline: float
) -> tuple[int, _Reader]:
    connection.sendall(struct.pack(">BBhBi", _VERSION, 0, 0, opcode, len(body)) + body)
    header = _receive(connection, 9, deadline)
    _, _, _, answer, length = struct.unpack(">BBhBi", header)
    if not 0 <= length <= FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {length} bytes is no answer to a health check")
    reader = _Reader(_receive(connection, length, deadline))
    if answer == _ERROR:
        code = reader.number()
        raise ValueError(f"error 0x{code:04x}: {reader.string()}")
    return answer, reader


def _receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < count:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the connection was closed in the middle of an answer")
        data += part
    return bytes(data)


def _rows(reader: _Reader) -> list[list[str | None]]:
    if reader.number() != _ROWS:
        return []
    flags, columns = reader.number(), reader.number()
    if flags & _MORE_PAGES:
        reader.take(reader.number())
    if not flags & _NO_METADATA:
        if flags & _GLOBAL_TABLE:
            reader.string()
            reader.string()
        for _ in range(columns):
            if not flags & _GLOBAL_TABLE:
                reader.string()
                reader.string()
            reader.string()
            reader.short()  # a simple type; collections carry more, and no check selects one
    rows = []
    for _ in range(reader.number()):
        row: list[str | None] = []
        for _ in range(columns):
            size = reader.number()
            row.append(None if size < 0 else reader.take(size).decode(errors="replace"))
        rows.append(row)
    return rows
