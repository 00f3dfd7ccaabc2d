"""The operator's verbs on a wrapped job with state, whose frontier holds a position that is of no topic."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dedup.catalog.open import open_catalog, open_store
from dedup.model import Frontier, Head, LaneRow
from delivery.header import NAME, decode_header
from delivery.host.spec import Plan
from delivery.operate.auditing import Audited, Terms, audit
from delivery.operate.compaction import Rules, tidy
from delivery.operate.explaining import explain
from delivery.operate.lanes import inspect
from delivery.operate.logs import Cluster
from delivery.operate.lookup import look_up_id, look_up_offset
from delivery.operate.opening import inputs_of, next_batch_of
from delivery.operate.places import OUTPUTS_MAX, Together
from delivery.operate.reach import offsets_in
from delivery.operate.stages import stages
from delivery.operate.story import Reading
from delivery.protocol.rest import Kind, Rest
from delivery.watch.collector import Collector
from delivery.watch.guarantee import State, guarantee
from delivery.watch.lag import lag
from delivery.watch.rows import read_rows
from delivery.watch.tally import Tallies
from delivery.watch.waiting import Doors
from delivery.wrap.positions import state_source
from delivery.wrap.state import forget_state
from tests.unit.documented import undocumented
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import called, document
from tests.unit.watch_kit import Cluster as Watched
from tests.unit.wrap_world import LANE, STATE, World

NOW_MS = 1_800_000_000_000


def three_batches(world: World) -> None:
    """Two batches with records and repeats of them, and one without."""
    runner = world.runner(state=True)
    world.write(0, "a", "b")
    world.write(1, "b")
    world.batch(runner, 0)
    world.write(1, "c")
    world.batch(runner, 1)
    world.batch(runner, 2)


def audited(world: World, terms: Terms | None = None) -> Audited:
    cluster = Cluster(MemoryClient(world.broker))
    return audit(world.catalog, cluster, [LANE], terms or Terms(finished=True))


def row_of(world: World) -> LaneRow:
    row = world.catalog.load(LANE)
    assert row is not None
    return row


def with_state(world: World, state: bytes) -> Head:
    return replace(row_of(world).head, state=state)


@pytest.fixture
def world() -> World:
    made = World()
    three_batches(made)
    return made


def exact(world: World) -> None:
    """Hold an audit to a proof of everything, and what watches to nothing that waits."""
    found = audited(world)
    assert (found.verdict, found.unproved, found.given_up) == ("exact", {}, {}), found
    rows, doors = read_rows(world.catalog), Doors(Watched(world.broker))
    (stage,) = lag(world.catalog, rows, doors, NOW_MS).stages
    assert (stage.behind, stage.waiting_ms, stage.late_ms) == (0, 0, 0)
    tallies = Tallies()
    tallies.look(world.catalog, rows)
    assert guarantee(rows, doors, tallies, {}).state is State.EXACT


def test_an_audit_proves_it_and_nothing_waits(world: World) -> None:
    exact(world)
    again = audited(world)
    world.write(0, "d")
    world.batch(world.runner(state=True), 3)
    cluster = Cluster(MemoryClient(world.broker))
    more = audit(world.catalog, cluster, [LANE], Terms(), proved=again.next)
    assert (more.verdict, more.inputs) == ("exact", 1)
    exact(world)


def test_a_record_that_waits_is_counted(world: World) -> None:
    world.write(1, "late", "later")
    rows = read_rows(world.catalog)
    (stage,) = lag(world.catalog, rows, Doors(Watched(world.broker)), NOW_MS).stages
    assert stage.behind == 2
    assert stage.waiting_ms is not None
    assert stage.waiting_ms > 0


def test_what_is_wrong_is_still_found(world: World) -> None:
    for source in world.broker.sources("out"):
        world.broker.partitions[source] = tuple(None for _ in world.broker.partitions[source])
    assert audited(world).verdict == "broken"


def test_a_state_that_was_given_up_for_another_is_no_topic_either(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'catalog.db'}"
    store = open_store(url)
    try:
        world = World(store)
        three_batches(world)
        root = tmp_path / "checkpoint"
        forget_state(Plan(catalog=url, kafka="", stages=()), "p", "report", str(root))
        row = row_of(world)
        (state,) = (s for s, _ in row.head.frontier if s.topic == row.head.state)
        assert state != STATE
        world.state = state
        world.runner(state=True)
        exact(world)
        world.write(0, "d")
        world.batch(world.runner(state=True), 0)
        assert next_batch_of(row_of(world).head) == 1
        exact(world)
    finally:
        store.close()


def test_a_part_of_it_is_proved_and_told_without_its_state(world: World) -> None:
    found = audited(world, Terms(offsets=(offsets_in("in/1/0..1"),)))
    assert found.verdict == "exact"
    (told,) = found.ranges
    assert {one["topic"] for one in told["offsets"]} == {"in"}


def test_what_is_listed_of_it_counts_records_not_batches(world: World) -> None:
    (lane,) = inspect(world.catalog, [LANE], NOW_MS)
    assert {at.topic for at in lane.frontier} == {"in"}
    assert lane.next_batch == 3
    (stage,) = stages(world.catalog, now_ms=NOW_MS)
    assert stage.records == 4
    decisions, _ = look_up_id(world.catalog, world.id_of(b"c"), [LANE])
    assert [(one.start, one.end) for one in decisions] == [({0: 2, 1: 1}, {0: 2, 1: 2})]


def test_at_rest_its_state_is_still_none_of_its_inputs(world: World) -> None:
    once = Rest(kind=Kind.RETIRED, verb="retire", state=STATE.topic).encode()
    twice = Rest(kind=Kind.MOVED, verb="migrate", state=once).encode()
    inputs = Frontier.of((s, at) for s, at in row_of(world).head.frontier if s != STATE)
    for state in (STATE.topic, once, twice):
        head = with_state(world, state)
        assert inputs_of(head) == inputs
        assert next_batch_of(head) == 3
    none = with_state(world, b"")
    assert inputs_of(none) == none.frontier
    assert next_batch_of(none) is None
    other = state_source("00000000-0000-0000-0000-00000000002b")
    assert next_batch_of(with_state(world, other.topic)) is None


# Stories ------------------------------------------------------------------------------------------


def told(world: World, partition: int, offset: int) -> Reading:
    cluster = Cluster(MemoryClient(world.broker))
    (reading,) = explain(world.catalog, cluster, "in", partition, offset).readings
    return reading


def in_the_topic(world: World, seq: int) -> dict[str, set[tuple[int, int]]]:
    """Return what a seal made, as it lies in the output topic: ids and places."""
    found: dict[str, set[tuple[int, int]]] = {}
    for source in world.broker.sources("out"):
        for record in world.broker.read(source, 0, world.broker.high([source]).at(source) or 0):
            header = decode_header(record.header(NAME) or b"")
            assert header is not None
            if header.mark.seq == seq:
                found.setdefault(header.id.hex(), set()).add((source.partition, record.offset))
    return found


def lying(reading: Reading) -> dict[str, set[tuple[int, int]]]:
    return {
        one.id: {(one.partition, copy.offset) for copy in one.copies} for one in reading.outputs
    }


def test_a_story_tells_what_the_whole_batch_made(world: World) -> None:
    batch = Together(inputs=3, fresh=2, outputs=2, state=True)
    for partition, offset, seq in ((0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 2)):
        reading = told(world, partition, offset)
        assert reading.seq == seq
        assert reading.together == (
            batch if seq == 1 else replace(batch, inputs=1, fresh=1, outputs=1)
        )
        if reading.fate == "fresh":
            assert lying(reading) == in_the_topic(world, seq)
    # Which of the two is dropped, who saw both has chosen; the other is what it repeats.
    same = {place: told(world, *place) for place in ((0, 1), (1, 0))}
    (again,) = (place for place, one in same.items() if one.fate == "duplicate")
    (first,) = (place for place, one in same.items() if one.fate == "fresh")
    original = same[again].original
    assert original is not None
    assert (original.seq, original.place, same[again].named) == (1, first, "each topic's value")
    assert same[again].outputs == ()


def test_a_story_tells_of_a_large_batch_the_first_outputs(world: World) -> None:
    world.write(0, *(f"{number}-{os.urandom(30).hex()}" for number in range(150)))
    world.batch(world.runner(state=True), 3)
    reading = told(world, 0, 100)
    made = in_the_topic(world, 4)
    assert len(made) == 150
    assert len(reading.outputs) == OUTPUTS_MAX
    assert lying(reading).items() <= made.items()
    assert reading.together is not None
    (read,) = look_up_offset(world.catalog, "in", 0, 100, [LANE])
    assert [one.id for one in read.outputs or ()] == [one.id for one in reading.outputs]
    assert read.together == reading.together
    assert "150 outputs" in reading.together.line(100)
    assert "the first 100 are told" in reading.together.line(100)
    assert "told" not in reading.together.line(150)
    # And when they are stored no more, what is in the topic.
    tidy(world.catalog, LANE, Rules(entries_ms=10**13), NOW_MS, perform=True)
    (read,) = look_up_offset(world.catalog, "in", 0, 100, [LANE])
    assert read.outputs is None
    again = told(world, 0, 100)
    assert (len(again.outputs), again.together) == (OUTPUTS_MAX, reading.together)
    assert lying(again).items() <= made.items()


def test_the_verbs_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"sqlite:{tmp_path / 'catalog.db'}")
    try:
        world = World(store)
        three_batches(world)
    finally:
        store.close()
    client = MemoryClient(world.broker)
    monkeypatch.setattr("delivery.kafka.opening.open_client", lambda *_: client)
    for verb, where in (("explain", ("--kafka", "here:1")), ("catalog lookup", ())):
        asked = (*verb.split(), store.url, *where, "--offset", "in/1/1")
        said = called(*asked).stdout
        assert "one of 1 inputs, 1 of them fresh, of a batch that made 1 outputs" in said
        assert "what its state took in may come out of a later batch" in said
        assert "nothing was made of it" not in said
        (made,) = in_the_topic(world, 2)
        assert f"output {made} to " in said
        assert undocumented(verb, document(*asked)) == set()
    told = document("explain", store.url, "--kafka", "here:1", "--name", "c")
    assert (told["partition"], told["offset"]) == (1, 1)
    found = document("catalog", "lookup", store.url, "--name", "c")
    assert [one["seq"] for one in found["decisions"]] == [2]
    assert document("catalog", "lookup", store.url, "--name", "nobody")["decisions"] == []
    watched = Watched(world.broker)
    looks = Collector(
        lambda: open_catalog(store.url, create=False), lambda: watched, lambda: NOW_MS
    )
    with closing(looks):
        samples = looks.look().document()
    assert [one["value"] for one in samples["delivery_lane_sealed_offsets_total"]] == [4]
    assert [one["value"] for one in samples["delivery_lane_behind_records"]] == [0]
    inspected = called("catalog", "inspect", store.url, "report", "all").stdout
    assert "goes on with batch 3" in inspected
