"""`delivery top`: every stage, anew each few seconds.

What it is: words around `delivery.watch.rates`, and drawing over itself in a terminal.
What it must not know: how anything is measured.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dedup.errors import Unavailable
from delivery.cli.durations import DURATION
from delivery.cli.output import Output, verb
from delivery.cli.tables import ago, number, paragraph, table, when, where_any, wide
from delivery.cli.watching import GUARANTEES, places, watching_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from delivery.watch.rates import Screen, StageRate

_TITLES = (
    *("stage", "records/s", "out/s", "seals/s", "repeats", "behind", "oldest", "guarantee"),
    "dead letters",
)
_EVERY_MS = 2_000
#: To the upper left corner; and from here to the end of the line, and of the screen.
_HOME, _LINE_END, _SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR = "\x1b[2J"
#: A catalog that does not answer so often in a row is not busy, it is gone.
_FAILURES_MAX = 5


@click.command(
    epilog="Example: `delivery top sqlite:shop.db --kafka localhost:9092`, "
    "`delivery top sqlite:shop.db --every 10s --times 6 --json`."
)
@watching_options
@click.option("--every", type=DURATION, default=_EVERY_MS, help="How often; 2s.")
@click.option("--times", type=click.IntRange(1), help="End after so many looks; else never.")
@verb
def command(
    out: Output,
    *,
    url: str,
    kafka: str | None,
    kafka_config: Path | None,
    client: str | None,
    every: int,
    times: int | None,
) -> None:
    """Show every stage of the catalog at URL live, until it is interrupted.

    Of each: records, outputs and seals a second, the share of records that were repeats, records
    that wait (behind), the age of the oldest thing that waits, its guarantee, and, if there are
    any, records that went to dead letters. With --json one document a line.
    """
    from delivery.watch.rates import Rates  # noqa: PLC0415  keeps --help light

    drawn = sys.stdout.isatty() and not out.as_json
    pause = threading.Event()
    with places(out, url, kafka, kafka_config, client) as at:
        rates, where = Rates(at.catalog, at.client), at.catalog.store.url
        try:
            failures = shown = 0
            while times is None or shown < times:
                if shown or failures:
                    pause.wait(max(every, 1) / 1000)
                try:
                    screen = rates.look(time.time_ns() // 1_000_000)
                except Unavailable as error:
                    failures += 1
                    if failures == _FAILURES_MAX:
                        raise
                    out.progress(f"it does not answer, and is asked again: {error}")
                    continue
                failures = 0
                _show(out, screen, where, drawn=drawn, first=not shown)
                shown += 1
        except KeyboardInterrupt:
            return  # how it is meant to end


def _show(out: Output, screen: Screen, where: str, *, drawn: bool, first: bool) -> None:
    if not drawn:
        lines = [f"{where}  {when(screen.at_ms)}", *_lines(screen.stages, wide())]
        lines += paragraph(_held(screen), wide())
        out.line("\n".join(lines), {"catalog": where} | screen.document())
        return
    columns, rows = shutil.get_terminal_size()
    lines = fitted(screen, where, columns, rows)
    text = "".join(f"{line[:columns]}{_LINE_END}\n" for line in lines).rstrip("\n")
    click.echo(f"{_CLEAR if first else ''}{_HOME}{text}{_SCREEN_END}", nl=False)


def fitted(screen: Screen, where: str, columns: int, rows: int) -> list[str]:
    """Return the lines of a terminal: where not all stages fit, those that wait longest."""
    head = paragraph(f"{where}  {when(screen.at_ms)}", columns)
    held = paragraph(_held(screen), columns)
    stages: Sequence[StageRate] = screen.stages
    lines = _lines(stages, columns)
    left_out = 0
    while len(head) + len(lines) + 1 + len(held) > rows and len(stages) > 1:
        left_out += 1
        stages = _late_first(screen.stages)[: len(screen.stages) - left_out]
        lines = _lines(stages, columns)
    more = [f"and {left_out} more; make the window larger"] if left_out else []
    # Where not even that fits, what holds things up is what is looked for.
    above = [*head, *lines, *more][: max(0, rows - len(held))]
    return [*above, *held][:rows]


def _late_first(stages: Iterable[StageRate]) -> list[StageRate]:
    return sorted(stages, key=lambda one: -(one.late_ms or 0))


def _lines(stages: Sequence[StageRate], columns: int | None) -> list[str]:
    if not stages:
        return ["no stage ever ran on it"]
    return table(*where_any(_TITLES, [_row(one) for one in stages]), columns)


def _row(one: StageRate) -> tuple[str, ...]:
    return (
        one.name,
        _rate(one.records_a_second),
        _rate(one.outputs_a_second),
        _rate(one.seals_a_second),
        "-" if one.repeats is None else f"{one.repeats:.1%}",
        "-" if one.behind is None else number(one.behind),
        "0" if one.late_ms == 0 else ago(one.late_ms),
        GUARANTEES[one.state],
        number(one.dead_letters),
    )


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"  # noqa: PLR2004  below ten the digit behind the point matters


def _held(screen: Screen) -> str:
    held = screen.holdup
    if held is None:
        return "nothing holds things up"
    return f"{held.pipeline}/{held.stage} holds things up, by {ago(held.late_ms)}: {held.why}"
