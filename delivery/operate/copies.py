"""Where the copies of an output lie in Kafka.

What it is: `copies`, `first_copy`, and `last_of_ours`, by which they are told.
What it must not know: how a story is told.

Invariants:
    A copy is told by its header: sender, incarnation, seq and parent; so it is found whether or not
    the stored outputs are still there.
    Topics are not read whole where it can be helped: an output is emitted soon after it was minted,
    and what a crash repeats lies close behind. Only what is not found there is looked for everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dedup import arrays
from dedup.model import Frontier, LaneRow, RecordId, Seal, Source
from delivery.batch import Batch
from delivery.header import NAME, decode_headers
from delivery.kafka.port import Topic
from delivery.operate.logs import Cluster
from delivery.records import Record

__all__ = [
    "NEAR_OFFSETS",
    "Made",
    "copies",
    "first_copy",
    "last_of_ours",
]

#: How far before minted-at an output may seem to have been emitted; the second is for clocks that
#: are apart as far as brokers and workers ever should be.
MARGINS_MS = (1_000, 600_000)
#: Offsets of a partition that are read from there on: as many as a crash can have between two copies,
#: the bundles that were on their way.
NEAR_OFFSETS = 20_000
#: And in front of the first copy as many bundles of a seal's size: those that were minted before it
#: and sent after that, and those of the margin.
BUNDLES_BEFORE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a seal made: of one input, or under one id.

    Attributes:
        lane, seal: who made it.
        parent: partition and offset of the input; None: of any.
        ids: the ids; none: any.
    """

    lane: str
    seal: Seal
    parent: tuple[int, int] | None = None
    ids: tuple[RecordId, ...] = ()

    def rows(self, batch: Batch) -> Sequence[int]:
        """Return the rows of a batch that say they are it."""
        columns = decode_headers([last_of_ours(headers) for headers in batch.headers])
        at = self.seal.ref
        marks = [
            place
            for place, mark in enumerate(columns.marks)
            if (mark.sender, mark.incarnation, mark.seq) == (self.lane, at.incarnation, at.seq)
        ]
        mine = np.isin(columns.mark_of, marks)
        if self.parent is not None:
            mine &= (columns.partitions == self.parent[0]) & (columns.offsets == self.parent[1])
        if self.ids:
            mine &= arrays.contains(arrays.sorted_unique(arrays.pack(self.ids)), columns.ids)
        rows: list[int] = np.flatnonzero(mine).tolist()
        return rows


def copies(
    cluster: Cluster,
    row: LaneRow,
    made: Made,
    wanted: Mapping[tuple[str, int], int] | None = None,
    *,
    whole: bool = False,
) -> list[tuple[Topic, Record]]:
    """Return the copies of what a seal made, by partition and offset.

    Args:
        cluster: where they are.
        row: of the lane that made it.
        made: what.
        wanted: how many outputs went to each topic and partition; None: nobody knows.
        whole: read every partition to its end, in case somebody sent it again much later.
    """
    if not made.seal.outputs.rows or wanted == {}:
        return []
    partitions = list(_partitions(cluster, row, wanted))
    if not whole:
        for spans in _near(cluster, partitions, made):
            found = [one for span in spans for one in _between(cluster, span, made)]
            if _all_there(found, wanted):
                return found
    return [one for span in partitions for one in _between(cluster, span, made)]


def first_copy(
    cluster: Cluster,
    row: LaneRow,
    made: Made,
    wanted: Mapping[tuple[str, int], int] | None = None,
) -> tuple[Topic, Record] | None:
    """Return a copy of what a seal made as soon as one is found; None: there is none.

    Args:
        cluster: where it is.
        row: of the lane that made it.
        made: what.
        wanted: how many outputs went to each topic and partition; None: nobody knows.
    """
    partitions = list(_partitions(cluster, row, wanted))
    for spans in (*_near(cluster, partitions, made), partitions):
        for span in spans:
            for one in _between(cluster, span, made):
                return one
    return None


#: A topic, one of its partitions, and offsets in that, the last one not included.
_Span: TypeAlias = tuple[Topic, Source, int, int]


def _near(cluster: Cluster, partitions: Sequence[_Span], made: Made) -> Iterator[list[_Span]]:
    """Yield what of the partitions is read before they are read whole, once for each margin."""
    near = NEAR_OFFSETS + BUNDLES_BEFORE * made.seal.outputs.rows
    for margin_ms in MARGINS_MS:
        at_ms = max(0, made.seal.minted_at_ms - margin_ms)
        spans = []
        for topic, source, low, high in partitions:
            start = max(low, cluster.at_time(topic, source, at_ms))
            spans.append((topic, source, start, min(high, start + near)))
        yield spans


def _partitions(
    cluster: Cluster, row: LaneRow, wanted: Mapping[tuple[str, int], int] | None
) -> Iterator[_Span]:
    """Yield the partitions that outputs may be in, and what their logs hold."""
    for identity in dict.fromkeys(row.head.writes):
        topic = cluster.topics().get(identity)
        if topic is None:
            continue
        bounds = cluster.bounds(topic)
        for source, low in bounds.low:
            if wanted is None or (topic.name, source.partition) in wanted:
                yield topic, source, low, bounds.high.at(source) or low


def _between(cluster: Cluster, span: _Span, made: Made) -> Iterator[tuple[Topic, Record]]:
    topic, source, start, end = span
    if start >= end:
        return
    low, high = (Frontier.of([(source, at)]) for at in (start, end))
    for batch in cluster.read(topic, low, high):
        for record in batch.records(made.rows(batch)):
            yield topic, record


def _all_there(
    found: Sequence[tuple[Topic, Record]], wanted: Mapping[tuple[str, int], int] | None
) -> bool:
    if wanted is None:
        return bool(found)
    there = Counter(
        {(topic.name, one.source.partition, last_of_ours(one.headers)) for topic, one in found}
    )
    places = Counter((name, partition) for name, partition, _ in there)
    return all(places[place] >= count for place, count in wanted.items())


def last_of_ours(headers: Iterable[tuple[str, bytes]] | None) -> bytes | None:
    """Return the header of ours that counts."""
    found = None
    for name, value in headers or ():
        if name == NAME:
            found = value
    return found
