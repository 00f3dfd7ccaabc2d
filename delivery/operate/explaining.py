"""The story of one record: who made it, what every lane made of it, where what was made of it lies.

What it is: `explain`, which puts together what the catalog and Kafka say of one offset.
What it must not know: how it is shown.

Invariants:
    Catalog and topics are only read.
    What only a header says, and the catalog does not confirm, is said to be so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.model import Frontier, LaneRow, RecordId, Seal, Source
from delivery.header import NAME, NO_PARENT, Header, decode_header
from delivery.kafka.port import Topic
from delivery.operate import copies, lookup
from delivery.operate.guessing import id_by, ways_of
from delivery.operate.logs import Cluster
from delivery.operate.places import (
    OUTPUTS_MAX,
    Fate,
    attempts_at,
    error_of,
    is_remade,
    outputs_of,
    parent_of,
    place_of,
    readable,
    together,
    verdict_of,
)
from delivery.operate.repeats import Repeat, Repeats, repeats
from delivery.operate.story import Copy, Origin, Original, Output, Reading, Standing, Story
from delivery.records import Record

__all__ = ["explain"]


def explain(
    catalog: Catalog,
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    *,
    whole: bool = False,
) -> Story:
    """Tell the story of the record at an offset of an input or an output.

    Args:
        catalog: is only read.
        cluster: its topics.
        topic: its name.
        partition: of the topic.
        offset: in the partition.
        whole: look for copies in all of the topics, not only where they should be.

    Raises:
        InvalidUsage: there is no such topic.
        Unavailable: Kafka or the catalog does not answer.
    """
    found = cluster.topic(topic)
    source = Source(found.id, partition)
    record = cluster.record(found, source, offset) if partition < found.partitions else None
    teller = _Teller(catalog, cluster, whole=whole)
    header = decode_header(record.header(NAME) or b"") if record is not None else None
    return Story(
        topic=topic,
        partition=partition,
        offset=offset,
        key=readable(record.key) if record is not None else None,
        size=len(record.value or b"") if record is not None else None,
        timestamp_ms=record.timestamp_ms if record is not None else None,
        id=header.id.hex() if header is not None else None,
        origin=teller.origin(source, record, header) if record and header else None,
        readings=tuple(teller.readings(found, source, offset, record)),
    )


class _Teller:
    """Catalog and cluster, with the rows of all lanes."""

    def __init__(self, catalog: Catalog, cluster: Cluster, *, whole: bool) -> None:
        self._catalog, self._whole = catalog, whole
        self._cluster = cluster
        rows = ((lane, catalog.load(lane)) for lane in catalog.lanes())
        self._rows: dict[str, LaneRow] = {lane: row for lane, row in rows if row is not None}

    def origin(self, source: Source, record: Record, header: Header) -> Origin:
        """Return where a record says that it comes from."""
        mark = header.mark
        row = self._rows.get(mark.sender)
        seal: Seal | None = None
        error: str | None = None
        if row is None or source.topic not in row.head.writes:
            standing = Standing.STRANGER
        else:
            standing, seal = self._standing(row, header)
            error = error_of(row.head, seal, source.topic, record.headers)
        return Origin(
            lane=mark.sender,
            seq=mark.seq,
            incarnation=mark.incarnation.hex(),
            minted_ms=mark.minted_at_ms,
            kept=mark.kept,
            parent=header.parent if header.parent[0] >= 0 else None,
            standing=standing,
            attempt=seal.ref.attempt.hex() if seal is not None else None,
            error=error,
        )

    def _standing(self, row: LaneRow, header: Header) -> tuple[Standing, Seal | None]:
        mark, head = header.mark, row.head
        last = head.last_kept(mark.incarnation)
        current = mark.incarnation == head.ref.incarnation
        if last is None:
            return Standing.ELSEWHERE, None
        if mark.seq > last and not current:
            return Standing.ABANDONED, None
        if mark.seq > last or head.incarnation_of(mark.seq) != mark.incarnation:
            return Standing.UNSEALED, None
        seal = self._catalog.seal(mark.sender, mark.incarnation, mark.seq)
        if seal is None:
            return Standing.COLLECTED, None
        # One of this seal was minted with it.
        same = seal.minted_at_ms == mark.minted_at_ms
        return (Standing.SEALED if same else Standing.UNSEALED), seal

    # Readings ---------------------------------------------------------------------------------

    def readings(
        self,
        topic: Topic,
        source: Source,
        offset: int,
        record: Record | None,
    ) -> Iterator[Reading]:
        """Yield what every lane that reads this partition made of the offset."""
        for lane, row in self._rows.items():
            if row.head.frontier.at(source) is None:
                continue
            place = place_of(self._catalog, lane, row.head, source, offset)
            if place.seal is None:
                assert place.fate is not None, "a place without a seal says why"
                yield Reading(lane=lane, fate=place.fate)
                continue
            seal = place.seal
            fate = verdict_of(self._catalog, lane, seal, source, offset)
            told = Reading(
                lane=lane,
                fate=fate,
                seq=seal.ref.seq,
                sealed_ms=seal.minted_at_ms,
                code=seal.code,
                attempts=attempts_at(self._catalog, lane, seal),
                remade=is_remade(self._catalog, lane, seal),
                together=together(lane, row.head, seal),
            )
            if fate is Fate.FRESH:
                told = replace(told, outputs=self._outputs(lane, row, seal, source, offset))
                yield self._with_repeats(told, topic, seal, record)
            elif fate is Fate.DUPLICATE and record is not None:
                original, named = self._original(lane, row, topic, record, seal)
                yield replace(told, original=original, named=named)
            else:
                yield told

    def _with_repeats(
        self,
        told: Reading,
        topic: Topic,
        seal: Seal,
        record: Record | None,
    ) -> Reading:
        """Return a reading with what repeats its record, as far as that can be told."""
        if record is None:
            return told
        decided = b"".join(self._catalog.get(Blob.SEGMENT, told.lane, seal) or ())
        for way, record_id in self._tries(record, seal):
            if decided.find(record_id) < 0:
                continue
            found = self._repeats(told.lane, topic, record, seal, (way, record_id))
            upto = dict(found.upto)
            return replace(
                told,
                named=way,
                repeats=found.found,
                repeats_upto=upto.pop(record.source.partition),
                repeats_elsewhere=tuple(sorted(upto.items())),
            )
        return told

    def _repeats(
        self,
        lane: str,
        topic: Topic,
        record: Record,
        seal: Seal,
        named: tuple[str | None, RecordId],
    ) -> Repeats:
        """Return what a lane dropped because it repeats a record, by the way it is named and its id."""
        found = repeats(
            self._catalog,
            self._cluster,
            (topic, record.source, record.offset),
            lane=lane,
            head=self._rows[lane].head,
            seal=seal,
            same=partial(_goes_by, *named),
        )
        if not found.found:
            return found
        # Of an id that took effect again, because it came later than the window, what came after that
        # repeats the later record.
        decisions, _ = lookup.look_up_id(self._catalog, named[1], [lane])
        again = min((o.seq for o in decisions if o.seq > seal.ref.seq), default=None)
        mine = tuple(one for one in found.found if again is None or one.seq < again)
        return replace(found, found=mine)

    def _tries(self, record: Record, seal: Seal) -> Iterator[tuple[str | None, RecordId]]:
        """Yield every id that a record may have, and the way it is named then.

        What the seal that read it says comes first: name and key may be the same.
        """
        header = decode_header(record.header(NAME) or b"")
        if header is not None and header.mark.sender in self._rows:
            yield "delivery", header.id
        said = [seal.named] if seal.named in set(ways_of(record)) else []
        for way in dict.fromkeys((*said, *ways_of(record))):
            record_id = id_by(way, record)
            if record_id is not None and way is not None:
                yield way, record_id

    def _original(
        self, lane: str, row: LaneRow, topic: Topic, record: Record, read_by: Seal
    ) -> tuple[Original | None, str | None]:
        """Return what a duplicate repeats, and the way it is named."""
        for way, record_id in self._tries(record, read_by):
            decisions, _ = lookup.look_up_id(self._catalog, record_id, [lane])
            # The last one by then: what was decided before a window had been let go.
            for decision in [one for one in decisions if one.seq <= read_by.ref.seq][-1:]:
                seal = self._catalog.seal(lane, row.head.incarnation_of(decision.seq), decision.seq)
                place = self._first(lane, topic, seal, way, record_id) if seal is not None else None
                sealed = decision.sealed_ms
                return Original(seq=decision.seq, sealed_ms=sealed, place=place), way
        return None, None

    def _first(
        self, lane: str, topic: Topic, seal: Seal, way: str | None, record_id: RecordId
    ) -> tuple[int, int] | None:
        """Return the place of the first record of an id in the range of the seal that decided it."""
        low = self._cluster.bounds(topic).low
        start, end = (
            Frontier.of((source, at) for source, at in span if source.topic == topic.id)
            for span in (seal.start, seal.end)
        )
        if not start.positions or any(at < (low.at(source) or 0) for source, at in start):
            return None
        for batch in self._cluster.read(topic, start, end):
            for one in batch:
                if _goes_by(way, record_id, one) and self._is_fresh(lane, seal, one):
                    return one.source.partition, one.offset
        return None

    def _is_fresh(self, lane: str, seal: Seal, record: Record) -> bool:
        """Tell whether a record took effect: of several of an id in several partitions any may have."""
        fate = verdict_of(self._catalog, lane, seal, record.source, record.offset)
        return fate in (Fate.FRESH, Fate.COLLECTED)

    # Outputs ----------------------------------------------------------------------------------

    def _outputs(
        self, lane: str, row: LaneRow, seal: Seal, source: Source, offset: int
    ) -> tuple[Output, ...]:
        names = self._cluster.names()
        parent = parent_of(lane, source, offset)
        stored = outputs_of(self._catalog, row.head, seal, parent, lane=lane, names=dict(names))
        outputs: dict[tuple[str, str], Output] = {}
        for made in stored or ():
            told = made.document()
            del told["edge"]
            outputs[made.id, made.topic] = Output(**told)
        wanted = None if stored is None else Counter((one.topic, one.partition) for one in stored)
        # Those of a batch without parents may be more than are told.
        named = tuple(lookup.id_of_hex(one) for one, _ in outputs) if parent == NO_PARENT else ()
        mine = copies.Made(lane=lane, seal=seal, parent=parent, ids=named)
        for topic, record in copies.copies(self._cluster, row, mine, wanted, whole=self._whole):
            header = decode_header(record.header(NAME) or b"")
            assert header is not None, "copies are told by their headers"
            key = (header.id.hex(), topic.name)
            if parent == NO_PARENT and key not in outputs and len(outputs) >= OUTPUTS_MAX:
                continue
            known = outputs.get(key) or Output(
                id=header.id.hex(),
                topic=topic.name,
                partition=record.source.partition,
                key=readable(record.key),
                size=len(record.value or b""),
                error=error_of(row.head, seal, topic.id, record.headers),
            )
            outputs[key] = replace(known, copies=(*known.copies, self._copy(topic, record, header)))
        return tuple(outputs.values())

    def _copy(self, topic: Topic, record: Record, header: Header) -> Copy:
        found: dict[str, Fate] = {}
        dropped: dict[str, tuple[Repeat, ...]] = {}
        for lane, row in self._rows.items():
            if row.head.frontier.at(record.source) is None:
                continue
            place = place_of(self._catalog, lane, row.head, record.source, record.offset)
            if place.seal is None:
                assert place.fate is not None, "a place without a seal says why"
                found[lane] = place.fate
            else:
                found[lane] = verdict_of(
                    self._catalog, lane, place.seal, record.source, record.offset
                )
            if header.mark.kept and found[lane] is Fate.FRESH and place.seal is not None:
                named = ("delivery", header.id)
                every = self._repeats(lane, topic, record, place.seal, named).found
                # Copies of this very record are told as such.
                dropped[lane] = tuple(one for one in every if one.parent != header.parent)
        return Copy(offset=record.offset, receivers=found, repeats=dropped)


def _goes_by(way: str | None, record_id: RecordId, record: Record) -> bool:
    """Tell whether a record has an id, if it is named this way."""
    if way != "delivery":
        return id_by(way, record) == record_id
    found = decode_header(record.header(NAME) or b"")
    return found is not None and found.id == record_id
