"""The line between the driver and its tasks: progress and troubles up, orders down.

What it is: `Link`, one end of a connection; messages are JSON objects, each under one key.
What it must not know: what the messages mean, Spark.

Invariants:
    Nobody is heard who does not know the key, and nothing that is heard is unpickled.
    Nothing here decides about a record: a line that breaks costs time, never correctness.
    A line whose other end is gone is noticed: at once if a process died, within
    `SILENCE_SECONDS_MAX` if a machine did.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

__all__ = ["Link", "Lost"]

#: How long a connection and its greeting may take.
GREETING_SECONDS_MAX = 10.0
#: How long what was sent may go unacknowledged by the other machine.
SILENCE_SECONDS_MAX = 30.0
#: The longest message: the progress of some thousands of lanes.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024

Message = dict[str, Any]


class Lost(ConnectionError):
    """The other end is gone."""


class Link:
    """One end of a line. May be used by several threads; one of them receives."""

    def __init__(self, connection: Connection[bytes, bytes]) -> None:
        self._connection = connection
        self._turn = threading.Lock()
        self._closed = False

    @classmethod
    def open(cls, address: tuple[str, int], key: bytes) -> Link:
        """Call the driver.

        Raises:
            Lost: it is not there, or is another one.
        """
        try:
            found = socket.create_connection(address, timeout=GREETING_SECONDS_MAX)
            connection = _connection(found)
            answer_challenge(connection, key)
            deliver_challenge(connection, key)
        except (OSError, EOFError, AuthenticationError, AssertionError) as error:
            raise Lost(f"the driver at {address[0]}:{address[1]}: {error}") from error
        return cls(connection)

    @classmethod
    def accepted(cls, found: socket.socket, key: bytes) -> Link | None:
        """Greet who called; None if it does not know the key."""
        connection = _connection(found)
        # Whoever calls and says nothing does not hold a thread for ever.
        patience = threading.Timer(GREETING_SECONDS_MAX, _shut, [connection])
        patience.daemon = True
        patience.start()
        try:
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
        except (OSError, EOFError, AuthenticationError, AssertionError):
            connection.close()
            return None
        finally:
            patience.cancel()
        return cls(connection)

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            Lost: the other end is gone.
        """
        data = json.dumps(message).encode()
        with self._turn:
            if self._closed:
                raise Lost("this end is closed")
            try:
                self._connection.send_bytes(data)
            except OSError as error:
                raise Lost(str(error)) from error

    def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            Lost: there will be none.
        """
        try:
            message: Message = json.loads(self._connection.recv_bytes(MESSAGE_BYTES_MAX))
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise Lost(str(error)) from error
        return message

    def cut(self) -> None:
        """End the line for both ends, also for a thread that waits in `receive`."""
        # Closed under a thread that reads it, a descriptor may be another file by the time it does.
        with self._turn:
            _shut(self._connection)

    def close(self) -> None:
        """Let go of it; only the thread that receives may. May be called twice."""
        with self._turn:
            if not self._closed:
                self._closed = True
                self._connection.close()


def _shut(connection: Connection[bytes, bytes]) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as view:
        view.shutdown(socket.SHUT_RDWR)


def _connection(found: socket.socket) -> Connection[bytes, bytes]:
    """Return a socket as a connection that notices when nobody is there any more."""
    found.settimeout(None)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # As far as the system has them: names differ, and some are missing.
    for name, value in (
        ("TCP_KEEPIDLE", int(SILENCE_SECONDS_MAX / 3)),
        ("TCP_KEEPINTVL", int(SILENCE_SECONDS_MAX / 6)),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", int(SILENCE_SECONDS_MAX * 1000)),
    ):
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(found.detach())
