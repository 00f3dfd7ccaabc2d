"""`delivery stage accept-topic`: a topic that was deleted and created again, on purpose.

What it is: words around `delivery.life.accept.accept_topic`. What it must not know: how it is done.
"""

from __future__ import annotations

from pathlib import Path

import click

from delivery.cli.output import Output, verb
from delivery.cli.stage.changes import change_options, life_of, told


@click.command(
    epilog="Example: `delivery stage accept-topic sqlite:shop.db orders --kafka localhost:9092` says "
    "what it means, the same with `--yes` does it."
)
@click.argument("url")
@click.argument("topic")
@click.option(
    "--written-by",
    "writers",
    multiple=True,
    metavar="STAGE",
    help="A stage that wrote it, where no stage of this catalog reads it.",
)
@change_options
@verb
def command(
    out: Output,
    *,
    url: str,
    topic: str,
    writers: tuple[str, ...],
    kafka: str,
    kafka_config: Path | None,
    client: str | None,
    yes: bool,
) -> None:
    """Take TOPIC for what it is now, in all stages of the catalog at URL that write or read it.

    A dry run by default. It is read from its first offset; what was in the old one is given up.
    Killed, it is finished by running it again.
    """
    life = life_of(out, url, kafka=kafka, kafka_config=kafka_config, client=client)
    told(out, life.accept_topic(topic, writers=writers, perform=yes))
