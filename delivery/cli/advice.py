"""`delivery advice`: what to change, concluded from what was observed.

What it is: words around `delivery.watch.observed`. What it must not know: what is concluded.
"""

from __future__ import annotations

from pathlib import Path

import click

from delivery.cli.output import Output, verb
from delivery.cli.watching import observed, observing_options, watching_options


@click.command(
    epilog="Example: `delivery advice sqlite:shop.db --kafka localhost:9092` looks repeats up as "
    "well and suggests windows."
)
@watching_options
@observing_options("filters count too")
@verb
def command(
    out: Output,
    *,
    url: str,
    kafka: str | None,
    kafka_config: Path | None,
    client: str | None,
    since: int | None,
    home: Path | None,
) -> None:
    """Say what to change about the stages of the catalog at URL: windows, bundles, lanes.

    Concluded from the seals that can still be read; with --kafka a sample of repeats is looked up,
    and how late they came says how long a window has to be. Nothing is changed.
    """
    seen = observed(out, url, kafka, kafka_config, client, since=since, home=home)
    lines = [
        line
        for one in seen.advice
        for line in (
            f"{one.stage}: {one.topic}: {one.seen}",
            f"  {one.change or 'nothing to change'}",
        )
    ]
    if not seen.with_kafka:
        lines.append("windows: name the brokers with --kafka, and repeats are looked up")
    out.result(
        "\n".join(lines or ["too little was seen to say anything"]),
        {
            "catalog": seen.catalog,
            "kafka": seen.with_kafka,
            "advice": [one.document() for one in seen.advice],
        },
    )
