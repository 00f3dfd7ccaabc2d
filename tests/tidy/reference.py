"""The generated parts of docs/reference.md: signatures, docstrings and `--help`, from the code itself.

`python -m tests.tidy.reference` writes them anew; read the difference before committing it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import click

from delivery import __all__ as ALL  # noqa: N812 - a constant of ours
from delivery import testing
from delivery.cli import delivery
from tests.generated import filled
from tests.tidy.docstrings import entry, noted, told

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference.md"
COMMAND = "python -m tests.tidy.reference"

#: What exported names lead to, by where it is found.
AROUND = {
    "delivery.spark": ["spark_session"],
    "delivery.query": ["Query"],
    "delivery.receiver": ["Receiver", "Bundle"],
    "delivery.life.stages": ["Life", "Begin"],
    "delivery.seeding.report": ["Report"],
}
ENGINES = {"resident": "delivery.resident.options", "micro-batch": "delivery.microbatch.options"}
URLS = {
    "a catalog": ("dedup.catalog.open:open_catalog", "url"),
    "files": ("sinks.files:FilesEmitter", "target"),
    "a table of Cassandra": ("sinks.cassandra:CassandraEmitter", "target"),
}


def exports(module: str, names: list[str]) -> str:
    """Tell what names of a module are; constants by the comment above them."""
    lines: list[str] = []
    for name in names:
        thing = getattr(import_module(module), name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            lines += entry(name, thing)
        else:
            lines += [f"### {name}", "", noted(import_module(type(thing).__module__), name), ""]
    return "\n".join(["", *lines, ""])


def engines() -> str:
    """Tell the options of both engines."""
    lines = [""]
    for engine, module in ENGINES.items():
        heading = f'd.start(spark, engine="{engine}", ...)'
        told_of = entry(heading, import_module(module).Options)
        lines += takewhile(lambda line: not line.startswith("#### "), told_of)
    return "\n".join([*lines, ""])


def urls() -> str:
    """Tell how catalogs and sinks are addressed."""
    lines = [""]
    for what, (place, name) in URLS.items():
        module, _, thing = place.partition(":")
        texts = told(getattr(import_module(module), thing))[1]["Args"]
        lines.append(f"- {what}: {texts[name]}")
    form = import_module("dedup.catalog.cassandra.address").FORM
    form = form.removeprefix("write ").replace(", behind it optionally ", "`, behind it `")
    return "\n".join([*lines, f"- Cassandra, in full: `{form}`", "", ""])


def verbs(group: click.Group, words: str = "delivery") -> Iterator[tuple[str, click.Command]]:
    """Yield every verb by the words that call it, groups before their own."""
    context = click.Context(group, info_name=words)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{words} {name}", command
        if isinstance(command, click.Group):
            yield from verbs(command, f"{words} {name}")


def commands() -> str:
    """Tell what `--help` tells of every verb."""
    lines = [""]
    for words, command in verbs(delivery):
        context = click.Context(command, info_name=words)
        lines += [f"### {words}", ""]
        if not isinstance(command, click.Group):
            lines += [f"`{words} {' '.join(command.collect_usage_pieces(context))}`", ""]
        lines += [inspect.cleandoc(command.help or ""), ""]
        options = [
            one.get_help_record(context)
            for one in command.params
            if one.param_type_name == "option"
        ]
        lines += [f"- `{left}`: {' '.join(text.split())}" for left, text in filter(None, options)]
        lines += ["", " ".join((command.epilog or "").split()), ""]
    return "\n".join(lines)


_TESTING = [name for name in testing.__all__ if name not in ("Output", "Record")]

PARTS: dict[str, Callable[[], str]] = {
    **{
        module: partial(exports, module, names)
        for module, names in {**AROUND, "delivery": ALL, "delivery.testing": _TESTING}.items()
    },
    "engines": engines,
    "urls": urls,
    "commands": commands,
}


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), PARTS))
