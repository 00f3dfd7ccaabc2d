"""`delivery catalog lookup`: where an id was decided, or what became of an offset.

What it is: words around `delivery.operate.lookup`. What it must not know: how it is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from dedup.errors import InvalidUsage
from delivery.cli.output import Output, databases_option, id_options, verb
from delivery.cli.tables import when

if TYPE_CHECKING:
    from delivery.operate.databases import Kept
    from delivery.operate.lookup import Decision, Maker, Read

_KEPT = {"entry": "in its entry", "list": "in the list", "merged": "in a merged segment"}
#: How a topic is shown whose name is not known.
_IDENTITY = re.compile("[0-9a-f]{32}")


@click.command(
    epilog="Example: `delivery catalog lookup sqlite:shop.db --offset orders/0/17` says what became "
    "of a record, `delivery catalog lookup sqlite:shop.db --name order-4711` where a publisher's "
    "name was decided."
)
@click.argument("url")
@id_options
@click.option(
    "--name", "--key", "name", metavar="TEXT", help="A publisher's name or key for a record."
)
@click.option("--offset", metavar="TOPIC/PARTITION/OFFSET", help="The place of an input record.")
@click.option("--stage", help="Only the lanes of this stage, or pipeline/stage.")
@databases_option
@verb
def command(
    out: Output,
    *,
    url: str,
    record_id: str | None,
    hexadecimal: str | None,
    name: str | None,
    offset: str | None,
    stage: str | None,
    databases: tuple[str, ...],
) -> None:
    """Look up an id, a publisher's name or an input offset in the catalog at URL.

    ID is the id in a record's header, 32 hexadecimal digits.

    Says which seal of which lane decided it and when; of an offset also whether it was fresh, a
    duplicate or a remnant, and what was made of it, as long as that is stored. Lanes that a receiver
    keeps in a database are looked up there. Kafka is not asked; `delivery explain` does.
    """
    from delivery.operate import lookup  # noqa: PLC0415  keeps --help light
    from delivery.operate.databases import with_databases  # noqa: PLC0415  see above
    from delivery.operate.finding import id_of_name  # noqa: PLC0415  see above
    from delivery.operate.opening import chosen, opened  # noqa: PLC0415  see above

    if sum(asked is not None for asked in (record_id, hexadecimal, name, offset)) != 1:
        raise InvalidUsage(
            "look something up", url, "say one of ID, --name and --offset; nothing was looked up"
        )
    hexadecimal = hexadecimal or record_id
    with opened(url) as plain, with_databases(plain, databases) as (catalog, kept):
        lanes, where = chosen(catalog, stage), catalog.store.url
        if offset is not None:
            reads = lookup.look_up_offset(catalog, *lookup.parsed(offset), lanes)
            told = [kept[read.lane] for read in reads if read.lane in kept]
            document = {
                "catalog": where,
                "offset": offset,
                "reads": [one.document() for one in reads],
                "databases": [one.document() for one in told],
            }
            lines = [line for read in reads for line in _read(read, kept.get(read.lane))]
            made = [one.topic for read in reads for one in read.outputs or ()]
            lines += [*(one.line() for one in told), *_unnamed(made)]
            out.result("\n".join(lines), document)
            return
        found = (
            lookup.id_of_hex(hexadecimal)
            if hexadecimal
            else id_of_name(catalog, (name or "").encode(), lanes)
        )
        decisions, makers = lookup.look_up_id(catalog, found, lanes)
    lines = [f"id {found.hex()}"]
    lines += [line for decision in decisions for line in _decision(decision)]
    lines += [_maker(maker) for maker in makers]
    if not decisions:
        lines.append("  no lane has decided it, or all that did have forgotten it")
    told = [kept[lane] for lane in lanes if lane in kept]
    unread = [one for one in told if one.unread is not None]
    if unread:
        lines.append("  whether these have is not known:")
        lines += [f"  {one.line()}" for one in unread]
    lines += _unnamed(one.topic for one in makers)
    document = {
        "catalog": where,
        "id": found.hex(),
        "decisions": [one.document() for one in decisions],
        "makers": [one.document() for one in makers],
        "databases": [one.document() for one in told],
    }
    out.result("\n".join(lines), document)


def _unnamed(topics: Iterable[str]) -> list[str]:
    """Say where names of topics are, if one is shown by its identity."""
    if not any(_IDENTITY.fullmatch(topic) for topic in topics):
        return []
    return [
        "a topic by letters and digits is its identity: `delivery stage list … --kafka` names it"
    ]


def _decision(one: Decision) -> list[str]:
    sealed = "its entry was collected" if one.sealed_ms is None else when(one.sealed_ms)
    lines = [
        f"  decided by {one.lane} seq {one.seq}, {sealed} ({one.origin}, {_KEPT[one.kept_in]})"
    ]
    if one.offset is not None:
        lines.append(f"    it is the record at partition {one.offset[0]} offset {one.offset[1]}")
    elif one.start is not None and one.end is not None:
        ranges = [f"{part}: {one.start[part]} to {end - 1}" for part, end in one.end.items()]
        lines.append(f"    that seal read offsets {', '.join(ranges)} (partition: offsets)")
    return lines


def _maker(one: Maker) -> str:
    return (
        f"  made by {one.lane} seq {one.seq}, {when(one.sealed_ms)}, as output {one.ordinal} to "
        f"{one.topic}"
    )


def _read(one: Read, kept: Kept | None) -> list[str]:
    if one.seq is None or one.sealed_ms is None:
        return [f"{one.lane}: {one.fate}"]
    code = f", code {one.code}" if one.code else ""
    lines = [f"{one.lane}: {one.fate}, sealed by seq {one.seq}, {when(one.sealed_ms)}{code}"]
    if one.together is not None and one.fate == "fresh":
        lines.append(f"  {one.together.line(len(one.outputs or ()))}")
    lines += [
        f"  output {made.id} to {made.topic} partition {made.partition}, key {made.key}, "
        f"{made.size} bytes"
        for made in one.outputs or ()
    ]
    if kept is not None and one.fate == "fresh":
        lines.append(f"  whatever effect it had is in {kept.database}")
    elif one.outputs is None and one.remade:
        lines.append(
            "  its stage is deterministic: outputs are not stored, `delivery explain` finds them"
        )
    elif one.outputs is None:
        lines.append("  its outputs are delivered, and were collected here")
    elif not one.outputs and one.fate == "fresh" and one.together is None:
        lines.append("  nothing was made of it, or there is no record at this offset")
    return lines
