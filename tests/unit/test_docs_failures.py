"""What docs/failures.md quotes is what the code says: every text in its tables is found there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dedup import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "failures.md").read_text()
PACKAGES = ("dedup", "delivery", "sinks", "connectors")
#: Sections whose first column quotes errors.
QUOTING = ("Starting", "Running", "Receivers", "The catalog")
#: What stands in a table's code spans and is a command or code, not words of an error.
_WORDS = re.compile(r"\w+( \S+){2,}")


def said() -> str:
    """Every string of the code, one a line; what is filled in is an ellipsis."""
    found: list[str] = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
                elif isinstance(node, ast.JoinedStr):
                    found.append("".join(map(part, node.values)))
    return "\n".join(text.replace("\n", " ") for text in found)


def part(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else "…"


def section(name: str) -> list[list[str]]:
    """The cells of the rows of a section's table, without its first two lines."""
    lines = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


QUOTES = [
    (name, quote.strip())
    for name in QUOTING
    for row in section(name)
    for quote in (re.findall(r"`` (.+?) ``", row[0]) or re.findall(r"`([^`]+)`", row[0]))
    if _WORDS.match(quote.strip().lstrip("`"))
]


@pytest.fixture(scope="module")
def strings() -> str:
    return said()


@pytest.mark.parametrize(("where", "quote"), QUOTES, ids=lambda text: text[:40])
def test_the_code_says_it(strings, where, quote):
    # What is filled in may be any of the code's own pieces, on one line.
    pattern = r"[^\n]*?".join(re.escape(piece.strip()) for piece in quote.split("…"))
    assert re.search(pattern, strings), f"{where}: {quote}"


def test_enough_is_quoted():
    assert len(QUOTES) > 30
    assert {name for name, _ in QUOTES} == set(QUOTING)


def test_the_kinds_are_those_there_are():
    told = {row[0].strip("`"): int(row[1]) for row in section("By kind")}
    kinds = {
        kind.__name__: kind.exit_code
        for name in errors.__all__
        if (kind := getattr(errors, name)) is not errors.DeliveryError
    }
    assert told == kinds


def test_every_row_says_what_it_means_and_what_to_do():
    names = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    short = [row for name in names for row in section(name) if len(row) < 3 or not all(row)]
    assert short == []
