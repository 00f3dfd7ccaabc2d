"""`delivery stage change-dedup`: a stage that deduplicates otherwise.

What it is: words around `delivery.life.dedup.change_dedup`. What it must not know: how it is done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from delivery.cli.output import Output, verb
from delivery.cli.stage.changes import change_options, life_of, told


@click.command(
    epilog="Example: `delivery stage change-dedup sqlite:shop.db price topic --kafka localhost:9092` "
    "says what it means, the same with `--yes` does it."
)
@click.argument("url")
@click.argument("stage")
@click.argument("to", type=click.Choice(["partition", "topic"]))
@change_options
@verb
def command(
    out: Output,
    *,
    url: str,
    stage: str,
    to: Literal["partition", "topic"],
    kafka: str,
    kafka_config: Path | None,
    client: str | None,
    yes: bool,
) -> None:
    """Let STAGE of the catalog at URL deduplicate by PARTITION, or a whole TOPIC by re-keying.

    A dry run by default. It goes on where it stands, with its ids; declare it with the new `dedup`
    from then on. Killed, it is finished by running it again.
    """
    life = life_of(out, url, kafka=kafka, kafka_config=kafka_config, client=client)
    told(out, life.change_dedup(stage, to, perform=yes))
