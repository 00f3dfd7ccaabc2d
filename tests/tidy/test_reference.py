"""docs/reference.md says what the code says, and leaves out nothing that a user may set."""

from __future__ import annotations

import ast
import re

import pytest

import delivery
import delivery.testing
from tests.generated import filled
from tests.tidy.docstrings import arguments, entry, members, told
from tests.tidy.reference import COMMAND, PAGE, PARTS, verbs


def test_the_page_is_up_to_date():
    page = PAGE.read_text()
    assert page == filled(page, PARTS), f"run `{COMMAND}` and read the difference"


@pytest.mark.parametrize("name", PARTS)
def test_a_page_that_differs_is_noticed(name):
    page, part = PAGE.read_text(), {name: PARTS[name]}
    line = part[name]().strip().splitlines()[-1]
    spoilt = page.replace(line + "\n", "", 1)
    assert spoilt != page
    assert filled(spoilt, part) == filled(page, part)


def test_every_exported_name_and_every_verb_is_on_it():
    headings = set(re.findall(r"^#{3,4} (.*)$", PAGE.read_text(), re.MULTILINE))
    exported = {*delivery.__all__, *delivery.testing.__all__}
    assert exported - headings == set()
    assert {words for words, _ in verbs(delivery.cli.delivery)} - headings == set()


def test_every_argument_of_a_pipeline_is_explained():
    silent = [
        f"{name}: {one.name}"
        for name, thing in [("Delivery", delivery.Delivery), *members(delivery.Delivery)]
        for one in arguments(thing)
        if one.name not in told(thing)[1].get("Args", {})
    ]
    assert silent == []


def test_an_entry_says_what_there_is_to_say():
    def mend(stage: str, *, often: int = 3, call: object = print) -> bool:
        """Mend a stage.

        Again and again.

        Args:
            stage: its name, which
                may be long.
            often: how often: at most.
            call: what is called.

        Returns:
            Whether it helped.

        Raises:
            InvalidUsage: there is none.
        """

    assert list(entry("mend", mend)) == [
        *("### mend", "", "Mend a stage.\n\nAgain and again.", ""),
        "- `stage: str`: its name, which may be long.",
        "- `often: int = 3`: how often: at most.",
        "- `call: object = ...`: what is called.",
        "- raises `InvalidUsage`: there is none.",
        "- returns `bool`: Whether it helped.",
        "",
    ]


def variables(library) -> set[str]:
    """Return the environment variables that the four packages read or set."""
    names = [name for one in library for node in ast.walk(one.tree) for name in named_by(node)]
    texts = [name.value for name in names if isinstance(name, ast.Constant)]
    return {text for text in texts if isinstance(text, str)}


def named_by(node: ast.AST) -> list[ast.expr]:
    """Return what names an environment variable here, if anything does."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ")), args=[name, *_]):
            return [name]
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=name):
            return [name]
        case ast.Compare(left=name, comparators=[ast.Attribute(attr="environ")]):
            return [name]
        case ast.keyword(arg="envvar", value=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=target)], value=name) if target.endswith("VARIABLE"):
            return [name]
    return []


def test_every_environment_variable_is_explained(library):
    table = PAGE.read_text().partition("### Environment variables\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert explained == variables(library)
