"""Lanes that receivers keep in users' databases, read where they are.

What it is: `with_databases`, which gives a catalog whose rows of such lanes are those of their
databases, and `Kept`, which says of each whether it could be read.
What it must not know: what is asked about the lanes, how a database keeps rows.

Invariants:
    Databases are only read, and only one whose identity is the one that the catalog remembers, and
    whose lanes do not contradict it.
    A lane whose database is not read stays as the catalog has it: marked as kept elsewhere, so that
    nobody takes its beginning for where it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import RawLane, Store
from dedup.errors import DeliveryError, InvalidUsage
from dedup.formats.lane import decode_head, encode_head
from dedup.model import Incarnation
from delivery.operate.opening import database_id_of, database_of
from delivery.operate.watched import Watched

if TYPE_CHECKING:
    from delivery.sinks import Ledger

__all__ = ["Kept", "with_databases"]

#: What to do where a database could not be read, and where it is not the one.
_AWAY = (
    "what became of records is decided in it: run this where it lies, or say with --database where "
    "it or a copy of it is"
)
_WRONG = (
    "what became of records is not known here: say with --database where the right one is; "
    "receivers are refused as well, until receiver.accept(PATH) says that this one counts"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A lane that a receiver keeps in its user's database.

    Attributes:
        lane: its name.
        database: the file that was read, else the one that the catalog remembers.
        unread: why it was not read, and what to do; None: what is told of the lane is what it says.
    """

    lane: str
    database: str
    unread: str | None

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    def line(self) -> str:
        """Return it in words."""
        kept = f"{self.lane} is kept in its user's database {self.database}"
        return f"{kept}, and was read there" if self.unread is None else f"{kept}: {self.unread}"


@contextmanager
def with_databases(
    catalog: Catalog, files: Sequence[str] = ()
) -> Iterator[tuple[Catalog, dict[str, Kept]]]:
    """Give a catalog with the lanes of databases, and each lane that one of them keeps, by its name.

    Args:
        catalog: what remembers where the databases are; it is only read.
        files: databases that are somewhere else now, or copies of them.

    Raises:
        InvalidUsage: one of `files` is not there, or keeps no lane of this catalog.
        Unavailable: one of them cannot be read now.
    """
    rows = ((lane, catalog.load(lane)) for lane in catalog.lanes())
    heads = {lane: row.head for lane, row in rows if row and database_of(row.head) is not None}
    if not heads and not files:
        yield catalog, {}
        return
    from delivery.host.adapters import open_ledger  # noqa: PLC0415  half of a verb's start

    with ExitStack() as stack:
        given: dict[bytes, Ledger] = {}
        for file in files:
            ledger = stack.enter_context(closing(open_ledger(file, reading=True)))
            if all(database_id_of(head) != ledger.identity for head in heads.values()):
                raise InvalidUsage(
                    "read the database of a receiver",
                    file,
                    f"it keeps no lane that {catalog.store.url} knows; nothing was told: name the "
                    "database of its receivers, or leave it out",
                )
            given[ledger.identity] = ledger
        found: dict[bytes, Ledger | str] = {}
        kept: dict[str, Kept] = {}
        books: dict[str, Ledger] = {}
        for lane, head in heads.items():
            path = database_of(head) or ""
            if head.state not in found:
                found[head.state] = given.get(database_id_of(head)) or _opened(path, stack)
            kept[lane] = _looked(catalog, lane, path, found[head.state], books)
        yield Catalog(_Together(catalog.store, books)), kept


def _opened(path: str, stack: ExitStack) -> Ledger | str:
    """Open a database where the catalog remembers it, or say why that cannot be."""
    if not Path(path).is_file():
        return "there is no such file here"
    from delivery.host.adapters import open_ledger  # noqa: PLC0415  see above

    try:
        return stack.enter_context(closing(open_ledger(path, reading=True)))
    except DeliveryError as error:
        return error.hint


def _looked(
    catalog: Catalog, lane: str, path: str, found: Ledger | str, books: dict[str, Ledger]
) -> Kept:
    """Note where a lane's rows are if they are as the catalog remembers them, and say if not."""
    if isinstance(found, str):
        return Kept(lane=lane, database=path, unread=f"{found}; {_AWAY}")
    from delivery.receiver.keeping import contradiction  # noqa: PLC0415  see above

    why = contradiction(catalog, found, lane)
    if why is not None:
        return Kept(lane=lane, database=found.path, unread=f"{why}; {_WRONG}")
    books[lane] = found
    return Kept(lane=lane, database=found.path, unread=None)


class _Together(Watched):
    """A catalog's store, whose rows of some lanes are in databases."""

    def __init__(self, store: Store, books: Mapping[str, Ledger]) -> None:
        super().__init__(store, {})
        #: A lane that a database has nothing of has sealed nothing: it stands where it began, as
        #: the catalog remembers it.
        self._begun = {lane for lane, book in books.items() if book.read(lane) is None}
        self._books = {lane: book for lane, book in books.items() if lane not in self._begun}

    def read(self, lane: str) -> RawLane | None:
        """Return the head row."""
        if lane in self._books:
            return self._books[lane].read(lane)
        row = self._store.read(lane)
        if row is None or lane not in self._begun:
            return row
        head = decode_head(row.head, f"head of {lane} in {self.url}")
        return replace(row, head=encode_head(replace(head, state=b"")))

    def entries(
        self, lane: str, incarnation: Incarnation, first: int, last: int
    ) -> list[tuple[int, bytes]]:
        """Return entries."""
        return (self._books.get(lane) or self._store).entries(lane, incarnation, first, last)
