"""Where an id was decided, and what became of an input offset, from the catalog alone.

What it is: `look_up_id`, `look_up_offset` and the values they return.
What it must not know: Kafka, how anything is shown.

Invariants:
    The catalog is only read. An id that moves from an entry into the list, or from one segment into
    another, while it is looked for is looked for again.
    Ids are stored raw, so what does not contain their bytes is not decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dedup import arrays
from dedup.catalog.catalog import Catalog, segment_place
from dedup.catalog.store import Blob
from dedup.errors import InvalidUsage, Unavailable
from dedup.formats.lane import decode_seal
from dedup.formats.merged import merged_at
from dedup.formats.segment import Part, decode_segment
from dedup.ids import minted_many, positional_many
from dedup.model import IDENTITY_BYTES, Frontier, Head, LaneRow, RecordId, Seal, Slot, Source
from delivery.operate.lanes import topic_names
from delivery.operate.opening import inputs_of
from delivery.operate.places import (
    Fate,
    Made,
    Together,
    is_remade,
    outputs_of,
    parent_of,
    place_of,
    together,
    verdict_of,
)
from delivery.operate.snapshot import Snapshot

__all__ = ["Decision", "Maker", "Read", "id_of_hex", "look_up_id", "look_up_offset", "parsed"]

#: An id that moved while it was looked for is looked for again, this often at most.
READS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An id that a lane has decided: the first record that carried it took effect there.

    Attributes:
        lane: the lane.
        seq: of the seal that decided it; `attempt` and `sealed_ms` of it while its entry is there.
        origin: "external" (a publisher's, or a place's) or "internal" (made by a stage).
        kept_in: "entry", "list" or "merged".
        start, end: the offsets that the seal read, by partition.
        offset: partition and offset of the record, if its place is its name.
    """

    lane: str
    seq: int
    attempt: str | None
    sealed_ms: int | None
    origin: str
    kept_in: str
    start: dict[int, int] | None
    end: dict[int, int] | None
    offset: tuple[int, int] | None

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """A seal that made an id for one of its outputs."""

    lane: str
    seq: int
    attempt: str
    sealed_ms: int
    edge: int
    topic: str
    ordinal: int

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What became of one input offset in one lane.

    Attributes:
        lane: the lane.
        fate: see `delivery.operate.places.Fate`.
        seq, attempt, sealed_ms, code: of the seal that read it, if that is known.
        outputs: what was made of it; None: its seal's outputs were collected, or nothing is known.
        remade: its seal keeps none; whoever must send them makes them again.
        together: of a wrapped job, what that batch was: the outputs are the first of all of it.
    """

    lane: str
    fate: Fate
    seq: int | None = None
    attempt: str | None = None
    sealed_ms: int | None = None
    code: str = ""
    outputs: tuple[Made, ...] | None = None
    remade: bool = False
    together: Together | None = None

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def id_of_hex(text: str) -> RecordId:
    """Return an id from its 32 hexadecimal digits.

    Raises:
        InvalidUsage: it is none.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != IDENTITY_BYTES:
        raise InvalidUsage(
            "look an id up",
            repr(text),
            "an id is 32 hexadecimal digits; nothing was looked up: a publisher's own name for a "
            "record goes with --name",
        )
    return RecordId(raw)


def parsed(text: str) -> tuple[str, int, int]:
    """Return topic, partition and offset from "topic/partition/offset".

    Raises:
        InvalidUsage: it says something else.
    """
    topic, _, rest = text.partition("/")
    partition, _, offset = rest.partition("/")
    if not (topic and partition.isdecimal() and offset.isdecimal()):
        raise InvalidUsage(
            "look an offset up",
            repr(text),
            "write topic/partition/offset, like orders/0/17; nothing was looked up",
        )
    return topic, int(partition), int(offset)


# By id -------------------------------------------------------------------------------------------


def look_up_id(
    catalog: Catalog, record_id: RecordId, lanes: Iterable[str]
) -> tuple[list[Decision], list[Maker]]:
    """Return the lanes that decided an id, and the seal that made it if a stage did.

    Raises:
        Unavailable: a lane was collected faster than it could be read.
    """
    decisions: list[Decision] = []
    senders: set[str] = set()
    external = False
    lanes = list(lanes)
    for lane in lanes:
        for decision, part in _decided(catalog, lane, record_id):
            decisions.append(decision)
            external |= decision.origin == "external"
            senders.update(read.sender for read in part.seen)
    # An id that a publisher gave was made by nobody; of another the deciding segment names senders.
    makers = [] if external else _makers(catalog, record_id, senders or lanes)
    return decisions, makers


def _decided(catalog: Catalog, lane: str, record_id: RecordId) -> list[tuple[Decision, Part]]:
    """Return where a lane holds an id, by seq; a lane that moves meanwhile is read again.

    Two are there of one that a publisher repeated later than the window: it took effect again.
    """
    for _ in range(READS_MAX):
        snapshot = Snapshot(catalog.store, [lane])
        row = catalog.load(lane)
        if row is None:
            return []
        found: dict[int, tuple[Decision, Part]] = {}
        for one in _Search(Catalog(snapshot), lane, row.head, record_id).found():
            # Beside an entry, its segment may be listed already.
            found.setdefault(one[0].seq, one)
        if found or not snapshot.moved(lane):
            return [found[seq] for seq in sorted(found)]
    raise Unavailable(
        "look an id up",
        lane,
        "its segments moved faster than they could be read; nothing was changed: look again",
    )


@dataclass(frozen=True, slots=True)
class _Search:
    """One id in one lane, as it stands."""

    catalog: Catalog
    lane: str
    head: Head
    id: RecordId

    def found(self) -> Iterator[tuple[Decision, Part]]:
        """Yield where it is: entries FIRST, because ids move from them into segments."""
        yield from self._in_entries()
        listed = self.catalog.segment_list(self.lane)
        named = set(listed.slots) if listed else set()
        for slot in self.catalog.store.slots(Blob.SEGMENT, self.lane, last=self.head.ref.seq):
            for chunk in self.catalog.store.get(Blob.SEGMENT, slot):
                if chunk.find(self.id) < 0:
                    continue
                for part in decode_segment(chunk, segment_place(self.catalog, slot)):
                    yield from self._in_segment(slot, part, listed=slot in named)

    def _in_entries(self) -> Iterator[tuple[Decision, Part]]:
        for incarnation, first, last in self.head.runs(0, self.head.ref.seq):
            for seq, blob in self.catalog.store.entries(self.lane, incarnation, first, last):
                if blob.find(self.id) < 0:
                    continue
                seal = decode_seal(blob, f"entry {seq} of {self.lane}")
                if not seal.inline_segment:
                    continue
                for part in decode_segment(seal.inline_segment, f"segment of entry {seq}"):
                    if _at(part, self.id) is not None:
                        yield self._decision(seq, seal, part, "entry"), part

    def _in_segment(
        self, slot: Slot, part: Part, *, listed: bool
    ) -> Iterator[tuple[Decision, Part]]:
        """Yield what a stored segment says of the id, if the segment counts."""
        at = _at(part, self.id)
        if at is None:
            return
        incarnation, seq = slot.incarnation, slot.seq
        if part.origins:
            incarnation, seq = part.origins[int(part.indexes()[at])]
        if seq > self.head.ref.seq or self.head.incarnation_of(seq) != incarnation:
            return  # of a history that was given up
        seal = self.catalog.seal(self.lane, incarnation, seq)
        mine = seal is not None and seal.ref.attempt == slot.attempt
        if not (listed or mine):
            return  # what a loser left, or what a merge has not listed yet
        kept_in = "merged" if merged_at(slot) else "list" if listed else "entry"
        yield self._decision(seq, seal, part, kept_in), part

    def _decision(self, seq: int, seal: Seal | None, part: Part, kept_in: str) -> Decision:
        return Decision(
            lane=self.lane,
            seq=seq,
            attempt=seal.ref.attempt.hex() if seal else None,
            sealed_ms=seal.minted_at_ms if seal else None,
            origin=part.bucket.origin.name.lower(),
            kept_in=kept_in,
            start=self._by_partition(seal.start) if seal else None,
            end=self._by_partition(seal.end) if seal else None,
            offset=_placed(seal, self.id) if seal else None,
        )

    def _by_partition(self, frontier: Frontier) -> dict[int, int]:
        return {source.partition: offset for source, offset in inputs_of(self.head, frontier)}


def _at(part: Part, record_id: RecordId) -> int | None:
    """Return the place of an id in a part."""
    at = part.ids.find(record_id)
    while at % IDENTITY_BYTES and at >= 0:
        at = part.ids.find(record_id, at + 1)
    return at // IDENTITY_BYTES if at >= 0 else None


def _placed(seal: Seal, record_id: RecordId) -> tuple[int, int] | None:
    """Return the place that an id is the name of, if it is one that the seal read."""
    wanted = arrays.from_raw(record_id)
    for source, start in seal.start:
        offsets = np.arange(start, seal.end.at(source) or start, dtype=np.int64)
        if len(offsets):
            same = np.flatnonzero((positional_many(source, offsets) == wanted).all(axis=1))
            if len(same):
                return source.partition, int(offsets[same[0]])
    return None


def _makers(catalog: Catalog, record_id: RecordId, lanes: Iterable[str]) -> list[Maker]:
    names = topic_names(catalog)
    wanted = arrays.from_raw(record_id)
    found = []
    for lane in lanes:
        row = catalog.load(lane)
        if row is None or not row.head.writes:
            continue
        edges = len(row.head.writes)
        for seal in catalog.history(lane, row.head):
            for edge in range(edges if seal.outputs.rows else 0):
                ids = minted_many(seal.ref.attempt, np.full(seal.outputs.rows, edge), 0)
                same = np.flatnonzero((ids == wanted).all(axis=1))
                if len(same):
                    topic = row.head.writes[edge]
                    found.append(
                        Maker(
                            lane=lane,
                            seq=seal.ref.seq,
                            attempt=seal.ref.attempt.hex(),
                            sealed_ms=seal.minted_at_ms,
                            edge=edge,
                            topic=names.get(topic, topic.hex()),
                            ordinal=int(same[0]),
                        )
                    )
    return found


# By offset ---------------------------------------------------------------------------------------


def look_up_offset(
    catalog: Catalog, topic: str, partition: int, offset: int, lanes: Iterable[str]
) -> list[Read]:
    """Return what became of an offset in every lane that reads its partition.

    Args:
        catalog: where the lanes are.
        topic: its name, or its identity in hex where a name was used for several.
        partition: of the topic.
        offset: in the partition.
        lanes: those asked about.

    Raises:
        InvalidUsage: none of them reads this partition.
    """
    names = topic_names(catalog)
    found, known = [], set()
    for lane in lanes:
        row = catalog.load(lane)
        if row is None:
            continue
        for source, _ in inputs_of(row.head):
            name = names.get(source.topic, source.topic.hex())
            known.add(f"{name}/{source.partition}")
            if topic in (name, source.topic.hex()) and source.partition == partition:
                found.append(_read(catalog, row, source, offset, lane=lane, names=names))
    if not found:
        raise InvalidUsage(
            "look an offset up",
            f"{topic}/{partition} in {catalog.store.url}",
            f"no lane reads it; nothing was looked up: they read {', '.join(sorted(known)[:8])}",
        )
    return found


def _read(
    catalog: Catalog,
    row: LaneRow,
    source: Source,
    offset: int,
    *,
    lane: str,
    names: dict[bytes, str],
) -> Read:
    place = place_of(catalog, lane, row.head, source, offset)
    seal = place.seal
    if seal is None:
        assert place.fate is not None, "a place without a seal says why"
        return Read(lane=lane, fate=place.fate)
    fate = verdict_of(catalog, lane, seal, source, offset)
    outputs: tuple[Made, ...] | None = ()
    if fate is Fate.FRESH:
        parent = parent_of(lane, source, offset)
        outputs = outputs_of(catalog, row.head, seal, parent, lane=lane, names=names)
    return Read(
        lane=lane,
        fate=fate,
        seq=seal.ref.seq,
        attempt=seal.ref.attempt.hex(),
        sealed_ms=seal.minted_at_ms,
        code=seal.code,
        outputs=outputs,
        remade=is_remade(catalog, lane, seal),
        together=together(lane, row.head, seal),
    )
