"""`delivery catalog inspect`: how every lane stands.

What it is: words around `delivery.operate.lanes.inspect`. What it must not know: how it is found.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from delivery.cli.output import Output, databases_option, verb
from delivery.cli.tables import ago, number, size, table, when, wide
from delivery.cli.watching import home_option

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dedup.catalog.catalog import Catalog
    from delivery.operate.lanes import Lane, Tier
    from delivery.watch.filters import Health, LaneFilters

_TITLES = ("lane", "seq", "ack", "coll", "pending", "frontier", "ids", "segments", "bytes", "age")


@click.command(
    epilog="Example: `delivery catalog inspect sqlite:shop.db price` shows the lanes of one stage, "
    "`delivery catalog inspect sqlite:shop.db price orders-0` all about one of them."
)
@click.argument("url")
@click.argument("stage", required=False)
@click.argument("lane", required=False)
@home_option("with LANE, filters are shown too, and with --json of every lane")
@databases_option
@verb
def command(
    out: Output,
    *,
    url: str,
    stage: str | None,
    lane: str | None,
    home: Path | None,
    databases: tuple[str, ...],
) -> None:
    """Say how the lanes of the catalog at URL stand; it is only read.

    STAGE is a stage, or pipeline/stage; LANE what it reads there, as topic-partition. Of each lane:
    its last seal (seq), up to where outputs are acknowledged and collected, seals that are not
    acknowledged (pending), the frontier in its input, the ids it holds, the segments they lie in,
    bytes, and the age of the last seal. Of LANE, the filters that this host has for it, too.
    """
    from delivery.operate.databases import with_databases  # noqa: PLC0415  keeps --help light
    from delivery.operate.lanes import inspect  # noqa: PLC0415  see above
    from delivery.operate.opening import chosen, opened  # noqa: PLC0415  see above

    found = []
    with opened(url) as plain, with_databases(plain, databases) as (catalog, elsewhere):
        names = chosen(catalog, stage, lane)
        told = {name: one.database for name, one in elsewhere.items()}
        for one in inspect(catalog, names, time.time_ns() // 1_000_000, told):
            found.append(one)
            if len(names) > 1:
                out.step(f"read {len(found)} of {len(names)} lanes", len(found), len(names))
        where = catalog.store.url
        kept = _kept(catalog, names, home) if lane is not None or out.as_json else {}
    alone = lane is not None and len(found) == 1
    lines = _story(found[0], kept.get(found[0].lane)) if alone else _table(found)
    lines += [
        elsewhere[one.lane].line()
        for one in found
        if one.lane in elsewhere and elsewhere[one.lane].unread is not None
    ]
    out.result(
        "\n".join(lines) or "it holds no lanes yet: no stage ever ran on it",
        {
            "catalog": where,
            "lanes": [
                one.document()
                | {"filters": kept[one.lane].document() if one.lane in kept else None}
                for one in found
            ],
        },
    )


def _kept(catalog: Catalog, names: Sequence[str], home: Path | None) -> dict[str, LaneFilters]:
    """Return what this host has of the lanes."""
    from dedup.local.home import home_of  # noqa: PLC0415  a third of the verb's start
    from delivery.watch.filters import filters  # noqa: PLC0415  see above

    # As stages that are told nothing find it.
    own = home_of(None if home is None else str(home))
    return {} if own is None else {one.lane: one for one in filters(catalog, names, own.root)}


def _table(lanes: list[Lane]) -> list[str]:
    if not lanes:
        return []
    rows = [_row(lane) for lane in lanes]
    if len(lanes) > 1:
        rows.append(
            (
                f"{len(lanes)} lanes",
                *("", "", ""),
                number(sum(lane.pending for lane in lanes)),
                "",
                number(sum(lane.ids for lane in lanes)),
                number(sum(lane.segments for lane in lanes)),
                size(sum(lane.size for lane in lanes)),
                "",
            )
        )
    return table(_TITLES, rows, wide())


def _row(lane: Lane) -> tuple[str, ...]:
    return (
        lane.lane if lane.database is None else f"{lane.lane} (in {lane.database})",
        number(lane.seq),
        number(lane.acknowledged),
        number(lane.collected),
        number(lane.pending),
        # A partition lane has its partition in its name.
        number(lane.frontier[0].offset)
        if len(lane.frontier) == 1
        else ", ".join(f"{at.partition}:{at.offset}" for at in lane.frontier) or "-",
        number(lane.ids),
        number(lane.segments),
        size(lane.size),
        ago(lane.age_ms),
    )


def _story(lane: Lane, filters: LaneFilters | None) -> list[str]:
    """Return all about one lane."""
    pending = f"{number(lane.pending)} seals" if lane.pending else "nothing"
    since = f", the oldest {ago(lane.pending_ms)} old" if lane.pending_ms is not None else ""
    counts = ", ".join(f"{name} {number(count)}" for name, count in lane.counts.items() if count)
    entries = "none" if lane.first is None else f"{number(lane.entries)}, from seq {lane.first} on"
    rows = [
        ("kept in", lane.database or "the catalog"),
        ("head", f"seq {lane.seq}, {ago(lane.age_ms)} old, code {lane.code or 'unnamed'}"),
        ("incarnation", f"{lane.incarnation} ({number(lane.incarnations)} in all)"),
        ("acknowledged", f"seq {lane.acknowledged}"),
        ("pending", pending + since),
        ("collected", f"seq {lane.collected}"),
        *(("frontier", f"{at.topic} {at.partition}: {at.offset}") for at in lane.frontier),
        *(
            [("state", f"goes on with batch {lane.next_batch}")]
            if lane.next_batch is not None
            else []
        ),
        *(("delivered", f"{at.topic} {at.partition}: {at.offset}") for at in lane.delivered),
        ("lane time", when(lane.lane_time_ms) if lane.lane_time_ms else "-"),
        ("window", ago(lane.window_ms)),
        ("entries", entries),
        ("their records", counts or "-"),
        ("ids", number(lane.ids)),
        (
            "segments",
            f"{lane.unlisted} of entries, {lane.listed} listed, {len(lane.tiers)} merged",
        ),
        *(
            (
                "merged",
                _tier(tier),
            )
            for tier in lane.tiers
        ),
        *(("bytes", f"{name}: {size(count)}") for name, count in lane.sizes.items()),
        ("losers", number(lane.losers)),
        *(("filters", line) for line in _filters(filters)),
    ]
    titles = ("lane", lane.lane)
    return [line.rstrip() for line in table(titles, rows, wide())]


def _filters(filters: LaneFilters | None) -> list[str]:
    """Return lines about the filters that this host has."""
    if filters is None:
        return ["none on this host"]
    asked, key = filters.asked, "with" if filters.keyed else "without"
    lines = [f"{filters.engine} at {filters.target:.3%}, {key} a key", *map(_filter, filters.each)]
    if asked.rate is not None:
        lines.append(
            f"asked for {number(asked.probes)} ids: {number(asked.avoided)} look-ups avoided, "
            f"{asked.rate:.3%} false hits measured"
        )
    return lines


def _filter(one: Health) -> str:
    state = ", SATURATED" if one.saturated else ""
    return (
        f"{number(one.ids)} {one.origin} ids in {size(one.size)}, {one.fill:.1%} of bits set, "
        f"{one.rate:.3%} false hits expected{state}"
    )


def _tier(tier: Tier) -> str:
    return (
        f"{number(tier.ids)} {tier.origin} ids of {when(tier.from_ms)} and "
        f"{ago(tier.until_ms - tier.from_ms)} on, level {tier.level}, {tier.pieces} pieces, "
        f"{size(tier.size)}"
    )
