"""What the pipeline benchmarks reckon from what came out, without any server."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from bench.cluster import MICRO_BATCHES, STEADY
from bench.dedup import Stopwatch
from bench.driving import Curve
from bench.job import VALUES, Job, original, originals
from bench.output import FIRST_ORDER, Came, orders_of
from bench.pipeline import BENCHMARKS, WAYS
from bench.recovery import _first_of_each, _judge, _made_after, _unseen
from bench.sizing import bends, beyond
from bench.user_code import cost_us, fingerprint, nonce


def came(*rows: tuple[int, int]) -> Came:
    """Return outputs: order and stamp of each; a record was made at a hundred times its order."""
    orders, stamps = np.array(rows, np.int64).reshape(-1, 2).T
    values = [
        json.dumps({"order": FIRST_ORDER + order, "made_ms": order * 100}).encode()
        for order, _ in rows
    ]
    nothing = np.empty(0, np.int64)
    return Came(stamps_ms=stamps, orders=orders, seen_ms=stamps, parents=nothing, values=values)


def test_originals_are_those_of_each_offset():
    offsets = 25_000
    assert originals(offsets).tolist() == [original(offset) for offset in range(offsets)]


def test_orders_are_read_out_of_values_as_they_were_published():
    job = Job()
    values = [job.record(offset).value or b"" for offset in (0, 7, 5_019, VALUES + 3)]
    assert orders_of([]).tolist() == []
    assert orders_of(values).tolist() == [0, 7, original(5_019), 3]
    assert orders_of([nonce(value) for value in values]).tolist() == orders_of(values).tolist()


def test_the_steady_span_is_a_whole_number_of_micro_batches():
    batches = (STEADY[1] - STEADY[0]) * MICRO_BATCHES
    assert batches == pytest.approx(round(batches))
    assert round(batches) >= 8


def test_user_code_costs_something_and_a_fingerprint_is_always_the_same():
    value = Job().record(3).value or b""
    assert 0.1 < cost_us(nonce, [value] * 100) < 10_000
    assert nonce(value) != nonce(value)
    assert fingerprint(value) == fingerprint(value)
    assert len(fingerprint(value)) == len(nonce(value))


def test_spark_gets_its_input_in_batches_and_who_needs_none_is_told_nothing():
    assert {name for name, way in WAYS.items() if way.micro_batches} == {
        name for name, way in WAYS.items() if way.way != "resident"
    }
    goals = {goal.says for benchmark in BENCHMARKS for goal in benchmark.goals}
    assert any("deterministic" in says for says in goals)


def test_new_output_is_what_had_not_come_out_before_the_dead_were_silent():
    output = came(
        (0, 1), (1, 2), (2, 3), (3, 4), (0, 90), (4, 95), (1, 96), (5, 99), (6, 97), (7, 98)
    )
    assert output.orders[_unseen(output, 50)].tolist() == [4, 5, 6, 7]
    assert _first_of_each(output, _unseen(output, 50)).tolist() == [95, 99, 97, 98]
    assert output.orders[_made_after(output, 400)].tolist() == [5, 6, 7]


def test_a_partition_without_new_output_is_no_recovery():
    output = came((0, 1), (1, 90), (2, 91))
    with pytest.raises(ValueError, match="zero-size"):
        _first_of_each(output, _unseen(output, 50))


def test_a_kill_that_loses_an_order_or_makes_two_of_it_is_no_figure():
    _judge(came((0, 1), (1, 2), (1, 3)), 2, WAYS["plain PySpark + dropDuplicates"])
    with pytest.raises(AssertionError, match="1 of 3 orders were lost"):
        _judge(came((0, 1), (2, 2)), 3, WAYS["plain PySpark"])
    twice = came((0, 1), (1, 2), (1, 3))
    twice.values[2] += b" "
    with pytest.raises(AssertionError, match="2 orders came out in 3 versions"):
        _judge(twice, 2, WAYS["plain PySpark + dropDuplicates"])


def test_a_curve_tells_the_cpu_of_a_span_with_children_and_nobody_elses():
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**7))'])"
    program = f"import sys; print(flush=True); sys.stdin.readline(); {busy}; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        curve = Curve(process.pid)
        curve.look()
        began = time.time() * 1000
        process.stdin.write("\n")
        process.stdin.flush()
        sum(range(3_000_000))  # ours, which does not count
        process.stdout.readline()
        curve.look()
        middle = time.time() * 1000
        curve.look()
        process.stdin.close()
    assert curve.seconds(began, middle) > 0.05
    assert curve.seconds(middle + 1, middle + 1000) == 0
    assert curve.memory_mb > 1


def test_a_stopwatch_leaves_out_what_is_done_beside():
    watch = Stopwatch()
    for beside in (0, 3_000_000):
        with watch.on():
            sum(range(1_000_000))
        sum(range(beside))
        watch.lap()
    quick, slow = watch.seconds
    assert 0 < slow < 3 * quick


def test_an_extrapolation_is_a_line_through_the_last_two_and_never_falls():
    assert beyond([1, 10, 100], [9.0, 1.0, 2.0], 10_000, logarithmic=True) == pytest.approx(4)
    assert beyond([1, 100], [1.0, 100.0], 10_000) == pytest.approx(10_000)
    assert beyond([1, 100], [3.0, 2.0], 10_000) == 2


def test_a_curve_that_is_flat_has_exponent_0_and_one_in_proportion_1():
    found = bends(["a", "b", "c"], [1, 10, 100], [2.0, 2.0, 20.0])
    assert found == {"a to b": pytest.approx(0), "b to c": pytest.approx(1)}
