"""Every Python block of the documents is a test that passes, page by page, in the order it stands."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from delivery.testing.plan import plan_of
from tests.pages import ROOT, blocks, pages

TESTING = "docs/testing.md"
PAGES = {page: code for page in pages() if (code := blocks(page, "python"))}
NAMES = [
    (page, name)
    for page, code in sorted(PAGES.items())
    for name in re.findall(r"^def (test_\w+)", "\n".join(code), re.MULTILINE)
]


def typed_in(page: str) -> dict[str, Any]:
    """Return what a reader has who typed in the whole page."""
    known: dict[str, Any] = {}
    for block in PAGES[page]:
        exec(compile(block, page, "exec"), known)  # noqa: S102 - our own document is what is tested
    return known


@pytest.mark.parametrize(("page", "name"), NAMES)
def test_the_page_is_true(page, name, request):
    test = typed_in(page)[name]
    test(*(request.getfixturevalue(wanted) for wanted in inspect.signature(test).parameters))


def test_no_block_is_left_out():
    assert [block for code in PAGES.values() for block in code if "def test_" not in block] == []
    assert len(NAMES) == len(set(NAMES)) > 10
    assert {"README.md", "docs/protocol.md", TESTING} <= set(PAGES)


def test_what_a_failure_prints_is_what_the_page_shows():
    page = typed_in(TESTING)
    with pytest.raises(page["StoppedByRecordError"]) as failed:
        page["run"](
            page["reserve"],
            [page["Record"](value=b"a ticket")],
            crash="everywhere",
            setup=page["open_the_box"],
        )
    shown = blocks(TESTING, "text")[0].splitlines()
    assert str(failed.value).startswith(shown[0].removesuffix("..."))
    assert str(failed.value).endswith(shown[-1])


def test_every_plan_on_the_page_can_be_read():
    lines = re.findall(r"\b(?:crash-\w+|zombie)@[\w.:]+\b", (ROOT / TESTING).read_text())
    assert len([plan_of(line) for line in lines]) > 3
    # The line that the plugin prints, as test_plugin.py reads it.
    shown = re.fullmatch(r"Or with: pytest \S+ --delivery-plan (\S+)\n", blocks(TESTING, "text")[1])
    assert shown is not None
    assert plan_of(shown[1])
