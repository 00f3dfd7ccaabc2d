"""What is done to a lane while it rests: each deed may be done again, and ends where it would have.

What it is: `drain`, `put_apart`, `forget`, `as_brought_in`, `bring_in`, `copy`, `continued`.
What it must not know: why it is done.

Invariants:
    Nothing is taken away that is owed: what a lane has sealed is delivered first, byte for byte,
    to the partitions stored with it, and acknowledged behind its delivery reports.
    A lane of another name has all ids of the one before, and what is known of their seals, before it
    is taken on.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import xxhash

from dedup.arrays import Ids, firsts_in_order, from_raw, to_raw
from dedup.catalog.catalog import Catalog, segment_place
from dedup.catalog.store import Blob
from dedup.collect import Keep, collect
from dedup.errors import Corrupt, InvalidUsage, Unavailable
from dedup.expiry import WINDOW_MS_MAX
from dedup.formats.segment import Bucket, Part, segment_chunks, whole_segment
from dedup.model import (
    Ack,
    Attempt,
    Frontier,
    Head,
    LaneRow,
    Seal,
    SegmentList,
    Slot,
    TopicId,
    merged_reads,
)
from dedup.seeding import SEED_IDS_MAX, Gathering
from delivery.batch import Emissions
from delivery.life import points
from delivery.life.undertaking import Hands
from delivery.outputs import decode_outputs
from delivery.sinks import close_sink

__all__ = [
    "as_brought_in",
    "bring_in",
    "continued",
    "copy",
    "drain",
    "forget",
    "ids_of",
    "parts_of",
    "put_apart",
    "seed_slot",
    "united",
]

#: A lane that is compacted while it is read is read again, this often at most.
READS_MAX = 10
#: Times a call is repeated that somebody else came before; nobody should, of a lane at rest.
TRIES_MAX = 10


# Delivering -----------------------------------------------------------------------------------


def drain(hands: Hands, lane: str) -> None:
    """Deliver what a lane has sealed and nobody acknowledged.

    Raises:
        InvalidUsage: a topic that it is owed to is not there.
        Indeterminate, Unavailable: Kafka does not answer; nothing is lost: run it again.
        Corrupt: what is owed is gone.
    """
    row = _row(hands.catalog, lane)
    owed = hands.catalog.history(lane, row.head, row.settled + 1)
    if len(owed) != row.head.ref.seq - row.settled:
        raise _gone(lane, "entries of seals that are not acknowledged")
    if owed:
        hands.report(f"{lane}: {len(owed)} seals are delivered")
    rows = [(seal, _outputs(hands.catalog, lane, seal)) for seal in owed]
    with ExitStack() as stack:
        sink = None
        for seal, emissions in rows:
            delivered = Frontier()
            if emissions:
                if sink is None:
                    sink = hands.sink(_topics(hands, lane, row))
                    stack.callback(close_sink, sink)
                delivered = sink.emit(emissions)
            row = _acknowledged(hands.catalog, lane, seal.ref.seq, delivered)
    hands.at(points.DRAINED)


def _outputs(catalog: Catalog, lane: str, seal: Seal) -> Emissions:
    chunks = catalog.get(Blob.OUTPUTS, lane, seal)
    if chunks is None:
        raise _gone(lane, f"outputs of seal {seal.ref.seq}")
    return decode_outputs(chunks, f"outputs of {lane} seq {seal.ref.seq}")


def _topics(hands: Hands, lane: str, row: LaneRow) -> list[str]:
    """Return the names of the topics behind a lane's edges."""
    names = hands.cluster.names()
    missing = [topic.hex() for topic in row.head.writes if topic not in names]
    if missing:
        raise InvalidUsage(
            "deliver what is sealed",
            lane,
            f"{missing[0]} is no topic of this cluster, and outputs for it are not delivered yet; "
            "nothing was changed: run the stage until it has delivered them, or, if the topic was "
            "deleted and created again, say `delivery stage accept-topic`",
        )
    return [names[topic] for topic in row.head.writes]


def _acknowledged(catalog: Catalog, lane: str, seq: int, delivered: Frontier) -> LaneRow:
    for _ in range(TRIES_MAX):
        row = _row(catalog, lane)
        if row.ack.seq >= seq:
            return row
        ack = Ack(row.ack.incarnation, seq, row.ack.delivered.merged(delivered))
        catalog.acknowledge(lane, row.ack, ack)
    raise Unavailable("acknowledge", lane, "others do all the time; run it again")


# Taking away ----------------------------------------------------------------------------------


def put_apart(hands: Hands, lane: str) -> None:
    """List the ids of a lane apart from its seals, and let the seals go: all of it is delivered.

    Its history begins anew behind them, so that it may go on elsewhere than it stood.
    """
    for _ in range(TRIES_MAX):
        if not collect(hands.catalog, lane, Keep(window_ms=WINDOW_MS_MAX)):
            break
    hands.at(points.COLLECTED)


def forget(hands: Hands, lane: str) -> None:
    """Let go of all ids of a lane whose seals are gone."""
    catalog = hands.catalog
    row, old = _row(catalog, lane), catalog.segment_list(lane)
    if old is None or old.slots:
        version = (old.version if old else 0) + 1
        new = SegmentList(version=version, upto=row.head.ref.seq, slots=())
        if not catalog.replace_segment_list(lane, old, new):
            raise Unavailable(
                "forget the ids of a lane",
                lane,
                "it is being compacted; nothing of it is half: run the same again",
            )
    for kind in Blob:
        catalog.store.delete(kind, list(catalog.store.slots(kind, lane, last=row.head.ref.seq)))
    catalog.store.forget_losers(lane, row.head.ref.seq)


def as_brought_in(hands: Hands, lane: str, intent: bytes) -> None:
    """Let the ids of a lane whose seals are gone stand as brought in before its first seal.

    A lane that reads again what it has read meets records whose seals are gone. Brought-in ids say
    to everybody, audits included, that records of them take no effect any more.
    """
    catalog = hands.catalog
    row, old = _row(catalog, lane), catalog.segment_list(lane)
    if old is None:
        return
    slot = seed_slot(row.head, lane, intent)
    if old.slots in ((), (slot,)):
        return
    parts = parts_of(hands, lane, listed=True)
    if sum(part.count for part in parts) > SEED_IDS_MAX:
        return
    catalog.store.put(Blob.SEGMENT, slot, segment_chunks(united(parts)))
    new = SegmentList(version=old.version + 1, upto=old.upto, slots=(slot,))
    if not catalog.replace_segment_list(lane, old, new):
        raise Unavailable(
            "carry the ids of a lane over",
            lane,
            "it is being compacted; nothing of it is half: run the same again",
        )
    catalog.store.delete(Blob.SEGMENT, old.slots)


def bring_in(hands: Hands, lane: str, parts: Iterable[Part], intent: bytes) -> None:
    """Let a lane whose seals are gone, or that never had one, know these ids and nothing else."""
    catalog = hands.catalog
    row, old = _row(catalog, lane), catalog.segment_list(lane)
    chunks = segment_chunks(united(parts))
    slot = seed_slot(row.head, lane, intent)
    slots = (slot,) if chunks else ()
    if old is not None and old.slots == slots:
        return
    if chunks:
        catalog.store.put(Blob.SEGMENT, slot, chunks)
    version = (old.version if old else 0) + 1
    new = SegmentList(version=version, upto=row.head.ref.seq, slots=slots)
    if not catalog.replace_segment_list(lane, old, new):
        raise Unavailable(
            "carry the ids of a lane over",
            lane,
            "it is being compacted; nothing of it is half: run the same again",
        )
    catalog.store.delete(Blob.SEGMENT, old.slots if old else ())


def seed_slot(head: Head, lane: str, intent: bytes) -> Slot:
    """Return the place of ids that are brought in; the same whenever the same is done."""
    attempt = Attempt(xxhash.xxh3_128_digest(b"seeds" + intent + lane.encode()))
    return Slot(lane, head.incarnation_of(0), 0, attempt)


def united(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return plain parts, one for each bucket, each id once."""
    buckets: dict[Bucket, list[Part]] = {}
    for part in parts:
        buckets.setdefault(part.bucket, []).append(part)
    return tuple(_united(bucket, found) for bucket, found in sorted(buckets.items()))


def _united(bucket: Bucket, parts: list[Part]) -> Part:
    ids = np.concatenate([from_raw(part.ids) for part in parts])
    places = firsts_in_order(ids)
    seen = merged_reads((), (read for part in parts for read in part.seen))
    digests = b""
    if all(part.digests for part in parts if part.count):
        every = b"".join(part.digests for part in parts)
        digests = np.frombuffer(every, dtype="<u2")[places].tobytes()
    return Part(bucket, to_raw(ids[places]), seen, digests)


# Carrying over --------------------------------------------------------------------------------


def copy(hands: Hands, lane: str, name: str) -> None:
    """Let a lane of another name, which is there, at rest, without seals, have the ids of this one."""
    catalog = hands.catalog
    if catalog.segment_list(name) is None:
        head = _row(catalog, lane).head
        slots = []
        for slot, chunks in _segments(catalog, lane):
            slots.append(replace(slot, lane=name))
            catalog.store.put(Blob.SEGMENT, slots[-1], chunks)
            hands.report(f"{name}: {len(slots)} segments")
        listed = SegmentList(version=1, upto=head.ref.seq, slots=tuple(slots))
        # Somebody who does the same makes the same list.
        catalog.replace_segment_list(name, None, listed)
    hands.at(points.COPIED)


def parts_of(hands: Hands, lane: str, *, listed: bool = False) -> list[Part]:
    """Return all ids of a lane that count, or those in its list, as plain parts."""
    head, found = _row(hands.catalog, lane).head, []
    for slot, chunks in _segments(hands.catalog, lane, listed=listed):
        for part in _parts(hands.catalog, slot, chunks):
            kept = part.of_history(head) if part.origins else part
            found.append(replace(kept, origins=(), origin_of=b""))
    return found


def ids_of(hands: Hands, lane: str) -> Ids:
    """Return all ids of a lane, each once.

    Raises:
        InvalidUsage: they are too many to be held at once.
    """
    gathered = Gathering()
    for part in parts_of(hands, lane):
        gathered.add(from_raw(part.ids))
    return gathered.ids


def _segments(
    catalog: Catalog, lane: str, *, listed: bool = False
) -> list[tuple[Slot, list[bytes]]]:
    """Return the segments in which the ids of a lane are, with their chunks."""
    for _ in range(READS_MAX):
        head, old = _row(catalog, lane).head, catalog.segment_list(lane)
        upto = old.upto if old else -1
        seals = [] if listed else catalog.history(lane, head, upto + 1)
        found = [
            (slot, catalog.store.get(Blob.SEGMENT, slot)) for slot in (old.slots if old else ())
        ]
        found += [
            (
                Slot(lane, seal.ref.incarnation, seal.ref.seq, seal.ref.attempt),
                catalog.get(Blob.SEGMENT, lane, seal) or [],
            )
            for seal in seals
            if seal.segment.chunks
        ]
        # A compactor took something away in between where anything is missing.
        whole = all(whole_segment(chunks, segment_place(catalog, slot)) for slot, chunks in found)
        if whole and (listed or len(seals) == max(0, head.ref.seq - upto)):
            return found
    raise Unavailable(
        "read the ids of a lane",
        lane,
        "it is compacted faster than it can be read; nothing was changed: stop that, and run the "
        "same again",
    )


def _parts(catalog: Catalog, slot: Slot, chunks: list[bytes]) -> list[Part]:
    return whole_segment(chunks, segment_place(catalog, slot)) or []


def _row(catalog: Catalog, lane: str) -> LaneRow:
    row = catalog.load(lane)
    assert row is not None, "a lane is never deleted"
    return row


def _gone(lane: str, what: str) -> Corrupt:
    return Corrupt(
        "deliver what is sealed",
        lane,
        f"{what} are not there; nothing was changed: stop everything that uses this catalog, keep a "
        "copy, and restore a backup",
    )


def continued(model: Head, writes: tuple[TopicId, ...], time_ms: int, head: Head) -> Head:
    """Return a head that goes on where another one stands."""
    return replace(
        head,
        frontier=model.frontier,
        topics=model.topics,
        writes=writes,
        read_seqs=model.read_seqs,
        lane_time_ms=max(head.lane_time_ms, model.lane_time_ms, time_ms),
        minted_at_ms=max(head.minted_at_ms, model.minted_at_ms),
    )
