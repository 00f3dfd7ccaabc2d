"""`delivery explain`: the story of one record.

What it is: words around `delivery.operate.explaining.explain`. What it must not know: how it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from dedup.errors import InvalidUsage
from delivery.cli.kafka import kafka_options, settings_in
from delivery.cli.output import Output, databases_option, id_options, verb
from delivery.cli.tables import number, when

if TYPE_CHECKING:
    from delivery.kafka.port import Client
    from delivery.operate.databases import Kept
    from delivery.operate.places import Attempt
    from delivery.operate.repeats import Repeat
    from delivery.operate.story import Copy, Reading, Story
    from delivery.operate.story import Output as Made

_T = TypeVar("_T")
#: What the kinds of chunks are called that an attempt leaves behind.
_CHUNKS = {"outputs": "its outputs", "segment": "the ids it decided", "dropped": "what it dropped"}
#: Of what there may be thousands of, so many are shown: a story is one screen.
_SHOWN_MAX = 5


@click.command(
    epilog="Example: `delivery explain sqlite:shop.db --kafka localhost:9092 --offset orders/0/17`, "
    "`--name order-4711` by a publisher's name; `delivery explain sqlite:shop.db 00c0ffee… --kafka "
    "localhost:9092` by the id in a header."
)
@click.argument("url")
@id_options
@kafka_options
@click.option(
    "--offset",
    metavar="TOPIC/PARTITION/OFFSET",
    help="The place of a record, of an input or an output.",
)
@click.option(
    "--name", "--key", "name", metavar="TEXT", help="A publisher's name or key for a record."
)
@click.option(
    "--whole",
    is_flag=True,
    help="Look for copies in whole topics: of what was sent again long after, by a replay or so.",
)
@databases_option
@verb
def command(
    out: Output,
    *,
    url: str,
    kafka: str,
    kafka_config: Path | None,
    client: str | None,
    offset: str | None,
    record_id: str | None,
    hexadecimal: str | None,
    name: str | None,
    whole: bool,
    databases: tuple[str, ...],
) -> None:
    """Tell the story of one record, from the catalog at URL and from Kafka.

    ID is the id in a record's header, 32 hexadecimal digits.

    Where it was made if a stage made it; which seal of which lane read it and when, which attempts
    left a trace; whether it took effect or what it repeats, and what repeats it; what was made of it,
    where the copies of that lie, and what their receivers made of them, those included that keep
    their lanes in a database.
    """
    from delivery.kafka.opening import open_client  # noqa: PLC0415  keeps --help light
    from delivery.operate import lookup  # noqa: PLC0415  see above
    from delivery.operate.databases import with_databases  # noqa: PLC0415  see above
    from delivery.operate.explaining import explain  # noqa: PLC0415  see above
    from delivery.operate.finding import id_of_name, places_of_id  # noqa: PLC0415  see above
    from delivery.operate.logs import Cluster  # noqa: PLC0415  see above
    from delivery.operate.opening import opened  # noqa: PLC0415  see above

    if sum(asked is not None for asked in (record_id, hexadecimal, name, offset)) != 1:
        raise InvalidUsage(
            "explain a record", url, "say one of ID, --offset and --name; nothing was read"
        )
    hexadecimal = hexadecimal or record_id
    places = [lookup.parsed(offset)] if offset is not None else []
    with (
        opened(url) as plain,
        with_databases(plain, databases) as (catalog, kept),
        open_client(kafka, settings_in(kafka_config), client, out.progress) as opened_,
    ):
        cluster = Cluster(opened_, out.step)
        if not places:
            given = (
                lookup.id_of_hex(hexadecimal)
                if hexadecimal
                else id_of_name(catalog, (name or "").encode(), catalog.lanes())
            )
            try:
                places = places_of_id(catalog, cluster, given)
            except InvalidUsage as error:
                raise InvalidUsage(error.op, name or error.subject, error.hint) from None
        else:
            _refuse_no_partition(opened_, *places[0])
        story = explain(catalog, cluster, *places[0], whole=whole)
        where = catalog.store.url
        held = _held(opened_, *places[0]) if story.size is None else ""
    others = [f"{topic}/{partition}/{at}" for topic, partition, at in places[1:]]
    told = [kept[lane] for lane in _lanes(story) if lane in kept]
    lines = [
        *_lines(story, held, kept),
        *_some(others, "such records", lambda other: [f"its id is that of {other} as well"]),
    ]
    lines += [one.line() for one in told]
    more = {"others": others, "databases": [one.document() for one in told]}
    out.result("\n".join(lines), {"catalog": where} | story.document() | more)


def _refuse_no_partition(client: Client, topic: str, partition: int, offset: int) -> None:
    """Refuse a partition that the topic does not have."""
    found = client.describe([topic]).get(topic)
    if found is not None and partition >= found.partitions:
        raise InvalidUsage(
            "explain a record",
            f"{topic}/{partition}/{offset}",
            f"{topic} has {found.partitions} partitions, counted from 0; nothing was read: mend the "
            "place",
        )


def _held(client: Client, topic: str, partition: int, offset: int) -> str:
    """Say why Kafka holds no record at an offset, as far as the ends of its log tell."""
    found = client.describe([topic]).get(topic)
    if found is None or partition >= found.partitions:
        return f"Kafka holds no record there: there is no {topic}/{partition} any more"
    source = found.sources[partition]
    bounds = client.bounds(topic, [source])
    low, high = bounds.low.at(source) or 0, bounds.high.at(source) or 0
    if offset >= high:
        return f"Kafka holds no record there yet: partition {partition} ends before {high}"
    if offset < low:
        return f"Kafka holds no record there any more: partition {partition} begins at {low}"
    return "Kafka holds no record there: it was deleted, or the offset is a hole"


def _lanes(story: Story) -> Iterable[str]:
    """Return the lanes that a story speaks of, each once."""
    receivers = [
        lane
        for reading in story.readings
        for output in reading.outputs
        for copy in output.copies
        for lane in copy.receivers
    ]
    return dict.fromkeys([*(reading.lane for reading in story.readings), *receivers])


def _lines(story: Story, held: str, kept: Mapping[str, Kept]) -> list[str]:
    lines = [f"{story.topic} partition {story.partition} offset {story.offset}"]
    if story.size is None or story.timestamp_ms is None:
        lines.append(f"  {held}")
    else:
        lines.append(f"  key {story.key}, {story.size} bytes, of {when(story.timestamp_ms)}")
    if story.origin is not None:
        made = story.origin
        parent = f" of partition {made.parent[0]} offset {made.parent[1]}" if made.parent else ""
        lines.append(f"  id {story.id}{', kept from further up' if made.kept else ''}")
        lines.append(f"  made by {made.lane} seq {made.seq}{parent}: {made.standing}")
        if made.error is not None:
            lines.append(f"  it is a dead letter: {made.error}")
    if not story.readings:
        lines.append("  no lane of this catalog reads it")
    return lines + [line for one in story.readings for line in _reading(one, kept.get(one.lane))]


def _attempt(one: Attempt) -> str:
    stored = f", stored {' and '.join(_CHUNKS.get(s, s) for s in one.stored)}" if one.stored else ""
    digest = f", had made {one.digest}" if one.digest else ""
    won = "was sealed, and counts" if one.won else "was not sealed, and never counts"
    return f"  attempt {one.attempt} {won}{digest}{stored}"


def _output(output: Made) -> list[str]:
    lines = [
        f"  output {output.id} to {output.topic} partition {output.partition}",
        f"    key {output.key}, {output.size} bytes",
    ]
    if output.error is not None:
        lines.append(f"    a dead letter: {output.error}")
    lines += _some(output.copies, "    copies", lambda copy: _copy(output, copy))
    if not output.copies:
        lines.append("    no copy in Kafka: not emitted yet, or deleted since")
    return lines


def _copy(output: Made, copy: Copy) -> list[str]:
    fates = ", ".join(f"{lane}: {fate}" for lane, fate in copy.receivers.items())
    lines = [f"    at offset {copy.offset}{f'; {fates}' if fates else ''}"]
    if "fresh" in copy.receivers.values():
        at = f"{output.topic}/{output.partition}/{copy.offset}"
        lines.append(f"      what was made of it: --offset {at}")
    elif "duplicate" in copy.receivers.values():
        at = f"{output.topic}/{output.partition}/{copy.offset}"
        lines.append(f"      what it repeats: --offset {at}")
    dropped = [(lane, one) for lane, found in copy.repeats.items() for one in found]
    return lines + _some(dropped, "      repeats", _rekeyed)


def _rekeyed(dropped: tuple[str, Repeat]) -> list[str]:
    lane, one = dropped
    parent = one.parent or (one.partition, one.offset)
    came = f"partition {one.partition} offset {one.offset}"
    at = f"partition {parent[0]} offset {parent[1]}, re-keyed to {came}"
    return [f"      repeated by {at}, dropped by {lane} seq {one.seq}, {when(one.sealed_ms)}"]


def _at(output: Made) -> list[str]:
    """Say in a line where an output of a batch lies."""
    place = f"{output.topic} partition {output.partition}"
    offsets = ", ".join(str(copy.offset) for copy in output.copies)
    where = (
        f"offset {offsets}" if offsets else "no copy in Kafka: not emitted yet, or deleted since"
    )
    return [f"  output {output.id} to {place}, {where}"]


def _reading(one: Reading, kept: Kept | None) -> list[str]:
    if one.seq is None or one.sealed_ms is None:
        return [f"{one.lane}: {one.fate}"]
    code = f", by code of version {one.code}" if one.code else ""
    lines = [f"{one.lane}: {one.fate}, sealed by seq {one.seq}, {when(one.sealed_ms)}{code}"]
    lines += map(_attempt, one.attempts)
    if one.original is not None:
        place = (
            f"partition {one.original.place[0]} offset {one.original.place[1]}"
            if one.original.place
            else "a record"
        )
        way = "the id in its header" if one.named == "delivery" else one.named
        lines.append(f"  it repeats {place}, sealed by seq {one.original.seq} (named by {way})")
    if one.together is not None and one.fate == "fresh":
        lines.append(f"  {one.together.line(len(one.outputs))}")
        lines += _some(one.outputs, "  outputs", _at)
    else:
        lines += _some(one.outputs, "  outputs", _output)
    if kept is not None and one.fate == "fresh":
        lines.append(f"  whatever effect it had is in {kept.database}")
    elif one.fate == "fresh" and not one.outputs and one.together is None:
        unsent = ", or it is not sent yet: its stage is deterministic, and outputs are not stored"
        lines.append(f"  nothing was made of it{unsent if one.remade else ''}")
    lines += _some(one.repeats, "  repeats", _repeat)
    if one.repeats_upto is not None:
        others = len(one.repeats_elsewhere)
        more = f", and in {others} other partition{'s' if others > 1 else ''}" if others else ""
        lines.append(f"  its repeats were looked for up to offset {one.repeats_upto}{more}")
    return lines


def _repeat(one: Repeat) -> list[str]:
    at = f"partition {one.partition} offset {one.offset}"
    if one.parent is not None:
        at += f" (re-keyed from partition {one.parent[0]} offset {one.parent[1]})"
    return [f"  repeated by {at}, dropped by seq {one.seq}, {when(one.sealed_ms)}"]


def _some(every: Sequence[_T], what: str, told: Callable[[_T], list[str]]) -> list[str]:
    """Return lines about the first of many, and how many more there are; `what` has their indent."""
    lines = [line for one in every[:_SHOWN_MAX] for line in told(one)]
    if (more := len(every) - _SHOWN_MAX) > 0:
        indent = " " * (len(what) - len(what.lstrip()))
        lines.append(f"{indent}and {number(more)} more {what.lstrip()}: --json names all")
    return lines
