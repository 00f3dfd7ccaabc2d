"""Planting a sabotage: the code object of a real function is swapped for an edited one.

Every table that refers to the function is sabotaged too, and taking it back is exact.
"""

from __future__ import annotations
import __future__

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `old`, which stands exactly once in the function at `target`, by `new`."""

    target: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A sabotage: the rule it breaks, the world that shows it, and the edits."""

    name: str
    world: str
    edits: tuple[Edit, ...]


def function_at(target: str) -> FunctionType:
    """Return the function behind "module:Class.name"; of a property, its getter."""
    module, _, path = target.partition(":")
    found: object = importlib.import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, staticmethod):
        found = found.__func__
    assert isinstance(found, FunctionType), f"{target} is no function"
    return found


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Sabotage the product for as long as the context lasts."""
    saved = []
    try:
        for target in dict.fromkeys(edit.target for edit in mutant.edits):
            function = function_at(target)
            saved.append((function, function.__code__))
            edits = [edit for edit in mutant.edits if edit.target == target]
            function.__code__ = _edited(function, edits)
        yield
    finally:
        for function, code in reversed(saved):
            function.__code__ = code


def _edited(function: FunctionType, edits: list[Edit]) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        assert source.count(edit.old) == 1, f"{edit.target}: not exactly once: {edit.old}"
        source = source.replace(edit.old, edit.new)
    flags = __future__.annotations.compiler_flag
    code = compile(source, edits[0].target, "exec", flags)
    namespace: dict[str, object] = {}
    exec(code, function.__globals__, namespace)  # noqa: S102 - the source is our own
    made = namespace[function.__name__]
    if isinstance(made, property):
        made = made.fget
    if isinstance(made, staticmethod):
        made = made.__func__
    assert isinstance(made, FunctionType), "an edited function is a function"
    return made.__code__


def one(name: str, world: str, target: str, old: str, new: str) -> Mutant:
    """A mutant of one edit."""
    return Mutant(name, world, (Edit(target, old, new),))
