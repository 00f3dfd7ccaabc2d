"""Every Python block of the documents is a test that passes, page by page, in the order it stands."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from delivery.testing.plan import plan_of

ROOT = Path(__file__).resolve().parents[2]
TESTING = "docs/testing.md"


def blocks(page: str, language: str) -> list[str]:
    """Return the code of a page in one language."""
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


PAGES = {
    page: code
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if (code := blocks(page := path.relative_to(ROOT).as_posix(), "python"))
}
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
