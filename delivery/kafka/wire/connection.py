"""One connection to a broker: requests go out and answers come in, and nobody waits.

What it is: `dialled`, which connects and finds out whether the broker speaks as we do; `Connection`,
over which requests are sent and answers received as far as the socket goes.
What it must not know: what is asked, what is answered, which partitions there are.

Invariants:
    `send` and `receive` never wait. What the socket does not take is kept, in order.
    An answer is handed out whole or not at all, in the order of the requests.
    A connection that failed stays failed: whoever holds it makes another one.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Sequence

from delivery.kafka.waiting import await_news
from delivery.kafka.wire import protocol
from delivery.kafka.wire.protocol import Node

__all__ = ["ANSWER_MS_MAX", "CONNECT_SECONDS_MAX", "Connection", "Lost", "answered", "dialled"]

#: How long a broker may take to accept a connection and to say what it speaks.
CONNECT_SECONDS_MAX = 5.0
#: How long a request may be without its answer; then the broker is taken for gone.
ANSWER_MS_MAX = 10_000
#: No answer that was asked for is as large; a socket on which one is announced is not Kafka's.
_ANSWER_BYTES_MAX = 256 * 1024 * 1024
#: Pieces that are handed to the socket at once; the system takes no more.
_PIECES_MAX = 64


class Lost(Exception):
    """The connection is gone, or never was; what was asked over it may have been done."""


class Connection:
    """Requests out and answers in, over a socket that does not block.

    Args:
        link: connected, and asked nothing yet.
        node: where it leads.
    """

    def __init__(self, link: socket.socket, node: Node) -> None:
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.node = node
        self._link = link
        self._out: deque[memoryview] = deque()
        #: Which requests have no answer yet, and since when.
        self._open: deque[tuple[int, float]] = deque()
        self._next = 0
        self._head = bytearray(protocol.SIZE.size)
        self._body: bytearray | None = None
        self._have = 0
        self._failed = False

    @property
    def open_requests(self) -> int:
        """How many requests have no answer yet."""
        return len(self._open)

    def fileno(self) -> int:
        """Return what the system calls the socket."""
        return self._link.fileno()

    @property
    def wants_out(self) -> bool:
        """Whether something waits for the socket to take it."""
        return bool(self._out)

    def watched(self, seconds: float) -> tuple[Sequence[Connection], float]:
        """Return what to wait for: itself; see `await_news`."""
        return [self], seconds

    def ask(self, api: int, *body: bytes | bytearray | memoryview) -> int:
        """Send a request, as far as the socket takes it; return its number.

        Raises:
            Lost: the connection is gone.
        """
        number = self._next
        self._next = (self._next + 1) & 0x7FFFFFFF
        self._open.append((number, time.monotonic()))
        self._out.extend(map(memoryview, protocol.framed(api, number, *body)))
        self.flush()
        return number

    def flush(self) -> None:
        """Send what is kept, as far as the socket takes it.

        Raises:
            Lost: the connection is gone.
        """
        while self._out:
            pieces = [self._out[at] for at in range(min(_PIECES_MAX, len(self._out)))]
            try:
                sent = self._link.sendmsg(pieces)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost(error) from None
            while sent:
                if sent < len(self._out[0]):
                    self._out[0] = self._out[0][sent:]
                    break
                sent -= len(self._out.popleft())

    def receive(self) -> list[tuple[int, memoryview]]:
        """Return the answers that are there whole, with the numbers of their requests.

        Raises:
            Lost: the connection is gone, or does not answer in time, or not as Kafka does.
        """
        answers: list[tuple[int, memoryview]] = []
        try:
            while self._fill():
                answers.append(self._whole())
        except Lost:
            if not answers:
                raise
            # What arrived before the end counts; the end is met again at the next call.
            return answers
        late = self._open and time.monotonic() - self._open[0][1] > ANSWER_MS_MAX / 1000
        if late and not answers:
            raise self._lost(TimeoutError("no answer"))
        return answers

    def close(self) -> None:
        """Let go of the socket. May be called twice."""
        self._failed = True
        self._link.close()

    # Inside -----------------------------------------------------------------------------------

    def _fill(self) -> bool:
        """Read on; False once the socket has no more of the answer that is due."""
        if self._failed:
            raise Lost(f"{self.node.host}:{self.node.port}: closed")
        while True:
            due = self._head if self._body is None else self._body
            if self._have == len(due):
                if self._body is not None:
                    return True
                self._begin()
                continue
            try:
                got = self._link.recv_into(memoryview(due)[self._have :])
            except BlockingIOError:
                return False
            except OSError as error:
                raise self._lost(error) from None
            if not got:
                raise self._lost(ConnectionResetError("closed by the broker"))
            self._have += got

    def _begin(self) -> None:
        (size,) = protocol.SIZE.unpack(self._head)
        if not protocol.SIZE.size <= size <= _ANSWER_BYTES_MAX:
            raise self._lost(ValueError(f"an answer of {size} bytes"))
        self._body, self._have = bytearray(size), 0

    def _whole(self) -> tuple[int, memoryview]:
        assert self._body is not None, "an answer is there"
        answer, self._body, self._have = memoryview(self._body).toreadonly(), None, 0
        number = protocol.read_correlation(answer)
        if not self._open or self._open[0][0] != number:
            raise self._lost(ValueError("an answer to no question"))
        self._open.popleft()
        return number, answer

    def _lost(self, error: Exception) -> Lost:
        self.close()
        return Lost(f"{self.node.host}:{self.node.port}: {error}")


def dialled(node: Node) -> Connection | None:
    """Connect to a broker; None if it does not speak as we do. Waits.

    Raises:
        Lost: nobody is there.
    """
    deadline = time.monotonic() + CONNECT_SECONDS_MAX
    try:
        link = socket.create_connection(node, CONNECT_SECONDS_MAX)
    except OSError as error:
        raise Lost(f"{node.host}:{node.port}: {error}") from None
    connection = Connection(link, node)
    try:
        connection.ask(protocol.API_VERSIONS, protocol.api_versions())
        speaks = protocol.read_api_versions(answered(connection, deadline))
    except ValueError as error:
        connection.close()
        raise Lost(f"{node.host}:{node.port}: {error}") from None
    if not speaks:
        connection.close()
        return None
    return connection


def answered(connection: Connection, deadline: float) -> memoryview:
    """Wait for the one answer that is due.

    Raises:
        Lost: it does not come.
    """
    while True:
        if answers := connection.receive():
            return answers[0][1]
        left = deadline - time.monotonic()
        if left <= 0:
            connection.close()
            raise Lost(f"{connection.node.host}:{connection.node.port}: no answer")
        await_news([connection], left)
