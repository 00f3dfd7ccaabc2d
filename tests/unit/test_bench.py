"""The benchmark harness: its arithmetic, its fairness, and what it says about goals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import pytest

from bench import __main__ as command
from bench.harness import (
    Benchmark,
    Contestant,
    Goal,
    Lab,
    Turn,
    percentile,
    quartiles,
    run,
    standing,
    take_turn,
)
from bench.job import REPEAT_DISTANCE, VALUE_BYTES, Job, fresh_count, original, with_nonce
from bench.meter import MB, Meter, Usage
from bench.report import as_json, as_table, machine, number

NOTHING = Usage(cpu_seconds=0.0, memory_mb=1.0, growth_mb=0.0, written_mb=0.0)


def test_a_percentile_is_a_sample_that_so_many_do_not_exceed():
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([5, 1, 3], 0.99) == 5
    assert percentile([7], 0.5) == 7
    assert percentile([4, 1, 3, 2], 0.5) == 2


def test_quartiles_of_one_value_are_that_value():
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)


def test_a_turn_costs_its_median_operation_or_its_mean_per_unit():
    assert Turn(seconds=(0.1, 0.2, 9.0)).cost == 0.2
    assert Turn(seconds=(1.0, 3.0), amount=8).cost == 0.5
    assert Turn(seconds=(0.1, 0.2, 9.0)).units == 3
    assert Turn(seconds=(1.0, 3.0), amount=8).units == 8


def test_ratios_are_taken_inside_a_round():
    """The machine slows down fivefold in the middle: no ratio notices."""
    baseline = [Turn(seconds=(s,)) for s in (0.1, 0.5, 0.1)]
    ours = [(Turn(seconds=(2 * s,)), NOTHING) for s in (0.1, 0.5, 0.1)]
    figures = standing(ours, [*baseline])
    assert figures.ratio == pytest.approx(2)
    assert figures.ratio_low == pytest.approx(2)
    assert figures.ratio_high == pytest.approx(2)
    assert figures.speed == pytest.approx(0.5)
    assert figures.over_ms == pytest.approx(100)


def test_figures_of_all_rounds():
    turns = [Turn(seconds=(1.0,), amount=10, facts={"size": size}) for size in (1, 5, 3)]
    usage = Usage(cpu_seconds=0.5, memory_mb=100.0, growth_mb=7.0, written_mb=2.0)
    more = Usage(cpu_seconds=0.5, memory_mb=120.0, growth_mb=3.0, written_mb=2.0)
    figures = standing(list(zip(turns, (usage, more, usage), strict=True)), turns)
    assert (figures.rounds, figures.samples, figures.rate) == (3, 3, 10)
    assert (figures.cpu_seconds, figures.cpu_ms) == (1.5, pytest.approx(50))
    assert (figures.memory_mb, figures.growth_mb, figures.written_mb) == (120, 7, 6)
    assert figures.figure("size") == 3
    assert figures.figure("median_ms") == 1000


@pytest.mark.parametrize(
    ("limit", "value", "met", "by"),
    [
        ({"at_most": 1.3}, 1.3, True, 0.0),
        ({"at_most": 2.0}, 3.0, False, 0.5),
        ({"at_least": 0.9}, 0.45, False, 0.5),
        ({"at_least": 2.0}, 3.0, True, 0.5),
    ],
)
def test_a_goal_says_met_or_missed_and_by_how_much(limit, value, met, by):
    verdict = Goal(says="x", contestant="ours", measure="ratio", **limit).judge(value)
    assert (verdict.met, verdict.by) == (met, pytest.approx(by))


@pytest.mark.parametrize("limits", [{}, {"at_most": 1.0, "at_least": 1.0}])
def test_a_goal_has_one_limit(limits):
    with pytest.raises(AssertionError, match="one limit"):
        Goal(says="x", contestant="ours", measure="ratio", **limits)


@contextmanager
def staged(order, _lab):
    def turn(name, seconds):
        order.append(name)
        return Turn(seconds=(seconds,))

    yield [
        Contestant(name="bare", turn=partial(turn, "bare", 0.5)),
        Contestant(name="ours", turn=partial(turn, "ours", 1.5)),
    ]


def contest(order, rounds=4):
    return Benchmark(
        name="toy",
        says="A toy.",
        unit="thing",
        staged=partial(staged, order),
        baseline="bare",
        goals=(Goal(says="how much slower", contestant="ours", measure="ratio", at_most=2.0),),
        rounds=(rounds, 2),
        warmups=1,
    )


def test_contestants_take_turns_in_an_order_that_rotates():
    order = []
    with Lab(quick=False, report=print) as lab:
        outcome = run(contest(order), lab)
    assert order[:2] == ["bare", "ours"], "a round to warm up"
    assert order[2:] == ["bare", "ours", "ours", "bare"] * 2
    assert outcome.standings["ours"].rounds == 4
    assert [verdict.met for verdict in outcome.verdicts] == [False]
    with Lab(quick=True, report=print) as lab:
        assert run(contest([]), lab).standings["ours"].rounds == 2


def test_a_contestant_can_be_chosen_and_the_baseline_always_takes_part():
    with Lab(quick=True, report=print, only=("bar",)) as lab:
        outcome = run(contest([]), lab)
    assert set(outcome.standings) == {"bare"}
    assert outcome.verdicts == (), "who is judged by nobody has no verdict"
    with Lab(quick=True, report=print, only=("our",)) as lab:
        assert set(run(contest([]), lab).standings) == {"bare", "ours"}


def test_the_table_and_the_json_say_what_was_missed():
    with Lab(quick=False, report=print) as lab:
        outcome = run(contest([]), lab)
    table = as_table(outcome)
    assert "**missed** by 50%" in table
    assert "3.00 (3.00-3.00)" in table
    widths = {len(line) for line in table.splitlines() if line.startswith("| ")}
    assert len(widths) == 2, "both tables are aligned"
    plain = json.loads(json.dumps(as_json(outcome)))
    assert plain["contestants"]["ours"]["ratio"] == pytest.approx(3)
    assert plain["goals"][0]["met"] is False


def test_a_meter_sees_memory_that_is_given_back_and_children_that_end(tmp_path):
    with Meter() as meter:
        held = bytearray(b"x" * (40 * MB))
        subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
        del held
        with (tmp_path / "file").open("wb") as file:
            file.write(bytes(3 * MB))
    assert meter.usage.growth_mb > 30
    assert meter.usage.memory_mb > meter.usage.growth_mb
    assert meter.usage.cpu_seconds > 0.05, "the child's"


def test_an_isolated_turn_has_a_process_of_its_own():
    def contestant(*, isolated):
        return Contestant(name="who", turn=os.getpid, isolated=isolated)

    assert take_turn(contestant(isolated=False))[0] == os.getpid()
    assert take_turn(contestant(isolated=True))[0] != os.getpid()


def test_the_job_repeats_one_record_in_twenty():
    offsets = 40_000
    repeats = [offset for offset in range(offsets) if original(offset) != offset]
    assert len(repeats) == pytest.approx(offsets / 20, rel=0.05)
    assert all(original(original(offset)) == original(offset) for offset in repeats)
    assert all(offset - original(offset) > REPEAT_DISTANCE for offset in repeats)
    assert fresh_count(offsets) == offsets - len(repeats)


@pytest.mark.parametrize("noise", [False, True])
def test_the_job_is_the_same_every_time_and_its_outputs_never(noise):
    job, again = Job(noise=noise), Job(noise=noise)
    records = [job.record(offset) for offset in (0, 7, 5_019)]
    assert records == [again.record(offset) for offset in (0, 7, 5_019)]
    assert {len(record.value) for record in records} == {VALUE_BYTES}
    assert records[2].header("id") == job.record(original(5_019)).header("id")
    first, second = with_nonce(records[0]), with_nonce(records[0])
    assert first != second
    assert json.loads(first[0].value)["order"] == records[0].json()["order"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234"), (99.94, "99.9"), (1.234, "1.23"), (0.01234, "0.012"), (-2.5, "-2.50")],
)
def test_a_number_has_three_digits_that_mean_something(value, text):
    assert number(value) == text


def test_the_machine_is_described_without_naming_it():
    described = machine()
    assert described["cores"] >= 1
    assert "/" not in json.dumps(described["packages"])


def test_an_unknown_benchmark_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit):
        command.main(["nonsense"])
    assert "sqlite-append" in capsys.readouterr().err


def test_every_goal_is_a_figure_of_one_of_its_contestants():
    names = [benchmark.name for benchmark in command.BENCHMARKS]
    assert len(set(names)) == len(names)
    assert all(benchmark.goals for benchmark in command.BENCHMARKS)
