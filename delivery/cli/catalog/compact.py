"""`delivery catalog compact`: take away what nobody needs any more, and merge what is left.

What it is: words around `delivery.operate.compaction.tidy`.
What it must not know: what may go.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from delivery.cli.durations import DURATION
from delivery.cli.output import Output, verb
from delivery.cli.tables import number, size

if TYPE_CHECKING:
    from delivery.operate.compaction import Tidied

#: As in `delivery.operate.compaction`, which is loaded only when it is used; a test compares them.
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
    "catalog compact sqlite:shop.db price --yes` does it for one stage."
)
@click.argument("url")
@click.argument("stage", required=False)
@click.option(
    "--window",
    type=DURATION,
    show_default="each stage's own",
    help="Hold ids that publishers name at least so long, as for a stage whose window is about to "
    "grow. One below the window that a stage has run with is refused.",
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
    window: int | None,
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
    from delivery.operate.windows import windows  # noqa: PLC0415  see above

    rules = Rules(entries_ms=keep_entries, outputs_ms=keep_outputs)
    if window is not None:
        rules = replace(rules, window_ms=window)
    found = []
    with opened(url) as catalog:
        where = catalog.store.url
        held = windows(catalog, chosen(catalog, stage), window)
        for done, (lane, window_ms) in enumerate(held.items()):
            own = replace(rules, window_ms=window_ms)
            now_ms = time.time_ns() // 1_000_000
            report = partial(out.step, done=done, total=len(held))
            found.append(tidy(catalog, lane, own, now_ms, perform=yes, report=report))
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
