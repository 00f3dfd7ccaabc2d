"""`delivery stage leave`: where a job without this library goes on.

What it is: words around `delivery.life.leave.leave`. What it must not know: how it is done.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from delivery.cli.output import Output
from delivery.cli.stage.changes import change_verb, told

if TYPE_CHECKING:
    from delivery.life.stages import Life


@click.command(
    epilog="Example: `delivery stage leave sqlite:shop.db price --kafka localhost:9092` says where it "
    "stands, `--yes` stops it for good and says where the other job begins."
)
@click.argument("url")
@click.argument("stage")
@click.option(
    "--group", help="A consumer group without members, whose offsets are set to there, with --yes."
)
@change_verb
def command(
    out: Output,
    life: Life,
    *,
    stage: str,
    group: str | None,
    yes: bool,
) -> None:
    """Go back to a plain job: stop STAGE of the catalog at URL, and say where that job begins.

    A dry run by default. Everything below the offsets took effect and is delivered, nothing above
    them did. They are printed as Spark's `startingOffsets` takes them.
    """
    change = life.leave(stage, group=group, perform=yes)
    starting = json.dumps({name: dict(offsets) for name, offsets in change.offsets.items()})
    told(out, change, f"startingOffsets: {starting}")
