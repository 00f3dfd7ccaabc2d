"""The table of suite seconds in CONTRIBUTING.md is complete, within budget, and believed."""

from __future__ import annotations

import importlib.util

import pytest

BUDGET_SECONDS = 40 * 60


@pytest.fixture(scope="module")
def hook(root):
    """The functions of tests/conftest.py, which hold a run to the table."""
    spec = importlib.util.spec_from_file_location("suite_hook", root / "tests" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_suite_has_a_row_and_every_row_a_suite(suite_table, hook, root):
    there = {
        path.parent.relative_to(root / "tests").parts[0]
        for path in root.glob("tests/*/**/test_*.py")
    }
    there |= {path.parent.name for path in root.glob("tests/*/test_*.py")}
    assert sorted(suite_table) == sorted({*there, *hook.COMMANDS})


def test_the_whole_stays_within_its_budget(suite_table):
    assert sum(suite_table.values()) <= BUDGET_SECONDS


def test_every_suite_has_its_place_in_the_order(suite_table, hook):
    assert sorted(set(suite_table) - set(hook.COMMANDS) - set(hook.SUITES)) == []


def test_a_suite_that_outgrew_its_row_is_named(hook):
    expected = {"unit": 5, "crash": 100}
    assert hook.complaints(expected, {"unit": 25.0, "crash": 310.0}) == []
    assert [c.split()[1] for c in hook.complaints(expected, {"unit": 25.1, "crash": 311.0})] == [
        "crash",
        "unit",
    ]
    assert len(hook.complaints({}, {"new": 11.0})) == 1


def test_the_table_is_read_from_its_own_section_only(hook):
    text = "| `a` | 1 |\n## Suite seconds\n| suite | seconds |\n| `b` | 2 | x |\n## Next\n| `c` | 3 |\n"
    assert hook.table(text) == {"b": 2}


def test_a_suite_is_the_directory_below_tests(hook):
    assert hook.suite_of("tests/unit/deep/test_a.py::test_b[c/d]") == "unit"
    assert hook.suite_of("tests/test_a.py::test_b") == ""
