"""`delivery catalog verify`: whether a catalog is whole.

What it is: words around `delivery.operate.verification.verify`. What it must not know: what is checked.
"""

from __future__ import annotations

import click

from delivery.cli.durations import BY_STAGE
from delivery.cli.output import Output, verb
from delivery.cli.tables import number, size

_FOUND_SOMETHING = 1


@click.command(
    epilog="Example: `delivery catalog verify sqlite:shop.db` exits with 0 only if nothing is wrong."
)
@click.argument("url")
@click.argument("stage", required=False)
@click.option(
    "--window",
    "windows",
    type=BY_STAGE,
    multiple=True,
    help="The stages' window, or that of one of them, in place of what the seals say: ids of publishers may be there again "
    "after it. Where neither says one that is noted.",
)
@verb
def command(
    out: Output, *, url: str, stage: str | None, windows: tuple[tuple[str, int], ...]
) -> None:
    """Read all that the catalog at URL holds, or that of one STAGE: is it whole?

    Every checksum, everything that a seal or a list refers to, every lane without a gap. It reads
    the whole catalog and changes nothing. Exits with 1 if something is wrong. Whether the data in
    Kafka is what the catalog promises is the question of `delivery audit`.
    """
    from delivery.operate.opening import chosen, opened  # noqa: PLC0415  keeps --help light
    from delivery.operate.reach import said_of  # noqa: PLC0415  see above
    from delivery.operate.verification import verify  # noqa: PLC0415  see above

    with opened(url) as catalog:
        lanes = chosen(catalog, stage)
        said = dict(windows)
        for named in filter(None, said):
            chosen(catalog, named)  # one that is misspelt would be left without a window
        found = verify(catalog.store, lanes, out.step, window_of=lambda lane: said_of(lane, said))
        where = catalog.store.url
    lines = [str(finding) for finding in found.findings]
    lines += [f"late repeat: {note}" for note in found.notes]
    lines.append(
        f"{number(found.lanes)} lanes, {number(found.entries)} entries, {number(found.chunks)} "
        f"chunks, {number(found.ids)} ids, {size(found.size)} read"
    )
    lines.append("nothing is wrong" if found.whole else _advice(len(found.findings)))
    out.result("\n".join(lines), {"catalog": where} | found.document())
    if not found.whole:
        raise click.exceptions.Exit(_FOUND_SOMETHING)


def _advice(count: int) -> str:
    return (
        f"{count} findings: stop the stages whose lanes they name, keep a copy of the catalog, and "
        "restore a backup (`delivery catalog restore`)"
    )
