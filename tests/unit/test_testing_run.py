"""`delivery.testing.run`: a stage in a unit test, with a crash before and after every call."""

from __future__ import annotations

import itertools
import random
import re
from uuid import uuid4

import pytest

from delivery import InvalidUsage, Output, Record
from delivery.protocol import messages as m
from delivery.runner import LaneRunner
from delivery.stage import StoppedByRecordError
from delivery.testing import CRASH, ROUND, Fault, PlanFailed, Repeat, run
from delivery.testing.plan import plan_of
from delivery.testing.rig import Rig


def record(name: str) -> Record:
    return Record(value=name.encode(), headers=(("id", name.encode()),))


def shout(record: Record) -> Output:
    return record.replace(value=record.value.upper())


def price(record: Record):
    yield record.replace(value={**record.json(), "nonce": uuid4().hex})


ABC = [record("a"), record("b"), record("c")]


def values(records) -> list[bytes]:
    return [one.value for one in records]


def test_the_example_of_the_documents():
    assert len(run(price, [Record(value=b"{}")], crash="everywhere")) == 1


def test_code_that_never_says_the_same_twice_takes_effect_once_in_every_plan():
    seen = []
    result = run(
        price,
        [Record(value=b'{"n": %d}' % n) for n in range(3)],
        crash="everywhere",
        check=lambda outputs: seen.append([one.json()["n"] for one in outputs]),
    )
    assert [one.json()["n"] for one in result] == [0, 1, 2]
    assert len({one.json()["nonce"] for one in result}) == 3
    assert result.plans == len(seen) > 20
    assert all(numbers == [0, 1, 2] for numbers in seen)


def test_a_deterministic_stage_comes_out_once_although_nothing_of_it_is_stored():
    calls = []

    def loud(one: Record) -> list[Output]:
        calls.append(one.offset)
        return [shout(one), Output(value=b"of " + one.value)]

    result = run(loud, ABC, crash="everywhere", deterministic=True, zombies=1)
    assert values(result) == [b"A", b"of a", b"B", b"of b", b"C", b"of c"]
    assert len(calls) > 3 * result.plans, "made again where a process had sealed and died"


def test_a_stage_that_is_not_deterministic_although_it_says_so_fails_its_test():
    with pytest.raises(PlanFailed, match="make sealed outputs again") as failed:
        run(price, [Record(value=b"{}")], crash="everywhere", deterministic=True)
    assert "it is not deterministic; leave out deterministic=True" in str(failed.value)
    with pytest.raises(PlanFailed):
        run(price, [Record(value=b"{}")], crash=failed.value.plan, deterministic=True)
    run(price, [Record(value=b"{}")], crash="everywhere")


def test_a_random_number_of_outputs_is_fine():
    dice = random.Random(7)

    def scatter(record):
        return [record.replace(value=f"{n}") for n in range(dice.randrange(4))]

    result = run(scatter, ABC, crash="everywhere", check=lambda _: None)
    assert result.plans > 10


def test_code_runs_again_after_a_crash_and_its_side_effects_with_it():
    charged = []

    def charge(record):
        charged.append(record.value)
        return record.replace(value=f"receipt {len(charged)}")

    result = run(charge, [record("a")], crash="everywhere")
    assert values(result) == [b"receipt 1"]
    assert len(charged) > result.plans


def test_code_that_cannot_run_twice_is_found_with_the_plan_that_shows_it():
    """A ticket is drawn from a heap that no crash refills."""
    tickets = {b"a": "1"}

    def draw(record):
        return record.replace(value=tickets.pop(record.value))

    def refill():
        tickets[b"a"] = "1"

    assert values(run(draw, [record("a")], setup=refill)) == [b"1"]
    with pytest.raises(StoppedByRecordError) as failed:
        run(draw, [record("a")], "everywhere", setup=refill)
    assert isinstance(failed.value.__cause__, KeyError)
    assert "It had gone through before" in str(failed.value)
    assert "value=b'a'" in str(failed.value)
    line = re.search(r'crash="(.+)"', str(failed.value))[1]
    assert failed.value.plan == line == "crash-before@store.append:1"
    with pytest.raises(StoppedByRecordError, match="KeyError"):
        run(draw, [record("a")], line, setup=refill)
    assert len(run(draw, [record("a")], "crash-after@store.append:1", setup=refill)) == 1


def test_what_runs_out_between_plans_is_told_from_what_runs_out_in_one():
    tickets = ["1"]
    with pytest.raises(StoppedByRecordError, match=r"setup=\.\.\.") as failed:
        run(lambda _: tickets.pop(), [record("a")], "everywhere")
    assert "gone through before" not in str(failed.value)


def test_code_that_raises_stops_the_run_and_names_the_record():
    def half(record):
        yield record.replace(value="one")
        if record.value == b"b":
            raise ValueError("no price")
        yield record.replace(value="two")

    with pytest.raises(StoppedByRecordError, match="offset 1 ") as failed:
        run(half, ABC, crash="everywhere")
    assert isinstance(failed.value.__cause__, ValueError)
    assert "value=b'b'" in str(failed.value)
    assert failed.value.plan == ""


def test_dead_letters_come_back_beside_the_outputs():
    def half(record):
        yield record.replace(value="one")
        if record.value == b"b":
            raise ValueError("no price")
        yield record.replace(value="two")

    result = run(half, ABC, crash="everywhere", dead_letter=True)
    assert values(result) == [b"one", b"two"] * 2
    assert values(result.dead_letters) == [b"b"]
    assert result.dead_letters[0].header("delivery-error") == b"ValueError: no price"
    assert result.dead_letters[0].header("id") == b"b"


def test_a_record_that_cannot_be_named_is_a_dead_letter_whatever_dies():
    good, bad = Record(b'{"id": 1}'), Record(b"{")
    result = run(
        shout, [good, bad, Repeat(good), bad], "everywhere", id_from="json:id", dead_letter=True
    )
    assert values(result) == [b'{"ID": 1}']
    assert values(result.dead_letters) == [b"{", b"{"]
    assert b"JSONDecodeError" in result.dead_letters[0].header("delivery-error")
    with pytest.raises(InvalidUsage, match="offset 1 of partition 0"):
        run(shout, [good, bad], id_from="json:id")
    with pytest.raises(InvalidUsage, match="nothing names the record"):
        run(shout, [bad, Repeat(bad)], id_from="json:id", dead_letter=True)


def test_code_that_fails_now_and_then_is_tried_again():
    calls = itertools.count()

    def flaky(record):
        if next(calls) % 3:
            raise ConnectionError("try again")
        return shout(record)

    assert values(run(flaky, ABC, crash="everywhere")) == [b"A", b"B", b"C"]


def test_what_a_publisher_repeats_is_dropped_by_its_name():
    again = ABC[0]._replace(timestamp_ms=1)
    result = run(shout, [ABC[0], ABC[1], again], crash="everywhere", id_from="header:id")
    assert values(result) == [b"A", b"B"]
    assert result.duplicates == 1
    assert len(run(shout, [ABC[0], ABC[1], again])) == 3


@pytest.mark.parametrize("spec", ["key", "json:id", lambda record: record.key])
def test_a_name_may_be_anywhere(spec):
    twins = [Record(key=b"k", value=b'{"id": 7}'), Record(key=b"k", value=b'{"id":7}')]
    assert len(run(shout, twins, id_from=spec)) == 1


def test_the_outputs_of_one_run_are_the_input_of_the_next():
    priced = run(price, [Record(value=b"{}", headers=(("kept", b"1"),))], crash="everywhere")
    assert priced[0].headers == ()
    assert len(run(shout, priced, crash="everywhere")) == 1


def test_a_stage_has_as_many_outputs_as_it_is_given():
    def split(record):
        yield shout(record)
        yield shout(record).to(1)
        yield shout(record).to(1)

    result = run(split, ABC, crash="everywhere", edges=2)
    assert [len(edge) for edge in result.edges] == [3, 6]
    for dead_letter in (False, True):
        with pytest.raises(
            InvalidUsage, match=r"output 1: it is run with 1 outputs.*edges=2"
        ) as no:
            run(split, ABC, dead_letter=dead_letter)
        assert "dead_letters=" not in str(no.value)
        assert no.value.__suppress_context__


def test_every_other_fault_and_a_zombie_make_no_difference():
    result = run(shout, ABC[:2], crash="everywhere", kinds=list(Fault))
    assert values(result) == [b"A", b"B"]
    result = run(price, [Record(value=b"{}")], crash="everywhere", zombies=1)
    assert len(result) == 1
    assert result.plans > 100


def test_an_empty_input_is_a_run_too():
    assert run(shout, [], crash="everywhere") == []


# Markers --------------------------------------------------------------------------------------


def executions(records, **options: object) -> list[bytes]:
    """Give the records that user code was called with, in order."""
    seen = []

    def note(record):
        seen.append(record.value)
        return shout(record)

    assert values(run(note, records, **options)) == [b"A", b"B", b"C"]
    return seen


def test_a_crash_in_the_middle_of_a_bundle_runs_all_of_it_again():
    a, b, c = ABC
    assert executions([a, b, CRASH, c], cuts=[()]) == [b"a", b"b", b"a", b"b", b"c"]


def test_what_a_round_has_finished_is_not_run_again():
    a, b, c = ABC
    assert executions([a, ROUND, b, CRASH, c], cuts=[()]) == [b"a", b"b", b"b", b"c"]
    assert executions([CRASH, a, CRASH, ROUND, b, c], cuts=[()]) == [b"a", b"a", b"b", b"c"]
    assert executions([a, b, c, ROUND, CRASH], cuts=[()]) == [b"a", b"b", b"c"]


def test_bundles_are_cut_where_the_test_says():
    runs = []
    run(shout, ABC, cuts=[(1,)], check=lambda outputs: runs.append(values(outputs)))
    assert runs == [[b"A", b"B", b"C"]]
    a, b, c = ABC
    # The first bundle is sealed before the second runs, so whoever takes over begins behind it.
    assert executions([a, b, CRASH, c], cuts=[(1, 2), ()]) == [b"a", b"b", b"b", b"c"]


def test_a_marked_repeat_needs_a_name_and_an_original():
    result = run(shout, [ABC[0], CRASH, Repeat(ABC[0])], crash="everywhere", id_from="header:id")
    assert (values(result), result.duplicates) == ([b"A"], 1)
    with pytest.raises(InvalidUsage, match="id_from"):
        run(shout, [ABC[0], Repeat(ABC[0])])
    with pytest.raises(InvalidUsage, match="before it"):
        run(shout, [Repeat(ABC[0]), ABC[0]], id_from="header:id")


def test_markers_and_plans_go_together():
    a, b, c = ABC
    result = run(price_of_name, [a, CRASH, b, ROUND, c], crash="everywhere")
    assert values(result) == [b'["a"]', b'["b"]', b'["c"]']


def price_of_name(record):
    return record.replace(value=[record.value.decode()])


# Failures and their lines ---------------------------------------------------------------------


@pytest.fixture
def lossy(monkeypatch):
    """Let whoever takes over believe that sealed outputs were emitted by the one before it."""
    emit = LaneRunner._PERFORM[m.Emit]

    def careless(runner, instruction):
        if runner._own(instruction) is None:
            return m.Delivered(instruction.seq, m.Frontier())
        return emit(runner, instruction)

    monkeypatch.setitem(LaneRunner._PERFORM, m.Emit, careless)


@pytest.mark.usefixtures("lossy")
def test_a_failure_gives_a_line_that_replays_it():
    assert values(run(shout, ABC)) == [b"A", b"B", b"C"]
    with pytest.raises(AssertionError, match="LOST") as failed:
        run(shout, ABC, crash="everywhere")
    line = re.search(r'run\(\.\.\., crash="(.+)"\)', str(failed.value))[1]
    assert re.fullmatch(r"crash-(before|after)@[a-z.]+:\d+", line)
    with pytest.raises(AssertionError, match="LOST"):
        run(shout, ABC, crash=line)


def test_a_line_that_is_mended_passes():
    result = run(shout, ABC, crash="crash-after@store.append:1")
    assert (values(result), result.plans) == ([b"A", b"B", b"C"], 1)


def test_two_versions_of_one_input_are_seen(monkeypatch):
    """Emission from memory before the seal is what a receiver could see twice."""
    store = LaneRunner._PERFORM[m.Store]

    def hasty(runner, instruction):
        answer = store(runner, instruction)
        runner._emit(m.Emit(instruction.ref.seq, instruction.ref.incarnation, instruction.ticket))
        return answer

    monkeypatch.setitem(LaneRunner._PERFORM, m.Store, hasty)
    with pytest.raises(PlanFailed) as failed:
        run(price, [Record(value=b"{}")], crash="everywhere")
    assert plan_of(failed.value.plan)


def test_what_a_test_checks_after_every_plan_names_the_plan_too():
    seen = itertools.count()

    def check(outputs):
        assert next(seen) < 5, "the fifth is wrong"
        assert outputs

    with pytest.raises(AssertionError, match="the fifth is wrong") as failed:
        run(shout, ABC, crash="everywhere", check=check)
    assert isinstance(failed.value.__cause__, AssertionError)
    assert failed.value.plan


def test_the_receiver_is_compared_with_the_executions_that_took_place(monkeypatch):
    """What no execution returned is found even if the whole catalog agrees with it."""
    go = Rig.go

    def forget(rig):
        go(rig)
        rig.executions.pop()

    monkeypatch.setattr(Rig, "go", forget)
    with pytest.raises(PlanFailed, match=r"offset 2: .* executions"):
        run(shout, ABC)


# Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("crash-after@store.append", "copy it whole"),
        ("crash-sometimes@store.append:1", "copy it whole"),
        ("crash-after@store.append:99", "belongs to another"),
    ],
)
def test_a_line_that_does_not_fit_is_refused(line, said):
    with pytest.raises(InvalidUsage, match=said):
        run(shout, ABC, crash=line)


def test_what_is_not_a_stage_or_a_record_is_refused():
    with pytest.raises(InvalidUsage, match="give a function"):
        run("shout", ABC)
    with pytest.raises(InvalidUsage, match="it is a bytes"):
        run(shout, [b"{}"])
    with pytest.raises(InvalidUsage, match="header:NAME"):
        run(shout, ABC, id_from="id")
    with pytest.raises(InvalidUsage, match="at least one output"):
        run(shout, ABC, edges=0)


def test_more_plans_than_a_unit_test_has_time_for_are_refused(monkeypatch):
    monkeypatch.setattr("delivery.testing.trials.PLANS_MAX", 10)
    with pytest.raises(InvalidUsage, match="10 plans"):
        run(shout, ABC, crash="everywhere")
