"""Where the record of an id is: from what the catalog decided or made to its place in a topic.

What it is: `places_of_id`.
What it must not know: what is told of the record.

Invariants:
    Catalog and topics are only read; of topics only the ranges of the seals in question, and what an
    output's seal can have emitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from dedup import arrays
from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.errors import InvalidUsage
from dedup.formats.segment import decode_segment
from dedup.ids import named
from dedup.model import Frontier, LaneRow, RecordId, Seal
from delivery.batch import Batch
from delivery.header import NAME, decode_headers
from delivery.operate.copies import Made, first_copy, last_of_ours
from delivery.operate.guessing import SAMPLE_MAX, guessed, id_by, ways_of
from delivery.operate.logs import Cluster
from delivery.operate.lookup import look_up_id
from delivery.operate.opening import database_of
from delivery.operate.places import is_of_job, is_remade
from delivery.outputs import decode_outputs

__all__ = ["id_of_name", "places_of_id"]

_Place = tuple[str, int, int]


def id_of_name(catalog: Catalog, name: bytes, lanes: Iterable[str]) -> RecordId:
    """Return the id of a record that its publisher calls so.

    Wrapped jobs take a name for one within its topic: such an id is meant if only it was decided.
    """
    plain, lanes = named(name), list(lanes)
    jobs = [row for lane in lanes if is_of_job(lane) and (row := catalog.load(lane)) is not None]
    within = dict.fromkeys(named(topic + name) for row in jobs for _, topic in row.head.topics)
    every = [plain, *within] if within else []  # else there is nothing to choose from
    return next((one for one in every if look_up_id(catalog, one, lanes)[0]), plain)


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
        rows = ((lane, catalog.load(lane)) for lane in lanes)
        away = [f"{lane} ({path})" for lane, row in rows if row and (path := database_of(row.head))]
        unasked = f"; not asked, because their databases were not read: {', '.join(away)}"
        raise InvalidUsage(
            "explain a record",
            words,
            f"no lane has decided it and no seal has made it, or all that did have forgotten it"
            f"{unasked if away else ''}; nothing was read: say where the record is with --offset; "
            "its key is its name only where id_from= says so",
        )
    places: dict[_Place, None] = {}
    for decision in sorted(decisions, key=lambda one: one.sealed_ms or 0):
        seal = _seal(catalog, decision.lane, decision.seq)
        if seal is not None:
            places |= dict.fromkeys(_in_range(catalog, cluster, decision.lane, seal, record_id))
    for maker in () if places else makers:
        row, seal = catalog.load(maker.lane), _seal(catalog, maker.lane, maker.seq)
        if row is not None and seal is not None:
            made = Made(lane=maker.lane, seal=seal, ids=(record_id,))
            found = first_copy(cluster, row, made, _stored(catalog, cluster, row, made))
            if found is not None:
                topic, record = found
                places[topic.name, record.source.partition, record.offset] = None
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


def _stored(
    catalog: Catalog, cluster: Cluster, row: LaneRow, made: Made
) -> dict[tuple[str, int], int] | None:
    """Return topic and partition of an output while it is stored; None: it is not any more."""
    chunks = catalog.get(Blob.OUTPUTS, made.lane, made.seal)
    if chunks is None or is_remade(catalog, made.lane, made.seal):
        return None
    rows = decode_outputs(chunks, f"outputs of {made.lane} seq {made.seal.ref.seq}")
    columns = decode_headers([dict(headers).get(NAME) for headers in rows.headers])
    mine = np.flatnonzero((columns.ids == arrays.pack(made.ids)).all(axis=1))
    for at in mine[:1].tolist():
        (one,) = rows.cut(at, at + 1)
        for identity in row.head.writes[one.edge : one.edge + 1]:
            topic = cluster.topics().get(identity)
            return {(topic.name, one.partition): 1} if topic is not None else None
    return None


def _seal(catalog: Catalog, lane: str, seq: int) -> Seal | None:
    row = catalog.load(lane)
    return catalog.seal(lane, row.head.incarnation_of(seq), seq) if row is not None else None


def _in_range(
    catalog: Catalog, cluster: Cluster, lane: str, seal: Seal, wanted: RecordId
) -> Iterator[_Place]:
    """Yield the first record of an id in what a seal has read."""
    decided: set[RecordId] = set()
    for chunk in catalog.get(Blob.SEGMENT, lane, seal) or ():
        for part in decode_segment(chunk, f"segment of {lane} seq {seal.ref.seq}"):
            decided.update(part)
    ways: list[str | None] | None = None
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
            if ways is None:
                sample = list(batch)[:SAMPLE_MAX]
                sure, way = guessed(sample, decided)
                # What is not explained by the ids that the seal decided may be named in any way.
                ways = [way] if sure else list(dict.fromkeys(w for r in sample for w in ways_of(r)))
            at = _row(batch, wanted, ways)
            if at is not None:
                yield topic.name, source.partition, int(batch.offsets[at])
                return


def _row(batch: Batch, wanted: RecordId, ways: list[str | None]) -> int | None:
    """Return the first record of a batch that goes by an id, by its header or one of the ways."""
    columns = decode_headers([last_of_ours(headers) for headers in batch.headers])
    by_header = (columns.ids == arrays.from_raw(wanted)).all(axis=1)
    if by_header.any():
        return int(np.flatnonzero(by_header)[0])
    return next(
        (
            at
            for at, record in enumerate(batch)
            if any(id_by(way, record) == wanted for way in ways)
        ),
        None,
    )
