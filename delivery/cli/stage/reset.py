"""`delivery stage reset`: a stage that goes on elsewhere than it stands.

What it is: words around `delivery.life.reset.reset`. What it must not know: how it is done.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal, cast

import click

from dedup.errors import InvalidUsage
from delivery.cli.output import Output
from delivery.cli.stage.changes import change_verb, told

if TYPE_CHECKING:
    from delivery.life.reset import Begin
    from delivery.life.stages import Life

_TIME = "time:"


@click.command(
    epilog="Example: `delivery stage reset sqlite:shop.db price --to earliest --kafka "
    "localhost:9092` says what it means, the same with `--yes` does it."
)
@click.argument("url")
@click.argument("stage")
@click.option(
    "--to",
    required=True,
    metavar="WHERE",
    help="earliest, latest, here (where it stands), time:2026-11-18T20:00:00Z, or offsets by "
    "partition: 0:17,1:4.",
)
@click.option(
    "--forget-ids",
    is_flag=True,
    help="Forget what took effect: what is read again counts again, downstream too.",
)
@change_verb
def command(
    out: Output,
    life: Life,
    *,
    stage: str,
    to: str,
    forget_ids: bool,
    yes: bool,
) -> None:
    """Let STAGE of the catalog at URL go on elsewhere, or begin anew if it was retired or left.

    A dry run by default. Ids are kept unless you say otherwise, so that nothing counts twice that
    is still held. Whoever runs it is fenced, and follows. Killed, it is finished by running it again.
    """
    told(out, life.reset(stage, _begin(to), forget_ids=forget_ids, perform=yes))


def _begin(to: str) -> Begin:
    """Return what `--to` says.

    Raises:
        InvalidUsage: it says nothing that is known.
    """
    from delivery.life.reset import Begin  # noqa: PLC0415  keeps --help light

    if to in {"earliest", "latest", "here"}:
        return Begin(at=cast("Literal['earliest', 'latest', 'here']", to))
    try:
        if to.startswith(_TIME):
            moment = datetime.fromisoformat(to.removeprefix(_TIME))
            if moment.tzinfo is not None:
                return Begin(time_ms=round(moment.timestamp() * 1000))
        else:
            pairs = [one.split(":") for one in to.split(",")]
            return Begin(offsets={int(partition): int(offset) for partition, offset in pairs})
    except ValueError:
        pass
    raise InvalidUsage(
        "reset a stage",
        f"--to {to}",
        "say earliest, latest, here, time:2026-11-18T20:00:00Z with its zone, or 0:17,1:4; nothing "
        "was done",
    )
