"""Rows and typed values that the conformance tests write.

What it is: small builders; every identity is random unless it is given.
What it must not know: any store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from dedup.catalog.catalog import blob_ref, inline
from dedup.catalog.store import RawAck, RawLane
from dedup.model import (
    Ack,
    Attempt,
    Counts,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    ReadSeq,
    Seal,
    Slot,
    Source,
    TopicId,
    advance,
)

TOPIC = TopicId(bytes(range(16)))


def attempt() -> Attempt:
    return Attempt(os.urandom(16))


def incarnation() -> Incarnation:
    return Incarnation(os.urandom(16))


def raw_lane(ref: HeadRef | None = None, *, collected: int = 0) -> RawLane:
    """A head row of opaque bytes."""
    ref = ref or HeadRef(incarnation(), 0, attempt())
    return RawLane(ref, b"head 0", RawAck(ref.incarnation, 0, b"ack 0"), collected)


def successor(ref: HeadRef) -> HeadRef:
    return HeadRef(ref.incarnation, ref.seq + 1, attempt())


def slot(lane: str, ref: HeadRef) -> Slot:
    return Slot(lane, ref.incarnation, ref.seq, ref.attempt)


def first(lane_topic: TopicId = TOPIC, at: int = 0) -> tuple[Head, Seal]:
    """The head and the seal that a lane begins with."""
    ref = HeadRef(incarnation(), 0, attempt())
    frontier = Frontier.of([(Source(lane_topic, 0), at)])
    head = Head(ref=ref, frontier=frontier, topics=(("orders", lane_topic),), minted_at_ms=1)
    return head, Seal(ref=ref, start=frontier, end=frontier, minted_at_ms=1, lane_time_ms=0)


def following(
    head: Head,
    outputs: Sequence[bytes] = (),
    segment: Sequence[bytes] = (),
    dropped: Sequence[bytes] = (),
    rows: int = 10,
) -> tuple[Head, Seal]:
    """The next seal of a lane, over `rows` more records, and the head it moves the lane to."""
    end = Frontier.of((source, offset + rows) for source, offset in head.frontier)
    seal = Seal(
        ref=successor(head.ref),
        start=head.frontier,
        end=end,
        minted_at_ms=head.minted_at_ms + 1,
        lane_time_ms=head.lane_time_ms + 1,
        code="1",
        counts=Counts(read=rows, fresh=rows),
        learned=(ReadSeq("shop/orders/0", incarnation(), TOPIC, head.ref.seq),),
        outputs=blob_ref(outputs, rows),
        segment=blob_ref(segment, rows),
        dropped=blob_ref(dropped, rows),
        inline_outputs=inline(outputs),
        inline_segment=inline(segment),
        inline_dropped=inline(dropped),
    )
    return advance(head, seal), seal


def acknowledged(head: Head) -> Ack:
    """An acknowledgement of everything up to `head`."""
    return Ack(head.ref.incarnation, head.ref.seq, head.frontier)


def reborn(head: Head) -> Head:
    """The same head in a new incarnation."""
    ref = replace(head.ref, incarnation=incarnation(), attempt=attempt())
    return replace(head, ref=ref)
