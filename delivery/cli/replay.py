"""`delivery replay`: sealed outputs once more, bit for bit.

What it is: words around `delivery.operate.replaying`. What it must not know: how anything is sent.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dedup.errors import InvalidUsage
from delivery.cli.durations import DURATION
from delivery.cli.kafka import kafka_options, settings_in
from delivery.cli.output import Output, verb
from delivery.cli.tables import number, size, table, wide

if TYPE_CHECKING:
    from delivery.operate.replaying import LaneWindow

_SECOND_MS = 1000


@click.command(
    epilog="Example: `delivery replay sqlite:shop.db price --kafka localhost:9092 --since 2h` shows "
    "what would be sent, `--yes` sends it, `--to orders.priced.copy` sends it there."
)
@click.argument("url")
@click.argument("stage")
@kafka_options
@click.option("--lane", help="Only this lane: its name, or topic-partition.")
@click.option("--since", type=DURATION, help="What was sealed so long ago or later: 2h.")
@click.option("--until", type=DURATION, help="What was sealed longer ago than that.")
@click.option("--seqs", help="Seals FROM..TO of one lane, the last one included; --lane names it.")
@click.option("--to", help="Another topic, with at least as many partitions.")
@click.option("--yes", is_flag=True, help="Send; without it, only say what would be sent.")
@verb
def command(
    out: Output,
    *,
    url: str,
    stage: str,
    kafka: str,
    kafka_config: Path | None,
    client: str | None,
    lane: str | None,
    since: int | None,
    until: int | None,
    seqs: str | None,
    to: str | None,
    yes: bool,
) -> None:
    """Send sealed outputs of STAGE in URL once more, as they are stored.

    No user code runs. Receivers drop what they have read already; whoever reads the topic without a
    receiver sees each record again. Outputs that were collected are counted and left out: keep them
    with `delivery catalog compact --keep-outputs`.
    """
    from delivery.kafka.opening import open_client  # noqa: PLC0415  keeps --help light
    from delivery.operate.logs import Cluster  # noqa: PLC0415  see above
    from delivery.operate.opening import chosen, opened  # noqa: PLC0415  see above
    from delivery.operate.replaying import Window, replay, surveyed  # noqa: PLC0415  see above

    now_ms = int(time.time() * _SECOND_MS)
    first, last = _bounds(seqs, lane)
    window = Window(
        since_ms=None if since is None else now_ms - since,
        until_ms=None if until is None else now_ms - until,
        first=first,
        last=last,
    )
    with (
        opened(url) as catalog,
        open_client(kafka, settings_in(kafka_config), client, out.progress) as cluster,
    ):
        lanes = chosen(catalog, stage, lane)
        found = surveyed(catalog, Cluster(cluster), lanes, window, out.step)
        if yes:
            replay(catalog, cluster, found, to, out.step)
        document = {
            "catalog": catalog.store.url,
            "done": yes,
            "to": to,
            "lanes": [one.document() for one in found],
        }
    out.result("\n".join(_lines(found, yes=yes)), document)


def _bounds(seqs: str | None, lane: str | None) -> tuple[int | None, int | None]:
    if seqs is None:
        return None, None
    first, dots, last = seqs.partition("..")
    if not dots or not first.isdecimal() or not last.isdecimal() or lane is None:
        raise InvalidUsage(
            "replay outputs",
            f"--seqs {seqs}",
            "nothing was sent: write FROM..TO, and name the lane with --lane",
        )
    return int(first), int(last)


def _lines(found: list[LaneWindow], *, yes: bool) -> list[str]:
    rows = [
        (
            one.lane,
            f"{one.seals[0].ref.seq}..{one.seals[-1].ref.seq}" if one.seals else "-",
            number(len(one.seals)),
            number(one.sent if yes else one.records),
            size(one.size),
            number(one.gone),
        )
        for one in found
    ]
    lines = table(("lane", "seqs", "seals", "records", "stored", "collected"), rows, wide())
    lines += [
        f"{one.lane}: older seals are gone, and whether they belong here is not known"
        for one in found
        if one.unread
    ]
    lines.append("sent" if yes else "nothing was sent; --yes sends it")
    return lines
