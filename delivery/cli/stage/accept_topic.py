"""`delivery stage accept-topic`: a topic that was deleted and created again, on purpose.

What it is: words around `delivery.life.accept.accept_topic`. What it must not know: how it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delivery.cli.output import Output
from delivery.cli.stage.changes import change_verb, told

if TYPE_CHECKING:
    from delivery.life.stages import Life


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
@change_verb
def command(
    out: Output,
    life: Life,
    *,
    topic: str,
    writers: tuple[str, ...],
    yes: bool,
) -> None:
    """Take TOPIC for what it is now, in all stages of the catalog at URL that write or read it.

    A dry run by default. It is read from its first offset; what was in the old one is given up.
    Killed, it is finished by running it again.
    """
    told(out, life.accept_topic(topic, writers=writers, perform=yes))
