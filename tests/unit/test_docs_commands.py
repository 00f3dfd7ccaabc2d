"""What documents and messages name: blocks are run or pinned, commands exist with their options."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator

import click

from delivery.cli import delivery
from tests.pages import PINNED, ROOT, RUN, WHOLE, every, pages
from tests.unit.test_docs_failures import said

_INLINE = re.compile(r"`(delivery [^`\n]+)`")
_SHELL = {"sh", "console", "text"}
#: Packages that say by which verb they put lanes to rest, and the group that the verb is of. Messages
#: name it later, in words that fill it in.
RESTING = {"stage": "delivery/life", "catalog": "delivery/operate/migration"}


def shown() -> Iterator[tuple[str, list[str]]]:
    """Yield each command with the page it is on."""
    for block in every():
        if block.language in _SHELL:
            lines = (line.strip() for line in block.text.replace("\\\n", " ").splitlines())
            yield from ((block.page, words(line)) for line in lines if line.startswith("delivery "))
    for page, text in pages().items():
        yield from ((page, words(line)) for line in _INLINE.findall(text))


def words(line: str) -> list[str]:
    """Return what a command line says to `delivery`."""
    return shlex.split(line.partition(" | ")[0].partition(" > ")[0], comments=True)[1:]


def wrong(line: list[str]) -> str:
    """Say what a command line has that there is not; nothing if it is right."""
    command: click.Command = delivery
    name = "delivery"
    rest = [word.rstrip(".,;:)") for word in line]
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
    assert [(page, line, why) for page, line in found if (why := wrong(line))] == []


def test_every_block_is_run_or_pinned_with_its_reason():
    """Whoever adds a block lets a test run it, or says in tests/pages.py why none can."""
    free = [one for one in every() if not one.pins and one.language not in WHOLE]
    counts = Counter((one.page, one.language) for one in free)
    assert counts == {where: count for where, (count, _) in RUN.items()}


def test_every_pin_holds_one_block():
    held = Counter(pin for one in every() for pin in one.pins)
    assert held == dict.fromkeys(PINNED, 1)


def test_the_tests_that_run_blocks_speak_of_their_pages():
    for (page, _), (_, test) in RUN.items():
        text = (ROOT / test).read_text().replace("{HOW_TO}", "docs/how-to")
        assert page in text, test
    assert [test for test in WHOLE.values() if not (ROOT / test).exists()] == []


def test_the_targets_that_are_shown_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {
        target
        for one in every()
        if one.language in _SHELL
        for target in re.findall(r"^make ([a-z-]+)", one.text, re.MULTILINE)
    }
    assert {"demo", "test"} <= shown <= targets


def resting(package: str) -> set[str]:
    """Return every verb by which a package puts lanes to rest: what it gives as `verb=`."""
    found: set[str] = set()
    for path in (ROOT / package).rglob("*.py"):
        tree = ast.parse(path.read_text())
        given = [
            word.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            for word in node.keywords
            if word.arg == "verb"
        ]
        given += [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VERB"
        ]
        found |= {str(value.value) for value in given if isinstance(value, ast.Constant)}
    return found


def named() -> Iterator[list[str]]:
    """Yield every command that a string of the code names, with each verb that may be filled in."""
    for text in said().splitlines():
        whole = [text] if re.fullmatch(r"delivery( [a-z…-]+)+", text) else []
        for line in map(words, [*whole, *_INLINE.findall(text)]):
            if line[1:2] == ["…"] and line[0] in RESTING:
                yield from (
                    [line[0], verb, *line[2:]] for verb in sorted(resting(RESTING[line[0]]))
                )
            else:
                yield line


def test_messages_name_only_what_exists():
    found = list(named())
    assert len(found) > 100
    assert [(line, why) for line in found if (why := wrong(line))] == []
    # Nothing else is filled in where a verb stands.
    assert [
        line for line in found if line[0] == "…" or (line[0] in RESTING and "…" in line[1:2])
    ] == []


def test_every_verb_that_puts_lanes_to_rest_is_known():
    assert resting(RESTING["catalog"]) == {"migrate"}
    (stage,) = [delivery.get_command(click.Context(delivery), "stage")]
    assert isinstance(stage, click.Group)
    assert resting(RESTING["stage"]) == set(stage.list_commands(click.Context(stage))) - {"list"}


def test_what_does_not_exist_is_noticed():
    assert wrong(["catalog", "mend", "sqlite:shop.db"]) == "there is no mend"
    assert wrong(["catalog", "repair", "sqlite:shop.db", "--hard"]) == "repair has no --hard"
