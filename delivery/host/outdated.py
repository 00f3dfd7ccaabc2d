"""Whether topics know more of a lane than its catalog does: an old copy of it, or another one.

What it is: `refuse_outdated`, asked before the lanes of a stage run.
What it must not know: how a catalog is put back or lost, who runs the lanes.

Invariants:
    Nothing is written. What is refused stays as it is, until an operator says what is meant.
    The head that decides is read AFTER the topic: a record is sealed before it is sent, so whoever
    else runs the lane just now has moved that head before its record could be seen.
    A lane that never was is looked for at the end of the logs: only lanes of its very name count,
    so that neither other writers nor partitions that are new refuse anybody.
    What is read has a bound for each partition, however long a lane was silent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage, Unavailable
from dedup.model import LaneRow, Source
from delivery.batch import Batch
from delivery.header import NAME, decode_headers
from delivery.kafka.port import Bounds, Client, Topic
from delivery.kafka.ranges import STALL_SECONDS_MAX, read_ranges
from delivery.operate.accepting import RE_KEYING, may_begin
from delivery.operate.opening import name_of
from delivery.protocol.senders import Mark

__all__ = ["LOOKED_AT_MAX", "NEVER_LOOKED_AT_MAX", "refuse_outdated"]

_OP = "run a lane"
#: Offsets at the end of each partition that are looked at. Where more lie behind what was delivered,
#: others wrote them since: if they are of a history that was given up, it is their lanes that are
#: refused, and with them the stage.
LOOKED_AT_MAX = 20_000
#: The same for lanes that never were: one record of one of them is enough, and each first start of
#: a stage pays for it.
NEVER_LOOKED_AT_MAX = 1_000


def refuse_outdated(
    catalog: Catalog, client: Client, lanes: Iterable[str], writes: Iterable[str]
) -> None:
    """Refuse lanes of which a topic holds a seal that this catalog does not know.

    Args:
        catalog: what has been decided, as it is.
        client: the cluster.
        lanes: of one stage.
        writes: the topics that the stage writes.

    Raises:
        InvalidUsage: the catalog was put back from a copy, or it is not the one that the stage ran
            with. Nothing was read by the stage or written.
        Unavailable: a topic cannot be read just now.
    """
    loaded = {lane: catalog.load(lane) for lane in lanes}
    rows = {lane: row for lane, row in loaded.items() if row is not None}
    never = loaded.keys() - rows.keys()
    names = list(dict.fromkeys(writes)) if loaded else []
    for topic in client.describe(names).values() if names else ():
        writers = {lane: row for lane, row in rows.items() if topic.id in row.head.writes}
        for place, mark in _beyond(client, topic, writers, never) if writers or never else ():
            row = catalog.load(mark.sender)
            if row is None and not may_begin(catalog, mark.sender):
                raise InvalidUsage(
                    _OP,
                    f"{mark.sender} in {catalog.store.url}",
                    _why_never(f"{topic.name} {place}", mark, catalog.store.url),
                )
            if row is not None and _is_beyond(mark, row):
                raise InvalidUsage(
                    _OP,
                    f"{mark.sender} in {catalog.store.url}",
                    _why(f"{topic.name} {place}", mark, row),
                )


def _is_beyond(mark: Mark, row: LaneRow) -> bool:
    """Tell whether a record says that the lane's own incarnation sealed more than the row knows."""
    ref = row.head.ref
    return mark.incarnation == ref.incarnation and mark.seq > ref.seq


def _beyond(
    client: Client, topic: Topic, writers: Mapping[str, LaneRow], never: Collection[str]
) -> Iterator[tuple[str, Mark]]:
    """Yield what the end of a topic knows of these lanes and the catalog does not: place and mark."""
    bounds = client.bounds(topic.name, topic.sources)
    starts, ends = _starts(bounds, topic, writers, never), dict(bounds.high)
    if all(starts[source] >= ends[source] for source in starts):
        return
    for fetched in read_ranges(
        client, topic.name, starts, ends, stalled=partial(_stalled, topic.name)
    ):
        yield from _marks(fetched.batch, writers, never)


def _starts(
    bounds: Bounds, topic: Topic, writers: Mapping[str, LaneRow], never: Collection[str]
) -> dict[Source, int]:
    """Return from where each partition is looked at.

    SUBTLE: when a catalog was copied, each partition ended at or behind whatever any of its lanes
    had delivered there. So a lane that has delivered nothing to a partition is looked for from where
    the others have: from the log's beginning it would be all of the topic, at every start.
    """
    starts = {}
    for source in topic.sources:
        low, high = bounds.low.at(source) or 0, bounds.high.at(source) or 0
        delivered = [
            at for row in writers.values() if (at := row.ack.delivered.at(source)) is not None
        ]
        known = max(low, high - LOOKED_AT_MAX, min(delivered, default=low)) if writers else high
        starts[source] = min(known, max(low, high - NEVER_LOOKED_AT_MAX)) if never else known
    return starts


def _marks(
    batch: Batch, writers: Mapping[str, LaneRow], never: Collection[str]
) -> Iterator[tuple[str, Mark]]:
    own = [
        next((value for name, value in reversed(headers or ()) if name == NAME), None)
        for headers in batch.headers
    ]
    columns = decode_headers(own)
    for number, mark in enumerate(columns.marks):
        known = writers.get(mark.sender)
        if mark.sender in never or (known is not None and _is_beyond(mark, known)):
            first = int((columns.mark_of == number).argmax())
            yield f"[{batch.source.partition}] offset {batch.offsets[first]}", mark


def _why(place: str, mark: Mark, row: LaneRow) -> str:
    return (
        f"an older copy of the catalog was put back: {place} is of its seal {mark.seq}, and the "
        f"catalog's last one is {row.head.ref.seq}; nothing was read or written. What was sealed since "
        "the copy would run again and count twice: bring back the newer catalog; if there is none, "
        "say `delivery catalog accept`, which gives up what was sealed since"
    )


def _why_never(place: str, mark: Mark, url: str) -> str:
    name = name_of(mark.sender)
    return (
        f"{place} was emitted by a lane of this name, and this catalog has none: the stage ran with "
        "another catalog; nothing was read or written. Begun here, it would read its input again, "
        "and all of it would count twice: open the catalog that it ran with (a relative path is "
        "one of the directory that a program is started in); if that is lost, docs/how-to/"
        "recover-a-lost-catalog.md rebuilds it with `delivery catalog repair`; if the stage is to "
        "begin anew beside what it emitted, say `delivery catalog accept "
        f"{url} --stage {name.pipeline}/{name.stage.removesuffix(RE_KEYING)}`"
    )


def _stalled(topic: str, waiting: Mapping[Source, int]) -> Unavailable:
    wanted = ", ".join(f"{source.partition} from {at}" for source, at in sorted(waiting.items()))
    return Unavailable(
        _OP,
        f"{topic}, partitions {wanted}",
        f"nothing came for {STALL_SECONDS_MAX:.0f} s; nothing was written: see whether the brokers "
        "that lead them are up, and run it again",
    )
