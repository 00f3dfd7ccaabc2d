"""What the tidy tests look at: every file of the project, parsed once.

What it is: fixtures that give the project's Python sources, documents and text files.
What it must not know: any rule; those stand in the tests beside it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dedup", "delivery", "connectors", "sinks")


@dataclass(frozen=True)
class Source:
    """A Python file of the project."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def name(self) -> str:
        """Where it is, from the root of the project."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def module(self) -> str:
        """What an import statement calls it."""
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def package(self) -> str:
        """The first part of its path: one of the four packages, tests, bench or examples."""
        return self.name.split("/")[0]

    @cached_property
    def imports(self) -> frozenset[str]:
        """Every module it imports, `from a import b` counting as `a` and as `a.b`."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
        return frozenset(found)

    @cached_property
    def strings(self) -> frozenset[str]:
        """Every string constant in it."""
        constants = (node for node in ast.walk(self.tree) if isinstance(node, ast.Constant))
        return frozenset(node.value for node in constants if isinstance(node.value, str))


def text_files() -> list[Path]:
    """Every text file of the project: all that .gitignore does not name at the root."""
    ignored = {
        ".git",
        "__pycache__",
        *re.findall(r"^/?([^/*\n]+)/?$", _read(".gitignore"), re.MULTILINE),
    }
    found: list[Path] = []
    waiting = [ROOT]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if path.name in ignored or path.suffix in {".png", ".ico", ".jar"}:
                continue
            if path.is_dir():
                waiting.append(path)
            else:
                found.append(path)
    return found


def _read(name: str) -> str:
    return (ROOT / name).read_text()


@pytest.fixture(scope="session")
def texts() -> dict[str, str]:
    """Every text file by its path from the root."""
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in text_files()}


@pytest.fixture(scope="session")
def sources(texts: dict[str, str]) -> list[Source]:
    """Every Python file."""
    return [Source(ROOT / name, text) for name, text in texts.items() if name.endswith(".py")]


@pytest.fixture(scope="session")
def library(sources: list[Source]) -> list[Source]:
    """The Python files of the four packages."""
    return [source for source in sources if source.package in PACKAGES]


@pytest.fixture(scope="session")
def documents(texts: dict[str, str]) -> dict[str, str]:
    """The documents people read, by their path from the root."""
    return {name: text for name, text in texts.items() if name.endswith(".md")}


@pytest.fixture(scope="session")
def project(texts: dict[str, str]) -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads(texts["pyproject.toml"])


@pytest.fixture(scope="session")
def root() -> Path:
    """Where the project lies."""
    return ROOT
