"""What of a lane an audit can look at, and what only its operator knows.

What it is: `Terms`, `Offsets`, and `Reach`, which says why a lane cannot be proved.
What it must not know: how anything is proved.

Invariants:
    A lane that is not proved is named with the reason; it is never taken for proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from dedup.catalog.catalog import Catalog
from dedup.errors import Corrupt, InvalidUsage
from dedup.model import Frontier, LaneRow, Seal, Source, TopicId
from delivery.checker import Span
from delivery.checker.columns import Base
from delivery.kafka.port import Bounds
from delivery.operate.logs import Cluster
from delivery.operate.lookup import parsed
from delivery.operate.opening import database_of, name_of
from delivery.operate.ways import readable_seals
from delivery.protocol.rest import rest_of

__all__ = [
    "Offsets",
    "Reach",
    "Terms",
    "begun",
    "due_of",
    "offsets_in",
    "said_of",
    "seeded",
    "topics_of",
]

_Said = TypeVar("_Said")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Offsets of one partition.

    Attributes:
        topic: its name, or its identity in hex.
        partition: of the topic.
        first, last: both are included; last is None: up to where it is sealed.
    """

    topic: str
    partition: int
    first: int = 0
    last: int | None = None

    def holds(self, source: Source, names: Mapping[bytes, str]) -> bool:
        """Tell whether a partition is meant."""
        topics = (names.get(source.topic), source.topic.hex())
        return self.topic in topics and self.partition == source.partition

    def __str__(self) -> str:
        last = "" if self.last is None else self.last
        return f"{self.topic}/{self.partition}/{self.first}..{last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What only the operator knows.

    Attributes:
        ways: how publishers name their records, by stage; "" for every other one. Found out where
            nothing is said.
        windows: how long ids that publishers name are held, by stage; "" for every other one. Where
            nothing is said it is as long as the seals say.
        finished: everything must be sealed and delivered by now.
        since_ms, until_ms: only what was sealed at this time or later, and before that one, is
            proved, on the word of the catalog for what was before and after; None: everything.
        offsets: only the seals that read these are.
    """

    ways: Mapping[str, str] = field(default_factory=dict)
    windows: Mapping[str, int] = field(default_factory=dict)
    finished: bool = False
    since_ms: int | None = None
    until_ms: int | None = None
    offsets: tuple[Offsets, ...] = ()

    def __post_init__(self) -> None:
        """Refuse ranges that hold nothing, or that nobody can mean."""
        since_ms, until_ms = self.since_ms, self.until_ms
        if since_ms is not None and until_ms is not None and since_ms >= until_ms:
            raise _no_range("it begins when it has ended, or later: begin it before its end")
        if self.offsets and (since_ms is not None or until_ms is not None):
            raise _no_range("it is of time and of offsets: say one of them")
        if self.finished and (
            until_ms is not None or any(o.last is not None for o in self.offsets)
        ):
            raise _no_range(
                "it has an end, and what comes later is not looked at, so that nobody can say "
                "whether everything is finished: leave the end out, or do not ask for that"
            )

    @property
    def ranged(self) -> bool:
        """Whether not everything is asked about."""
        return self.since_ms is not None or self.until_ms is not None or bool(self.offsets)

    def way_of(self, lane: str) -> str | None:
        """Return how publishers name the records of a lane's stage, if that is said."""
        return said_of(lane, self.ways)

    def window_of(self, lane: str) -> int | None:
        """Return the window of a lane's stage, if that is said."""
        return said_of(lane, self.windows)


def said_of(lane: str, said: Mapping[str, _Said]) -> _Said | None:
    """Return what is said of a lane's stage: by the most exact word that speaks of it."""
    name = name_of(lane)
    words = f"{name.pipeline}/{name.stage}", name.stage, ""
    return next((said[word] for word in words if word in said), None)


def offsets_in(text: str) -> Offsets:
    """Return offsets from "topic/partition/first..last", both included; either may be left out.

    Raises:
        InvalidUsage: it says something else, or holds no offset.
    """
    place, dots, last = text.rpartition("..")
    if not dots or not (last.isdecimal() or not last):
        raise _no_offsets(text)
    try:
        topic, partition, first = parsed(f"{place}0" if place.endswith("/") else place)
    except InvalidUsage as error:
        raise _no_offsets(text) from error
    found = Offsets(topic=topic, partition=partition, first=first, last=int(last) if last else None)
    if found.last is not None and found.last < found.first:
        raise _no_offsets(text)
    return found


def _no_offsets(text: str) -> InvalidUsage:
    return InvalidUsage(
        "audit offsets",
        repr(text),
        "nothing was read: write topic/partition/FROM..TO, like orders/0/17..42, the last one "
        "included; leave FROM or TO out for the first or the last one that is sealed",
    )


def _no_range(why: str) -> InvalidUsage:
    return InvalidUsage("audit a range", "the range", f"{why}; nothing was read")


def due_of(row: LaneRow | None) -> Frontier | None:
    """Return up to where a lane is sealed in the end: one at rest to where it is; None: all of it."""
    at_rest = row is not None and rest_of(row.head.state) is not None
    return row.head.frontier if row is not None and at_rest else None


class Reach:
    """What the cluster still has of what lanes have read and written.

    Args:
        catalog: the catalog as it stood.
        cluster: the topics; their bounds are asked for once.
        given_up: partitions of topics that are gone, and that lanes read no more.
        states: what stands in frontiers and is of no topic.
    """

    def __init__(
        self,
        catalog: Catalog,
        cluster: Cluster,
        given_up: frozenset[Source] = frozenset(),
        states: frozenset[Source] = frozenset(),
    ) -> None:
        self._catalog, self._cluster, self._given_up = catalog, cluster, given_up
        self._empty = given_up | states
        self._bounds: dict[TopicId, Bounds] = {}

    def bounds(self, topic: TopicId) -> Bounds:
        """Return what a topic's log held when it was first asked about."""
        if topic not in self._bounds:
            self._bounds[topic] = self._cluster.bounds(self._cluster.topics()[topic])
        return self._bounds[topic]

    def why_not(
        self,
        lane: str,
        row: LaneRow,
        base: Base | None,
        positions: Mapping[Source, int],
        span: Span | None = None,
    ) -> str | None:
        """Say why a lane cannot be proved; None: everything that it takes is there.

        Args:
            lane: its name.
            row: its row.
            base: what is proved of it already.
            positions: up to where its topics were read for that.
            span: the seals in question; None: all.
        """
        database = database_of(row.head)
        if database is not None:
            return f"it is kept in its user's database {database}, which was not read"
        names = {identity: name for name, identity in row.head.topics}
        missing = [t for t in topics_of(row) if t not in self._cluster.topics()]
        if missing:
            words = ", ".join(names.get(identity, identity.hex()) for identity in missing)
            return (
                f"there is no topic {words} of the identity it knows: it was deleted, or the sink is "
                "none of this Kafka; if it was deleted and created again on purpose, say `delivery "
                "stage accept-topic`, and what comes then can be proved"
            )
        bygone = self._bygone(lane, row)
        if bygone is not None:
            return bygone
        end = span.end if span is not None else row.head.frontier
        return next(self._gone(lane, row, base, positions, end), None)

    def _bygone(self, lane: str, row: LaneRow) -> str | None:
        """Say which seals that are kept have read what was given up; None: none."""
        if not any(source in self._given_up for source, _ in row.head.frontier):
            return None
        kept = [
            seal.ref.seq
            for incarnation, first, last in row.head.runs(0, row.head.ref.seq)
            for seal in readable_seals(self._catalog, lane, incarnation, first, last)
            if any(
                source in self._given_up and (seal.end.at(source) or at) > at
                for source, at in seal.start
            )
        ]
        if not kept:
            return None
        return (
            f"seals {kept[0]} to {kept[-1]} have read a topic that was deleted and given up since, so "
            "that nothing is there to hold them against: once they are acknowledged, let go of them "
            "with `delivery catalog compact --keep-entries 0s --yes`, or say with --offsets or "
            "--since what came after"
        )

    def _gone(
        self,
        lane: str,
        row: LaneRow,
        base: Base | None,
        positions: Mapping[Source, int],
        ends: Frontier,
    ) -> Iterator[str]:
        made = begun(self._catalog, lane, row)
        names = self._cluster.names()
        for source, end in ends:
            if source in self._empty:
                continue  # there is nothing of it; of what was given up that is said
            low = self.bounds(source.topic).low.at(source) or 0
            start = (made.start.at(source) if made is not None else None) or 0
            if base is not None:
                start = base.frontier.get(source, start)
            if low > start and end > start:
                yield (
                    f"{names[source.topic]} partition {source.partition} begins at {low}: records "
                    f"before it, which the lane has read, are gone"
                )
        for topic in row.head.writes:
            for source, low in self.bounds(topic).low:
                if low > (positions.get(source, 0) if base is not None else 0):
                    yield (
                        f"{names[topic]} partition {source.partition} begins at {low}: outputs may "
                        "have been there that are gone"
                    )


def topics_of(row: LaneRow | None) -> list[TopicId]:
    """Return the topics that a lane reads and writes."""
    if row is None:
        return []
    return [*dict.fromkeys((*(s.topic for s, _ in row.head.frontier), *row.head.writes))]


def begun(catalog: Catalog, lane: str, row: LaneRow) -> Seal | None:
    """Return the seal that made a lane, if it is there and can be read."""
    found = readable_seals(catalog, lane, row.head.incarnation_of(0), 0, 0)
    return found[0] if found else None


def seeded(catalog: Catalog, lane: str, row: LaneRow) -> bool:
    """Tell whether ids were brought in with a lane."""
    first = begun(catalog, lane, row)
    try:
        listed = catalog.segment_list(lane)
    except Corrupt:
        listed = None  # the checker says so
    return bool(first and first.segment.chunks) or bool(
        listed and any(slot.seq == 0 for slot in listed.slots)
    )
