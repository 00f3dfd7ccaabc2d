"""`delivery advice`: what to change, concluded from what was observed.

What it is: words around `delivery.watch.observed`. What it must not know: what is concluded.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from delivery.cli.durations import DURATION
from delivery.cli.output import Output, verb
from delivery.cli.watching import places, watching_options


@click.command(
    epilog="Example: `delivery advice sqlite:shop.db --kafka localhost:9092` looks repeats up as "
    "well and suggests windows."
)
@watching_options
@click.option("--since", type=DURATION, help="Only what was sealed in the last 24h, say; else all.")
@click.option(
    "--home",
    envvar="DELIVERY_HOME",
    type=click.Path(file_okay=False, path_type=Path),
    help="This host's directory of indexes, as stages have it; $DELIVERY_HOME: filters count too.",
)
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
    from delivery.watch.observed import observe  # noqa: PLC0415  keeps --help light

    now_ms = time.time_ns() // 1_000_000
    with places(url, kafka, kafka_config, client) as at:
        seen = observe(
            at.catalog,
            at.client,
            now_ms,
            since_ms=now_ms - since if since else 0,
            home=home,
            report=out.step,
        )
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
