"""A stage's life, wherever whoever changes it is killed: it happened, or running it again finishes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from dedup.backup import renewed
from dedup.catalog.memory import MemoryStore
from dedup.errors import InvalidUsage
from delivery.header import NAME, decode_header
from delivery.life.guard import refuse_at_rest
from delivery.life.leave import leave
from delivery.life.rename import rename
from delivery.life.reset import Begin, reset
from delivery.life.retire import retire
from delivery.operate.accepting import accept
from delivery.operate.auditing import Terms, audit
from delivery.operate.logs import Cluster
from delivery.operate.verification import verify
from delivery.protocol import messages as m
from delivery.protocol.rest import Kind, rest_of
from tests.unit.house import LANE, House
from tests.unit.life_kit import DiedError, Mortal, hands, killed_everywhere
from tests.unit.memory_kafka import MemoryClient
from tests.unit.operate_kit import SECOND, chained

NEW = "shop/cost/0"


def owing(house: House) -> None:
    """Two stages, of which the first has sealed what it has not emitted, and has not read all."""
    chained(house, rounds=2)
    house.write("late-1", "late-2")
    runner = house.runner()
    house.begin(runner)
    while not any(isinstance(todo, m.Emit) for todo in runner.state.todo):
        assert house.turn(runner, cut=1)
    house.write("r0-0", "later")


@pytest.fixture
def house() -> House:
    found = House(MemoryStore(), inline_bytes_max=0)
    owing(found)
    return found


def finish(house: House, lane: str = LANE) -> None:
    """Run both stages to their ends, the second behind whoever writes for it."""
    house.done(house.runner(lane), cut=5)
    second = house.runner(
        SECOND, reads="out", writes=("end",), senders=tuple(house.catalog().lanes())
    )
    house.done(second, topic="out", cut=5)


def parents(house: House, topic: str) -> Counter[int]:
    """Return how often each input took effect, by the offset of its parent in the header."""
    seen = {}
    for record in house.sent(topic):
        header = decode_header(record.header(NAME) or b"")
        assert header is not None
        seen[header.id] = header.parent[1]
    return Counter(seen.values())


def whole(house: House) -> None:
    """Every row and chunk is in order."""
    assert verify(house.store, house.catalog().lanes()).findings == ()


#: Two rounds of ten of which the last repeats the first, and two late ones; then a repeat and one.
ONCE = Counter([*range(9), *range(10, 19), 20, 21, 23])


def test_a_renamed_stage_goes_on_with_its_ids(house):
    change = rename(hands(house), "price", "cost", perform=True)
    assert change.done
    assert [lane.before for lane in change.lanes] == [{"in/0": 21}]
    finish(house, NEW)
    assert parents(house, "out") == ONCE
    assert sum(parents(house, "end").values()) == len(ONCE)
    whole(house)
    del house.inputs[LANE]
    assert house.proved() == []


def test_an_audit_of_the_end_asks_no_more_of_a_name_that_was_given_up(house):
    rename(hands(house), "price", "cost", perform=True)
    finish(house, NEW)
    found = audit(
        house.catalog(),
        Cluster(MemoryClient(house.broker)),
        list(house.catalog().lanes()),
        Terms(ways={"": "header:id"}, finished=True),
    )
    assert found.verdict == "exact", found


def test_who_reads_a_renamed_stage_drops_late_copies_of_both_names(house):
    rename(hands(house), "price", "cost", perform=True)
    finish(house, NEW)
    before = sum(parents(house, "end").values())
    for record in house.sent("out"):  # a zombie repeats everything it ever sent
        house.broker.append(house.source("out"), record)
    finish(house, NEW)
    assert sum(parents(house, "end").values()) == before
    assert len(house.sent("end")) == before


def test_the_old_name_of_a_stage_runs_no_more_and_says_why(house):
    rename(hands(house), "price", "cost", perform=True)
    stop = house.run(house.runner())
    assert stop.end is m.End.REFUSED
    assert "goes on as cost" in stop.why
    with pytest.raises(InvalidUsage, match="goes on as cost"):
        refuse_at_rest(house.catalog(), "shop/price/", ["in"])
    refuse_at_rest(house.catalog(), "shop/cost/", ["in"])


def test_renaming_again_says_that_it_was_done(house):
    rename(hands(house), "price", "cost", perform=True)
    picture = house.picture()
    assert rename(hands(house), "price", "cost", perform=True).done
    assert house.picture() == picture


def test_a_rename_killed_anywhere_is_finished_by_running_it_again():
    count = 0
    for house in killed_everywhere(owing, lambda it: rename(it, "price", "cost", perform=True)):
        finish(house, NEW)
        assert parents(house, "out") == ONCE
        whole(house)
        count += 1
    assert count > 20


def test_while_it_is_under_way_nobody_runs_either_name():
    seen = 0
    for number in range(1, 100):
        house = House(MemoryStore(), inline_bytes_max=0)
        owing(house)
        try:
            rename(
                hands(house, Mortal(house.store, number, after=True)), "price", "cost", perform=True
            )
        except DiedError:
            pass
        else:
            break
        rows = [house.catalog().load(lane) for lane in (LANE, NEW)]
        running = [row for row in rows if row is not None and rest_of(row.head.state) is None]
        assert len(running) <= 1, "never both"
        seen += 1
    assert seen > 10


def test_a_dry_run_touches_nothing(house):
    for verb in (
        lambda: rename(hands(house), "price", "cost"),
        lambda: reset(hands(house), "price", Begin(at="earliest"), forget_ids=True),
        lambda: retire(hands(house), "price"),
        lambda: leave(hands(house), "price"),
    ):
        with house.untouched():
            change = verb()
        assert not change.done
        assert "shop/ship reads what it writes" in change.depends
        assert change.means


def test_a_stage_that_goes_back_with_its_ids_doubles_nothing(house):
    change = reset(hands(house), "price", Begin(at="earliest"), perform=True)
    assert change.lanes[0].after == {"in/0": 0}
    finish(house)
    assert parents(house, "out") == ONCE
    whole(house)
    assert house.proved() == []


def test_a_stage_that_forgets_its_ids_does_everything_again(house):
    reset(hands(house), "price", Begin(at="earliest"), forget_ids=True, perform=True)
    finish(house)
    # What had taken effect before took effect once more: that is what was asked for.
    assert all(count == 1 + (at < 21) for at, count in parents(house, "out").items())
    assert parents(house, "out").keys() == ONCE.keys()
    whole(house)


def test_a_stage_that_goes_on_further_skips_what_is_in_between(house):
    reset(hands(house), "price", Begin(offsets={0: 23}), perform=True)
    finish(house)
    assert parents(house, "out") == Counter(ONCE.keys() - {21})
    # An audit says it for ever: this record was lost to the stage, by order.
    assert [finding.kind.name for finding in house.proved()] == ["NOT_DECIDED"]


def test_positions_that_cannot_be_are_refused(house):
    for begin in (Begin(offsets={0: 99}), Begin(offsets={7: 0})):
        with house.untouched(), pytest.raises(InvalidUsage, match="nothing was done"):
            reset(hands(house), "price", begin, perform=True)
    with pytest.raises(InvalidUsage, match="say one"):
        Begin(at="earliest", offsets={0: 1})


@pytest.mark.parametrize("forget_ids", [False, True])
def test_a_reset_killed_anywhere_is_finished_by_running_it_again(forget_ids):
    def verb(it):
        return reset(it, "price", Begin(at="earliest"), forget_ids=forget_ids, perform=True)

    for house in killed_everywhere(owing, verb):
        row = house.catalog().load(LANE)
        assert row.head.frontier.at(house.source()) == 0
        finish(house)
        whole(house)
        counts = parents(house, "out")
        assert counts.keys() == ONCE.keys()
        assert max(counts.values()) == 1 + forget_ids


def test_a_retired_stage_has_delivered_everything_and_takes_no_room(house):
    retire(hands(house), "price", perform=True)
    row = house.catalog().load(LANE)
    assert rest_of(row.head.state).kind is Kind.RETIRED
    assert row.ack.seq == row.head.ref.seq
    assert house.catalog().history(LANE, row.head) == []
    assert house.catalog().segment_list(LANE).slots == ()
    assert not list(house.store.slots("segment", LANE))
    assert "was retired" in house.run(house.runner()).why
    second = house.runner(SECOND, reads="out", writes=("end",), senders=(LANE,))
    house.done(second, topic="out", cut=5)
    assert sum(parents(house, "end").values()) == sum(ONCE.values()) - 2
    whole(house)


def test_a_retired_stage_begins_anew_only_when_that_is_said(house):
    retire(hands(house), "price", perform=True)
    with pytest.raises(InvalidUsage, match="was retired"):
        refuse_at_rest(house.catalog(), "shop/price/", ["in"])
    reset(hands(house), "price", Begin(at="here"), perform=True)
    refuse_at_rest(house.catalog(), "shop/price/", ["in"])
    house.done(house.runner(), cut=5)
    assert parents(house, "out")[21] == 1


def test_a_retirement_killed_anywhere_is_finished_by_running_it_again():
    for house in killed_everywhere(owing, lambda it: retire(it, "price", perform=True)):
        row = house.catalog().load(LANE)
        assert rest_of(row.head.state).kind is Kind.RETIRED
        assert parents(house, "out") == Counter(ONCE.keys() - {21, 23})
        whole(house)


def test_a_stage_that_is_left_says_where_another_job_begins(house):
    change = leave(hands(house), "price", perform=True)
    assert change.offsets == {"in": {0: 21}}
    assert parents(house, "out") == Counter(ONCE.keys() - {21, 23})
    assert "without this library" in house.run(house.runner()).why
    again = leave(hands(house), "price", perform=True)
    assert again.offsets == change.offsets
    # Taken back where the other job stopped, with the ids of before.
    reset(hands(house), "price", Begin(offsets={0: 22}), perform=True)
    house.done(house.runner(), cut=5)
    assert parents(house, "out") == Counter(ONCE.keys() - {21})


def test_leaving_killed_anywhere_gives_the_same_offsets():
    for house in killed_everywhere(owing, lambda it: leave(it, "price", perform=True)):
        assert leave(hands(house), "price").offsets == {"in": {0: 21}}
        assert parents(house, "out") == Counter(ONCE.keys() - {21, 23})


def test_a_running_stage_is_fenced_by_the_same_write(house):
    runner = house.runner()
    house.begin(runner)
    while not any(isinstance(todo, m.Append) for todo in runner.state.todo):
        assert house.turn(runner, cut=1)
    rename(hands(house), "price", "cost", perform=True)
    for _ in range(1000):
        if runner.state.stopped is not None:
            break
        house.turn(runner, cut=1)
    assert runner.state.stopped.end is m.End.FENCED
    finish(house, NEW)
    assert parents(house, "out") == ONCE


def test_a_stage_that_is_reset_while_it_runs_follows(house):
    runner = house.runner()
    house.begin(runner)
    while not any(isinstance(todo, m.Append) for todo in runner.state.todo):
        assert house.turn(runner, cut=1)
    reset(hands(house), "price", Begin(at="earliest"), perform=True)
    for _ in range(1000):
        if runner.state.stopped is not None:
            break
        house.turn(runner, cut=1)
    assert runner.state.stopped.end is m.End.FENCED, "a host opens it again"
    finish(house)
    assert parents(house, "out") == ONCE


def test_one_thing_at_a_time(house):
    with pytest.raises(DiedError):
        rename(hands(house, Mortal(house.store, 1, after=True)), "price", "cost", perform=True)
    for verb in (
        lambda: retire(hands(house), "price", perform=True),
        lambda: rename(hands(house), "price", "other", perform=True),
        lambda: reset(hands(house), "price", Begin(at="here"), perform=True),
    ):
        with house.untouched(), pytest.raises(InvalidUsage, match=r"rename` \(to=cost\) was begun"):
            verb()


def test_names_that_cannot_be_are_refused(house):
    for name in ("ship", "price", "", "a/b", "x" * 300):
        with house.untouched(), pytest.raises(InvalidUsage, match="nothing was done"):
            rename(hands(house), "price", name, perform=True)
    with pytest.raises(InvalidUsage, match="there is none"):
        rename(hands(house), "nobody", "cost")


@pytest.mark.parametrize("state", [b"rest\x00\x02anything", b'rest\x00\x01{"kind": "asleep"}'])
def test_a_lane_that_a_newer_release_put_to_rest_runs_nowhere(house, state):
    catalog = house.catalog()
    row = catalog.load(LANE)
    resting = renewed(row, house.fresh)
    resting = replace(resting, head=replace(resting.head, state=state))
    assert catalog.reincarnate(LANE, row.head.ref, resting)
    with house.untouched():
        stop = house.run(house.runner())
        assert (stop.end, "install that release" in stop.why) == (m.End.REFUSED, True)
        with pytest.raises(InvalidUsage, match="install that release"):
            accept(catalog, house.fresh, perform=True)
