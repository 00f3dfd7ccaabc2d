"""Where the record of an id is: from what the catalog decided or made to its place in a topic.

What it is: `places_of_id`.
What it must not know: what is told of the record.

Invariants:
    Catalog and topics are only read; of topics only the ranges of the seals in question, and what an
    output's seal can have emitted.
"""

from __future__ import annotations

from collections.abc import Iterator

from dedup.catalog.catalog import Catalog
from dedup.errors import InvalidUsage
from dedup.model import Frontier, RecordId, Seal
from delivery.header import NAME, decode_header
from delivery.operate.copies import Made, copies
from delivery.operate.guessing import id_by, ways_of
from delivery.operate.logs import Cluster
from delivery.operate.lookup import look_up_id
from delivery.records import Record

__all__ = ["has_id", "places_of_id"]

_Place = tuple[str, int, int]


def places_of_id(catalog: Catalog, cluster: Cluster, record_id: RecordId) -> list[_Place]:
    """Return topic, partition and offset of the records that took effect by an id, or were made.

    Raises:
        InvalidUsage: nobody knows the id, or no topic has its record any more.
        Unavailable: Kafka or the catalog does not answer.
    """
    lanes = list(catalog.lanes())
    decisions, makers = look_up_id(catalog, record_id, lanes)
    words = f"id {record_id.hex()}"
    if not decisions and not makers:
        raise InvalidUsage(
            "explain a record",
            words,
            "no lane has decided it and no seal has made it, or all that did have forgotten it; "
            "nothing was read: say where the record is with --offset",
        )
    places: dict[_Place, None] = {}
    for decision in sorted(decisions, key=lambda one: one.sealed_ms or 0):
        seal = _seal(catalog, decision.lane, decision.seq)
        if seal is not None:
            places |= dict.fromkeys(_in_range(cluster, seal, record_id))
    for maker in () if places else makers:
        row, seal = catalog.load(maker.lane), _seal(catalog, maker.lane, maker.seq)
        if row is not None and seal is not None:
            found = copies(cluster, row, Made(lane=maker.lane, seal=seal, id=record_id))
            places |= dict.fromkeys((t.name, r.source.partition, r.offset) for t, r in found[:1])
    if not places:
        where = ", ".join(
            f"{lane} seq {seq}"
            for lane, seq in (
                *((d.lane, d.seq) for d in decisions),
                *((m.lane, m.seq) for m in makers),
            )
        )
        raise InvalidUsage(
            "explain a record",
            words,
            f"the catalog knows it by {where}, but Kafka holds its record no more, or the entry of "
            "that seal was collected; `delivery catalog lookup` says what is left",
        )
    return list(places)


def has_id(record: Record, record_id: RecordId) -> bool:
    """Tell whether a record goes by an id, by its header or by any way of naming it."""
    header = decode_header(record.header(NAME) or b"")
    if header is not None and header.id == record_id:
        return True
    return any(id_by(way, record) == record_id for way in ways_of(record))


def _seal(catalog: Catalog, lane: str, seq: int) -> Seal | None:
    row = catalog.load(lane)
    return catalog.seal(lane, row.head.incarnation_of(seq), seq) if row is not None else None


def _in_range(cluster: Cluster, seal: Seal, record_id: RecordId) -> Iterator[_Place]:
    """Yield the first record of an id in what a seal has read."""
    for source, start in seal.start:
        topic = cluster.topics().get(source.topic)
        if topic is None:
            continue
        bounds = cluster.bounds(topic)
        first = max(start, bounds.low.at(source) or 0)
        last = min(seal.end.at(source) or start, bounds.high.at(source) or 0)
        if first >= last:
            continue
        low, high = (Frontier.of([(source, at)]) for at in (first, last))
        for batch in cluster.read(topic, low, high):
            for record in batch:
                if has_id(record, record_id):
                    yield topic.name, source.partition, record.offset
                    return
