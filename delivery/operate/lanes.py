"""How the lanes of a catalog stand: heads, acknowledgements, frontiers, ids, bytes, tiers, age.

What it is: `inspect`, and the values it returns.
What it must not know: how they are shown, the clock, Kafka.

Invariants:
    The catalog is only read, and nobody who writes it waits for us.
    Of a lane, the row comes first and entries and list after it: what is said of seals is true of
    the head that is shown.
    Of a merged segment only the first and the last piece are read: all but the last hold equally
    many ids. Their bytes are therefore an estimate, every count is exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dedup.catalog.catalog import Catalog, segment_place
from dedup.catalog.store import Blob
from dedup.compact import PIECE_IDS
from dedup.errors import Unavailable
from dedup.formats.lane import decode_seal
from dedup.formats.merged import Merged, merged_at
from dedup.formats.segment import BUCKET_MS, whole_segment
from dedup.model import BlobRef, Frontier, Head, LaneRow, Seal, Slot
from delivery.operate.opening import database_of, inputs_of, name_of, next_batch_of

__all__ = ["Lane", "Position", "Tier", "inspect", "positions", "topic_names"]

#: A list is read again when a compactor took a segment away meanwhile, this often at most.
READS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a frontier stands in one partition; the topic by its name, else by its identity."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One merged segment.

    Attributes:
        origin: "internal" or "external", what places its ids in time.
        from_ms, until_ms: the time its ids are of.
        level: how often what is in it was merged.
        pieces: the slots it takes.
        ids: how many.
        size: its bytes, estimated where it has more than two pieces.
    """

    origin: str
    from_ms: int
    until_ms: int
    level: int
    pieces: int
    ids: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """How one lane stands.

    Attributes:
        lane: its name, and `pipeline`, `stage`, `reads`, the parts of it.
        database: path of the user's database that keeps it; None: the catalog does. If it is not
            read, all else is what the catalog remembers of it.
        incarnation: of its head, in hex; `incarnations`: how many it has had.
        seq, acknowledged, collected: the last seal, and up to where its outputs are delivered, and
            may have been deleted.
        frontier: up to where its inputs are sealed.
        next_batch: of a wrapped job with state, where its checkpoint has to go on; None: it has none.
        delivered: up to where its outputs are delivered.
        entries: the seals that can still be read, and `first` the oldest of them.
        pending: seals that are not acknowledged; `pending_ms`: the age of the oldest of them.
        age_ms: since the last seal; None: nothing was ever sealed, only where it begins.
        lane_time_ms: what windows are measured on.
        window_ms: for how long ids that publishers name are held; None: no seal says it.
        code: version of the code that made the last seal.
        ids: those that a record may still be a repeat of.
        unlisted: segments that entries name; `listed`: those of single seals that the list names
            in their place; `tiers`: the merged ones.
        sizes: bytes by what they are: entries, outputs, segments, dropped.
        counts: what became of the records that the readable seals read.
        losers: attempts that lost and left a digest.
    """

    lane: str
    pipeline: str
    stage: str
    reads: str
    database: str | None
    incarnation: str
    incarnations: int
    seq: int
    acknowledged: int
    collected: int
    frontier: tuple[Position, ...]
    next_batch: int | None
    delivered: tuple[Position, ...]
    entries: int
    first: int | None
    pending: int
    pending_ms: int | None
    age_ms: int | None
    lane_time_ms: int
    window_ms: int | None
    code: str
    ids: int
    unlisted: int
    listed: int
    tiers: tuple[Tier, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    losers: int = 0

    @property
    def segments(self) -> int:
        """Segments, a merged one counted by its pieces."""
        return self.unlisted + self.listed + sum(tier.pieces for tier in self.tiers)

    @property
    def size(self) -> int:
        """All bytes."""
        return sum(self.sizes.values())

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"segments": self.segments, "size": self.size}


def inspect(
    catalog: Catalog,
    lanes: Iterable[str],
    now_ms: int,
    databases: Mapping[str, str] | None = None,
) -> Iterator[Lane]:
    """Yield how lanes stand, as they are read.

    Args:
        catalog: it is only read.
        lanes: which.
        now_ms: the time that ages are measured at.
        databases: of lanes that are read in users' databases, which these are.

    Raises:
        Unavailable: segments of a lane came and went faster than they could be read.
    """
    names = topic_names(catalog)
    for lane in lanes:
        row = catalog.load(lane)
        if row is not None:
            found = _lane(catalog, lane, row, names, now_ms)
            yield replace(found, database=(databases or {}).get(lane, found.database))


def topic_names(catalog: Catalog) -> dict[bytes, str]:
    """Return the names of topics, as lanes that read them know them."""
    names: dict[bytes, str] = {}
    for lane in catalog.lanes():
        row = catalog.load(lane)
        if row is not None:
            names.update({identity: name for name, identity in row.head.topics})
    return names


def positions(frontier: Frontier, names: Mapping[bytes, str]) -> tuple[Position, ...]:
    """Return a frontier with the names of its topics."""
    return tuple(
        Position(
            topic=names.get(source.topic, source.topic.hex()),
            partition=source.partition,
            offset=offset,
        )
        for source, offset in frontier
    )


def _lane(
    catalog: Catalog, lane: str, row: LaneRow, names: Mapping[bytes, str], now_ms: int
) -> Lane:
    head = row.head
    seals, sizes = _entries(catalog, lane, head)
    found = _Segments.read(catalog, lane, seals)
    sizes["segments"] += found.size
    counts: Counter[str] = Counter()
    for seal in seals:
        counts.update(asdict(seal.counts))
    pending = [seal for seal in seals if seal.ref.seq > row.settled]
    last = seals[-1] if seals and seals[-1].ref.seq == head.ref.seq else None
    name = name_of(lane)
    return Lane(
        lane=lane,
        pipeline=name.pipeline,
        stage=name.stage,
        reads=name.reads,
        database=database_of(head),
        incarnation=head.ref.incarnation.hex(),
        incarnations=len(head.past) + 1,
        seq=head.ref.seq,
        acknowledged=row.ack.seq,
        collected=row.collected,
        frontier=positions(inputs_of(head), names),
        next_batch=next_batch_of(head),
        delivered=positions(row.ack.delivered, names),
        entries=len(seals),
        first=seals[0].ref.seq if seals else None,
        pending=head.ref.seq - row.settled,
        pending_ms=max(0, now_ms - pending[0].minted_at_ms) if pending else None,
        age_ms=max(0, now_ms - head.minted_at_ms) if head.ref.seq else None,
        lane_time_ms=head.lane_time_ms,
        window_ms=head.window_ms or None,
        code=last.code if last else "",
        ids=found.ids,
        unlisted=found.unlisted,
        listed=found.listed,
        tiers=tuple(found.tiers),
        sizes=dict(sizes),
        counts=dict(counts),
        losers=sum(1 for _ in catalog.store.losers(lane)),
    )


def _entries(catalog: Catalog, lane: str, head: Head) -> tuple[list[Seal], Counter[str]]:
    """Return the seals that can be read, and what they and all but their ids take."""
    sizes = Counter({"entries": 0, "outputs": 0, "segments": 0, "dropped": 0})
    seals = []
    for incarnation, first, last in head.runs(0, head.ref.seq):
        for seq, blob in catalog.store.entries(lane, incarnation, first, last):
            seal = decode_seal(blob, f"{catalog.store.url} entry {seq} of {lane}")
            seals.append(seal)
            sizes["entries"] += len(blob)
            sizes["outputs"] += _apart(seal.outputs, seal.inline_outputs)
            sizes["dropped"] += _apart(seal.dropped, seal.inline_dropped)
    return seals, sizes


def _apart(ref: BlobRef, inline: bytes) -> int:
    return 0 if inline else ref.size


@dataclass(slots=True)
class _Segments:
    """The ids of a lane: those behind its list, and those of the list."""

    ids: int = 0
    size: int = 0
    unlisted: int = 0
    listed: int = 0
    tiers: list[Tier] = field(default_factory=list)

    @staticmethod
    def read(catalog: Catalog, lane: str, seals: list[Seal]) -> _Segments:
        for _ in range(READS_MAX):
            found = _Segments()
            if found._take(catalog, lane, seals):
                return found
        raise Unavailable(
            "inspect a lane",
            lane,
            "its segments were merged faster than they could be read; nothing was changed: look again",
        )

    def _take(self, catalog: Catalog, lane: str, seals: list[Seal]) -> bool:
        """Add everything up; False if a listed segment is gone since the list was read."""
        listed = catalog.segment_list(lane)
        upto = listed.upto if listed else -1
        known = {}
        for seal in seals:
            known[Slot(lane, seal.ref.incarnation, seal.ref.seq, seal.ref.attempt)] = seal.segment
            if seal.ref.seq > upto:
                self.unlisted += bool(seal.segment.chunks)
                self.ids += seal.segment.rows
                self.size += _apart(seal.segment, seal.inline_segment)
        merged: dict[Merged, list[Slot]] = {}
        for slot in listed.slots if listed else ():
            place = merged_at(slot)
            if place is not None:
                merged.setdefault(place[0], []).append(slot)
                continue
            self.listed += 1
            ref = known.get(slot)
            counted = (ref.rows, ref.size) if ref else _counted(catalog, slot)
            if counted is None:
                return False
            self.ids += counted[0]
            self.size += counted[1]
        return all(self._take_tier(catalog, name, merged[name]) for name in sorted(merged))

    def _take_tier(self, catalog: Catalog, name: Merged, slots: list[Slot]) -> bool:
        slots.sort(key=lambda slot: slot.attempt)
        last = _counted(catalog, slots[-1])
        first = _counted(catalog, slots[0]) if len(slots) > 1 else (0, 0)
        if last is None or first is None:
            return False
        whole, bucket = len(slots) - 1, name.bucket
        tier = Tier(
            origin=bucket.origin.name.lower(),
            from_ms=bucket.number * BUCKET_MS,
            until_ms=bucket.end_ms,
            level=name.level,
            pieces=len(slots),
            ids=whole * PIECE_IDS + last[0],
            size=whole * first[1] + last[1],
        )
        self.tiers.append(tier)
        self.ids += tier.ids
        self.size += tier.size
        return True


def _counted(catalog: Catalog, slot: Slot) -> tuple[int, int] | None:
    """Return how many ids a stored segment has, and bytes; None if it is gone."""
    chunks = catalog.store.get(Blob.SEGMENT, slot)
    parts = whole_segment(chunks, segment_place(catalog, slot))
    if parts is None:
        return None
    return sum(part.count for part in parts), sum(map(len, chunks))
