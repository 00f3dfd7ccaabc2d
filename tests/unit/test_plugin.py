"""The pytest plugin, run in projects of its own."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

# pytester forgets what a run has imported, and numpy cannot be imported twice: it is here already.
from delivery.testing.plugin import OPTION
from delivery.testing.trials import EVERYWHERE

pytest_plugins = ["pytester"]

#: Not ours, and slower than what is tested here.
WITHOUT = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")

FRAGILE = """
from delivery.testing import Record

def test_fragile(delivery_run):
    tickets = []

    def refill():
        tickets[:] = ["1"]

    def draw(record):
        return record.replace(value=tickets.pop())

    delivery_run(draw, [Record(value=b"a")], crash="everywhere", setup=refill)

def test_sound(delivery_run):
    result = delivery_run(lambda record: record.replace(), [Record(value=b"a")], crash="everywhere")
    assert len(result) == 1
    print("plans:", result.plans)
"""


@pytest.fixture
def project(pytester):
    """A project with one stage that cannot run twice and one that can."""
    pytester.makepyfile(test_stage=FRAGILE)
    return pytester


def test_a_failure_names_the_command_that_replays_it(project):
    result = project.runpytest_inprocess(*WITHOUT)
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    command = re.search(r"Or with: pytest (\S+) --delivery-plan (\S+)", text)
    assert command
    assert command[1] == "test_stage.py::test_fragile"
    again = project.runpytest_inprocess(*WITHOUT, command[1], OPTION, command[2])
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(
        [f'delivery: crash="{EVERYWHERE}" is only the plan {command[2]}', "*IndexError*"]
    )
    assert "Or with" not in again.stdout.str()


def test_a_plan_stands_for_everywhere(project):
    plan = (OPTION, "crash-before@store.create:1")
    result = project.runpytest_inprocess(*WITHOUT, "-s", "-k", "sound", *plan)
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["*plans: 1*"])


def test_without_the_option_nothing_is_said(project):
    result = project.runpytest_inprocess(*WITHOUT, "-s", "-k", "sound")
    result.assert_outcomes(passed=1, deselected=1)
    assert "delivery:" not in result.stdout.str()


def test_it_can_be_switched_off(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    pytester.runpytest_inprocess(*WITHOUT, "-p", "no:delivery").assert_outcomes(passed=1)
    help_text = pytester.runpytest_inprocess(*WITHOUT, "-p", "no:delivery", "--help").stdout.str()
    assert OPTION not in help_text


def test_a_project_that_does_not_use_it_pays_nothing():
    heavy = {"numpy", "pyarrow", "xxhash", "kafka", "pyspark", "dedup.model"}
    code = (
        f"import sys, pytest, delivery.testing.plugin; print(*sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
