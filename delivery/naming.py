"""How a publisher names its records: the ways a stage can say where the id stands.

What it is: `id_from(text)` for what users write, `said_of` and `way_of`, by which seals say it and are
read, `per_topic`, for who reads several, `names_of`, which takes the names out of a whole batch, `says_where`, by which a record without a name is one that was expected to have it, `forgiving`,
for whoever looks at records that were put aside, and `field_of`.
What it must not know: hashes, verdicts, lanes.

Invariants:
    A record that names itself nowhere is named by its place; a name is never made up.
    A way with a method `column` names a whole batch at once, and cannot fail.
    One lane of a wrapped job reads several topics, and a name is one within its topic: the order 7
    is not the customer 7.
    A record whose name cannot be taken out is named by its place where dead letters take it; else
    it stops the stage, which says where it is: nothing of it is sealed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.errors import InvalidUsage
from delivery.batch import Alike, Batch, taken
from delivery.header import NAME, decode_header
from delivery.records import Record

#: Returns the bytes by which a record's publisher names it, or None where only its place does.
IdFrom = Callable[[Record], bytes | None]

#: What becomes of records that nobody names, in words.
BY_PLACE = (
    "records are named by their place: one that its publisher sends twice counts twice; say "
    "id_from= where records name themselves"
)

#: What partitions that appeared mean where publishers repeat themselves.
KEYS_MOVED = (
    "partitions appeared ({}), so keys have moved: what a publisher repeats may lie in another "
    "partition than the record it repeats, whose lane does not know it, and takes effect again"
)

#: How seals say that nothing but its place names a record, and that code does.
PLACE = "place"
FUNCTION = "function"
#: And that a name is one within its topic: one lane of a wrapped job reads several.
EACH_TOPICS = "each topic's "
#: Letters of a function's name that a seal says.
SAID_MAX = 200
#: How alike two words are of which one was meant by the other.
NEAR = 0.6
#: What could not be done for a record that is put aside, as its error says.
NAMING = "take the id out of a record"

_Rows = npt.NDArray[np.intp]
_NAME, _VALUE = itemgetter(0), itemgetter(1)


def id_from(text: str | IdFrom | None) -> IdFrom:
    """Return the way of naming that `text` says.

    Args:
        text: "header:NAME", "key", "value", "json:FIELD" (dots go deeper), "delivery" (the id in
            the header of a sender that this catalog does not know), a function of the record, or
            None: records are named by their place alone.

    Raises:
        InvalidUsage: it says none of these.
    """
    if text is None:
        return _Place()
    if callable(text):
        return text
    way, _, rest = text.partition(":")
    if way in _PLAIN and not rest:
        return _PLAIN[way]()
    if way in _NAMED and rest:
        return _NAMED[way](rest)
    near = get_close_matches(way, (*_PLAIN, *_NAMED), n=1, cutoff=NEAR)
    meant = near[0] + (f":{rest or 'NAME'}" if near[0] in _NAMED else "") if near else ""
    raise InvalidUsage(
        "name the records of a stage",
        f"id_from={text!r}",
        (f'did you mean "{meant}"? ' if meant else "")
        + 'nothing was started: say "header:NAME", "key", "value", "json:FIELD", "delivery", or give a '
        "function that returns bytes, or None for a record that only its place names",
    )


def per_topic(way: IdFrom) -> IdFrom:
    """Return the way of naming that tells topics apart; ids of other catalogs are told apart."""
    return way if isinstance(way, Foreign) else _PerTopic(way)


def said_of(named: str | IdFrom | None, *, by_topic: bool = False) -> str:
    """Return how seals say the way that a user wrote; of a function they say its name."""
    if named is None:
        return PLACE
    if not isinstance(named, str):
        named = f"{FUNCTION} {getattr(named, '__qualname__', type(named).__qualname__)}"[:SAID_MAX]
    return EACH_TOPICS + named if by_topic and named != "delivery" else named


def way_of(said: str) -> IdFrom | None:
    """Return the way that a seal says; None where it does not say it, or only its code knows."""
    if said == PLACE:
        return id_from(None)
    if said.startswith(EACH_TOPICS):
        way = way_of(said.removeprefix(EACH_TOPICS))
        return way and per_topic(way)
    try:
        return id_from(said)
    except InvalidUsage:
        return None


def names_of(
    way: IdFrom, batch: Batch, rows: _Rows, unnamed: dict[int, InvalidUsage] | None = None
) -> Sequence[bytes | None]:
    """Return the name of each of these rows.

    Args:
        way: how they are named.
        batch: what they are in.
        rows: which of it.
        unnamed: is told of each row whose name cannot be taken out why not; its place names it.

    Raises:
        InvalidUsage: nobody is to be told, and one cannot be named; the message says which.
    """
    column = getattr(way, "column", None)
    if column is not None:
        names: Sequence[bytes | None] = column(batch, rows)
        return names
    found: list[bytes | None] = []
    for row, record in zip(rows.tolist(), batch.records(rows), strict=True):
        try:
            found.append(_checked(way(record)))
        except Exception as error:
            why = _unnamed(record, error)
            if unnamed is None:
                raise why from error
            unnamed[row] = why
            found.append(None)
    return found


def says_where(way: IdFrom) -> bool:
    """Tell whether a way says where every record has its name; a function may say that one has none."""
    way = getattr(way, "way", way)
    return isinstance(way, _Key | _Value | _Header | _Json)


def forgiving(way: IdFrom) -> IdFrom:
    """Return the same way, but that a record's place names it where its name cannot be taken out."""
    if hasattr(way, "column"):
        return way

    def name(record: Record) -> bytes | None:
        try:
            return _checked(way(record))
        except Exception:  # noqa: BLE001 - a user's function may raise anything; it has no name then
            return None

    return name


def _unnamed(record: Record, error: Exception) -> InvalidUsage:
    return InvalidUsage(
        NAMING,
        f"offset {record.offset} of partition {record.source.partition}",
        f"id_from failed ({type(error).__name__}: {error}); nothing was sealed: let it return None "
        "for a record that nothing but its place names, or give the stage dead letters",
    )


def _checked(name: Any) -> bytes | None:
    if name is None or isinstance(name, bytes):
        return name
    raise TypeError(f"a name is bytes or None, not {type(name).__name__}")


class _Place:
    """Nothing names a record but its place."""

    def __call__(self, _record: Record) -> bytes | None:
        return None

    def column(self, _batch: Batch, rows: _Rows) -> list[bytes | None]:
        return [None] * len(rows)


class _Key:
    """The key names a record."""

    def __call__(self, record: Record) -> bytes | None:
        return record.key

    def column(self, batch: Batch, rows: _Rows) -> Sequence[bytes | None]:
        return taken(batch.keys, rows)


class _Value:
    """The whole value names a record."""

    def __call__(self, record: Record) -> bytes | None:
        return record.value

    def column(self, batch: Batch, rows: _Rows) -> Sequence[bytes | None]:
        return taken(batch.values, rows)


class _Header:
    """A header names a record; the last of that name, as Kafka's clients read it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, record: Record) -> bytes | None:
        return record.header(self._name)

    def column(self, batch: Batch, rows: _Rows) -> Sequence[bytes | None]:
        headers = taken(batch.headers, rows)
        if isinstance(headers, Alike):
            return headers.values if headers.name == self._name else [None] * len(headers)
        there = list(filter(None, headers))
        if len(there) == len(headers) > 0 and set(map(len, there)) == {1}:
            pairs = list(chain.from_iterable(there))
            if set(map(_NAME, pairs)) == {self._name}:
                return list(map(_VALUE, pairs))
        return [_last(some, self._name) for some in headers]


class _Json:
    """A field of the value, which is JSON, names a record."""

    def __init__(self, path: str) -> None:
        self._path = path.split(".")

    def __call__(self, record: Record) -> bytes | None:
        found = field_of(record, self._path)
        if found is None:
            return None
        return found.encode() if isinstance(found, str) else json.dumps(found).encode()


def field_of(record: Record, path: Sequence[str]) -> Any:
    """Return a field of the value, which is JSON; None if it is not there."""
    found = record.json()
    for step in path:
        found = None if found is None else found.get(step)
    return found


class Foreign:
    """The id in the header of a sender that another catalog knows, taken as a foreign one."""

    def __call__(self, record: Record) -> bytes | None:
        """Return the id that the record's header says, whoever sent it."""
        header = decode_header(record.header(NAME) or b"")
        return None if header is None else header.id


class _PerTopic:
    """A name with the identity of its topic in front."""

    def __init__(self, way: IdFrom) -> None:
        self.way = way

    def __call__(self, record: Record) -> bytes | None:
        name = self.way(record)
        return None if name is None else record.source.topic + name

    def column(self, batch: Batch, rows: _Rows) -> Sequence[bytes | None]:
        topic = batch.source.topic
        return [None if name is None else topic + name for name in names_of(self.way, batch, rows)]


def _last(headers: Sequence[tuple[str, bytes]] | None, name: str) -> bytes | None:
    if not headers:
        return None
    if len(headers) == 1:
        return headers[0][1] if headers[0][0] == name else None
    return next((value for key, value in reversed(headers) if key == name), None)


_PLAIN: dict[str, Callable[[], IdFrom]] = {"key": _Key, "value": _Value, "delivery": Foreign}
_NAMED: dict[str, Callable[[str], IdFrom]] = {"header": _Header, "json": _Json}
