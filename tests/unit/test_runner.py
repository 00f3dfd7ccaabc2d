"""The runner on real stores: what it delivers, what it refuses, what it leaves when it gives up."""

from __future__ import annotations

import pytest

from connectors.memory import MemoryReader
from dedup.errors import Corrupt, Indeterminate, Unavailable
from dedup.model import Frontier, TopicId
from delivery.batch import batches_of
from delivery.protocol import messages as m
from delivery.protocol.state import Limits
from delivery.runner import TRIES_MAX
from delivery.stage import StoppedByRecordError
from delivery.testing.faulty import Fault
from sinks.memory import MemoryEmitter
from tests.unit.house import LANE, House, Moved, broken, fail_on, failing, sealed_upto, seals

# What it does ---------------------------------------------------------------------------------


def test_every_record_takes_effect_once_whatever_its_publisher_repeats(house):
    house.write(*"abcab")
    house.done(cut=2)
    house.write(*"cd")
    house.done(cut=3)
    assert len(house.sent()) == 4
    assert house.proved() == []


def test_a_run_with_nothing_to_do_succeeds_and_writes_nothing(house):
    house.write(*"ab")
    house.done()
    with house.untouched():
        house.done()


def test_what_a_dead_process_sealed_is_emitted_by_the_next_one(house):
    house.write(*"ab")
    runner = house.runner()
    house.begin(runner)
    while not isinstance(next(iter(runner.state.todo), None), m.Emit):
        assert house.turn(runner)
    sealed = seals(house)[-1].ref
    assert house.sent() == []
    house.done(house.runner(call=lambda _: pytest.fail("it is sealed: no user code runs again")))
    assert len(house.sent()) == 2
    assert seals(house)[-1].ref == sealed
    assert house.proved() == []


def test_two_processes_at_once_seal_everything_once_and_the_loser_is_noted(house):
    house.write(*"abcdefghij")
    runners = [house.runner(), house.runner()]
    for runner in runners:
        house.begin(runner)
    while any(runner.state.stopped is None for runner in runners):
        for runner, cut in zip(runners, (2, 3), strict=True):
            if runner.state.stopped is None:
                assert house.turn(runner, cut)
    assert [runner.state.stopped.end for runner in runners] == [m.End.DONE] * 2
    assert house.pauses, "somebody lost, and waited"
    assert list(house.store.losers(LANE))
    assert len({record.value for record in house.sent()}) == 10
    assert house.proved() == []


def test_minted_at_increases_although_the_clock_jumps_back_between_processes(house):
    for name in "abc":
        house.write(name)
        house.done()
        house.now -= 3_600_000
    minted = [seal.minted_at_ms for seal in seals(house)]
    assert len(minted) == 4
    assert minted == sorted(set(minted))


def test_rows_and_bundles_in_memory_are_bounded(house):
    house.write(*(str(number) for number in range(200)))
    runner = house.runner(limits=Limits(pending_max=2, owed_max=3))
    house.begin(runner)
    held, under_way = 0, 0
    while runner.state.stopped is None:
        assert house.turn(runner, cut=5)
        held = max(held, sum(map(len, runner.state.rows)))
        under_way = max(under_way, len(runner.state.work))
    assert 5 < held <= 4 * 5, "two bundles under way, one held, one that is being released"
    assert 1 < under_way <= 3, "two bundles under way and the ids of one delivered"
    assert (len(runner.state.rows), runner.state.work) == (0, {})


def test_rows_that_are_offered_again_while_they_are_under_way_are_held_once(house):
    house.write(*"abcd")
    runner, source = house.runner(), house.source()
    runner.tell(m.Opened(Frontier.of([(source, 0)])))
    runner.drain()
    start = Frontier.of([(source, 0)])
    for end in (2, 4):
        rows = batches_of(house.broker.read(source, 0, end))
        runner.offer(m.Polled(start, Frontier.of([(source, end)])), rows)
    assert [record.offset for batch in runner.state.rows for record in batch] == [0, 1, 2, 3]
    runner.drain()
    assert [seal.counts.read for seal in seals(house)] == [0, 2, 2]


# Logs that are not the ones read so far -------------------------------------------------------


def refused(house: House, runner, start: int = 0) -> str:
    with house.untouched():
        stop = house.run(runner, start=start)
    assert stop.end is m.End.REFUSED
    return stop.why


def test_a_topic_that_was_deleted_and_created_again_is_refused(house):
    house.write(*"ab")
    house.done()
    house.broker.create("in")
    house.write(*"cdef")
    assert "topic in was deleted and created again" in refused(house, house.runner())


def test_a_topic_that_is_created_again_while_the_lane_runs_is_refused(house):
    house.write(*"ab")
    runner, source = house.runner(), house.source()
    start, end = Frontier.of([(source, 0)]), Frontier.of([(source, 2)])
    runner.tell(m.Opened(start))
    runner.drain()
    runner.offer(m.Polled(start, end, start), batches_of(house.broker.read(source, 0, 2)))
    runner.drain()
    house.broker.create("in")
    house.write(*"cd")
    again = house.source()
    start, end = Frontier.of([(again, 0)]), Frontier.of([(again, 2)])
    with house.untouched():
        runner.offer(m.Polled(start, end, start), batches_of(house.broker.read(again, 0, 2)))
        runner.drain()
    assert runner.state.stopped.end is m.End.REFUSED
    assert len(house.sent()) == 2


def test_an_output_topic_that_was_created_again_is_refused(house):
    house.write(*"ab")
    house.done()
    house.broker.create("out")
    house.write("c")
    assert "output topic" in refused(house, house.runner())


def test_a_log_that_begins_behind_the_frontier_is_refused_with_the_lost_range(house):
    house.write(*"abcde")
    house.done()
    house.write(*"fghij")
    source = house.source()
    reader = MemoryReader(house.broker, "in", [source])
    gone = Moved(reader, low=Frontier.of([(source, 8)]))
    why = refused(house, house.runner(reader=gone))
    assert "offsets 5 to 8 of partition 0 are gone unread" in why


def test_a_log_that_ends_below_the_frontier_is_refused(house):
    house.write(*"abcde")
    house.done()
    source = house.source()
    reader = MemoryReader(house.broker, "in", [source])
    cut = Moved(reader, high=Frontier.of([(source, 3)]))
    assert "ends at 3" in refused(house, house.runner(reader=cut))


@pytest.mark.parametrize(("start", "low"), [(9, 0), (1, 2)], ids=["above", "below"])
def test_a_lane_is_not_created_where_its_log_is_not(house, start, low):
    house.write(*"abcd")
    source = house.source()
    reader = Moved(MemoryReader(house.broker, "in", [source]), low=Frontier.of([(source, low)]))
    refused(house, house.runner(reader=reader), start)
    assert list(house.store.lanes()) == []


# A world that is away -------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_REQUEST, Fault.LOST_REPLY])
@pytest.mark.parametrize("method", ["create", "put", "append", "acknowledge"])
def test_a_call_that_fails_once_is_mended_by_the_same_process(house, method, fault):
    house.inline_bytes_max = 0
    house.write(*"abc")
    house.done(house.runner(store=failing(house.store, method, fault, times=1)), cut=2)
    assert len(house.sent()) == 3
    assert house.proved() == []


@pytest.mark.parametrize(
    ("method", "end"),
    [
        ("create", m.End.INDETERMINATE),
        ("put", m.End.BROKEN),
        ("append", m.End.INDETERMINATE),
        ("acknowledge", m.End.INDETERMINATE),
    ],
)
def test_a_store_that_stays_away_is_given_up_and_the_next_process_goes_on(house, method, end):
    house.inline_bytes_max = 0
    house.write(*"abc")
    store = failing(house.store, method, Fault.REFUSED)
    runner = house.runner(store=store)
    assert house.run(runner).end is end
    asked = [call for call in store._wire.calls if call.method == method]
    assert len(asked) == {"put": TRIES_MAX}.get(method, Limits().unknown_max + 1)
    assert len(runner.state.rows) == 0
    if method == "put":
        assert isinstance(runner.state.error, Unavailable)
        assert house.pauses == [1, 2, 3, 4]
    if method != "acknowledge":
        assert house.sent() == [], "nothing is emitted before its seal"
    house.done()
    assert len({record.value for record in house.sent()}) == 3
    assert house.proved() == []


class Away:
    """A reader or an emitter that does not answer."""

    writes: tuple[TopicId, ...] = ()

    def __init__(self, house: House, error: Exception) -> None:
        self.writes = MemoryEmitter(house.broker, ["out"]).writes
        self.calls = 0
        self._error = error

    def log(self):
        self.calls += 1
        raise self._error

    def place(self, rows):
        return [0] * len(rows)

    def emit(self, _emissions):
        self.calls += 1
        raise self._error


AWAY = [Unavailable("ask", "kafka", "it is away"), Indeterminate("ask", "kafka", "who knows")]


@pytest.mark.parametrize("error", AWAY, ids=["unavailable", "indeterminate"])
def test_a_source_that_stays_away_is_asked_a_bounded_number_of_times(house, error):
    away = Away(house, error)
    with house.untouched():
        assert broken(house, house.runner(reader=away)) is error
    assert away.calls == TRIES_MAX


@pytest.mark.parametrize("error", AWAY, ids=["unavailable", "indeterminate"])
def test_a_sink_that_stays_away_leaves_the_seal_to_the_next_process(house, error):
    house.write(*"ab")
    away = Away(house, error)
    assert house.run(house.runner(emitter=away)).end is m.End.BROKEN
    assert away.calls == TRIES_MAX
    assert (sealed_upto(house), house.catalog().load(LANE).ack.seq) == (2, 0)
    house.done()
    assert len(house.sent()) == 2
    assert house.proved() == []


def test_what_is_corrupt_is_not_asked_for_again(house):
    away = Away(house, Corrupt("read", "the log", "it is torn"))
    broken(house, house.runner(reader=away))
    assert away.calls == 1


def test_the_first_error_is_the_one_that_is_told(house):
    """What fails behind it, while the rest is carried out, may only be its echo."""
    house.write(*"abc")
    away = Away(house, AWAY[0])
    call = fail_on(house, b"b", ValueError("no price"))
    runner = house.runner(call=call, emitter=away)
    house.begin(runner)
    while runner.state.stopped is None:
        todo = runner.state.todo
        if len(todo) > 1 and isinstance(todo[0], m.Emit):
            todo.rotate(-1)  # a host may perform what does not wait for the sink first
        assert house.turn(runner, cut=1)
    assert isinstance(runner.state.error, StoppedByRecordError)
