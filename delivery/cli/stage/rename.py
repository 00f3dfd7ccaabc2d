"""`delivery stage rename`: a stage under another name.

What it is: words around `delivery.life.rename.rename`. What it must not know: how it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delivery.cli.output import Output
from delivery.cli.stage.changes import change_verb, told

if TYPE_CHECKING:
    from delivery.life.stages import Life


@click.command(
    epilog="Example: `delivery stage rename sqlite:shop.db price cost --kafka localhost:9092` says "
    "what it means, the same with `--yes` does it."
)
@click.argument("url")
@click.argument("stage")
@click.argument("name")
@change_verb
def command(
    out: Output,
    life: Life,
    *,
    stage: str,
    name: str,
    yes: bool,
) -> None:
    """Let STAGE of the catalog at URL go on as NAME, with its ids and where it stands.

    A dry run by default. Whoever runs it is fenced. Killed, it is finished by running it again.
    """
    told(out, life.rename(stage, name, perform=yes))
