"""`delivery catalog compact`: take away what nobody needs any more, and merge what is left.

What it is: words around `delivery.operate.compaction.tidy`. What it must not know: what may go.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import click

from delivery.cli.durations import DURATION
from delivery.cli.output import Output, verb
from delivery.cli.tables import number, size

if TYPE_CHECKING:
    from delivery.operate.compaction import Tidied

#: As in `delivery.operate.compaction`, which is loaded only when it is used; a test compares them.
WINDOW = "30d"
ENTRIES_KEPT = "7d"

_WORDS = {
    "outputs": "stored outputs of {} seals and attempts",
    "entries": "{} entries",
    "segment": "{} segments of ids",
    "dropped": "{} lists of dropped offsets",
    "losers": "{} digests of losers",
}


@click.command(
    epilog="Example: `delivery catalog compact sqlite:shop.db` shows what would go, `delivery "
    "catalog compact sqlite:shop.db price --window 24h --yes` does it for one stage."
)
@click.argument("url")
@click.argument("stage", required=False)
@click.option(
    "--window",
    type=DURATION,
    default=WINDOW,
    show_default=True,
    help="The longest window that a stage of these has; ids that publishers name are held so long. "
    "One that is too short lets their repeats through.",
)
@click.option(
    "--keep-entries",
    type=DURATION,
    default=ENTRIES_KEPT,
    show_default=True,
    help="How long seals stay, for audits.",
)
@click.option(
    "--keep-outputs",
    type=DURATION,
    default="0",
    show_default=True,
    help="How long delivered outputs stay, for replays.",
)
@click.option("--yes", is_flag=True, help="Do it; without it, this only shows what would go.")
@verb
def command(
    out: Output,
    *,
    url: str,
    stage: str | None,
    window: int,
    keep_entries: int,
    keep_outputs: int,
    yes: bool,
) -> None:
    """Collect and compact the lanes of the catalog at URL, or of one STAGE.

    A dry run by default: it shows what would go, what stays and why. What a lane or a receiver may
    still need never goes. Safe beside live jobs, and beside a kill at any moment.
    """
    from delivery.operate.compaction import Rules, tidy  # noqa: PLC0415  keeps --help light
    from delivery.operate.opening import chosen, opened  # noqa: PLC0415  see above

    rules = Rules(window_ms=window, entries_ms=keep_entries, outputs_ms=keep_outputs)
    found = []
    with opened(url) as catalog:
        where = catalog.store.url
        lanes = chosen(catalog, stage)
        for done, lane in enumerate(lanes):
            now_ms = time.time_ns() // 1_000_000
            report = partial(out.step, done=done, total=len(lanes))
            found.append(tidy(catalog, lane, rules, now_ms, perform=yes, report=report))
    lines = [line for one in found for line in _lane(one)]
    freed = sum(one.deeds.freed for one in found)
    if not found:
        lines.append("it holds no lanes yet: no stage ever ran on it")
    elif freed < 0:
        # Ids that are merged say of each which seal it came from.
        change = f"{size(-freed)} more in fewer pieces, {len(found)} lanes"
        lines.append(change if yes else f"it would be {change}; --yes does it")
    elif yes:
        lines.append(f"{size(freed)} freed in {len(found)} lanes")
    else:
        lines.append(f"{size(freed)} would be freed in {len(found)} lanes; --yes does it")
    out.result(
        "\n".join(lines),
        {"catalog": where, "done": yes, "freed": freed, "lanes": [o.document() for o in found]},
    )


def _lane(one: Tidied) -> list[str]:
    """Return what is to be said of one lane."""
    deeds = one.deeds
    went = [
        f"{_WORDS[what].format(number(count))}, {size(deeds.sizes[what])}"
        for what, count in deeds.counts.items()
        if count
    ]
    if one.merges:
        went.append(f"{number(one.merges)} merges, {size(deeds.written)} written")
    lines = [one.lane]
    verbs = ("gone", "stays") if one.done else ("would go", "would stay")
    lines += [f"  {verbs[0]}: {text}" for text in went] or [f"  {verbs[0]}: nothing"]
    lines += [f"  {verbs[1]}: {text}" for text in one.stays]
    if one.more:
        lines.append("  and more: a dry run follows merges only so far")
    if one.void:
        lines.append("  another process moved this lane each time; run it again for the rest")
    return lines
