"""Every way a record can say when it was made, and what is no time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from dedup.errors import InvalidUsage
from dedup.model import Source, TopicId
from delivery.batch import batches_of
from delivery.records import Record
from delivery.timing import NO_TIME, TIME_MS_MAX, time_from, times_of

SOURCE = Source(TopicId(b"t" * 16), 3)
MADE = 1_700_000_000_123
ISO = "2023-11-14T22:13:20.123"
NAIVE = datetime.fromisoformat(ISO)


def told(way, *records: Record):
    (batch,) = batches_of([one._replace(source=SOURCE, offset=11) for one in records])
    untold = {}
    return times_of(time_from(way), batch, np.arange(len(batch)), untold).tolist(), untold


@pytest.mark.parametrize(
    "text",
    [
        str(MADE),
        f"{MADE}.9",
        f"{ISO}Z",
        ISO,
        "2023-11-14T23:13:20.123+01:00",
        "2023-11-14 22:13:20.123",
    ],
)
def test_a_text_says_milliseconds_or_iso_8601_which_is_utc_without_a_zone(text):
    header = Record(headers=(("at", b"1"), ("at", text.encode()), ("x", b"")))
    assert told("header:at", header) == ([MADE], {})
    deep = Record(value=b'{"made": {"at": "%s"}}' % text.encode())
    assert told("json:made.at", deep) == ([MADE], {})


@pytest.mark.parametrize("number", [b"%d" % MADE, b"%d.9" % MADE, b"1.700000000123e12"])
def test_a_number_says_milliseconds(number):
    assert told("json:at", Record(value=b'{"at": %s}' % number)) == ([MADE], {})


def test_a_date_is_its_midnight_and_the_first_and_last_times_are_times():
    records = [
        Record(headers=(("at", text),))
        for text in (b"1970-01-01", b"0", b"9999-12-31T23:59:59.999")
    ]
    assert told("header:at", *records) == ([0, 0, TIME_MS_MAX], {})


@pytest.mark.parametrize(
    "said",
    [
        MADE,
        NAIVE.replace(tzinfo=UTC),
        NAIVE.astimezone(timezone(timedelta(hours=5))).replace(
            hour=3, day=15, tzinfo=timezone(timedelta(hours=5))
        ),
    ],
    ids=["number", "utc", "zone"],
)
def test_a_function_says_milliseconds_or_a_datetime_with_a_zone(said):
    assert told(lambda _: said, Record()) == ([MADE], {})


def test_kafkas_timestamps_are_taken_as_a_column():
    records = [Record(timestamp_ms=time) for time in (MADE, -1, 0, TIME_MS_MAX + 1)]
    assert told("timestamp", *records) == ([MADE, NO_TIME, 0, NO_TIME], {1: ANY, 3: ANY})
    assert time_from("timestamp")(records[0]) == MADE


class _Any:
    """Equal to every reason that names the record and the cause."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InvalidUsage) and "offset 11 of partition 3" in str(other)

    __hash__ = None


ANY = _Any()

UNTOLD = {
    "no header": ("header:at", Record()),
    "no text": ("header:at", Record(headers=(("at", b"\xff"),))),
    "an empty text": ("header:at", Record(headers=(("at", b""),))),
    "no time": ("header:at", Record(headers=(("at", b"yesterday"),))),
    "a time of day": ("header:at", Record(headers=(("at", b"12:30"),))),
    "before 1970": ("header:at", Record(headers=(("at", b"1969-12-31T23:59:59Z"),))),
    "a negative number": ("header:at", Record(headers=(("at", b"-1"),))),
    "a larger number": ("header:at", Record(headers=(("at", b"%d" % (TIME_MS_MAX + 1)),))),
    "digits of another script": ("header:at", Record(headers=(("at", "\u0661".encode()),))),
    "no json": ("json:at", Record(value=b"{")),
    "no field": ("json:at", Record(value=b"{}")),
    "a field of nothing": ("json:at.deeper", Record(value=b'{"at": 1}')),
    "truth": ("json:at", Record(value=b'{"at": true}')),
    "a list": ("json:at", Record(value=b'{"at": [1]}')),
    "no number": ("json:at", Record(value=b'{"at": NaN}')),
    "infinity": ("json:at", Record(value=b'{"at": 1e999}')),
    "a large integer": ("json:at", Record(value=b'{"at": 9%s}' % (b"0" * 40))),
    "a datetime without a zone": (lambda _: NAIVE, Record()),
    "nothing": (lambda _: None, Record()),
    "an error of its own": (lambda record: record.headers[9], Record()),
}


@pytest.mark.parametrize("case", UNTOLD)
def test_a_time_that_cannot_be_told_is_said_of_its_record_alone(case):
    way, record = UNTOLD[case]
    good = Record(value=b'{"at": 1}', headers=(("at", b"1"),))
    times, untold = told(way, record)
    assert times == [NO_TIME]
    assert untold == {0: ANY}
    assert "time_from failed" in str(untold[0])
    if isinstance(way, str) and "deeper" not in way:
        assert told(way, good, record, good) == ([1, NO_TIME, 1], {1: ANY})


@pytest.mark.parametrize(
    "text", ["", "header", "header:", "json:", "timestamp:x", "Timestamp", "at"]
)
def test_what_says_no_way_is_refused_before_anything_starts(text):
    with pytest.raises(InvalidUsage, match="nothing was started") as raised:
        time_from(text)
    assert repr(text) in raised.value.subject
