"""The runner of a stage lane over a plan that is made up: which runs count, and who wins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dedup.arrays import pack
from dedup.catalog.store import Blob
from dedup.errors import InvalidUsage, Unavailable
from dedup.formats.dropped import Verdict
from dedup.model import RecordId, Slot
from delivery.protocol import messages as m
from delivery.stage import Policy
from delivery.verdicts import Conflict
from delivery.wrap.pieces import Piece
from delivery.wrap.runner import RUNS_MAX, Result
from tests.unit.wrap_world import LANE, STATE, World


def spoiled(result: Result) -> Result:
    return Result(table=result.table, pieces=result.pieces, trouble="stage 3 ran more than once")


def mixed(result: Result) -> Result:
    return Result(table=result.table, pieces=dict.fromkeys(result.pieces, Piece(mixed=True)))


def silent(result: Result) -> Result:
    return Result(table=result.table, pieces={})


@pytest.fixture
def world() -> World:
    return World()


def test_a_batch_is_one_seal_and_its_rows_go_out(world):
    world.write(0, "a", "b")
    world.write(1, "c")
    runner = world.runner()
    world.batch(runner)
    assert world.sent() == [b"a", b"b", b"c"]
    row = world.catalog.load(LANE)
    assert (row.head.ref.seq, row.ack.seq) == (1, 1)


@pytest.mark.parametrize("fault", [spoiled, mixed])
def test_a_run_that_does_not_count_is_thrown_away_and_made_again(world, fault):
    world.faults = [fault, fault]
    world.write(0, "a")
    world.batch(world.runner())
    assert world.sent() == [b"a"]
    assert len(world.tokens) == 3
    assert len({token.run for token in world.tokens}) == 3, "reports of one are not another's"


def test_runs_that_never_count_seal_nothing(world):
    world.faults = [spoiled] * RUNS_MAX
    world.write(0, "a")
    runner = world.runner()
    world.batch(runner)
    assert isinstance(runner.state.error, Unavailable)
    assert "stage 3 ran more than once" in str(runner.state.error)
    assert world.sent() == []
    assert world.catalog.load(LANE).head.ref.seq == 0


def test_what_went_wrong_in_a_task_is_raised_as_what_it_was(world):
    document = {"kind": "InvalidUsage", "words": ["a", "b", "c"], "place": "", "text": ""}
    failed = Piece(failed=document | {"traceback": ""})
    world.faults = [
        lambda result: Result(table=result.table, pieces=dict.fromkeys(result.pieces, failed))
    ]
    world.write(0, "a")
    runner = world.runner()
    world.batch(runner)
    assert isinstance(runner.state.error, InvalidUsage)
    assert world.sent() == []


OTHER = b"i" * 16


def differing(result: Result) -> Result:
    """The second record of a partition repeats the first one's id, and says something else."""
    (source,) = result.pieces
    piece = result.pieces[source]
    columns = {name: getattr(piece, name)[:1] for name in ("offsets", "ids", "buckets", "mark_of")}
    again = {
        "dropped": piece.offsets[1:],
        "reasons": np.array([Verdict.DUPLICATE], dtype=np.uint8),
    }
    told = {"conflict": 1, "conflicts": (Conflict(source, int(piece.offsets[1]), OTHER),)}
    return replace(result, pieces={source: replace(piece, **columns, **again, **told)})


def across(result: Result) -> Result:
    """Every record has the same id, in whichever partition, and a payload of its own."""
    return replace(
        result,
        pieces={
            source: replace(
                piece,
                ids=pack([RecordId(OTHER)] * piece.read),
                digests=np.full(piece.read, source.partition, dtype=np.uint16),
            )
            for source, piece in result.pieces.items()
        },
    )


def test_a_repeat_with_another_payload_is_told(world, caplog):
    world.faults = [differing]
    world.write(0, "a", "b")
    world.batch(world.runner())
    (record,) = caplog.records
    assert f"{LANE}: 1 records repeat" in record.getMessage()
    assert f"offset 1 of partition 0 (id {OTHER.hex()})" in record.getMessage()


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize(
    ("fault", "place"),
    [(differing, "offset 2 of partition 0"), (across, "offset 0 of partition 1")],
)
def test_a_stage_that_is_to_stop_at_another_payload_seals_and_sends_nothing_of_it(
    world, caplog, fault, place, state
):
    strict = Policy(conflict_stops=True)
    number = 0 if state else None
    world.write(0, "before")
    world.batch(world.runner(state=state, policy=strict), number)
    number = 1 if state else None
    world.write(0, "a", *(["b"] if fault is differing else []))
    if fault is across:
        world.write(1, "c")
    sealed, chunks = world.catalog.load(LANE), slots(world)
    for _ in range(2):  # whoever starts it again stops there again
        world.faults = [fault] * 2
        runner = world.runner(state=state, policy=strict)
        world.batch(runner, number)
        assert runner.state.stopped.end is m.End.BROKEN
        error = runner.state.error
        assert isinstance(error, InvalidUsage)
        assert error.subject == f"{LANE}: {place}"
        for words in (OTHER.hex(), "nothing of its bundle was sealed or sent", 'conflicts="count"'):
            assert words in error.hint
        assert world.catalog.load(LANE) == sealed
        assert slots(world) == chunks
        assert world.sent() == [b"before"]
    assert not caplog.records
    world.faults = [fault] * 2
    world.batch(world.runner(state=state), number)
    assert world.catalog.load(LANE).head.ref.seq == sealed.head.ref.seq + 1, "going on was said"


def slots(world: World) -> list[Slot]:
    """Everything that is stored of the lane."""
    store = world.catalog.store
    return [slot for kind in Blob for slot in sorted(store.slots(kind, LANE))]


def test_a_repeat_in_another_partition_costs_a_second_run_and_goes_out_once(world):
    world.write(0, "a", "b")
    world.write(1, "b", "c")
    world.batch(world.runner())
    assert world.sent() == [b"a", b"b", b"c"]
    assert [len(token.drops) for token in world.tokens] == [0, 1]


def test_a_run_in_which_records_were_not_judged_does_not_count(world):
    """Spark may skip what it has done before: then rows come that nobody judged in this run."""
    world.faults = [silent]
    world.write(0, "a", "b")
    world.batch(world.runner())
    assert len(world.tokens) == 2
    assert world.sent() == [b"a", b"b"]


def test_a_plan_that_never_asks_for_all_records_is_refused_before_long(world):
    """What it left out would be sealed, and never come again."""
    world.faults = [silent] * RUNS_MAX
    world.write(0, "a", "b")
    runner = world.runner()
    world.batch(runner)
    assert isinstance(runner.state.error, InvalidUsage)
    assert "its plan did not ask for all records of partition 0" in str(runner.state.error)
    assert len(world.tokens) == 2
    assert (world.sent(), world.catalog.load(LANE).head.ref.seq) == ([], 0)


def test_a_range_without_records_needs_no_report(world):
    world.broker.skip(world.broker.sources("in")[0], 3)
    world.batch(world.runner())
    row = world.catalog.load(LANE)
    assert (row.head.ref.seq, row.head.frontier.at(world.broker.sources("in")[0])) == (1, 3)


def test_without_state_whoever_loses_goes_on_behind_the_winner(world):
    world.write(0, "a")
    one, other = world.runner(), world.runner()
    world.batch(one)
    world.write(0, "b")
    world.batch(other)  # it still believes that nothing is sealed
    assert world.sent() == [b"a", b"b"]
    source = world.broker.sources("in")[0]
    assert [token.ranges[source] for token in world.tokens] == [(0, 1), (0, 2), (1, 2)]


def test_with_state_whoever_loses_stops(world):
    world.write(0, "a")
    one, other = world.runner(state=True), world.runner(state=True)
    world.batch(one, 0)
    world.batch(other, 0)
    assert isinstance(other.state.error, InvalidUsage)
    assert "another driver" in str(other.state.error)
    assert world.sent() == [b"a"]
    assert world.catalog.load(LANE).head.state == STATE.topic


def test_with_state_a_batch_without_records_is_sealed_too(world):
    runner = world.runner(state=True)
    world.batch(runner, 0)
    world.batch(runner, 1)
    row = world.catalog.load(LANE)
    assert (row.head.ref.seq, row.head.frontier.at(STATE)) == (2, 2)
