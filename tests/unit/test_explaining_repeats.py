"""Repeats that came in another partition of their lane than the record that took effect are told of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from dedup.catalog.catalog import Catalog
from dedup.catalog.open import open_store
from dedup.model import Frontier
from delivery.batch import batches_of
from delivery.operate.explaining import explain
from delivery.operate.logs import Cluster
from delivery.operate.repeats import Repeat
from delivery.operate.story import Story
from delivery.protocol import messages as m
from delivery.records import Record
from tests.unit.checker.worlds import World
from tests.unit.documented import undocumented
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import called, copied, document

LANES = ("p/r/in-0", "p/r/in-1")
RECEIVER = "p/b/mid-0"
WHOLE = "p/s/all"


def places(found: tuple[Repeat, ...]) -> list[tuple[int, int, int]]:
    return [(one.seq, one.partition, one.offset) for one in found]


def told(world: World, topic: str, partition: int, offset: int) -> Story:
    cluster = Cluster(MemoryClient(world.broker))
    return explain(Catalog(world.store), cluster, topic, partition, offset)


# A lane of several partitions ------------------------------------------------------------------------


@pytest.fixture
def whole() -> World:
    """One lane over two partitions: "b" comes three times in each, in three seals."""
    world = World()
    world.broker.create("in", 2)
    world.broker.create("out", 2)
    sources = world.broker.sources("in")
    for source, names in zip(sources, ("ababab", "bbb"), strict=True):
        for name in names:
            record = Record(value=name.encode(), headers=(("id", name.encode()),))
            world.broker.append(source, record)
    runner = world.runner(WHOLE, sources, "out")
    runner.tell(m.Opened(Frontier.of([(source, 0) for source in sources])))
    runner.drain()
    for turn in range(3):
        spans = [(2 * turn, 2 * turn + 2), (turn, turn + 1)]
        start, end = (Frontier.of(zip(sources, at, strict=True)) for at in zip(*spans, strict=True))
        batches = [
            batch
            for source, span in zip(sources, spans, strict=True)
            for batch in batches_of(world.broker.read(source, *span))
        ]
        runner.offer(m.Polled(start, end), batches)
        runner.drain()
    return world


def test_each_repeat_in_a_lane_is_told_wherever_it_came(whole: World) -> None:
    (reading,) = told(whole, "in", 0, 1).readings
    assert (str(reading.fate), reading.named) == ("fresh", "header:id")
    assert places(reading.repeats) == [(1, 1, 0), (2, 0, 3), (2, 1, 1), (3, 0, 5), (3, 1, 2)]
    assert (reading.repeats_upto, reading.repeats_elsewhere) == (6, ((1, 3),))
    (reading,) = told(whole, "in", 0, 0).readings
    assert places(reading.repeats) == [(2, 0, 2), (3, 0, 4)]
    (reading,) = told(whole, "in", 1, 2).readings
    assert (str(reading.fate), reading.repeats, reading.repeats_upto) == ("duplicate", (), None)


def test_other_partitions_are_looked_through_within_bounds(
    whole: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delivery.operate.repeats.REPEATS_OFFSETS_MAX", 2)
    (reading,) = told(whole, "in", 0, 1).readings
    assert places(reading.repeats) == [(1, 1, 0), (2, 0, 3), (2, 1, 1)]
    assert (reading.repeats_upto, reading.repeats_elsewhere) == (4, ((1, 2),))
    monkeypatch.setattr("delivery.operate.repeats.REPEATS_OFFSETS_MAX", 100)
    monkeypatch.setattr("delivery.operate.repeats.REPEATS_SEALS_MAX", 1)
    (reading,) = told(whole, "in", 0, 1).readings
    assert places(reading.repeats) == [(1, 1, 0), (2, 0, 3), (2, 1, 1)]
    assert (reading.repeats_upto, reading.repeats_elsewhere) == (4, ((1, 2),))


# Behind re-keying ------------------------------------------------------------------------------------


@pytest.fixture
def rekeyed() -> World:
    """Three records, each sent into both partitions of a topic, and read behind re-keying."""
    world = World()
    world.broker.create("in", 2)
    world.broker.create("mid")
    world.broker.create("out")
    for source in world.broker.sources("in"):
        for at in range(3):
            record = Record(value=b"%d" % at, headers=(("id", b"order-%d" % at),))
            world.broker.append(source, record)
    for lane, source in zip(LANES, world.broker.sources("in"), strict=True):
        world.run(lane, source, "mid", ((0, 3),), keep=True)
    world.run(RECEIVER, world.topic("mid"), "out", ((0, 4), (4, 6)), LANES)
    return world


def test_what_was_sent_into_two_partitions_is_told_at_the_copy_that_took_effect(
    rekeyed: World,
) -> None:
    for at, seq in ((0, 1), (1, 2), (2, 2)):
        (reading,) = told(rekeyed, "in", 0, at).readings
        (copy,) = reading.outputs[0].copies
        assert dict(copy.receivers) == {RECEIVER: "fresh"}
        (repeat,) = copy.repeats[RECEIVER]
        assert (places((repeat,)), repeat.parent) == ([(seq, 0, 3 + at)], (1, at))
        # And the other way round: where the repeat lies is known, and what it repeats.
        (reading,) = told(rekeyed, "in", 1, at).readings
        (copy,) = reading.outputs[0].copies
        assert (dict(copy.receivers), copy.repeats) == ({RECEIVER: "duplicate"}, {})
        (reading,) = told(rekeyed, "mid", 0, copy.offset).readings
        assert reading.original is not None
        assert reading.original.place == (0, at)


def test_a_copy_of_the_record_itself_is_no_repeat_of_it(rekeyed: World) -> None:
    """A crash sends it once more: that is told as a copy."""
    source = rekeyed.topic("mid")
    record = rekeyed.broker.read(source, 0, 1)[0]
    at = rekeyed.broker.append(source, record)
    rekeyed.run(RECEIVER, source, "out", ((6, at + 1),), LANES)
    (reading,) = told(rekeyed, "in", 0, 0).readings
    copies = reading.outputs[0].copies
    assert [str(copy.receivers[RECEIVER]) for copy in copies] in (
        ["fresh", "duplicate"],
        ["fresh", "remnant"],
    )
    assert [one.parent for one in copies[0].repeats[RECEIVER]] == [(1, 0)]


def test_the_verb_tells_it_in_one_screen(
    rekeyed: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_store(f"sqlite:{tmp_path / 'catalog.db'}")) as store:
        copied(rekeyed.store, store)
        url = store.url
    client = MemoryClient(rekeyed.broker)
    monkeypatch.setattr("delivery.kafka.opening.open_client", lambda *_: client)
    asked = ("explain", url, "--kafka", "here:1", "--offset", "in/0/1")
    said = " ".join(called(*asked).stdout.split())
    assert (
        "repeated by partition 1 offset 1, re-keyed to partition 0 offset 4, dropped by p/b/mid-0 seq 2"
        in said
    )
    assert undocumented("explain", document(*asked)) == set()
    said = called(*asked[:-1], "in/1/1").stdout
    assert "what it repeats: --offset mid/0/4" in said
