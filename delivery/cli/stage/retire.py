"""`delivery stage retire`: a stage that has ended.

What it is: words around `delivery.life.retire.retire`. What it must not know: how it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delivery.cli.output import Output
from delivery.cli.stage.changes import change_verb, told

if TYPE_CHECKING:
    from delivery.life.stages import Life


@click.command(
    epilog="Example: `delivery stage retire sqlite:shop.db price --kafka localhost:9092` says what "
    "it means, the same with `--yes` does it."
)
@click.argument("url")
@click.argument("stage")
@change_verb
def command(
    out: Output,
    life: Life,
    *,
    stage: str,
    yes: bool,
) -> None:
    """End STAGE of the catalog at URL for good, and free its storage.

    A dry run by default. What it has sealed is delivered first. Its name starts nothing by itself
    any more. Killed, it is finished by running it again.
    """
    told(out, life.retire(stage, perform=yes))
