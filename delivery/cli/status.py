"""`delivery status`: how each of this directory's servers is.

What it is: words around `Instance.status`. What it must not know: how servers are asked.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from dedup.errors import Unavailable
from delivery.cli.output import Output, directory_option, verb


@click.command(epilog="Example: `delivery status --json` exits with 0 only if everything is well.")
@directory_option
@verb
def command(out: Output, *, directory: Path) -> None:
    """Say of each node whether it is running, dead, unhealthy or stopped.

    These are the servers of `delivery up`. With the URL of a catalog it is `delivery guarantee URL`:
    of each stage, whether it is PROTECTED or DEGRADED, and why. Exits with 0 if every node runs and answers, else with 3.
    """
    from delivery.services.instance import Instance  # noqa: PLC0415  keeps --help light
    from delivery.services.node import Health  # noqa: PLC0415  see above

    instance = Instance(directory)
    nodes = instance.status()
    healthy = bool(nodes) and all(node.health is Health.RUNNING for node in nodes)
    lines = [
        f"{node.name:<12} {node.address:<16} {node.health:<10}"
        + (f" pid {node.pid}" if node.pid else "")
        + (f"  {node.detail}" if node.detail else "")
        for node in nodes
    ]
    if not nodes:
        lines.append(f"no servers in {instance.directory}; `delivery up` starts some")
    elif not healthy:
        lines.append(_advice({node.health for node in nodes}, Health.UNHEALTHY))
    out.result(
        "\n".join(lines),
        {
            "directory": str(instance.directory),
            "healthy": healthy,
            "nodes": [asdict(node) for node in nodes],
        },
    )
    if not healthy:
        raise click.exceptions.Exit(Unavailable.exit_code)


def _advice(found: set[str], unhealthy: str) -> str:
    if unhealthy in found:
        return (
            "a node that runs and does not answer may be busy or starting: look again; if it "
            "stays, `kill -9` its pid and run `delivery up`"
        )
    return "`delivery up` starts what is missing, on its data"
