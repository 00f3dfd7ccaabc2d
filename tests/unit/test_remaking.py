"""Deterministic stages: seals without rows, outputs made again, and what is refused before any is sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connectors.memory import MemoryReader
from dedup.catalog.store import Blob
from dedup.errors import Corrupt, InvalidUsage
from dedup.model import Frontier, Kept
from delivery.protocol import messages as m
from delivery.records import Output
from delivery.stage import Policy, stage_of
from sinks.memory import MemoryEmitter
from tests.unit.house import LANE, House, Moved, broken, seals, values
from tests.unit.remade_kit import REMADE, priced, remaking, sealed_only


def stored(house: House) -> list[int]:
    """How many rows are stored, by seal."""
    catalog = house.catalog()
    return [
        seal.outputs.rows
        for seal in seals(house)
        if seal.outputs.rows and len(b"".join(catalog.get(Blob.OUTPUTS, LANE, seal))) > 60
    ]


def test_outputs_are_not_stored_and_are_the_same_when_made_again(house):
    house.write(*"abcab")
    house.done(remaking(house), cut=3)
    once = [(record.key, record.value) for record in house.sent()]
    assert [value for _, value in once] == [b"pa", b"pb", b"pb", b"pc"]
    assert stored(house) == []
    assert max(seal.outputs.size for seal in seals(house)) < 60
    assert not list(house.store.slots(Blob.OUTPUTS, LANE))
    assert house.proved() == []


def test_what_a_dead_process_sealed_is_made_again_byte_for_byte(house):
    house.write(*"abcabz")
    sealed_only(house, cut=3)
    # One that is killed half way through sending, and one that sends all of it.
    half = remaking(house)
    house.begin(half)
    half.step()
    while not isinstance(half.state.todo[0], m.Emit):
        half.step()
    rows = half.emissions(half.state.todo[0])
    assert rows is not None
    half._emitter.emit(rows.cut(0, 2))
    house.done(remaking(house))
    copies: dict[bytes, set[object]] = {}
    for record in house.sent():
        whole = (record.key, record.value, record.headers)
        copies.setdefault(dict(record.headers)["delivery"], set()).add(whole)
    assert len(house.sent()) == 4 + 2
    assert [len(same) for same in copies.values()] == [1] * 4
    assert house.proved() == []


def test_a_bundle_with_a_failed_call_or_a_dead_letter_stores_its_rows(house):
    house.broker.create("dead")
    house.write(*"ab")
    failures = iter([True])

    def once(record):
        if next(failures, False):
            raise ValueError("away")
        return priced(record)

    house.done(remaking(house, once, writes=("out", "dead")))
    assert stored(house) == [3], "a call failed, and the next one did not"
    house.write(*"cd")

    def never(record):
        if record.value == b"d":
            raise ValueError("no price")
        return priced(record)

    policy = Policy(deterministic=True, dead_letter_edge=1)
    house.done(remaking(house, never, writes=("out", "dead"), policy=policy))
    assert stored(house) == [3, 2]
    house.write("e")
    house.done(remaking(house, writes=("out", "dead")))
    assert stored(house) == [3, 2], "and of the next bundle nothing"
    assert house.proved() == []


def test_a_bundle_that_tells_of_repeats_stores_its_rows(house):
    house.broker.create("again")
    house.write(*"abca")
    policy = Policy(deterministic=True, duplicate_edge=1)
    house.done(remaking(house, writes=("out", "again"), policy=policy), cut=2)
    assert [seal.outputs.rows for seal in seals(house)] == [0, 3, 2]
    assert stored(house) == [2], "the code makes nothing of a repeat"
    assert len(house.sent("again")) == 1
    assert house.proved() == []


def test_a_bundle_with_a_record_that_has_no_name_stores_its_rows(house):
    house.broker.create("dead")
    house.write(*"abcd")

    def named(record):
        if record.value == b"b":
            raise ValueError("no name")
        return record.value

    policy = Policy(deterministic=True, dead_letter_edge=1)
    house.done(remaking(house, writes=("out", "dead"), policy=policy, id_from=named), cut=2)
    assert [seal.outputs.rows for seal in seals(house)] == [0, 2, 2]
    assert stored(house) == [2]
    assert len(house.sent("dead")) == 1


def refused(house: House, call=priced, **more: Any) -> BaseException | None:
    """Run a process that must break before it has sent anything or written a row."""
    with house.untouched():
        return broken(house, remaking(house, call, **more))


def test_code_that_makes_something_else_is_caught_before_the_first_record_is_sent(house):
    house.write(*"abc")
    sealed_only(house)
    error = refused(house, house.quote)
    assert isinstance(error, Corrupt)
    assert "seal 1 of lane shop/price/0, offsets 0 to 3 of partition 0" in str(error)
    assert "3 outputs were made now, and 4 sealed" in str(error)
    assert "run twice just now, the code made two different things of offset 0" in str(error)


@pytest.mark.parametrize(
    "change",
    [
        lambda output: output._replace(key=b"other"),
        lambda output: output._replace(value=b"other"),
        lambda output: output._replace(headers=(("trace", b"u"),)),
        lambda output: output._replace(value=None),
        lambda output: output._replace(edge=1),
    ],
    ids=["key", "value", "headers", "null", "edge"],
)
def test_every_part_of_an_output_is_compared(house, change):
    house.broker.create("more")
    writes = ("out", "more")
    house.write(*"abc")
    sealed_only(house, writes=writes)

    def other(record):
        made = priced(record)
        return [change(one) for one in made] if record.value == b"c" else made

    error = refused(house, other, writes=writes)
    assert "as many outputs were made as were sealed, 4, and they say other things" in str(error)
    assert "run twice here, the code made the same twice" in str(error)
    house.done(remaking(house, writes=writes))
    assert house.proved() == []


def test_the_order_of_outputs_is_compared(house):
    house.write(*"ab")

    def two(_record):
        return [Output(value=b"1"), Output(value=b"2")]

    sealed_only(house, call=two)
    assert isinstance(refused(house, lambda record: two(record)[::-1]), Corrupt)


def test_other_code_is_refused_until_the_code_of_before_has_delivered(house):
    house.write(*"abc")
    sealed_only(house)
    error = refused(house, code="v2")
    assert isinstance(error, InvalidUsage)
    assert "they were made by code 'v1', and this is 'v2'" in str(error)
    assert "run the code of before until nothing of the stage is pending" in str(error)
    house.done(remaking(house))
    house.write("d")
    house.done(remaking(house, code="v2"))
    assert [seal.code for seal in seals(house)] == ["v1", "v1", "v2"]
    assert house.proved() == []


def test_a_stage_that_is_no_longer_declared_deterministic_delivers_what_it_owes(house):
    house.write(*"abc")
    sealed_only(house)
    house.done(remaking(house, policy=Policy()))
    assert len(house.sent()) == 4
    house.write("d")
    house.done(remaking(house, policy=Policy()))
    assert stored(house) == [1]
    assert house.proved() == []


def test_inputs_that_retention_deleted_are_named(house):
    house.write(*"abc")
    sealed_only(house)
    reader = Aged(house, low=2)
    error = refused(house, reader=reader)
    assert isinstance(error, Corrupt)
    assert "the log of partition 0 begins at 2 now: retention has deleted" in str(error)
    assert "its inputs count as read, its outputs are not stored" in str(error)


def test_inputs_of_a_topic_that_is_another_one_now_are_named(house):
    """As after `delivery stage accept-topic`: the lane goes on, and owes what is gone."""
    house.write(*"abc")
    sealed_only(house)
    catalog = house.catalog()
    row = catalog.load(LANE)
    house.broker.create("in")
    house.write(*"abc")
    new = Frontier.of([(house.source(), 0)])
    moved = replace(row.head, frontier=new, topics=(("in", house.source().topic),))
    ref = replace(row.head.ref, incarnation=b"i" * 16)
    past = (Kept(row.head.ref.incarnation, row.head.ref.seq),)
    head = replace(moved, ref=ref, past=past)
    ack = replace(row.ack, incarnation=ref.incarnation)
    assert catalog.reincarnate(LANE, row.head.ref, replace(row, head=head, ack=ack), row)
    assert "the topic that holds the records they were made of was deleted" in str(refused(house))


def test_inputs_that_vanish_while_they_are_read_are_named_too(house):
    house.write(*"abc")
    sealed_only(house)
    reader = Aged(house, low=0)
    reader.then = 1
    assert "begins at 1 now" in str(refused(house, reader=reader))


def test_a_record_that_was_taken_from_the_middle_is_noticed(house):
    house.write(*"abc")
    sealed_only(house)
    log = house.broker.partitions[house.source()]
    house.broker.partitions[house.source()] = (log[0], None, log[2])
    error = refused(house)
    assert "there are 2 records in that range now, and 3 were read" in str(error)
    assert "as compaction does" in str(error)
    house.broker.partitions[house.source()] = log
    house.done(remaking(house))


def test_code_that_fails_now_is_named_and_nothing_is_sent(house):
    house.write(*"abc")
    sealed_only(house)

    def fails(_record):
        raise ValueError("no model")

    error = refused(house, fails)
    assert isinstance(error, Corrupt)
    assert "the code that made them fails now" in str(error)
    assert "ValueError: no model" in str(error)


def test_a_topic_that_has_grown_takes_what_was_sealed_where_it_was_meant(house):
    house.broker.create("wide", 2)
    house.write(*"abcdef")
    sealed_only(house, writes=("wide",))
    topic = house.broker.names["wide"]
    for partition in (2, 3, 4):
        house.broker.partitions[type(house.source())(topic, partition)] = ()
    house.done(remaking(house, writes=("wide",)))
    assert sum(len(house.sent("wide", partition)) for partition in (0, 1)) == 7
    assert all(house.sent("wide", partition) == [] for partition in (2, 3, 4))
    assert house.proved() == []


def test_a_sleeper_whose_inputs_are_gone_finds_that_nobody_needs_them(house):
    """What others delivered long ago cannot be made again, and that is no damage."""
    house.write(*"abc")
    sealed_only(house)
    reader = Aged(house, low=0)
    sleeper = remaking(house, reader=reader)
    house.begin(sleeper)
    while not isinstance(sleeper.state.todo[0], m.Emit):
        sleeper.step()
    house.done(remaking(house))
    reader.low = 3
    with house.untouched():
        sleeper.drain()
    assert sleeper.state.stopped.end is m.End.DONE


def test_code_of_batches_gets_the_batches_of_before(house):
    """However the rows came in, the code sees one batch of each partition of a bundle."""
    sizes: list[int] = []

    def call(batch):
        sizes.append(len(batch))
        return batch.select(["value"]).slice(0)

    def counted(batch):
        import pyarrow as pa  # noqa: PLC0415 - one test alone

        call(batch)
        return pa.RecordBatch.from_pydict({"value": [b"%d" % len(batch)] * len(batch)})

    house.write(*"abcad")
    runner = house.runner(stage=stage_of(counted, "v1", batch=True), policy=REMADE)
    house.begin(runner)
    source = house.source()
    rows = MemoryReader(house.broker, "in", [source]).read(
        Frontier.of([(source, 0)]), Frontier.of([(source, 5)])
    )
    parts = [rows[0].cut(0, 2), rows[0].cut(2, 5)]
    runner.step()
    while not runner.state.lane.hungry:
        runner.step()
    runner.offer(m.Polled(Frontier.of([(source, 0)]), Frontier.of([(source, 5)])), parts)
    while not isinstance(runner.state.todo[0], m.Emit):
        runner.step()
    house.done(house.runner(stage=stage_of(counted, "v1", batch=True), policy=REMADE))
    assert sizes == [4, 4]
    assert values(house) == [b"4"] * 4
    assert house.proved() == []


class Aged(Moved):
    """A reader whose log begins later and later."""

    def __init__(self, house: House, low: int) -> None:
        super().__init__(MemoryReader(house.broker, "in", [house.source()]))
        self.low = low
        self.then: int | None = None
        self._source = house.source()

    def log(self):
        self._changes = {"low": Frontier.of([(self._source, self.low)])}
        return super().log()

    def reread(self, start, end):
        found = self._reader.reread(start, end)
        self.low = self.low if self.then is None else self.then
        return found


def test_emitters_count_their_partitions(house):
    house.broker.create("wide", 3)
    assert MemoryEmitter(house.broker, ["out", "wide"]).counts == (1, 3)
