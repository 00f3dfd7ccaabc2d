"""The runner on real stores: records that user code or the stage cannot take."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import xxhash

from dedup.errors import InvalidUsage
from dedup.model import Incarnation, RecordId, TopicId
from delivery.header import NAME, Header, decode_header, encode_header
from delivery.naming import id_from
from delivery.ports import Log
from delivery.protocol.senders import Mark
from delivery.records import RECORD_BYTES_MAX, Output, Record, headers_bytes
from delivery.stage import RECORD_TRIES, Policy, StoppedByRecordError
from tests.unit.house import broken, fail_on, sealed_upto, seals, values

LETTERS = Policy(dead_letter_edge=1)


def test_code_that_raises_gets_three_tries_and_then_the_stage_stops_and_names_the_record(house):
    house.write(*"abc")
    tries = []

    def call(record):
        if record.value == b"b":
            tries.append(record.offset)
            raise ValueError("no price")
        return house.quote(record)

    error = broken(house, house.runner(call=call))
    assert isinstance(error, StoppedByRecordError)
    assert "offset 1 of partition 0 (ValueError: no price, " in str(error)
    assert tries == [1] * RECORD_TRIES
    assert sealed_upto(house) == 1
    house.done()
    # The bundle before was emitted and not yet acknowledged: its copies are the same bytes.
    assert len({record.value for record in house.sent()}) == 3
    assert house.proved() == []


def test_code_that_works_at_the_third_try_has_one_result(house):
    house.write("a")
    tries = []

    def call(record):
        tries.append(record)
        if len(tries) < RECORD_TRIES:
            raise ConnectionError
        return house.quote(record)

    house.done(house.runner(call=call))
    assert len(house.sent()) == 1
    assert house.proved() == []


@pytest.mark.parametrize("text", ["no price", "\ud800", "é" * 5000, "\0"])
def test_a_dead_letter_is_part_of_the_same_seal(house, text):
    house.write(*"abc")
    house.broker.create("dead")
    call = fail_on(house, b"b", ValueError(text))
    house.done(house.runner(call=call, writes=("out", "dead"), policy=LETTERS))
    (_, seal) = seals(house)
    assert (seal.counts.fresh, seal.counts.dead_letter, seal.outputs.rows) == (3, 1, 3)
    (letter,) = house.sent("dead")
    assert (letter.value, letter.header("id")) == (b"b", b"b")
    assert letter.header("delivery-error").startswith(b"ValueError: ")
    assert len(house.sent()) == 2
    assert house.proved() == []


ID = (("id", b"b"),)
TOO_LARGE = {
    "value": (Record(value=bytes(RECORD_BYTES_MAX), key=b"k", headers=ID), b"k", ID),
    "value of a mebibyte": (Record(value=b"v" * 2**20, headers=ID), None, ID),
    "key": (Record(value=b"b", key=b"k" * 2**20, headers=ID), None, ()),
    "headers": (Record(value=b"b", headers=(*ID, ("large", bytes(2**20)))), None, ID),
    "nothing but headers": (Record(value=b"b", headers=ID + (("h", b""),) * 2**18), None, ID),
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_of_a_record_too_large_to_go_out_again_a_dead_letter_has_what_fits(house, what):
    """A broker takes more than 768 KiB; with an error's text beside it there is no room."""
    record, key, headers = TOO_LARGE[what]
    house.write("a")
    house.broker.append(house.source(), record)
    house.write("c")
    house.broker.create("dead")
    call = fail_on(house, record.value, ValueError("no price"))
    house.done(house.runner(call=call, writes=("out", "dead"), policy=LETTERS))
    (letter,) = house.sent("dead")
    assert house.proved() == []
    assert json.loads(letter.header("delivery-truncated")) == {
        "topic_id": house.source().topic.hex(),
        "partition": 0,
        "offset": 1,
        "value_bytes": len(record.value),
        "key_bytes": len(record.key or b""),
        "headers": len(record.headers),
    }
    assert letter.header("delivery-error") == b"ValueError: no price"
    assert record.value.startswith(letter.value)
    assert letter.key == key or record.key.startswith(letter.key)
    assert letter.headers[: len(headers)] == headers
    weight = len(letter.value) + len(letter.key or b"") + headers_bytes(letter.headers[:-1])
    assert weight <= RECORD_BYTES_MAX
    assert weight > RECORD_BYTES_MAX - 10 or what == "headers", "it is cut no shorter than it must"
    assert len(house.sent()) == 2


def test_without_dead_letters_a_record_too_large_stops_the_stage_and_is_named(house):
    house.write("a")
    house.broker.append(house.source(), Record(value=bytes(RECORD_BYTES_MAX + 1)))
    error = broken(house, house.runner(call=lambda record: record))
    assert isinstance(error, StoppedByRecordError)
    assert "offset 1 of partition 0" in str(error)
    assert sealed_upto(house) == 1


NAMELESS = {
    "no json": b"{",
    "not text": b'{"id": "\xff"}',
    "a list": b"[1]",
    "a lone surrogate": b'{"id": "\\ud800"}',
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("what", NAMELESS)
def test_a_record_that_cannot_be_named_is_a_dead_letter_and_user_code_never_sees_it(house, what):
    good = [b'{"id": "%s"}' % name for name in (b"a", b"b", b"a", b"c")]
    bad = NAMELESS[what]
    for value in (bad, good[0], bad, bad, *good[1:], bad):
        house.broker.append(house.source(), Record(value=value))
    house.broker.create("dead")
    seen = []

    def call(record):
        seen.append(record.value)
        return house.quote(record)

    named = id_from("json:id")
    runner = house.runner(call=call, id_from=named, writes=("out", "dead"), policy=LETTERS)
    house.done(runner, cut=5)
    assert house.proved() == []
    assert seen == [good[0], good[1], good[3]]
    letters = house.sent("dead")
    assert [letter.value for letter in letters] == [bad] * 4
    assert [decode_header(letter.header("delivery")).parent[1] for letter in letters] == [
        0,
        2,
        3,
        7,
    ]
    assert all(b"id_from failed" in letter.header("delivery-error") for letter in letters)
    counts = [seal.counts for seal in seals(house)]
    assert sum(count.dead_letter for count in counts) == 4
    assert (sum(count.fresh for count in counts), len(house.sent())) == (7, 3)


def test_names_that_cannot_be_taken_out_stay_beside_ids_that_are_kept(house):
    """As in re-keying: each output keeps the id of its own record."""
    for value in (b"{", b'{"id": "a"}', b"{", b'{"id": "b"}'):
        house.broker.append(house.source(), Record(value=value))
    house.broker.create("dead")
    policy = replace(LETTERS, keep_ids=True)
    named = id_from("json:id")
    runner = house.runner(call=lambda r: r, id_from=named, writes=("out", "dead"), policy=policy)
    house.done(runner)
    assert house.proved() == []
    ids = [decode_header(record.header("delivery")).id for record in house.sent()]
    assert ids == [xxhash.xxh3_128_digest(name) for name in (b"a", b"b")]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Output(value=bytes(RECORD_BYTES_MAX + 1)), f"the limit is {RECORD_BYTES_MAX}"),
        (lambda: Output(value=b"", headers=(("é" * (RECORD_BYTES_MAX // 2), b"x"),)), "the limit"),
        (lambda: Output(value="text"), "give bytes"),
        (lambda: Output(value=b"", key="text"), "give bytes"),
        (lambda: Output(value=b"", headers=(("name", None),)), "give bytes"),
        (lambda: Output(value=b"", headers=(("\ud800", b""),)), "surrogates not allowed"),
        (lambda: 7, "returned an int: a stage returns None"),
    ],
    ids=["large", "large header", "text", "text key", "no header", "surrogate", "number"],
)
def test_what_is_no_output_record_is_refused_where_it_is_made_and_nothing_is_sealed(
    house, make, said
):
    house.write("a")
    error = broken(house, house.runner(call=lambda _: make()))
    assert isinstance(error, StoppedByRecordError)
    assert said in str(error)
    assert (sealed_upto(house), house.sent()) == (0, [])


def test_the_largest_record_goes_through(house):
    house.write("a")
    large = house.random.randbytes(RECORD_BYTES_MAX)
    house.done(house.runner(call=lambda _: Output(value=large)))
    assert values(house) == [large]
    assert house.proved() == []


@pytest.mark.parametrize("edge", [1, -1])
def test_an_output_for_an_edge_that_the_stage_does_not_have_is_refused(house, edge):
    house.write("a")
    error = broken(house, house.runner(call=lambda _: Output(value=b"x", edge=edge)))
    assert isinstance(error, InvalidUsage)
    assert "the stage has 1 outputs" in error.hint
    assert (sealed_upto(house), house.sent()) == (0, [])


def test_an_id_that_cannot_be_taken_out_of_a_record_stops_the_stage_and_names_it(house):
    house.write("7")
    house.write("no number")
    runner = house.runner(id_from=lambda record: b"%d" % int(record.value))
    error = broken(house, runner)
    assert isinstance(error, InvalidUsage)
    assert error.subject == "offset 1 of partition 0"
    assert sealed_upto(house) == 1


def test_a_record_of_an_unknown_sender_stops_the_stage_and_asks(house):
    mark = Mark("elsewhere/x/0", Incarnation(b"i" * 16), 3, 5)
    ours = (NAME, encode_header(Header(RecordId(b"r" * 16), mark)))
    house.broker.append(house.source(), Record(value=b"x", headers=(ours,)))
    error = broken(house, house.runner())
    assert isinstance(error, InvalidUsage)
    assert "elsewhere/x/0 is not in this catalog; nothing was sealed" in error.hint
    assert 'id_from="delivery"' in error.hint
    assert (sealed_upto(house), house.sent()) == (0, [])


def test_an_identity_of_the_wrong_length_is_refused_and_nothing_written(house, monkeypatch):
    house.write("a")
    monkeypatch.setattr(house, "fresh", lambda: b"i" * 15)
    with house.untouched():
        error = broken(house, house.runner())
    assert isinstance(error, InvalidUsage)
    assert "15 bytes" in error.hint


def test_a_topic_id_of_the_wrong_length_is_a_programming_error():
    with pytest.raises(AssertionError, match="16 bytes"):
        Log(topics=(("in", TopicId(b"t" * 17)),))
