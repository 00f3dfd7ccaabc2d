"""A source in which crashes are data: records, and markers between them.

What it is: `CRASH`, `ROUND` and `Repeat`, and the `Script` that a list of them stands for.
What it must not know: how a stage is run, what a crash does.

Invariants:
    A marker takes no offset: the n-th record of the list has offset n, whatever stands between.
    A repeat repeats a record that stands before it and that its publisher named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from dedup.errors import InvalidUsage
from delivery.naming import IdFrom, forgiving
from delivery.records import Record, as_bytes


class Marker(Enum):
    """What happens at a place of the source."""

    CRASH = "crash"
    ROUND = "round"


#: The process dies here: user code has returned for the record before, and its bundle is not sealed.
#: Behind `ROUND`, at the beginning, or behind a repeat it dies before user code sees the next record,
#: or as it ends.
CRASH = Marker.CRASH
#: The publisher waits: a bundle ends here, and the next record comes once all before is delivered.
ROUND = Marker.ROUND


@dataclass(frozen=True, slots=True)
class Repeat:
    """The publisher sends a record again."""

    record: Record


#: What a source is made of.
Item = Record | Repeat | Marker


@dataclass(frozen=True, slots=True)
class Death:
    """A process dies between the record below an offset and the one at it."""

    offset: int
    #: As soon as user code has returned for the record below.
    early: bool

    def due_before(self, offset: int) -> bool:
        """Tell whether the process dies before user code sees the record at `offset`."""
        return self.offset <= offset

    def due_after(self, offset: int) -> bool:
        """Tell whether the process dies when user code has returned for the record at `offset`."""
        return self.early and self.offset == offset + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A source, taken apart."""

    records: tuple[Record, ...]
    #: Once each, in order.
    deaths: tuple[Death, ...] = ()
    #: Offsets that are not polled before everything below them is delivered.
    rounds: frozenset[int] = frozenset()

    @staticmethod
    def of(items: Iterable[Item], id_from: IdFrom) -> Script:
        """Take a list of records and markers apart.

        Raises:
            InvalidUsage: something in it is neither, or repeats what was not sent or has no name.
        """
        records: list[Record] = []
        deaths, rounds = [], set()
        for index, item in enumerate(items):
            if item is CRASH:
                deaths.append(Death(len(records), len(records) not in rounds))
            elif item is ROUND:
                rounds.add(len(records))
            else:
                records.append(_record(index, item, records, id_from))
        return Script(records=tuple(records), deaths=tuple(deaths), rounds=frozenset(rounds))


def _record(index: int, item: object, before: list[Record], id_from: IdFrom) -> Record:
    op, subject = "read the records of a test", f"item {index}"
    if isinstance(item, Record):
        return item
    if not isinstance(item, Repeat):
        hint = (
            f"it is a {type(item).__name__}: give Record(value=...), Repeat(record), CRASH or ROUND"
        )
        raise InvalidUsage(op, subject, hint)
    if item.record not in before:
        raise InvalidUsage(op, subject, "it repeats a record that does not stand before it")
    if forgiving(id_from)(item.record) is None:
        raise InvalidUsage(
            op,
            subject,
            "nothing names the record, so a second copy is another record: say what names it, as "
            'in id_from="header:id"',
        )
    return item.record


def by_place(_record: Record) -> bytes | None:
    """No publisher's name: a record's place is its identity."""
    return None


def id_of(spec: str | IdFrom | None) -> IdFrom:
    """Return what takes a record's name out of it.

    Args:
        spec: "header:NAME", "json:FIELD", "key", a function, or None for its place.

    Raises:
        InvalidUsage: it is none of these.
    """
    if spec is None:
        return by_place
    if not isinstance(spec, str):
        return spec
    kind, _, name = spec.partition(":")
    if kind == "header" and name:
        return lambda record: record.header(name)
    if kind == "json" and name:
        return lambda record: _field(record, name)
    if spec == "key":
        return lambda record: record.key
    raise InvalidUsage(
        "read id_from", repr(spec), 'say "header:NAME", "json:FIELD", "key", or give a function'
    )


def _field(record: Record, name: str) -> bytes | None:
    value = record.json()
    found = value.get(name) if isinstance(value, dict) else None
    return None if found is None else as_bytes(found)
