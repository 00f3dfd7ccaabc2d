"""`delivery stage change-dedup`: a stage that deduplicates otherwise.

What it is: words around `delivery.life.dedup.change_dedup`. What it must not know: how it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from delivery.cli.output import Output
from delivery.cli.stage.changes import change_verb, told

if TYPE_CHECKING:
    from delivery.life.stages import Life


@click.command(
    epilog="Example: `delivery stage change-dedup sqlite:shop.db price topic --kafka localhost:9092` "
    "says what it means, the same with `--yes` does it."
)
@click.argument("url")
@click.argument("stage")
@click.argument("to", type=click.Choice(["partition", "topic"]))
@click.option(
    "--dead-letters",
    is_flag=True,
    help="The stage is declared with dead_letters=..., which re-keying in front of it then has too.",
)
@click.option("--duplicates", is_flag=True, help="The same for duplicates=...")
@change_verb
def command(
    out: Output,
    life: Life,
    *,
    stage: str,
    to: Literal["partition", "topic"],
    dead_letters: bool,
    duplicates: bool,
    yes: bool,
) -> None:
    """Let STAGE of the catalog at URL deduplicate by PARTITION, or a whole TOPIC by re-keying.

    A dry run by default. It goes on where it stands, with its ids; declare it with the new `dedup`
    from then on. Killed, it is finished by running it again.
    """
    aside = {"dead_letters": dead_letters, "duplicates": duplicates}
    told(out, life.change_dedup(stage, to, **aside, perform=yes))
