"""The tutorial, typed in from an empty directory: what a new user does, and what the page promises.

It begins where the user begins, at a new environment and at `pip install`: of the wheel, and of what
the wheel wants, which is linked from the environment that runs the tests instead of being fetched.
"""

from __future__ import annotations

import os
import re
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.integration.test_pages_typed import bash
from tests.pages import Block, blocks, every
from tests.wheel import build, link, wanted

PAGE = "docs/tutorial.md"
#: What is promised to a new user, reading included; two minutes on an idle machine, the broker's start
#: and two of Spark's among them.
SECONDS_MAX = 600.0
#: What a machine says of the environment that it is in; none of it may come from here.
OURS = re.compile(r"PYTHON|PYSPARK|PIP_|VIRTUAL_ENV")
PROJECT = "exactly-once-delivery[all]"
#: What the page says in its place, as long as there is no index to fetch it from.
CLONE = "/path/to/your/clone[all]"


def page() -> list[Block]:
    """The blocks of the page, in order."""
    return [one for one in every() if one.page == PAGE]


@pytest.fixture
def index(tmp_path: Path) -> dict[str, str]:
    """A shell's environment, in which pip knows our wheel and nothing else."""
    dist = tmp_path / "dist"
    build(dist)
    kept = {name: value for name, value in os.environ.items() if not OURS.match(name)}
    return kept | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(dist)}


@pytest.fixture
def linking(tmp_path: Path) -> str:
    """What puts distributions into the environment that was just made, said to its shell."""
    locked = tmp_path / "locked"
    locked.mkdir()
    others = [*wanted("pytest").values(), distribution("pytest")]
    link([*wanted(PROJECT).values(), *others], locked)
    return f'ln --symbolic "{locked}"/* .venv/lib/python*/site-packages/'


def installing(text: str, linking: str) -> list[str]:
    """Return the lines of a block that installs the package: from where it is, and what it wants."""
    make, install, *rest = text.splitlines()
    assert CLONE in install
    found = 'python -c "import delivery; print(delivery.__file__)"'
    return [make, linking, install.replace(CLONE, PROJECT), *rest, found]


def typed(lines: list[str], here: Path, index: dict[str, str]) -> str:
    """Type lines into a shell; return what was printed. What is installed there is what is run."""
    said = bash(here, lines, index, SECONDS_MAX)
    package = rf"^{re.escape(str(here / '.venv'))}/\S+/delivery/__init__.py$"
    assert re.search(package, said, re.MULTILINE), "not this checkout"
    return said


def test_the_readme_installs_it(tmp_path: Path, index: dict[str, str], linking: str) -> None:
    here = tmp_path / "empty"
    here.mkdir()
    (text,) = blocks("README.md", "console")
    said = typed(installing(text, linking), here, index)
    assert re.search(r"^ok +java +17", said, re.MULTILINE), said


def test_the_page_typed_in_from_an_empty_directory(
    tmp_path: Path, index: dict[str, str], linking: str
) -> None:
    here = tmp_path / "empty"
    here.mkdir()
    lines: list[str] = []
    for one in page():
        if one.language == "py":
            assert one.title, one.text
            lines.append(f"cat > {one.title} <<'END OF FILE'\n{one.text}END OF FILE")
        elif one.language == "console":
            lines += installing(one.text, linking)
        elif one.language == "sh":
            lines.append(one.text)
    try:
        said = typed(lines, here, index)
    finally:
        # Whatever it was stopped by, its broker goes.
        if (installed := here / ".venv" / "bin" / "delivery").exists():
            subprocess.run([installed, "down"], cwd=here, capture_output=True, check=True)
    for one in page():
        if one.language == "text":
            assert one.text.strip() in said, said
    # The driver was killed in the middle, and what came after it was done by another.
    (frontier,) = re.findall(r"^shop/price .* ([\d,]+)  \S+ \w+$", said, re.MULTILINE)
    assert 0 < int(frontier.replace(",", "")) < 4_400, said
    assert said.count("exact: every input has one effect") == 1
    assert re.search(r"^shop/invoice .* invoices ", said, re.MULTILINE), said
    assert "orders partition 0 offset 17" in said
