"""Many statements under way at once.

What it is: `Window`, a context that begins statements and waits for them.
What it must not know: what the statements mean.

Invariants:
    Whoever leaves the context has the answer to every statement that was begun, also after the
    first has failed.
    What is under way is bounded, in requests and in bytes, together with all other windows of the
    process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Self

from cassandra.cluster import ResponseFuture

from dedup.catalog.cassandra.cql import Statement
from dedup.catalog.cassandra.errors import Access, translating
from dedup.catalog.cassandra.session import Connection

#: Given the rows of a statement that was begun in a window.
Receive = Callable[[Any], None]


class Window:
    """Statements under way at once, bounded together with all other windows of the connection.

    Leaving the context waits for every one of them, whatever happened to the first.
    """

    def __init__(self, connection: Connection, op: str, subject: str, access: Access) -> None:
        self._connection = connection
        self._op = op
        self._subject = subject
        self._access = access
        self._under_way: list[tuple[ResponseFuture, Receive | None]] = []
        self._failed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # An exit stack runs all of its callbacks even if some raise, and then raises.
        with ExitStack() as stack:
            for future, receive in reversed(self._under_way):
                stack.callback(self._finish, future, receive)

    def _finish(self, future: ResponseFuture, receive: Receive | None) -> None:
        with translating(self._op, self._subject, self._access):
            rows = future.result()
        if receive is not None:
            receive(rows)

    def send(
        self,
        statement: Statement,
        values: Sequence[object],
        size: int = 0,
        receive: Receive | None = None,
    ) -> bool:
        """Begin a statement as soon as there is room; False if one failed already."""
        if self._failed.is_set():
            return False
        with translating(self._op, self._subject, self._access):
            future = self._connection.begin(statement, values, size, self._ended)
        self._under_way.append((future, receive))
        return not self._failed.is_set()

    def _ended(self, result: object) -> None:
        """Take note of a failure; called by the driver's thread."""
        if isinstance(result, BaseException):
            self._failed.set()
