"""How records say when they were made: the ways a stage can name a time that it trusts.

What it is: `time_from(text)` for what users write, and `times_of`, which takes the times out of rows
of a batch.
What it must not know: windows, lanes, verdicts, the clock.

Invariants:
    A time is whole milliseconds since 1970, and never made up: a record that says none has none.
    A way with a method `column` reads a whole batch at once.
    Why a time cannot be told is said of that record alone; nothing stops at it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.errors import InvalidUsage
from delivery.batch import Batch
from delivery.naming import field_of
from delivery.records import Record

#: Returns when a record was made: whole milliseconds since 1970, or a datetime with a zone.
TimeFrom = Callable[[Record], int | datetime]

#: In place of a time that cannot be told.
NO_TIME = -1
#: The last millisecond of the year 9999, behind which ISO 8601 and Python's datetime say nothing.
TIME_MS_MAX = 253_402_300_799_999

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DECIMAL = re.compile(r"([0-9]{1,18})(\.[0-9]*)?")

#: What could not be done for a record that is put aside, as its error says.
TIMING = "tell the time of a record"

_Rows = npt.NDArray[np.intp]
_Times = npt.NDArray[np.int64]
#: What a way finds in a record, before it is a time.
_Way = Callable[[Record], Any]


def time_from(text: str | TimeFrom) -> _Way:
    """Return the way of telling times that `text` says.

    Args:
        text: "timestamp" (Kafka's own), "header:NAME", "json:FIELD" (dots go deeper), each with
            milliseconds since 1970 or an ISO 8601 text, which is UTC if it names no zone; or a
            function of the record.

    Raises:
        InvalidUsage: it says none of these.
    """
    if callable(text):
        return text
    way, _, rest = text.partition(":")
    if text == "timestamp":
        return _Timestamp()
    if way == "header" and rest:
        return lambda record: record.header(rest)
    if way == "json" and rest:
        path = rest.split(".")
        return lambda record: field_of(record, path)
    raise InvalidUsage(
        "tell the times of a stage's records",
        f"time_from={text!r}",
        'nothing was started: say "timestamp", "header:NAME", "json:FIELD", or give a function that '
        "returns milliseconds since 1970 or a datetime with a zone",
    )


def times_of(way: _Way, batch: Batch, rows: _Rows, untold: dict[int, InvalidUsage]) -> _Times:
    """Return the time of each of these rows.

    Args:
        way: how they say it.
        batch: what they are in.
        rows: which of it.
        untold: is told of each row whose time cannot be told why not; its time is `NO_TIME`.
    """
    column = getattr(way, "column", None)
    if column is not None:
        times: _Times = column(batch, rows)
        wrong = (times < 0) | (times > TIME_MS_MAX)
        for at in np.flatnonzero(wrong).tolist():
            (record,) = batch.records(rows[at : at + 1])
            untold[int(rows[at])] = _untold(record, ValueError(f"its timestamp is {times[at]}"))
        return np.where(wrong, NO_TIME, times)
    found = np.full(len(rows), NO_TIME, dtype=np.int64)
    for at, (row, record) in enumerate(zip(rows.tolist(), batch.records(rows), strict=True)):
        try:
            found[at] = _time_ms(way(record))
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            untold[row] = _untold(record, error)
    return found


def _time_ms(said: Any) -> int:
    """Return what a record says as whole milliseconds since 1970."""
    if said is None:
        raise ValueError("the record says none")
    if isinstance(said, bytes):
        said = said.decode()
    if isinstance(said, str):
        number = _DECIMAL.fullmatch(said)
        said = int(number[1]) if number else _utc(datetime.fromisoformat(said))
    if isinstance(said, datetime):
        if said.tzinfo is None:
            raise ValueError("a datetime without a zone may mean any: give it tzinfo=UTC")
        said = (said - _EPOCH) // _MILLISECOND
    if isinstance(said, bool) or not isinstance(said, int | float):
        raise TypeError(f"a time is a number, an ISO 8601 text or a datetime, not {said!r:.100}")
    if not 0 <= said <= TIME_MS_MAX:  # whatever is no number at all is not between them either
        raise ValueError(f"{said} is no time between the years 1970 and 9999, in milliseconds")
    return int(said)


def _utc(said: datetime) -> datetime:
    return said if said.tzinfo is not None else said.replace(tzinfo=UTC)


def _untold(record: Record, error: Exception) -> InvalidUsage:
    return InvalidUsage(
        TIMING,
        f"offset {record.offset} of partition {record.source.partition}",
        f"time_from failed ({type(error).__name__}: {error}), so nobody can tell whether it is older "
        "than what its lane remembers; user code never saw it: let its publisher say the time, or "
        "mend time_from and send it again",
    )


class _Timestamp:
    """Kafka's own timestamp of the record."""

    def __call__(self, record: Record) -> int:
        return record.timestamp_ms

    def column(self, batch: Batch, rows: _Rows) -> _Times:
        return batch.timestamps_ms[rows]
