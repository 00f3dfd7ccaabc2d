"""How the records of a lane are named, by the evidence of an audit.

What it is: `Naming`, which takes records and decided ids of a lane out of the evidence; `named`, by
which what seals say of it, what an operator says and what is found out are brought together; and
`readable_seals`.
What it must not know: the rules of the checker.

Invariants:
    What cannot be read is left out: the checker says so.
    What a seal says of its records goes before everything else; a function can be said by nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.errors import Corrupt
from dedup.formats.segment import Origin, decode_segment
from dedup.model import Frontier, Incarnation, LaneRow, RecordId, Seal, Source
from delivery.checker import Evidence, Log
from delivery.checker.chunks import read_listed
from delivery.checker.listed import read_list
from delivery.checker.rows import read_head
from delivery.checker.world import World
from delivery.header import NAME, decode_header
from delivery.naming import PLACE, IdFrom, way_of
from delivery.operate.guessing import SAMPLE_MAX, guessed
from delivery.operate.snapshot import Snapshot
from delivery.records import Record

__all__ = ["Named", "Naming", "named", "readable_seals"]

#: Seals whose ids tell how records are named.
SEALS_TRIED = 5
#: Of what stages made, headers of ours name the records.
BY_STAGES = "by the stages that made them"
_BY_SEALS = ", as its seals say"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """How the records of a lane are named.

    Attributes:
        words: in words.
        way: where no seal says it; None: by their place.
        ways: by the words of the seals.
        last: the way by now.
    """

    words: str
    way: str | None
    ways: Mapping[str, IdFrom]
    last: str | None


def readable_seals(
    catalog: Catalog, lane: str, incarnation: Incarnation, first: int, last: int
) -> list[Seal]:
    """Return entries, or none if one of them cannot be read."""
    try:
        return catalog.seals(lane, incarnation, first, last)
    except Corrupt:
        return []


class Naming:
    """The evidence, as far as it tells how records are named.

    Args:
        snapshot: the catalog as it stood.
        rows: of all lanes; None where one cannot be read.
        logs: of the topics.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        rows: Mapping[str, LaneRow | None],
        logs: Mapping[Source, Log],
    ) -> None:
        self._snapshot = snapshot
        self._catalog = Catalog(snapshot)
        self._rows = rows
        self._logs = logs

    def guess(self, lane: str, row: LaneRow) -> tuple[bool, str | None, bool]:
        """Return whether a way of naming explains some seals, the way, and whether one is needed."""
        records: list[Record] = []
        decided: list[RecordId] = []
        tried = 0
        for seal in self._seals(lane, row):
            found = self._external_ids(lane, seal)
            if not found:
                continue
            decided += found
            records += self._external_records(seal)
            tried += bool(records)
            if tried == SEALS_TRIED or len(records) >= SAMPLE_MAX:
                break  # more records are not tried
        if not decided:
            decided = self._listed_ids(lane)
            records = self._external_below(row)[-SAMPLE_MAX:]
        if not records:
            return True, None, False  # whatever it decided, stages had named
        sure, way = guessed(records, decided)
        return sure, way, True

    def spoken(self, lane: str, row: LaneRow, begin: int) -> list[tuple[int, str]]:
        """Return what seals from `begin` on say of it: the seq at which each way begins, and its words."""
        found: list[tuple[int, str]] = []
        for seal in self._seals(lane, row, begin):
            if not found or found[-1][1] != seal.named:
                found.append((seal.ref.seq, seal.named))
        return found

    def _seals(self, lane: str, row: LaneRow, begin: int = 1) -> Iterable[Seal]:
        return (
            seal
            for incarnation, first, last in row.head.runs(begin, row.head.ref.seq)
            for seal in readable_seals(self._catalog, lane, incarnation, first, last)
        )

    def _external_ids(self, lane: str, seal: Seal) -> list[RecordId]:
        try:
            chunks = self._catalog.get(Blob.SEGMENT, lane, seal) or []
            parts = [part for chunk in chunks for part in decode_segment(chunk, lane)]
        except Corrupt:
            return []
        return [i for part in parts if part.bucket.origin is Origin.EXTERNAL for i in part]

    def _listed_ids(self, lane: str) -> list[RecordId]:
        """Return the ids of a lane whose entries are gone."""
        world = World(Evidence(store=self._snapshot, logs={}, lanes={}))
        book = read_head(self._snapshot, lane, world.findings)
        if book is None:
            return []
        listed = read_list(world, book)
        found = read_listed(self._snapshot, listed.slots, world.findings)
        return [i for _, part in found if part.bucket.origin is Origin.EXTERNAL for i in part]

    def _external_below(self, row: LaneRow) -> list[Record]:
        """Return the records that a lane has read and that no lane of this catalog has made."""
        return [
            record
            for source, end in row.head.frontier
            for record in self._logs.get(source, Log((), 0)).records
            if isinstance(record, Record) and record.offset < end and not self._is_ours(record)
        ]

    def _external_records(self, seal: Seal) -> list[Record]:
        """Return the records of a seal's range that no lane of this catalog has made."""
        ends: Frontier = seal.end
        return [
            record
            for source, start in seal.start
            for record in self._logs.get(source, Log((), 0)).records
            if isinstance(record, Record)
            and start <= record.offset < (ends.at(source) or start)
            and not self._is_ours(record)
        ]

    def _is_ours(self, record: Record) -> bool:
        header = decode_header(record.header(NAME) or b"")
        row = self._rows.get(header.mark.sender) if header is not None else None
        return row is not None and record.source.topic in row.head.writes


def named(
    naming: Naming,
    lane: str,
    row: LaneRow,
    *,
    told: str | None,
    before: tuple[str, str | None] | None = None,
    begin: int = 1,
) -> Named | None:
    """Return how a lane's records are named; None if nobody knows.

    Args:
        naming: the evidence.
        lane: its name.
        row: of it, as it stood.
        told: what the operator says, for what no seal says.
        before: the words and the way of what was proved before.
        begin: the first seal in question.
    """
    spoken = naming.spoken(lane, row, begin)
    ways = {said: known for _, said in spoken if (known := way_of(said)) is not None}
    by_seals = bool(spoken) and all(said in ways for _, said in spoken)
    if before is not None and told is None:
        words, way = before
    elif by_seals and (spoken[0][0] == begin if told is not None else set(ways) != {PLACE}):
        words, way = _words(first := _text(spoken[0][1])) + _BY_SEALS, first
    elif told is not None:
        words, way = f"by {told}, as you say", told
    else:
        sure, way, external = naming.guess(lane, row)
        if not sure and not by_seals:
            return None
        words = _words(way) + (", as the ids it decided show" if sure else _BY_SEALS)
        words = words if external else BY_STAGES
    last, changes = way, ""
    for seq, said in spoken:
        if said in ways and _text(said) != last:
            last = _text(said)
            changes += f", from seal {seq} on {_words(last)}"
    if changes:
        words = words.removesuffix(_BY_SEALS) + changes + _BY_SEALS
    return Named(words=words, way=way, ways=ways, last=last)


def _text(said: str) -> str | None:
    return None if said == PLACE else said


def _words(way: str | None) -> str:
    return f"by {way or 'their place'}"
