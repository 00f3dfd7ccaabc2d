"""What the verbs that change a stage share: their options, and how a change is said.

What it is: `change_verb`, `told`.
What it must not know: what is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delivery.cli.kafka import kafka_options, settings_in
from delivery.cli.output import Output, verb
from delivery.cli.tables import table, wide

if TYPE_CHECKING:
    from delivery.life.change import Change

__all__ = ["change_verb", "told"]

_TITLES = ("lane", "from", "to", "what")


def change_verb(function: Callable[..., None]) -> Callable[..., Any]:
    """Make a command of a function that changes a stage; it is given what does it.

    The command has `--yes`, Kafka's options and an argument `url`.
    """

    @wraps(function)
    def command(
        out: Output,
        *,
        url: str,
        kafka: str,
        kafka_config: Path | None,
        client: str | None,
        **given: Any,
    ) -> None:
        from delivery.life.stages import Life  # noqa: PLC0415  keeps --help light

        life = Life(url, kafka, settings_in(kafka_config), client, report=out.step)
        function(out, life, **given)

    yes = click.option(
        "--yes", is_flag=True, help="Do it; without it, this only says what it would mean."
    )
    return kafka_options(yes(verb(command)))


def told(out: Output, change: Change, *more: str) -> None:
    """Print a change.

    Args:
        out: where to.
        change: what would be done, or was.
        more: lines to say at the end.
    """
    rows = [
        (lane.lane, _places(lane.before), _places(lane.after), lane.what) for lane in change.lanes
    ]
    lines = table(_TITLES, rows, wide()) if rows else []
    lines += [f"- {text}" for text in change.means]
    lines += [f"concerned: {text}" for text in change.depends]
    lines += more
    lines.append("done" if change.done else "nothing was done; --yes does it")
    out.result("\n".join(lines), change.document())


def _places(offsets: Any) -> str:
    return ", ".join(f"{place}:{offset}" for place, offset in offsets.items()) or "-"
