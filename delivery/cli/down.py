"""`delivery down`: stop what this directory started.

What it is: options and words around `Instance.down`. What it must not know: how servers end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from dedup.errors import InvalidUsage
from delivery.cli.output import Output, directory_option, verb


@click.command(
    epilog="Example: `delivery down --delete --yes` stops the servers and removes their data."
)
@directory_option
@click.option("--delete", is_flag=True, help="Remove their data and give back their ports too.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
@verb
def command(out: Output, *, directory: Path, delete: bool, yes: bool) -> None:
    """Stop this directory's servers and nothing else; their data stays.

    `delivery up` starts them again on the same ports and the same data.
    """
    from delivery.services.instance import Instance  # noqa: PLC0415  keeps --help light

    instance = Instance(directory)
    exists = instance.state() is not None
    if delete and exists and not yes:
        _ask(instance.home, as_json=out.as_json)
    stopped = instance.down(out.progress, delete=delete)
    lines = [f"stopped {', '.join(stopped)}" if stopped else "nothing ran here"]
    if delete and exists:
        lines.append(f"removed {instance.home}")
    out.result(
        "\n".join(lines),
        {
            "directory": str(instance.directory),
            "stopped": stopped,
            "deleted": delete and exists,
        },
    )


def _ask(home: Path, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise InvalidUsage(
            "delete servers' data",
            str(home),
            "nobody is there to ask; nothing was stopped or removed; add --yes if you mean it",
        )
    click.confirm(f"Remove {home}, all topics and tables included?", abort=True, err=True)
