"""`delivery differences`: which stages made other outputs when they ran again.

What it is: words around `delivery.operate.differing`. What it must not know: how it is found.
"""

from __future__ import annotations

import click

from delivery.cli.output import Output, verb
from delivery.cli.tables import number, table, wide


@click.command(
    epilog="Example: `delivery differences sqlite:shop.db price` says how often the code of stage "
    "price made other outputs of the same input, and in which fields."
)
@click.argument("url")
@click.argument("stage", required=False)
@verb
def command(out: Output, *, url: str, stage: str | None) -> None:
    """Tell, from attempts that lost, which code in URL answers differently when it runs again.

    Such code is fine: one execution counts. It is what to know before a stage is declared
    deterministic, or put behind a stateful one.
    """
    from delivery.operate.differing import differences  # noqa: PLC0415  keeps --help light
    from delivery.operate.opening import chosen, opened  # noqa: PLC0415  see above

    with opened(url) as catalog:
        found = differences(catalog, chosen(catalog, stage))
        where = catalog.store.url
    titles = ("stage", "lost", "same", "differ", "unknown", "inputs compared", "unlike")
    rows = [
        (
            one.stage,
            *map(number, (one.lost, one.same, one.differs, one.unknown, one.compared, one.unlike)),
        )
        for one in found
    ]
    lines = table(titles, rows, wide()) if rows else ["no stage ever ran on it"]
    for one in found:
        lines += [
            f"{one.stage}: {name} differed {number(count)} times"
            for name, count in one.fields.most_common()
        ]
    stages = [one.document() for one in found]
    out.result("\n".join(lines), {"catalog": where, "stages": stages})
