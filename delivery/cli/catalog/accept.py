"""`delivery catalog accept`: a catalog that knows less than the topics do, on purpose.

What it is: words around `delivery.operate.accepting`. What it must not know: how it is done.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace

import click

from delivery.cli.output import Output, verb
from delivery.cli.tables import number


@click.command(
    epilog="Example: `delivery catalog accept sqlite:shop.db` says what it would mean, `delivery "
    "catalog accept sqlite:shop.db --yes` does it."
)
@click.argument("url")
@click.option(
    "--stage",
    metavar="PIPELINE/STAGE",
    help="Only this: a stage that the catalog does not know may begin in it, although its output "
    "topics hold what it emitted with another catalog, or another stage reads and writes the same.",
)
@click.option("--yes", is_flag=True, help="Do it; without it, this only says what it would mean.")
@verb
def command(out: Output, *, url: str, stage: str | None, yes: bool) -> None:
    """Take the catalog at URL for what it is, after an older copy of it was put back.

    A dry run by default. Stop the stages first. Every lane goes on where it stands, under a new
    incarnation: what was sealed since the copy was made is given up. Killed, it is finished by
    running it again.
    """
    from dedup.model import IDENTITY_BYTES  # noqa: PLC0415  keeps --help light
    from delivery.operate.accepting import accept  # noqa: PLC0415  see above
    from delivery.operate.opening import opened  # noqa: PLC0415  see above

    last = "done" if yes else "nothing was done; --yes does it"
    if stage is not None:
        _let_begin(out, url, stage, last, yes=yes)
        return
    with opened(url) as catalog:
        found = accept(catalog, lambda: os.urandom(IDENTITY_BYTES), perform=yes)
    lines = [f"{lane}: goes on behind seq {number(seq)}" for lane, seq in found.lanes.items()]
    lines += [f"{lane}: is in a user's database, and stays as it is" for lane in found.elsewhere]
    lines.append(
        "inputs that were sealed since the copy run again: receivers in this catalog drop what came "
        "of them before, all other readers see a second version"
    )
    lines.append(last)
    out.result("\n".join(lines), found.document())


def _let_begin(out: Output, url: str, stage: str, last: str, *, yes: bool) -> None:
    """Let a stage begin, in a catalog that is made if it is not there: no start has made it."""
    from dedup.catalog.catalog import Catalog  # noqa: PLC0415  keeps --help light
    from dedup.catalog.open import open_catalog, without_user  # noqa: PLC0415  see above
    from delivery.operate.accepting import let_begin  # noqa: PLC0415  see above
    from delivery.operate.opening import present  # noqa: PLC0415  see above

    there = present(url)
    if there is None:
        let_begin(open_catalog("memory:"), stage)  # a name that is none makes no catalog
    with closing((there or open_catalog(url if yes else "memory:")).store) as store:
        begins = let_begin(Catalog(store), stage, perform=yes)
    if there is None and not yes:
        begins = replace(begins, catalog=without_user(url))
    made = (
        ""
        if there
        else f"\n{begins.catalog}: {'it was' if yes else 'there is no catalog yet; one is'} made"
    )
    out.result(
        f"{stage}: begins here where it is declared to, and knows nothing of what was made of "
        f"its input before: all that it reads again counts twice{made}\n{last}",
        begins.document(),
    )
