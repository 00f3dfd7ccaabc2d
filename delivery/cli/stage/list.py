"""`delivery stage list`: which stages a catalog knows.

What it is: words around `delivery.operate.stages.stages`. What it must not know: how they are found.
"""

from __future__ import annotations

import time

import click

from delivery.cli.output import Output, verb
from delivery.cli.tables import ago, number, table, where_any, wide

_TITLES = (
    "stage",
    "reads",
    "writes",
    "lanes",
    "seals",
    "pending",
    "frontier",
    "age",
    "dead letters",
)


@click.command(epilog="Example: `delivery stage list sqlite:shop.db`.")
@click.argument("url")
@verb
def command(out: Output, *, url: str) -> None:
    """Say which stages the catalog at URL knows, and how far each is.

    Of each: its topics, its lanes, their seals, those that are not acknowledged (pending), the sum
    of its frontiers, the age of its last seal, and, if there are any, records that went to dead
    letters, by the newest 1,000 seals of each lane. A topic that no stage of the catalog reads is
    shown by its identity.
    """
    from delivery.operate.opening import opened  # noqa: PLC0415  keeps --help light
    from delivery.operate.stages import stages  # noqa: PLC0415  see above

    with opened(url) as catalog:
        found = stages(catalog, time.time_ns() // 1_000_000)
        where = catalog.store.url
    rows = [
        (
            f"{one.pipeline}/{one.stage}",
            ", ".join(one.reads) or "-",
            ", ".join(one.writes) or "-",
            number(one.lanes),
            number(one.seals),
            number(one.pending),
            number(one.records),
            ago(one.age_ms),
            number(one.dead_letters),
        )
        for one in found
    ]
    lines = table(*where_any(_TITLES, rows), wide()) if rows else ["no stage ever ran on it"]
    out.result("\n".join(lines), {"catalog": where, "stages": [one.document() for one in found]})
