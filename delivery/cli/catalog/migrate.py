"""`delivery catalog migrate`: a catalog moved into another store.

What it is: words around `delivery.operate.migration`. What it must not know: how it is done.
"""

from __future__ import annotations

from contextlib import closing

import click

from dedup.errors import InvalidUsage
from delivery.cli.output import Output, verb
from delivery.cli.tables import number, size


@click.command(
    epilog="Example: `delivery catalog migrate sqlite:shop.db cassandra://localhost:9042/shop` says "
    "what there is to move, and with `--yes` it is moved."
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--yes", is_flag=True, help="Do it; without it, this only says what would be done.")
@verb
def command(out: Output, *, source: str, target: str, yes: bool) -> None:
    """Move the catalog at FROM to TO, which must be new or empty. A dry run by default.

    Stop every stage and receiver first. Everything is copied, read back and compared; then FROM is
    taken out of use, so that nothing that still has it open can seal anything; then TO is put into
    use. Killed at any moment, the same command finishes it. Afterwards say TO in the pipelines.
    """
    from dedup.catalog.open import open_catalog  # noqa: PLC0415  keeps --help light
    from delivery.operate.migration.migrate import migrate, survey  # noqa: PLC0415  see above
    from delivery.operate.opening import opened, present  # noqa: PLC0415  see above

    if source == target:
        raise InvalidUsage(
            "migrate a catalog", source, "nothing was done: name another catalog to move it to"
        )
    with opened(source) as old:
        new = present(target)
        if new is None and yes:
            new = open_catalog(target)
        if new is None:
            found = survey(old, None, target, out.step)
        else:
            with closing(new.store):
                found = (
                    migrate(old, new, out.step)
                    if yes
                    else survey(old, new, new.store.url, out.step)
                )
    lines = [
        f"{one.lane}: {one.step}, seq {number(one.seq)}, {number(one.entries)} entries, "
        f"{number(one.chunks)} chunks, {size(one.size)}"
        for one in found.lanes
    ]
    total = f"{number(len(found.lanes))} lanes, {size(sum(one.size for one in found.lanes))}"
    if yes:
        lines.append(
            f"{total} moved to {found.target}: say so in the pipelines; {found.source} is out of use, "
            "and may be deleted once `delivery audit` is content"
        )
    elif found.done:
        lines.append(f"{total} are in {found.target} already; there is nothing to do")
    else:
        lines.append(
            f"{total} to move to {found.target}; --yes does it, once every stage is stopped"
        )
    out.result("\n".join(lines), found.document())
