"""Every code block of docs/testing.md is a test that passes, in the order it stands there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from delivery.testing.plan import plan_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
TEXTS = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
NAMES = [name for block in BLOCKS for name in re.findall(r"^def (test_\w+)", block, re.MULTILINE)]


@pytest.fixture
def page() -> dict[str, Any]:
    """What a reader has who typed in the whole page."""
    known: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), known)  # noqa: S102 - our own document is what is tested
    return known


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_true(page, name, request):
    test = page[name]
    test(*(request.getfixturevalue(wanted) for wanted in inspect.signature(test).parameters))


def test_no_block_is_left_out():
    assert [block for block in BLOCKS if "def test_" not in block] == []
    assert len(NAMES) == len(set(NAMES)) > 10


def test_what_a_failure_prints_is_what_the_page_shows(page):
    with pytest.raises(page["StoppedByRecordError"]) as failed:
        page["run"](
            page["reserve"],
            [page["Record"](value=b"a ticket")],
            crash="everywhere",
            setup=page["open_the_box"],
        )
    shown = TEXTS[0].splitlines()
    assert str(failed.value).startswith(shown[0].removesuffix("..."))
    assert str(failed.value).endswith(shown[-1])


def test_every_plan_on_the_page_can_be_read():
    lines = re.findall(r"\b(?:crash-\w+|zombie)@[\w.:]+\b", PAGE.read_text())
    assert len([plan_of(line) for line in lines]) > 3
