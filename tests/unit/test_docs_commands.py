"""What documents show and no test runs: commands exist with their options, Python is Python."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from delivery.cli import delivery

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
_BLOCK = re.compile(r"^ *```(?:sh|console)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^ *```py(?: [^\n]*)?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(delivery [^`\n]+)`")


def shown() -> Iterator[tuple[str, list[str]]]:
    """Yield each command with the page it is on."""
    for page in PAGES:
        text = page.read_text()
        lines = [
            line.strip()
            for block in _BLOCK.findall(text)
            for line in block.replace("\\\n", " ").splitlines()
        ]
        found = [line for line in lines if line.startswith("delivery ")] + _INLINE.findall(text)
        for command in found:
            words = shlex.split(command.partition(" | ")[0].partition(" > ")[0], comments=True)
            yield page.relative_to(ROOT).as_posix(), words[1:]


def wrong(words: list[str]) -> str:
    """Say what a command line has that there is not; nothing if it is right."""
    command: click.Command = delivery
    name = "delivery"
    rest = [word.rstrip(".,;:)") for word in words]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        if found is None:
            # Several verbs at once, or one that is named by what stands for it.
            return "" if re.search(r"[…|A-Z{]", rest[0]) else f"there is no {rest[0]}"
        command, name, rest = found, rest[0], rest[1:]
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    known |= {"--help", "-h", "--version"}
    odd = [word for word in rest if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known]
    return f"{name} has no {', '.join(odd)}" if odd else ""


def test_every_command_that_is_shown_exists():
    found = list(shown())
    assert len(found) > 60
    assert [(page, words, why) for page, words in found if (why := wrong(words))] == []


def test_every_piece_of_python_is_python():
    pieces = [
        (page, textwrap.dedent(block))
        for page in PAGES
        for block in _PYTHON.findall(page.read_text())
    ]
    assert len(pieces) > 10
    for page, text in pieces:
        compile(text, page.name, "exec", flags=ast.PyCF_ONLY_AST)


def test_what_does_not_exist_is_noticed():
    assert wrong(["catalog", "mend", "sqlite:shop.db"]) == "there is no mend"
    assert wrong(["catalog", "repair", "sqlite:shop.db", "--hard"]) == "repair has no --hard"
