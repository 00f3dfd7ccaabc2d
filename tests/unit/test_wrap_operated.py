"""The operator's verbs on a wrapped job with state, whose frontier holds a position that is of no topic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dedup.catalog.open import open_store
from dedup.model import Frontier, Head, LaneRow
from delivery.host.spec import Plan
from delivery.operate.auditing import Audited, Terms, audit
from delivery.operate.lanes import inspect
from delivery.operate.logs import Cluster
from delivery.operate.lookup import look_up_id
from delivery.operate.opening import inputs_of, next_batch_of
from delivery.operate.reach import offsets_in
from delivery.operate.stages import stages
from delivery.protocol.rest import Kind, Rest
from delivery.watch.guarantee import State, guarantee
from delivery.watch.lag import lag
from delivery.watch.rows import read_rows
from delivery.watch.tally import Tallies
from delivery.watch.waiting import Doors
from delivery.wrap.positions import state_source
from delivery.wrap.state import forget_state
from tests.unit.memory_kafka import MemoryClient
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
