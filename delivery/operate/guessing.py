"""How the records of a lane are named, found out from what the lane has decided.

What it is: `ways_of` (every way in which a record could be named) and `guessed`, which takes the one
that explains the ids of some seals.
What it must not know: how anything is checked: whoever is told a way holds every record to it.

Invariants:
    A way is believed only if it makes ids that were decided: an id is 128 bits of a hash, so none
    is made by chance.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dedup.ids import named, positional
from dedup.model import RecordId
from delivery.header import NAME
from delivery.naming import EACH_TOPICS, id_from, way_of
from delivery.records import Record

__all__ = ["SAMPLE_MAX", "guessed", "id_by", "ways_of"]

#: How deep the fields of a JSON value are looked for.
DEPTH_MAX = 3
#: How many fields of one value are tried.
FIELDS_MAX = 100
#: Records that are tried; more of them tell nobody more.
SAMPLE_MAX = 200
#: What a record raises that does not fit a way.
_UNFIT = (AttributeError, RecursionError, TypeError, ValueError)


def id_by(way: str | None, record: Record) -> RecordId | None:
    """Return the id that a record has if it is named this way; None if it cannot be."""
    try:
        name = (id_from(None) if way is None else way_of(way) or id_from(way))(record)
    except _UNFIT:
        return None
    return positional(record.source, record.offset) if name is None else named(name)


def ways_of(record: Record) -> Iterator[str | None]:
    """Yield every way in which this record could be named, its place last.

    Wrapped jobs take a name for one within its topic; whoever asks does not know whose records
    these are.
    """
    for way in _plain(record):
        yield way
        if way not in (None, "delivery"):
            yield f"{EACH_TOPICS}{way}"


def _plain(record: Record) -> Iterator[str | None]:
    for name in dict.fromkeys(name for name, _ in record.headers):
        if name != NAME:
            yield f"header:{name}"
    if record.header(NAME) is not None:
        yield "delivery"
    if record.key is not None:
        yield "key"
    yield from (f"json:{path}" for path in _fields(record))
    if record.value is not None:
        yield "value"
    yield None


def guessed(records: Sequence[Record], decided: Iterable[RecordId]) -> tuple[bool, str | None]:
    """Return whether some way explains what was decided, and the way that explains most of it.

    Args:
        records: that some seals read, in their order.
        decided: the ids that these seals decided.
    """
    decided = set(decided)
    hits: Counter[str | None] = Counter()
    tried = [(record, dict.fromkeys(ways_of(record))) for record in records[:SAMPLE_MAX]]
    for record, ways in tried:
        for way in ways:
            hits[way] += id_by(way, record) in decided
    # Of a name that some records lack, the place of those counts for it as well.
    for way in hits:
        if way is not None:
            lacking = [record for record, ways in tried if way not in ways]
            hits[way] += sum(id_by(None, record) in decided for record in lacking)
    best = max(hits, key=lambda way: hits[way], default=None)
    if best is not None and hits[best] == hits[None]:
        best = None  # no record shows more than its place
    return bool(hits[best]), best


def _fields(record: Record) -> list[str]:
    try:
        value = json.loads(record.value or b"null")
    except _UNFIT:
        return []
    found: list[str] = []
    waiting: list[tuple[str, Any, int]] = [("", value, 0)]
    while waiting and len(found) < FIELDS_MAX:
        path, value, depth = waiting.pop(0)
        if isinstance(value, dict) and depth < DEPTH_MAX:
            for name, inner in value.items():
                waiting.append((f"{path}.{name}" if path else name, inner, depth + 1))
        elif path:
            found.append(path)
    return found
