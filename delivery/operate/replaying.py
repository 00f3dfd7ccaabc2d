"""Sealed outputs sent once more, bit for bit, from what was stored.

What it is: `surveyed`, which says what a window holds, and `replay`, which sends it.
What it must not know: how it is shown, user code: nothing is run again.

Invariants:
    What is sent is what the seal promised: bytes, headers and partition; nothing is made anew.
    The catalog is only read; no acknowledgement moves, so a replay may be killed and run again.
    Outputs that were collected are counted and left out, never made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.errors import InvalidUsage
from dedup.model import Seal
from delivery.kafka.port import Client, Topic
from delivery.operate.logs import Cluster
from delivery.operate.places import is_remade
from delivery.operate.reporting import Report, silent
from delivery.outputs import decode_outputs

__all__ = ["LaneWindow", "Window", "replay", "surveyed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which seals are meant.

    Attributes:
        since_ms, until_ms: minted at this time or later, and before that one.
        first, last: their seqs; the last one is included.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    first: int | None = None
    last: int | None = None

    def holds(self, seal: Seal) -> bool:
        """Tell whether a seal is meant."""
        return (
            (self.since_ms is None or seal.minted_at_ms >= self.since_ms)
            and (self.until_ms is None or seal.minted_at_ms < self.until_ms)
            and (self.first is None or seal.ref.seq >= self.first)
            and (self.last is None or seal.ref.seq <= self.last)
        )


@dataclass(slots=True)
class LaneWindow:
    """What a window holds of a lane.

    Attributes:
        seals: those that are meant and whose outputs are there.
        records, size: their outputs, and the bytes these take in the catalog.
        gone: outputs of meant seals that were collected.
        gone_seals: how many seals that concerns.
        unread: whether entries before the first one are gone, so that nobody knows what is missing.
        sent: records that were sent.
    """

    lane: str
    topics: tuple[str, ...]
    seals: list[Seal] = field(default_factory=list)
    records: int = 0
    size: int = 0
    gone: int = 0
    gone_seals: int = 0
    unread: bool = False
    sent: int = 0

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "lane": self.lane,
            "topics": list(self.topics),
            "seals": len(self.seals),
            "first": self.seals[0].ref.seq if self.seals else None,
            "last": self.seals[-1].ref.seq if self.seals else None,
            "records": self.records,
            "size": self.size,
            "gone_seals": self.gone_seals,
            "gone": self.gone,
            "unread": self.unread,
            "sent": self.sent,
        }


def surveyed(
    catalog: Catalog,
    cluster: Cluster,
    lanes: Sequence[str],
    window: Window,
    report: Report = silent,
) -> list[LaneWindow]:
    """Return what a window holds; nothing is sent. Each lane is reported.

    Raises:
        InvalidUsage: a lane writes to something that is no topic of this Kafka, or stores nothing.
    """
    found: list[LaneWindow] = []
    for lane in lanes:
        report(f"look at {lane}", len(found), len(lanes))
        found.append(_surveyed(catalog, cluster, lane, window))
    return found


def replay(
    catalog: Catalog,
    client: Client,
    found: Sequence[LaneWindow],
    to: str | None,
    report: Report = silent,
) -> None:
    """Send what a survey found, lane by lane and seal by seal, in the order it was sealed.

    Args:
        catalog: where it is stored.
        client: the cluster.
        found: what is sent; `sent` is counted up in it.
        to: another topic for all of it; None: where it was sent before.
        report: is told how far it is.

    Raises:
        InvalidUsage: the other topic does not exist, or has fewer partitions.
        Corrupt: what is stored is damaged; all before it was sent.
    """
    cluster = Cluster(client)
    total, done = sum(one.records for one in found), 0
    producer = client.producer()
    try:
        for one in found:
            topics = [cluster.topic(to or name) for name in one.topics]
            _check_partitions(cluster, one, topics)
            for emissions, seal in _stored(catalog, one):
                producer.emit(topics, emissions)
                one.sent += len(emissions)
                done += len(emissions)
                words = f"{one.lane}: seal {seal.ref.seq}, {one.sent} of {one.records} records sent"
                report(words, done, total)
    finally:
        producer.close()


def _surveyed(catalog: Catalog, cluster: Cluster, lane: str, window: Window) -> LaneWindow:
    row = catalog.load(lane)
    assert row is not None, "lanes were chosen among those there are"
    names = cluster.names()
    foreign = [topic for topic in row.head.writes if topic not in names]
    if foreign:
        raise InvalidUsage(
            "replay a lane",
            lane,
            "it writes to what is no topic of this Kafka (any more); nothing was sent: name the "
            "cluster it writes to, or another stage",
        )
    found = LaneWindow(lane, tuple(names[topic] for topic in row.head.writes))
    first = None
    for incarnation, low, high in row.head.runs(1, row.head.ref.seq):
        for seal in catalog.seals(lane, incarnation, low, high):
            first = seal.ref.seq if first is None else first
            if not window.holds(seal) or not seal.outputs.rows:
                continue
            if is_remade(catalog, lane, seal):
                raise InvalidUsage(
                    "replay a lane",
                    f"{lane} seq {seal.ref.seq}",
                    "its stage is deterministic: the seal keeps a digest and no outputs, so there is "
                    "nothing stored to send again; nothing was sent: read the topics it wrote, or "
                    "say with --since, --until or --seqs which seals you mean",
                )
            if catalog.get(Blob.OUTPUTS, lane, seal) is None:
                found.gone += seal.outputs.rows
                found.gone_seals += 1
                continue
            found.seals.append(seal)
            found.records += seal.outputs.rows
            found.size += seal.outputs.size
    found.unread = (first or row.head.ref.seq + 1) > 1
    return found


def _stored(catalog: Catalog, one: LaneWindow) -> Iterator[tuple[Any, Seal]]:
    for seal in one.seals:
        chunks = catalog.get(Blob.OUTPUTS, one.lane, seal)
        if chunks is None:  # collected since it was looked at
            one.gone += seal.outputs.rows
            one.gone_seals += 1
            continue
        yield decode_outputs(chunks, f"outputs of {one.lane} seq {seal.ref.seq}"), seal


def _check_partitions(cluster: Cluster, one: LaneWindow, topics: Sequence[Topic]) -> None:
    for name, topic in zip(one.topics, topics, strict=True):
        before = cluster.topic(name)
        if topic.partitions < before.partitions:
            raise InvalidUsage(
                "replay a lane",
                f"{one.lane} into {topic.name}",
                f"it has {topic.partitions} partitions and {name} has {before.partitions}: each "
                "record goes to the partition it was sealed with; nothing of it was sent: name a "
                "topic with as many",
            )
