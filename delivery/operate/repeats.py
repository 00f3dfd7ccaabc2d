"""Which records a lane dropped as repeats of one, wherever in the lane they came.

What it is: `repeats`, and what it returns.
What it must not know: how a story is told.

Invariants:
    A repeat may come in any partition of the topic that the lane reads, and where it lies says nothing
    of which came first: that the seals say.
    Topics are not read whole: of what the seals dropped as duplicates a bounded part is looked at, and
    how far that was is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.formats.dropped import Run, Verdict, decode_dropped
from dedup.model import Frontier, Head, Seal, Source
from delivery.header import NAME, decode_header
from delivery.kafka.port import Bounds, Topic
from delivery.operate.logs import Cluster
from delivery.operate.opening import inputs_of
from delivery.records import Record

__all__ = ["REPEATS_OFFSETS_MAX", "Repeat", "Repeats", "repeats"]

#: Offsets behind a record in which its repeats are looked for: so many in its own partition, and so
#: many in all others of the lane together.
REPEATS_OFFSETS_MAX = 20_000
#: Seals behind a record's own in which they are.
REPEATS_SEALS_MAX = 1_000
#: Records that nobody asked for are read up to so many, rather than beginning to read anew.
GAP_OFFSETS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A record that was dropped as a repeat of another one, and by which seal.

    `parent` is where it came from, partition and offset, if re-keying passed it on.
    """

    partition: int
    offset: int
    seq: int
    sealed_ms: int
    parent: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What was found, in the order of the seals, and up to which offset of each partition it was sought."""

    found: tuple[Repeat, ...]
    upto: Mapping[int, int]


def repeats(
    catalog: Catalog,
    cluster: Cluster,
    place: tuple[Topic, Source, int],
    *,
    lane: str,
    head: Head,
    seal: Seal,
    same: Callable[[Record], bool],
) -> Repeats:
    """Return the records that a lane dropped as duplicates of one.

    Args:
        catalog: its seals say what they dropped.
        cluster: where the records are.
        place: of the record.
        lane: who read it.
        head: its head.
        seal: by which it took effect.
        same: tells whether a record has its id.
    """
    topic, source, offset = place
    sought = _Sought(head, cluster.bounds(topic), source, offset)
    to_seq = min(head.ref.seq, seal.ref.seq + REPEATS_SEALS_MAX)
    dropped: dict[Source, dict[int, Seal]] = {}
    for incarnation, begin, end in head.runs(seal.ref.seq, to_seq):
        for later in catalog.seals(lane, incarnation, begin, end):
            if sought.ends_before(later):
                break
            for run in _duplicates(catalog, lane, later):
                mine = dropped.setdefault(run.source, {})
                mine |= dict.fromkeys(sought.within(run), later)
    if to_seq < head.ref.seq:
        sought.cut()
    found = [
        one
        for partition, offsets in sorted(dropped.items())
        for one in _same(cluster, topic, partition, offsets, same=same)
    ]
    found.sort(key=lambda one: one.seq)
    return Repeats(found=tuple(found), upto={s.partition: at for s, at in sought.ends.items()})


class _Sought:
    """Offsets in which repeats are looked for, by partition.

    Args:
        head: of the lane.
        bounds: of the topic.
        source, offset: the place of the record.
    """

    def __init__(self, head: Head, bounds: Bounds, source: Source, offset: int) -> None:
        self._frontier, self._bounds = head.frontier, bounds
        every = [one for one, _ in inputs_of(head) if one.topic == source.topic]
        self._share = REPEATS_OFFSETS_MAX // max(1, len(every) - 1)
        #: Partitions of which no seal has said yet where it begins.
        self._waiting = {one for one in every if one != source}
        self._starts: dict[Source, int] = {}
        self.ends: dict[Source, int] = {}
        self._upto: dict[Source, int] = {}
        self._add(source, offset + 1, REPEATS_OFFSETS_MAX)

    def ends_before(self, seal: Seal) -> bool:
        """Tell whether all of it was read before a seal, which is one behind those that were asked."""
        for source, start in seal.start:
            if source in self._waiting:
                self._waiting.discard(source)
                self._add(source, start, self._share)
        over = [(seal.start.at(source) or 0) >= end for source, end in self.ends.items()]
        if all(over) and not self._waiting:
            return True
        self._upto |= {source: at for source, at in seal.end if source in self.ends}
        return False

    def within(self, run: Run) -> range:
        """Return which offsets of a run are in it."""
        if run.source not in self.ends:
            return range(0)
        first = max(self._starts[run.source], run.offset)
        return range(first, min(self.ends[run.source], run.offset + run.count))

    def cut(self) -> None:
        """Let it end where the last seal does that was asked."""
        for source, end in self.ends.items():
            self.ends[source] = min(end, self._upto.get(source, self._starts[source]))

    def _add(self, source: Source, offset: int, most: int) -> None:
        start = max(offset, self._bounds.low.at(source) or 0)
        frontier, high = self._frontier.at(source) or 0, self._bounds.high.at(source) or 0
        self._starts[source], self.ends[source] = start, min(start + most, frontier, high)


def _duplicates(catalog: Catalog, lane: str, seal: Seal) -> list[Run]:
    if not seal.counts.duplicate:
        return []
    chunks = catalog.get(Blob.DROPPED, lane, seal) or []
    return [
        run
        for chunk in chunks
        for run in decode_dropped(chunk, f"dropped offsets of {lane} seq {seal.ref.seq}")
        if run.verdict is Verdict.DUPLICATE
    ]


def _same(
    cluster: Cluster,
    topic: Topic,
    source: Source,
    dropped: Mapping[int, Seal],
    *,
    same: Callable[[Record], bool],
) -> Iterator[Repeat]:
    """Yield those of some records that are the same, each with the seal that dropped it."""
    for span in _spans(sorted(dropped)):
        low, high = (Frontier.of([(source, at)]) for at in span)
        for batch in cluster.read(topic, low, high):
            rows = [at for at, offset in enumerate(batch.offsets.tolist()) if offset in dropped]
            for record in batch.records(rows):
                if same(record):
                    header = decode_header(record.header(NAME) or b"")
                    yield Repeat(
                        partition=source.partition,
                        offset=record.offset,
                        seq=dropped[record.offset].ref.seq,
                        sealed_ms=dropped[record.offset].minted_at_ms,
                        parent=header.parent if header and header.mark.kept else None,
                    )


def _spans(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges that have all of some offsets in them; what lies near is read in one go."""
    cuts = [at for at in range(1, len(offsets)) if offsets[at] - offsets[at - 1] > GAP_OFFSETS]
    for first, last in pairwise([0, *cuts, len(offsets)] if offsets else ()):
        yield offsets[first], offsets[last - 1] + 1
