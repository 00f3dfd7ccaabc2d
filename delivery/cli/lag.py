"""`delivery lag`: how far behind every stage is, and which one holds things up.

What it is: words around `delivery.watch.lag`. What it must not know: how it is found.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from delivery.cli.durations import DURATION
from delivery.cli.output import Output, databases_option, verb
from delivery.cli.tables import ago, number, paragraph, table, wide
from delivery.cli.watching import places, watching_options

if TYPE_CHECKING:
    from delivery.watch.lag import Lag, LaneLag, StageLag

_TITLES = ("stage", "behind", "waiting", "pending", "oldest", "last seal")
_LANE_TITLES = ("lane", *_TITLES[1:])
_LATE_MS = 10_000


@click.command(
    epilog="Example: `delivery lag sqlite:shop.db --kafka localhost:9092`, "
    "`delivery lag sqlite:shop.db --kafka localhost:9092 --stage price --lanes`."
)
@watching_options
@click.option("--stage", help="Only this stage, or pipeline/stage.")
@click.option("--lanes", is_flag=True, help="A line for each lane as well.")
@click.option(
    "--late", type=DURATION, default=_LATE_MS, help="What is younger holds nobody up; 10s."
)
@databases_option
@verb
def command(
    out: Output,
    *,
    url: str,
    kafka: str | None,
    kafka_config: Path | None,
    client: str | None,
    stage: str | None,
    lanes: bool,
    late: int,
    databases: tuple[str, ...],
) -> None:
    """Say how many records wait for each stage of the catalog at URL, and since when.

    Of each stage: records that no seal covers (behind) and the age of the oldest of them (waiting),
    seals that are not acknowledged (pending) and the age of the oldest of them, and the age of the
    last seal. Then the stage that holds things up, if one does. Ages of records that no stage made
    are those of their timestamps. Without --kafka a stage that reads what strangers write is
    unknown: "-", and so is a receiver whose database is not here.
    """
    from delivery.operate.opening import chosen  # noqa: PLC0415  keeps --help light
    from delivery.watch.lag import lag  # noqa: PLC0415  see above
    from delivery.watch.rows import rows_of  # noqa: PLC0415  see above
    from delivery.watch.waiting import Doors  # noqa: PLC0415  see above

    with (
        places(out, url, kafka, kafka_config, client) as at,
        rows_of(at.catalog, databases) as (catalog, rows),
    ):
        if stage is not None:
            chosen(catalog, stage)
        doors = Doors(at.client) if at.client is not None else None
        now_ms = time.time_ns() // 1_000_000
        found = lag(catalog, rows, doors, now_ms, late_ms=late)
        where = catalog.store.url
    if stage is not None:
        found = found.only(stage)
    text = "\n".join(_lines(found, now_ms, lanes=lanes))
    out.result(text, {"catalog": where, "kafka": doors is not None} | found.document())


def _lines(found: Lag, now_ms: int, *, lanes: bool) -> list[str]:
    if not found.stages:
        return ["no stage ever ran on it"]
    lines = table(_TITLES, [_row(one.name, one, now_ms) for one in found.stages], wide())
    if lanes:
        rows = [_row(lane.lane, lane, now_ms) for one in found.stages for lane in one.lanes]
        lines += ["", *table(_LANE_TITLES, rows, wide())]
    for one in found.stages:
        if one.unclaimed:
            unclaimed = f"partitions of its input without a lane yet: {number(one.unclaimed)}"
            lines += paragraph(f"{one.name}: {unclaimed}", wide())
    held = found.holdup
    if held is None:
        return [*lines, "nothing holds things up"]
    said = f"{held.pipeline}/{held.stage} holds things up, by {ago(held.late_ms)}: {held.why}"
    return [*lines, *paragraph(f"{said}; {held.advice}", wide())]


def _row(name: str, one: StageLag | LaneLag, now_ms: int) -> tuple[str, ...]:
    return (
        name,
        "-" if one.behind is None else number(one.behind),
        _age(one.waiting_ms),
        number(one.pending),
        _age(one.pending_ms),
        ago(None if one.sealed_ms is None else max(0, now_ms - one.sealed_ms)),
    )


def _age(milliseconds: int | None) -> str:
    return "0" if milliseconds == 0 else ago(milliseconds)
