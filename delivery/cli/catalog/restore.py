"""`delivery catalog restore`: a catalog from a backup's file.

What it is: words around `delivery.operate.keeping.restore`. What it must not know: what is in it.
"""

from __future__ import annotations

from pathlib import Path

import click

from delivery.cli.output import Output, verb
from delivery.cli.tables import number

_MEANING = (
    "every lane gets a new incarnation, so whoever still has an old one is fenced; what was sealed after the backup is forgotten: those inputs run again, and receivers "
    "that are restored with it drop the records of the history that is given up"
)


@click.command(
    epilog="Example: `delivery catalog restore shop-monday.backup sqlite:shop-new.db` shows what "
    "is in it, `delivery catalog restore shop-monday.backup sqlite:shop-new.db --yes` restores it."
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("url")
@click.option("--yes", is_flag=True, help="Do it; without it, this only checks the file.")
@verb
def command(out: Output, *, file: Path, url: str, yes: bool) -> None:
    """Restore FILE into the catalog at URL, which must be new or empty.

    A dry run by default: it reads and checks the whole file and says what is in it. Stop the stages
    first, and let them use the restored catalog afterwards.
    """
    from delivery.operate.keeping import restore  # noqa: PLC0415  keeps --help light

    found = restore(file, url, out.step, perform=yes)
    lines = [f"{lane}: seq {number(seq)}" for lane, seq in found.lanes.items()]
    if yes:
        lines.append(f"restored {len(found.lanes)} lanes; {_MEANING}")
    else:
        lines.append(f"{len(found.lanes)} lanes can be restored; --yes does it: {_MEANING}")
    out.result("\n".join(lines), found.document())
