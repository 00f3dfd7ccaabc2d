"""`delivery catalog backup`: a catalog as one file.

What it is: words around `delivery.operate.keeping.back_up`. What it must not know: what is in it.
"""

from __future__ import annotations

from pathlib import Path

import click

from delivery.cli.output import Output, verb
from delivery.cli.tables import number, size


@click.command(epilog="Example: `delivery catalog backup sqlite:shop.db shop-monday.backup`.")
@click.argument("url")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@verb
def command(out: Output, *, url: str, file: Path) -> None:
    """Write the catalog at URL to a new FILE, beside live jobs.

    Receivers are taken before the stages they read from, so that what a receiver remembers its
    sender remembers too. The file is read back and checked before this says that it is done. Lanes
    that a receiver keeps in a user's database are that database's to back up.
    """
    from delivery.operate.keeping import back_up  # noqa: PLC0415  keeps --help light
    from delivery.operate.opening import opened  # noqa: PLC0415  see above

    with opened(url) as catalog:
        made = back_up(catalog, file, out.step)
        where = catalog.store.url
    out.result(
        f"{number(len(made.lanes))} lanes in {made.file}, {size(made.size)}",
        {"catalog": where} | made.document(),
    )
