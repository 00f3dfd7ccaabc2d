"""What verbs say, and how: text for people, one JSON document for programs.

What it is: `Output`, and `verb`, which gives a command its `--json` and turns errors into exit
codes.
What it must not know: what is said.

Invariants:
    Standard output carries the result and nothing else; with --json exactly one document, also
    when the verb fails. A verb that never ends (`logs --follow`) prints one document a line.
    Progress goes to standard error: in place on a terminal, with a bar where it is known how much
    there is to do, now and then a line elsewhere. What is shown in place is cut to the terminal, and
    gone when the verb ends, however it ends.
    With --json nobody is told of single steps.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from dedup.errors import DeliveryError
from delivery.cli.tables import folded, wide

__all__ = ["Output", "databases_option", "directory_option", "id_options", "verb"]

_ERASE_LINE = "\r\x1b[K"
#: How often one of many steps is shown in place, and as a line of its own.
_STEP_SECONDS = 0.1
_LINE_SECONDS = 5.0
#: Columns of a bar at most, and of one that says more than its figure does.
_BAR_MAX = 24
_BAR_MIN = 8
#: Of a terminal that does not say.
_COLUMNS = 80


class Output:
    """Where a verb writes to."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._in_place = sys.stderr.isatty()
        self._shown = False
        #: What is done before it is time for a first step says its result, and nothing else.
        self._said = time.monotonic()

    def progress(self, line: str) -> None:
        """Say what is going on; the next line, or the result, takes its place on a terminal."""
        self._say(line, None)

    def step(self, line: str, /, done: int = 0, total: int | None = None) -> None:
        """Say one of very many things that go on; most of them are left out.

        Args:
            line: what.
            done: how much of it is done.
            total: how much there is; None: nobody knows.
        """
        if self.as_json:
            return
        now = time.monotonic()
        if now - self._said >= (_STEP_SECONDS if self._in_place else _LINE_SECONDS):
            self._said = now
            self._say(line, 100 * min(done, total) // total if total else None)

    def result(self, text: str, document: Mapping[str, Any], *, as_is: bool = False) -> None:
        """Print the result, as the user wants it.

        Args:
            text: for people; on a terminal in lines that fit it.
            document: for programs.
            as_is: the text is somebody else's, or to be copied: its lines are left as they are.
        """
        self.clear()
        if self.as_json:
            click.echo(json.dumps(document, indent=2))
        else:
            click.echo(text if as_is else folded(text, wide()))

    def line(self, text: str, document: Mapping[str, Any]) -> None:
        """Print one of many results."""
        self.clear()
        click.echo(json.dumps(document) if self.as_json else text)

    def error(self, error: DeliveryError) -> None:
        """Print what went wrong."""
        self.clear()
        if self.as_json:
            details = {"op": error.op, "subject": error.subject, "hint": error.hint}
            click.echo(json.dumps({"error": {"kind": type(error).__name__} | details}, indent=2))
        else:
            columns = _columns() if self._in_place else None
            click.echo(folded(f"delivery: {error}", columns), err=True)

    def _say(self, line: str, percent: int | None) -> None:
        if self._in_place:
            columns = _columns()
            drawn = line if percent is None else f"{_bar(percent, columns)} {line}"
            click.echo(_ERASE_LINE + drawn[: columns - 1], err=True, nl=False)
            self._shown = True
        else:
            click.echo(line if percent is None else f"{line} ({percent}%)", err=True)

    def clear(self) -> None:
        """Take away what is shown in place."""
        if self._shown:
            click.echo(_ERASE_LINE, err=True, nl=False)
            self._shown = False


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--json`, an `Output` as its first argument, and our exit codes."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    @functools.wraps(function)
    def run(*, as_json: bool, **options: Any) -> None:
        out = Output(as_json=as_json)
        try:
            function(out, **options)
        except DeliveryError as error:
            out.error(error)
            raise click.exceptions.Exit(error.exit_code) from error
        finally:
            out.clear()

    return run


def _columns() -> int:
    """Return how wide the terminal is that progress goes to; the result may go elsewhere."""
    try:
        own = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        own = 0
    return shutil.get_terminal_size((own or _COLUMNS, 0)).columns


def _bar(percent: int, columns: int) -> str:
    """Return a share as a figure, and drawn where there is room for that beside words."""
    width = min(_BAR_MAX, columns // 4)
    if width < _BAR_MIN:
        return f"{percent:3}%"
    full = width * percent // 100
    return f"{percent:3}% [{'#' * full}{'.' * (width - full)}]"


def id_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an id, behind URL or as `--id`; the other way to say it is None."""
    option = click.option("--id", "hexadecimal", metavar="HEX", help="The same ID, as an option.")
    return click.argument("record_id", metavar="[ID]", required=False)(option(function))


#: Where databases of receivers are, for verbs that tell what became of a record.
databases_option = click.option(
    "--database",
    "databases",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="A database of a receiver that was moved, or a copy; may be repeated.",
)
#: The directory whose instance a verb is about.
directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The directory whose servers are meant; the current one by default.",
)
