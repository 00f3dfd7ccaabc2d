"""How long, how pure and how connected the sources may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from delivery.cli import VERBS

LINES_PER_MODULE_MAX = 400
LINES_PER_FUNCTION_MAX = 70
#: Modules over the limit, with their length today. A pin may only shrink, and goes at the limit.
MODULES_PINNED: dict[str, int] = {}
#: Functions over the limit ("path:function"), with their length today. The same rule.
FUNCTIONS_PINNED: dict[str, int] = {}

#: What takes events and returns instructions, so that every interleaving can be enumerated.
PURE = ("delivery/protocol/",)
#: What a pure module may not import, because it answers differently the second time.
IMPURE = (
    *("asyncio", "concurrent", "datetime", "logging", "multiprocessing", "os", "pathlib", "random"),
    *("secrets", "socket", "sqlite3", "subprocess", "sys", "tempfile", "threading", "time", "uuid"),
    *("cassandra", "confluent_kafka", "kafka", "py4j", "pyspark"),
)
IMPURE_CALLS = ("breakpoint", "input", "open", "print")

#: Where adapters may be named: the command line, the testing kit, which puts together a world made
#: of memory, and the one module of the hosts that knows which adapter a user's word means.
COMPOSITION_ROOTS = ("delivery/cli/", "delivery/host/adapters.py", "delivery/testing/")
#: Where the built-in hash may stand: it recognises states within one process, and nothing is stored.
HASHING = ("delivery/testing/",)


def over(lengths: dict[str, int], limit: int, pinned: dict[str, int]) -> list[str]:
    wrong = [
        f"{name}: {lines} lines, at most {pinned.get(name, limit)}: split it by responsibility"
        for name, lines in lengths.items()
        if lines > pinned.get(name, limit)
    ]
    wrong += [
        f"{name}: pinned at {pin}, now {lengths.get(name, 0)}: lower the pin, or drop it"
        for name, pin in pinned.items()
        if lengths.get(name, 0) < pin or pin <= limit
    ]
    return wrong


def test_modules_are_short(sources):
    lengths = {source.name: len(source.text.splitlines()) for source in sources}
    assert over(lengths, LINES_PER_MODULE_MAX, MODULES_PINNED) == []


def test_functions_are_short(sources):
    lengths = {
        f"{source.name}:{node.name}": node.end_lineno - node.lineno + 1
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert over(lengths, LINES_PER_FUNCTION_MAX, FUNCTIONS_PINNED) == []


def test_the_ratchet_only_shrinks():
    assert over({"a": 401}, 400, {}) == ["a: 401 lines, at most 400: split it by responsibility"]
    assert over({"a": 500}, 400, {"a": 500}) == []
    assert over({"a": 450}, 400, {"a": 500}) == [
        "a: pinned at 500, now 450: lower the pin, or drop it"
    ]
    assert len(over({"a": 501}, 400, {"a": 500})) == 1
    assert len(over({}, 400, {"gone": 500})) == 1


def test_every_module_says_what_it_is(sources):
    assert [s.name for s in sources if s.text.strip() and not ast.get_docstring(s.tree)] == []


def test_no_package_is_an_empty_shell(library):
    """A package holds code, not the promise of some."""
    with_code = [
        source.path
        for source in library
        if len(source.tree.body) > bool(ast.get_docstring(source.tree))
    ]
    shells = [
        source.name
        for source in library
        if source.path.name == "__init__.py"
        and not any(path.is_relative_to(source.path.parent) for path in with_code)
    ]
    assert shells == []


def test_identities_never_come_from_the_built_in_hash(library):
    """It differs between processes, and so would routes and filters."""
    calls = [
        f"{source.name}:{node.lineno}"
        for source in library
        if not source.name.startswith(HASHING)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash"
    ]
    assert calls == []


def test_the_protocol_core_is_pure(library):
    wrong = []
    for source in library:
        if not source.name.startswith(PURE):
            continue
        wrong += [f"{source.name} imports {m}" for m in source.imports if m.split(".")[0] in IMPURE]
        wrong += [
            f"{source.name}:{node.lineno} calls {node.func.id}"
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in IMPURE_CALLS
        ]
    assert wrong == []


def misdirected(source) -> Iterator[str]:
    """Name what a module of the library imports against the direction of DEPENDENCIES."""
    root = source.name.startswith(COMPOSITION_ROOTS)
    allowed = {
        "dedup": {"dedup"},
        "delivery": {"dedup", "delivery"} | ({"connectors", "sinks"} if root else set()),
        "connectors": {"delivery", "connectors"},
        "sinks": {"delivery", "sinks"},
    }[source.package]
    forbidden = {"dedup", "delivery", "connectors", "sinks"} - allowed
    yield from (
        f"{source.name} imports {m}" for m in source.imports if m.split(".")[0] in forbidden
    )
    if source.package in {"dedup", "delivery"} and not root:
        named = re.compile(r"(connectors|sinks)(\.\w+)+")
        yield from (f"{source.name} names {s}" for s in source.strings if named.fullmatch(s))


def test_dependencies_point_one_way(library):
    """`dedup ← delivery ← {connectors, sinks}`; only the composition root names adapters."""
    assert [wrong for source in library for wrong in misdirected(source)] == []


def entry_points(project: dict[str, Any]) -> set[str]:
    """Modules that pyproject.toml names."""
    groups = [
        project["project"].get("scripts", {}),
        *project["project"].get("entry-points", {}).values(),
    ]
    return {target.split(":")[0] for group in groups for target in group.values()}


#: Modules that landed before whoever will import them. Each leaves when that one has landed.
AHEAD: tuple[str, ...] = ()


def test_no_module_is_dead(library, sources, documents, project):
    """Somebody imports it, names it, runs it, or is told in the documents to import it.

    A test keeps nothing alive; the servers that tests share and the examples do.
    """
    alive = set(entry_points(project)) | {
        f"delivery.cli.{verb.replace('-', '_')}" for verb in VERBS
    }
    prose = "\n".join(documents.values())
    alive |= set(re.findall(r"\b(?:from|import) ((?:delivery|sinks|connectors)[\w.]*)", prose))
    for source in sources:
        if source.package == "tests" and source.path.name.startswith("test_"):
            continue
        alive |= {name for name in source.imports | source.strings if name != source.module}
    dead = [
        source.name
        for source in library
        if source.path.name not in {"__init__.py", "__main__.py"}
        and source.module not in alive
        and '__name__ == "__main__"' not in source.text
    ]
    assert sorted(dead) == sorted(AHEAD)


SKIPS = ("skip", "skipif", "skipTest", "xfail", "importorskip", "skipUnless", "SkipTest")


def test_no_test_is_skipped(sources):
    """A test that does not run proves nothing, and nobody notices."""
    wrong = [
        f"{source.name}:{node.lineno}"
        for source in sources
        if source.package == "tests"
        for node in ast.walk(source.tree)
        if (
            isinstance(node, ast.Attribute)
            and node.attr in SKIPS
            and re.search(r"pytest|mark|unittest|self", ast.unparse(node.value))
        )
        or (isinstance(node, ast.ImportFrom) and any(alias.name in SKIPS for alias in node.names))
    ]
    assert wrong == []
