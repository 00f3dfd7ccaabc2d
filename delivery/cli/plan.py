"""`delivery plan`: what a pipeline will be, before it runs.

What it is: words around `delivery.operate.planning`. What it must not know: how anything is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delivery.cli.output import Output, verb
from delivery.cli.tables import ago, number, size, table, wide

if TYPE_CHECKING:
    from delivery.operate.planning import Load, Planned


@click.command(
    epilog="Example: `delivery plan shop.py --rate 20000 --partitions 8` tells what pipeline of "
    "shop.py takes at 20,000 records a second."
)
@click.argument("file", metavar="FILE.py[:NAME]")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=1000.0,
    show_default=True,
    help="Records a second in each topic.",
)
@click.option(
    "--bytes",
    "record_bytes",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Of a record, and of an output.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Of each topic.",
)
@click.option(
    "--keep-outputs",
    "keep_days",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Days for which delivered outputs stay, for a replay.",
)
@verb
def command(
    out: Output, *, file: str, rate: float, record_bytes: int, partitions: int, keep_days: float
) -> None:
    """Say what the pipeline of FILE.py will be: stages, lanes, where what is stored, warnings.

    The file is run up to its end under another name than `__main__`, so that what it declares is
    known; nothing is connected to and nothing is started. Its functions are read, not called.
    """
    from delivery.operate.declared import declared  # noqa: PLC0415  keeps --help light
    from delivery.operate.planning import Load, plan_of  # noqa: PLC0415  see above

    load = Load(
        per_second=rate, record_bytes=record_bytes, partitions=partitions, keep_days=keep_days
    )
    planned = plan_of(declared(file), load)
    out.result("\n".join(_lines(planned, load)), {"file": file} | planned.document())


def _lines(planned: Planned, load: Load) -> list[str]:
    home = planned.home or "a temporary directory of each host"
    at = (
        f"at {load.per_second:,g} records a second (--rate) of {size(load.record_bytes)} (--bytes), "
        f"in topics of {number(load.partitions)} partitions (--partitions)"
    )
    lines = [
        f"pipeline {planned.pipeline}: outputs, ids and seals in {planned.catalog}, indexes in {home}",
        at,
        "",
    ]
    rows = [
        (
            stage.name,
            stage.reads,
            ", ".join(stage.writes) or "-",
            number(stage.lanes),
            ago(stage.window_ms),
            number(stage.window_ids),
            "not stored" if stage.deterministic else size(stage.outputs_a_day),
            size(stage.kept),
            size(stage.ids_catalog + stage.entries),
            size(stage.ids_host),
            size(stage.filter_bytes),
        )
        for stage in planned.stages
    ]
    titles = ("stage", "reads", "writes", "lanes", "window", "ids", "outputs/day", "kept")
    if rows:
        lines += table((*titles, "ids+seals", "on hosts", "filters"), rows, wide())
    lines.append("")
    lines += [
        f"{warning.stage or planned.pipeline}: {warning.about}: {warning.text}"
        for warning in planned.warnings
    ]
    return lines
