"""`delivery stage list`: which stages a catalog knows.

What it is: words around `delivery.operate.stages.stages`. What it must not know: how they are found.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from delivery.cli.output import Output, databases_option, verb
from delivery.cli.tables import ago, number, table, where_any, wide
from delivery.cli.watching import places, watching_options

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


@click.command(
    epilog="Example: `delivery stage list sqlite:shop.db`, "
    "`delivery stage list sqlite:shop.db --kafka localhost:9092` with every topic's name."
)
@watching_options
@databases_option
@verb
def command(
    out: Output,
    *,
    url: str,
    kafka: str | None,
    kafka_config: Path | None,
    client: str | None,
    databases: tuple[str, ...],
) -> None:
    """Say which stages the catalog at URL knows, and how far each is.

    Of each: its topics, its lanes, their seals, those that are not acknowledged (pending), the sum
    of its frontiers, the age of its last seal, and, if there are any, records that went to dead
    letters, by the newest 1,000 seals of each lane. A topic that no stage of the catalog reads is
    shown by its identity, or by its name with --kafka.
    """
    from delivery.operate.databases import with_databases  # noqa: PLC0415  keeps --help light
    from delivery.operate.logs import Cluster  # noqa: PLC0415  see above
    from delivery.operate.stages import stages  # noqa: PLC0415  see above

    with (
        places(out, url, kafka, kafka_config, client) as at,
        with_databases(at.catalog, databases) as (catalog, kept),
    ):
        topics = Cluster(at.client).names() if at.client is not None else None
        found = stages(catalog, time.time_ns() // 1_000_000, kept, topics)
        where = catalog.store.url
    rows = [
        (
            f"{one.pipeline}/{one.stage}",
            ", ".join(one.reads) or "-",
            ", ".join(one.writes) or "-",
            number(one.lanes),
            # What is not read is unknown; the catalog only remembers where it began.
            *(["-"] * 3 if one.unread else map(number, (one.seals, one.pending, one.records))),
            ago(one.age_ms),
            number(one.dead_letters),
        )
        for one in found
    ]
    lines = table(*where_any(_TITLES, rows), wide()) if rows else ["no stage ever ran on it"]
    lines += [line for one in found for line in one.unread]
    if any(one.unnamed for one in found):
        lines.append(
            "an output by letters and digits is a topic that no stage here reads, by its identity"
            + ("; --kafka names it" if topics is None else ", and none of this Kafka (any more)")
        )
    out.result("\n".join(lines), {"catalog": where, "stages": [one.document() for one in found]})
