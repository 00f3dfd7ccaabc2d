"""`delivery report`: what stages did, as one HTML page.

What it is: words around `delivery.watch.observed` and `delivery.watch.page`.
What it must not know: what is on the page.
"""

from __future__ import annotations

from pathlib import Path

import click

from dedup.errors import InvalidUsage
from delivery.cli.output import Output, verb
from delivery.cli.tables import number, size
from delivery.cli.watching import observed, observing_options, watching_options

#: What pages begin with.
_PAGE = b"<!doctype html>"


@click.command(
    epilog="Example: `delivery report sqlite:shop.db --kafka localhost:9092 -o report.html`."
)
@watching_options
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    help="The file; report.html. A page that is there is replaced, and nothing else.",
)
@click.option(
    "--chaos",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="What `delivery chaos --json` has said: who was killed is shown too.",
)
@observing_options("filters are shown too")
@verb
def command(
    out: Output,
    *,
    url: str,
    kafka: str | None,
    kafka_config: Path | None,
    client: str | None,
    output: Path,
    chaos: Path | None,
    since: int | None,
    home: Path | None,
) -> None:
    """Write a page about the stages of the catalog at URL: rates, delays, repeats, lag, advice.

    The page is one file that loads nothing, so it opens without a network and can be sent to
    anybody. With --kafka it says what waits in topics, and how late repeats come.
    """
    from delivery.watch.kills import kills_in  # noqa: PLC0415  keeps --help light
    from delivery.watch.page import page  # noqa: PLC0415  see above

    _refuse_other(output)
    kills = [] if chaos is None else kills_in(chaos)
    seen = observed(out, url, kafka, kafka_config, client, since=since, home=home)
    text = page(seen, kills).encode()
    try:
        unfinished = output.with_name(f".{output.name}.unfinished")
        unfinished.write_bytes(text)
        unfinished.replace(output)
    except OSError as error:
        raise InvalidUsage(
            "write a report",
            str(output),
            f"{error.strerror or error}; nothing is there now that was not before: name another file",
        ) from error
    seals = sum(one.total("seals") for one in seen.history.stages)
    out.result(
        f"{output}: {number(len(seen.history.stages))} stages, {number(seals)} seals, "
        f"{size(len(text))}; open it in a browser",
        {
            "catalog": seen.catalog,
            "kafka": seen.with_kafka,
            "file": str(output),
            "size": len(text),
            "stages": [one.name for one in seen.history.stages],
            "seals": seals,
            "kills": len(kills),
            "advice": len(seen.advice),
        },
    )


def _refuse_other(output: Path) -> None:
    """Refuse to write over what is no page: a catalog, say, whose name is a word further left."""
    try:
        with output.open("rb") as there:
            begins = there.read(len(_PAGE))
    except OSError:  # it is not there; what else it may be is said when it is written
        return
    if begins not in (b"", _PAGE):
        raise InvalidUsage(
            "write a report",
            str(output),
            "what is there is no page, and stays as it is; nothing was written: name another file",
        )
