"""Every way a publisher can name a record, on single records and on columns, and what fails."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dedup.errors import InvalidUsage
from dedup.model import Incarnation, RecordId, Source, TopicId
from delivery.batch import batches_of
from delivery.header import NAME, Header, encode_header
from delivery.naming import forgiving, id_from, names_of, per_topic, said_of, says_where, way_of
from delivery.protocol.senders import Mark
from delivery.records import Record

SOURCE = Source(TopicId(b"t" * 16), 3)
ID = RecordId(b"0123456789abcdef")
OURS = (NAME, encode_header(Header(ID, Mark("elsewhere/x/0", Incarnation(b"i" * 16), 1, 0))))

RECORD = Record(
    value=b'{"id": "v-1", "n": 7, "deep": {"id": "v-2", "list": [1]}, "none": null}',
    key=b"k-1",
    headers=(("id", b"h-1"), ("id", b"h-2"), ("other", b"o-1")),
    source=SOURCE,
    offset=11,
)
BARE = Record(source=SOURCE, offset=12)

#: What a stage says, and the name of `RECORD`.
WAYS = {
    None: None,
    "key": b"k-1",
    "value": RECORD.value,
    "header:id": b"h-2",
    "header:other": b"o-1",
    "header:missing": None,
    "header:with:colon": None,
    "json:id": b"v-1",
    "json:n": b"7",
    "json:deep.id": b"v-2",
    "json:deep": json.dumps({"id": "v-2", "list": [1]}).encode(),
    "json:deep.list": b"[1]",
    "json:none": None,
    "json:missing": None,
    "json:missing.deeper": None,
    "delivery": None,
}


#: Ways that say where every record has its name; the others may say that one has none.
SAYING = ["header:id", "header:with:colon", "key", "value", "json:deep.id"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_who_says_where_a_name_is_expects_it_there(wrapped):
    for text in (*SAYING, None, "delivery", lambda record: record.key):
        way = per_topic(id_from(text)) if wrapped else id_from(text)
        assert says_where(way) == (text in SAYING)


def column(way, *records: Record):
    (batch,) = batches_of(records)
    return list(names_of(id_from(way), batch, np.arange(len(batch))))


@pytest.mark.parametrize(("text", "expected"), WAYS.items(), ids=str)
def test_each_way_names_a_record_alone_as_in_a_column(text, expected):
    assert id_from(text)(RECORD) == expected
    assert column(text, RECORD) == [expected]


@pytest.mark.parametrize("text", WAYS, ids=str)
def test_a_record_that_has_nothing_in_it_is_named_by_its_place(text):
    assert column(text, BARE) == [None]


def test_a_function_names_records_one_by_one():
    assert column(lambda record: record.key + b"!", RECORD) == [b"k-1!"]


def test_the_id_in_the_header_of_a_foreign_sender():
    sent = RECORD._replace(headers=(*RECORD.headers, OURS))
    torn = RECORD._replace(headers=((NAME, OURS[1][:-20]),))
    assert column("delivery", sent, RECORD, torn) == [ID, None, None]


def test_of_several_headers_of_one_name_the_last_counts_as_for_every_kafka_client():
    last = RECORD._replace(headers=(("id", b"1"), ("x", b""), ("id", b"2"), ("x", b"")))
    single, other = last._replace(headers=(("id", b"3"),)), last._replace(headers=(("x", b"4"),))
    assert column("header:id", last, single, other, BARE) == [b"2", b"3", None, None]


@pytest.mark.parametrize("text", ["header:id", "key", "value", None], ids=str)
def test_a_column_names_the_chosen_rows_in_their_order(text):
    rows = [
        RECORD._replace(offset=at, key=b"%d" % at, value=b"%d" % at, headers=(("id", b"%d" % at),))
        for at in range(5)
    ]
    (batch,) = batches_of(rows)
    names = list(names_of(id_from(text), batch, np.array([3, 0, 4])))
    assert names == ([None] * 3 if text is None else [b"3", b"0", b"4"])


def test_an_empty_name_is_a_name():
    empty = Record(value=b"", key=b"", headers=(("id", b""),), source=SOURCE)
    assert [column(way, empty) for way in ("header:id", "key", "value")] == [[b""]] * 3


@pytest.mark.parametrize(
    "text",
    ["", "header", "header:", "json:", "json", "key:x", "value:x", "delivery:x", "id", "Key"],
)
def test_what_says_no_way_is_refused_before_anything_starts(text):
    with pytest.raises(InvalidUsage, match="nothing was started") as raised:
        id_from(text)
    assert repr(text) in raised.value.subject


FAILING = {
    "no json": ("json:id", RECORD._replace(value=b"{")),
    "not text": ("json:id", RECORD._replace(value=b"\xff")),
    "a list has no fields": ("json:id", RECORD._replace(value=b"[1]")),
    "a number has no fields": ("json:n.deeper", RECORD),
    "text instead of bytes": (lambda record: record.key.decode(), RECORD),
    "a number instead of bytes": (lambda record: record.offset, RECORD),
    "an error of its own": (lambda record: record.headers[9], RECORD),
}


@pytest.mark.parametrize("case", FAILING)
def test_where_dead_letters_take_it_a_record_without_a_name_is_named_by_its_place(case):
    way, record = FAILING[case]
    (batch,) = batches_of([RECORD._replace(value=b"{}"), record])
    told = {}
    names = names_of(id_from(way), batch, np.array([1]), told)
    assert (list(names), list(told)) == ([None], [1])
    assert "offset 11 of partition 3: id_from failed" in str(told[1])
    assert forgiving(id_from(way))(record) is None


@pytest.mark.parametrize("text", WAYS, ids=str)
def test_to_forgive_changes_no_name(text):
    assert forgiving(id_from(text))(RECORD) == WAYS[text]


@pytest.mark.parametrize("case", FAILING)
def test_a_name_that_cannot_be_taken_out_stops_the_stage_and_names_the_record(case):
    way, record = FAILING[case]
    with pytest.raises(InvalidUsage, match="nothing was sealed") as raised:
        column(way, record)
    assert raised.value.subject == "offset 11 of partition 3"
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("headr:id", "header:id"),
        ("headers:order.id", "header:order.id"),
        ("jsn:reading_id", "json:reading_id"),
        ("header", "header:NAME"),
        ("keys", "key"),
        ("vlaue", "value"),
    ],
)
def test_what_was_meant_is_asked(said, meant):
    with pytest.raises(InvalidUsage, match=f'did you mean "{meant}"'):
        id_from(said)
    with pytest.raises(InvalidUsage) as raised:
        id_from("somewhere")
    assert "did you mean" not in str(raised.value)


def test_seals_say_ways_and_are_understood():
    for text in ("header:id", "json:a.b", "key", "value", "delivery"):
        assert said_of(text) == text
        assert type(way_of(text)) is type(id_from(text))
    record = Record(value=b"v", key=b"k")
    assert said_of(None) == "place"
    assert way_of("place")(record) is None
    assert said_of(test_seals_say_ways_and_are_understood).startswith("function test_seals")
    assert len(said_of(type("F" * 900, (), {"__call__": len})())) == 200
    assert [way_of(said) for said in ("", "function f", "of a newer release")] == [None] * 3


def test_names_within_a_topic_are_said_so():
    for text in ("header:id", "key", "json:id"):
        said = said_of(text, by_topic=True)
        assert said == f"each topic's {text}"
        assert way_of(said)(RECORD) == per_topic(id_from(text))(RECORD)
        assert way_of(said)(RECORD) != id_from(text)(RECORD)
    assert said_of(None, by_topic=True) == "place"
    assert said_of("delivery", by_topic=True) == "delivery"
    assert way_of(said_of(per_topic, by_topic=True)) is None
