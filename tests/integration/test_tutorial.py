"""The tutorial, typed in from an empty directory: what a new user does, and what the page promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
#: What is promised to a new user, reading included; two minutes on an idle machine, the broker's start
#: and two of Spark's among them.
SECONDS_MAX = 600.0
_BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str, str]]:
    """Language, title and text of each block, in order."""
    return _BLOCK.findall(PAGE.read_text())


@pytest.fixture
def environment():
    """A shell's, in which the project is installed."""
    tools = Path(sys.executable).parent
    return os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}


def test_the_page_typed_in_from_an_empty_directory(tmp_path, environment):
    for language, title, text in blocks():
        if language == "py":
            assert title, text
            (tmp_path / title).write_text(text)
    script = "\n".join(text for language, _, text in blocks() if language == "sh")
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    finally:
        # Whatever it was stopped by, its broker goes.
        subprocess.run(
            ["delivery", "down"], cwd=tmp_path, env=environment, capture_output=True, check=True
        )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    for language, _, text in blocks():
        if language == "text":
            assert text.strip() in said, said
    # The driver was killed in the middle, and what came after it was done by another.
    (frontier,) = re.findall(r"^shop/price .* ([\d,]+)  \S+ \w+$", said, re.MULTILINE)
    assert 0 < int(frontier.replace(",", "")) < 4_400, said
    assert said.count("exact: every input has one effect") == 2
    assert "orders partition 0 offset 17" in said


def test_every_block_is_of_a_known_kind():
    kinds = {language for language, _, _ in blocks()}
    assert kinds == {"console", "sh", "py", "text"}
