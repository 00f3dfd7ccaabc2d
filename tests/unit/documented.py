"""What pages say of verbs, held against what verbs print with --json.

What it is: `undocumented`, called once at least for every verb; `checked` finds who calls it.
What it must not know: any single verb.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from tests.pages import ROOT, pages

#: Keys whose values are keyed by something that is said in words.
OPEN = {
    *("counts", "sizes", "start", "end", "proved", "unproved", "receivers", "labels"),
    *("before", "after", "offsets"),
}
#: Keys whose values may be keyed by names, behind which there are keys again.
NAMED = {"lanes", "nodes", "metrics", "repeats"}
#: Pages whose sections say what verbs print.
_PAGES = ("docs/operations.md", "docs/watching.md", "docs/metrics.md")
#: Verbs of which one table speaks for all.
_LIFE = "docs/life.md"


def section(verb: str) -> str:
    """What the pages say of a verb."""
    texts = pages()
    heading = f"### `delivery {verb}`\n"
    (found,) = [texts[page] for page in (*_PAGES, _LIFE) if heading in texts[page]]
    if found == texts[_LIFE]:
        return found
    return re.split(r"\n##+ ", found.partition(heading)[2])[0]


def keys(found: Any) -> Iterator[str]:
    """Every key of a document."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield key
            if key in NAMED and isinstance(value, dict):
                yield from keys(list(value.values()))
            elif key not in OPEN:
                yield from keys(value)
    elif isinstance(found, list):
        for value in found:
            yield from keys(value)


def undocumented(verb: str, found: Any, *also: str) -> set[str]:
    """Return the keys of a document of a verb of which neither its section nor others speak."""
    told = "".join(map(section, (verb, *also)))
    return set(keys(found)) - set(re.findall(r"`([\w.]+)`", told))


def checked() -> set[str]:
    """Return the verbs of which tests call `undocumented`, by what stands there as the verb.

    A name is that of a parameter: the first words of the cases that the test is given.
    """
    found: set[str] = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "undocumented(" not in (text := path.read_text()):
            continue
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef):
                continue
            asked = [
                node.args[0]
                for node in ast.walk(function)
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "undocumented"
            ]
            found |= {str(one.value) for one in asked if isinstance(one, ast.Constant)}
            if any(isinstance(one, ast.Name) for one in asked):
                found |= _cases(function)
    return found


def _cases(function: ast.FunctionDef) -> set[str]:
    """Return the first word of each case of a test."""
    lists = [
        decorator.args[1]
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and "parametrize" in ast.unparse(decorator.func)
    ]
    firsts = [
        ast.literal_eval(case) for one in lists if isinstance(one, ast.List) for case in one.elts
    ]
    return {case[0] if isinstance(case, tuple) else case for case in firsts}
