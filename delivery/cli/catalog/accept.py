"""`delivery catalog accept`: a catalog that knows less than the topics do, on purpose.

What it is: words around `delivery.operate.accepting`. What it must not know: how it is done.
"""

from __future__ import annotations

import os

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
    from delivery.operate.accepting import accept, let_begin  # noqa: PLC0415  see above
    from delivery.operate.opening import opened  # noqa: PLC0415  see above

    last = "done" if yes else "nothing was done; --yes does it"
    if stage is not None:
        with opened(url) as catalog:
            begins = let_begin(catalog, stage, perform=yes)
        out.result(
            f"{stage}: begins here where it is declared to, and knows nothing of what was made of "
            f"its input before: all that it reads again counts twice\n{last}",
            begins.document(),
        )
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
