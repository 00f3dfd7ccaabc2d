"""`delivery stage rename`: a stage under another name.

What it is: words around `delivery.life.rename.rename`. What it must not know: how it is done.
"""

from __future__ import annotations

from pathlib import Path

import click

from delivery.cli.output import Output, verb
from delivery.cli.stage.changes import change_options, life_of, told


@click.command(
    epilog="Example: `delivery stage rename sqlite:shop.db price cost --kafka localhost:9092` says "
    "what it means, the same with `--yes` does it."
)
@click.argument("url")
@click.argument("stage")
@click.argument("name")
@change_options
@verb
def command(
    out: Output,
    *,
    url: str,
    stage: str,
    name: str,
    kafka: str,
    kafka_config: Path | None,
    client: str | None,
    yes: bool,
) -> None:
    """Let STAGE of the catalog at URL go on as NAME, with its ids and where it stands.

    A dry run by default. Whoever runs it is fenced. Killed, it is finished by running it again.
    """
    life = life_of(out, url, kafka=kafka, kafka_config=kafka_config, client=client)
    told(out, life.rename(stage, name, perform=yes))
