"""The blocks of the documents: which there are, where each is run, and why some cannot be.

What it is: `blocks`, and two tables: `RUN` and `PINNED`. Every block stands in one of them, or is of a
language that one test runs whole (`WHOLE`).
What it must not know: how any block is run.

Invariants:
    What would run a pinned block needs something that no test may have, and the reason says what.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HOW_TO = "docs/how-to"

UNIT, INTEGRATION = "tests/unit", "tests/integration"
#: Languages every block of which one test runs, and that test.
WHOLE = {
    "python": f"{UNIT}/test_docs_code.py",
    "hex": f"{UNIT}/test_formats_doc.py",
    "mermaid": "tests/crash/test_page.py",
}
#: By page and language: how many blocks a test runs, or holds against what was printed, and which test.
RUN = {
    ("README.md", ""): (1, f"{INTEGRATION}/test_examples.py"),
    ("README.md", "console"): (1, f"{INTEGRATION}/test_tutorial.py"),
    ("README.md", "py"): (2, f"{INTEGRATION}/test_pages.py"),
    ("README.md", "sh"): (1, f"{INTEGRATION}/test_pages_typed.py"),
    ("docs/life.md", "sh"): (1, f"{INTEGRATION}/test_pages_typed.py"),
    ("docs/protocol.md", "sh"): (1, f"{INTEGRATION}/test_pages_typed.py"),
    ("docs/switching-on.md", "py"): (2, f"{INTEGRATION}/test_pages.py"),
    ("docs/testing.md", "text"): (2, f"{UNIT}/test_docs_code.py"),
    ("docs/tutorial.md", "console"): (1, f"{INTEGRATION}/test_tutorial.py"),
    ("docs/tutorial.md", "py"): (3, f"{INTEGRATION}/test_tutorial.py"),
    ("docs/tutorial.md", "sh"): (6, f"{INTEGRATION}/test_tutorial.py"),
    ("docs/tutorial.md", "text"): (2, f"{INTEGRATION}/test_tutorial.py"),
    ("docs/wrapping.md", "py"): (1, f"{INTEGRATION}/test_wrap_bounded.py"),
    (f"{HOW_TO}/add-a-receiver.md", "py"): (2, f"{INTEGRATION}/test_pages.py"),
    (f"{HOW_TO}/avro-and-protobuf.md", "py"): (2, f"{UNIT}/test_docs_codecs.py"),
    (f"{HOW_TO}/delete-data.md", "sh"): (1, f"{INTEGRATION}/test_pages_typed.py"),
    (f"{HOW_TO}/deploy.md", "dockerfile"): (1, f"{INTEGRATION}/test_pages_clusters.py"),
    (f"{HOW_TO}/deploy.md", "sh"): (3, f"{INTEGRATION}/test_pages_clusters.py"),
    (f"{HOW_TO}/from-sqlite-to-cassandra.md", "py"): (1, f"{INTEGRATION}/test_pages.py"),
    (f"{HOW_TO}/from-sqlite-to-cassandra.md", "sh"): (1, f"{INTEGRATION}/test_pages.py"),
    (f"{HOW_TO}/from-sqlite-to-cassandra.md", "sql"): (1, f"{INTEGRATION}/test_pages.py"),
    (f"{HOW_TO}/recover-a-lost-catalog.md", "sh"): (2, f"{INTEGRATION}/test_pages_typed.py"),
    (f"{HOW_TO}/wrap-an-existing-job.md", "py"): (1, f"{INTEGRATION}/test_pages.py"),
}


class Pin(NamedTuple):
    """A block that nothing runs: its page, how it begins, and why."""

    page: str
    begins: str
    why: str


PINNED = [
    Pin(
        "README.md",
        "make demo",
        "tests that run all tests; the demo runs in tests/integration/test_examples.py",
    ),
    Pin("docs/ARCHITECTURE.md", "topic", "a picture"),
    Pin("docs/bench-peers.md", "make bench-peers", "peers come from a registry, and take minutes"),
]


class Block(NamedTuple):
    """One fenced block, as it is typed in: without the indent of the list that it stands in."""

    page: str
    language: str
    title: str
    text: str

    @property
    def pins(self) -> list[Pin]:
        """Which pins hold it; one, or none."""
        found = (pin for pin in PINNED if pin.page == self.page)
        return [pin for pin in found if self.text.lstrip().startswith(pin.begins)]


def pages() -> dict[str, str]:
    """Return the text of every document, by its path."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(found)}


def every() -> list[Block]:
    """Return every block of every document, in order."""
    pattern = re.compile(
        r'^( *)```([a-z]*)(?: (?:title="([\w.]+)"|[^\n]*))?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL
    )
    return [
        Block(page, language, title, textwrap.dedent(text))
        for page, whole in pages().items()
        for _, language, title, text in pattern.findall(whole)
    ]


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a page in one language that are run."""
    return [
        one.text for one in every() if (one.page, one.language) == (page, language) and not one.pins
    ]
