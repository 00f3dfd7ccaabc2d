"""`delivery logs`: what this directory's servers wrote.

What it is: options around the log files. What it must not know: what the lines mean.
"""

from __future__ import annotations

from pathlib import Path

import click

from delivery.cli.output import Output, directory_option, verb


@click.command(epilog="Example: `delivery logs kafka-1 --follow --lines 100`.")
@click.argument("node", required=False)
@directory_option
@click.option("--follow", "-f", is_flag=True, help="Go on printing until interrupted.")
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many of the last lines of each node.",
)
@verb
def command(out: Output, *, node: str | None, directory: Path, follow: bool, lines: int) -> None:
    """Print the last log lines of NODE (kafka-1, cassandra-1), or of every node.

    Each node keeps at most 32 MiB of log.
    """
    from delivery.services import logs  # noqa: PLC0415  keeps --help light
    from delivery.services.instance import Instance  # noqa: PLC0415  see above

    instance = Instance(directory)
    nodes = [instance.node(node)] if node else instance.nodes()
    last = {each.name: logs.last_lines(each.directory, lines) for each in nodes}
    prefix = len(nodes) > 1
    if not follow:
        text = [_line(name, line, prefix=prefix) for name in last for line in last[name]]
        document = {"directory": str(instance.directory), "nodes": last}
        out.result("\n".join(text), document, as_is=True)
        return
    for name, line in logs.follow({each.name: each.directory for each in nodes}, lines):
        out.line(_line(name, line, prefix=prefix), {"node": name, "line": line})


def _line(name: str, line: str, *, prefix: bool) -> str:
    return f"{name:<12} | {line}" if prefix else line
