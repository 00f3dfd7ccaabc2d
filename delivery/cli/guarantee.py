"""`delivery guarantee`: whether every stage keeps its promise, and if not, since when and why.

What it is: words around `delivery.watch.guarantee`. What it must not know: how it is found.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dedup.errors import Unavailable
from delivery.cli.durations import DURATION
from delivery.cli.output import Output, databases_option, verb
from delivery.cli.tables import paragraph, when, wide
from delivery.cli.watching import GUARANTEES, places, watching_options

if TYPE_CHECKING:
    from delivery.watch.guarantee import Guarantee, StageGuarantee

_DEGRADED = 1


@click.command(
    epilog="Example: `delivery guarantee sqlite:shop.db --kafka localhost:9092` exits with 0 only "
    "if every stage is PROTECTED."
)
@watching_options
@click.option(
    "--window",
    type=DURATION,
    default="24h",
    show_default=True,
    help="The window of stages whose seals do not say theirs: for so long after it a topic that has grown takes "
    "something away.",
)
@databases_option
@verb
def command(
    out: Output,
    *,
    url: str,
    kafka: str | None,
    kafka_config: Path | None,
    client: str | None,
    window: int,
    databases: tuple[str, ...],
) -> None:
    """Say of each stage of the catalog at URL whether it is PROTECTED, and if not, why.

    It looks for what takes the promise away: records deleted before they were read, topics that
    were replaced, have lost records or got partitions, ids used twice, settings that let Kafka lose records. It is a
    look, quick enough for every minute; the proof, record by record, is `delivery audit`. How
    servers are is what `delivery status` says. Exits with 0 if all is well, with 1 if a stage is
    DEGRADED, with 3 if one is UNKNOWN.
    """
    from delivery.watch.guarantee import guarantee, settings_in  # noqa: PLC0415  keeps --help light
    from delivery.watch.rows import rows_of  # noqa: PLC0415  see above
    from delivery.watch.tally import Tallies  # noqa: PLC0415  see above
    from delivery.watch.waiting import Doors  # noqa: PLC0415  see above

    with (
        places(out, url, kafka, kafka_config, client) as at,
        rows_of(at.catalog, databases) as (catalog, rows),
    ):
        tallies = Tallies()
        tallies.look(catalog, rows)
        doors = Doors(at.client) if at.client is not None else None
        settings = settings_in(rows, doors)
        found = guarantee(rows, doors, tallies, settings, window_ms=window)
        where = catalog.store.url
    out.result("\n".join(_lines(found)), {"catalog": where} | found.document())
    if found.state == "degraded":
        raise click.exceptions.Exit(_DEGRADED)
    if found.state == "unknown":
        raise click.exceptions.Exit(Unavailable.exit_code)


def _lines(found: Guarantee) -> list[str]:
    if not found.stages:
        return ["no stage ever ran on it"]
    return [line for one in found.stages for line in _story(one)]


def _story(one: StageGuarantee) -> list[str]:
    since = f" since {when(one.since_ms)}" if one.since_ms is not None else ""
    columns = wide()
    lines = paragraph(f"{one.name}: {GUARANTEES[one.state]}{since}", columns)
    for reason in one.reasons:
        until = f" (until lane time {when(reason.until_ms)})" if reason.until_ms else ""
        lines += paragraph(f"{reason.subject}: {reason.text}{until}", columns, "  ")
        lines += paragraph(reason.advice, columns, "    ")
    return lines
