"""The three kinds of sinks, and the port of one that keeps a lane beside its effects.

What it is: `Kind`, the check that a sink is of one, `Ledger`, and the words that sinks need.
What it must not know: any sink.

Invariants:
    A sink that is of no kind is refused before anything is read: nobody could say what becomes of
    a repeat.
    Whoever seals into a ledger commits the effect and the seal in one transaction, or neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, NamedTuple, Protocol

from dedup.catalog.store import RawAck, RawLane
from dedup.errors import Corrupt, Indeterminate, InvalidUsage, Unavailable
from dedup.formats.lane import encode_ack
from dedup.model import (
    IDENTITY_BYTES,
    Ack,
    Attempt,
    Frontier,
    HeadRef,
    Incarnation,
    Source,
    TopicId,
)
from delivery.batch import Emissions
from delivery.header import NAME, decode_header

__all__ = [
    "BUNDLE_ROWS_MAX",
    "IDENTITY_BYTES",
    "Attempt",
    "Corrupt",
    "HeadRef",
    "Incarnation",
    "Indeterminate",
    "InvalidUsage",
    "Kind",
    "Ledger",
    "RawAck",
    "RawLane",
    "Transaction",
    "Unavailable",
    "Written",
    "close_sink",
    "delivered_with",
    "kind_of",
    "positions",
    "written_by",
]

#: No bundle has as many rows; what a sink without offsets counts in.
BUNDLE_ROWS_MAX = 1 << 32


class Kind(Enum):
    """Why a bundle that is written twice counts once."""

    #: Invisible until it is published, and published under a name that only this bundle has.
    STAGED = "staged"
    #: The seal is stored in the transaction that writes the rows.
    SAME_TRANSACTION = "same-transaction"
    #: Every row has a key made from its record's id, or carries it to a receiver that drops repeats.
    KEYED = "keyed"


def close_sink(sink: object) -> None:
    """Let go of a sink, if it holds anything that can be let go of."""
    close = getattr(sink, "close", None)
    if close is not None:
        close()


def kind_of(sink: object) -> Kind:
    """Return the kind a sink declares.

    Raises:
        InvalidUsage: it declares none.
    """
    kind = getattr(sink, "kind", None)
    if isinstance(kind, Kind):
        return kind
    raise InvalidUsage(
        "use a sink",
        type(sink).__name__,
        "it does not say why a bundle written twice counts once; nothing was read or written: let "
        "its attribute `kind` be Kind.STAGED, Kind.SAME_TRANSACTION or Kind.KEYED, and be it",
    )


class Written(NamedTuple):
    """Which bundle emissions are of."""

    lane: str
    incarnation: Incarnation
    seq: int


def written_by(emissions: Emissions) -> Written | None:
    """Return the bundle that emissions are of, from their header; None if they carry none of ours.

    All emissions of one call are of one bundle: a lane emits seal by seal.
    """
    headers = emissions.headers[0] if len(emissions) else ()
    value = next((value for name, value in reversed(headers) if name == NAME), b"")
    header = decode_header(value)
    if header is None:
        return None
    mark = header.mark
    return Written(mark.sender, mark.incarnation, mark.seq)


def positions(topic: TopicId, emissions: Emissions, written: Written | None) -> Frontier:
    """Return, as offsets that only grow, how far a sink that has none is written.

    A row's offset is made from its bundle's seq and its place in the bundle.
    """
    first = (written.seq if written else 0) * BUNDLE_ROWS_MAX
    return Frontier.of(
        (Source(topic, partition), first + row + 1)
        for row, partition in enumerate(emissions.partitions)
    )


def delivered_with(ref: HeadRef) -> RawAck:
    """Return the acknowledgement of a lane whose effects are committed with its seals."""
    return RawAck(ref.incarnation, ref.seq, encode_ack(Ack(ref.incarnation, ref.seq)))


class Transaction(Protocol):
    """What the effect of a bundle is written with: one open transaction that the seal will end."""

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Run one statement."""

    def executemany(self, sql: str, parameters: Iterable[Any]) -> Any:
        """Run one statement with many rows."""

    def cursor(self) -> Any:
        """Return a cursor of the connection, for libraries that ask for one."""


class Ledger(Protocol):
    """Heads and entries of lanes in a user's own database; see `dedup.catalog.store.Store`."""

    kind: Kind
    #: What messages name it by.
    url: str
    #: Minted inside the database, once.
    identity: bytes
    #: Where it is found again.
    path: str

    def within(self, connection: Any) -> AbstractContextManager[Transaction]:
        """Open the transaction of one effect on the user's connection.

        Yields what the user writes with. `append`, called inside, ends the transaction.
        """

    def read(self, lane: str) -> RawLane | None:
        """Return the head row."""

    def append(self, lane: str, expected: HeadRef, ref: HeadRef, head: bytes, entry: bytes) -> bool:
        """Move the head, add the entry and commit, with the effect if there is one under way.

        False: somebody else moved the head, and the effect was rolled back.
        """

    def create(self, lane: str, row: RawLane, entry: bytes | None) -> bool:
        """Write the first head row."""

    def put(self, lane: str, row: RawLane, first: tuple[Incarnation, bytes] | None) -> None:
        """Write a head row in place of whatever is there; only an operator asks for it.

        `first` is incarnation and bytes of the entry of seq 0, where the database lacks it.
        """

    def raise_collected(
        self, lane: str, incarnation: Incarnation, expected: int, collected: int
    ) -> bool:
        """Raise `collected`."""

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return the entries in [first, last]."""

    def delete_entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int, *, head: Incarnation
    ) -> bool:
        """Delete entries, if the head's incarnation is still `head`."""

    def close(self) -> None:
        """Let go of the ledger's own connection. May be called twice."""
