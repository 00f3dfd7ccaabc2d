"""`delivery stage retire`: a stage that has ended.

What it is: words around `delivery.life.retire.retire`. What it must not know: how it is done.
"""

from __future__ import annotations

from pathlib import Path

import click

from delivery.cli.output import Output, verb
from delivery.cli.stage.changes import change_options, life_of, told


@click.command(
    epilog="Example: `delivery stage retire sqlite:shop.db price --kafka localhost:9092` says what "
    "it means, the same with `--yes` does it."
)
@click.argument("url")
@click.argument("stage")
@change_options
@verb
def command(
    out: Output,
    *,
    url: str,
    stage: str,
    kafka: str,
    kafka_config: Path | None,
    client: str | None,
    yes: bool,
) -> None:
    """End STAGE of the catalog at URL for good, and free its storage.

    A dry run by default. What it has sealed is delivered first. Its name starts nothing by itself
    any more. Killed, it is finished by running it again.
    """
    life = life_of(out, url, kafka=kafka, kafka_config=kafka_config, client=client)
    told(out, life.retire(stage, perform=yes))
