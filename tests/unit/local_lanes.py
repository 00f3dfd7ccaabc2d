"""A lane for tests of the index: seals with ids in them, on the memory catalog.

What it is: `Lane`, which appends, acknowledges, collects, and is restored from a backup, and knows
which ids the present history has sealed.
What it must not know: indexes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dedup.arrays import Ids, pack
from dedup.catalog.catalog import Catalog, blob_ref, inline
from dedup.catalog.memory import MemoryStore, Tables
from dedup.catalog.store import Blob
from dedup.collect import Keep, collect
from dedup.formats.segment import BUCKET_MS, Bucket, Origin, Part, raw_ids, segment_chunks
from dedup.local.limits import Limits
from dedup.model import (
    Ack,
    Attempt,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    Kept,
    LaneRow,
    ReadSeq,
    Seal,
    Slot,
    TopicId,
    advance,
)

NAME = "shop/price/0"
SENDER = "shop/orders/3"
SENDERS = Incarnation(b"s" * 16)
TOPIC = TopicId(b"t" * 16)
#: Eight buckets: a run of external ids covers two at most.
WINDOW_MS = 8 * BUCKET_MS
#: Bounds so small that a few ids go every way there is.
TINY = Limits(
    overlay_ids_min=6,
    overlay_share=0.0,
    overlay_ids_max=6,
    overlay_seals_max=5,
    aside_ids=3,
    rebuild_ids=10,
    first_ids=8,
    apart_share=0.0,
    fanout=2,
    level_ids=4,
    far_seals=2,
    seals_at_once=2,
)


@dataclass
class Backup:
    tables: Tables
    heads: list[Head]
    sealed: dict[bytes, int]


@dataclass
class Lane:
    """One lane in a catalog of its own."""

    seed: int = 0
    inline_bytes_max: int = 4096
    store: Any = field(default_factory=MemoryStore)
    name: str = NAME
    #: Of each id that was ever sealed the bucket it is asked for in: -1 for an external one.
    ever: dict[bytes, int] = field(default_factory=dict)
    #: Of each id of the present history the seq of its first seal.
    sealed: dict[bytes, int] = field(default_factory=dict)
    heads: list[Head] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.catalog = Catalog(self.store, inline_bytes_max=self.inline_bytes_max)
        head = Head(
            ref=HeadRef(Incarnation(self.fresh()), 0, Attempt(self.fresh())), frontier=Frontier()
        )
        assert self.catalog.create(NAME, head, self.seal(head.ref, 0, ()))
        self.heads.append(head)

    @property
    def head(self) -> Head:
        return self.heads[-1]

    def fresh(self) -> bytes:
        return self.random.randbytes(16)

    def seal(self, ref: HeadRef, lane_time_ms: int, chunks: Sequence[bytes], **more: Any) -> Seal:
        rows = more.pop("rows", 0)
        within = inline(chunks, self.inline_bytes_max)
        if chunks and not within:
            slot = Slot(NAME, ref.incarnation, ref.seq, ref.attempt)
            self.store.put(Blob.SEGMENT, slot, chunks)
        return Seal(
            ref=ref,
            start=Frontier(),
            end=Frontier(),
            minted_at_ms=ref.seq + 1,
            lane_time_ms=lane_time_ms,
            segment=blob_ref(chunks, rows),
            inline_segment=within,
            **more,
        )

    def parts(
        self, external: Iterable[bytes], internal: dict[int, list[bytes]], lane_time_ms: int
    ) -> tuple[Part, ...]:
        """Return ids as a judge would leave them; internal ones by bucket."""
        seq = self.head.ref.seq + 1
        found = [
            Part(
                Bucket(Origin.INTERNAL, number),
                raw_ids(ids),
                (ReadSeq(SENDER, SENDERS, TOPIC, seq),),
            )
            for number, ids in sorted(internal.items())
            if ids
        ]
        external = list(external)
        if external:
            bucket = Bucket.at(Origin.EXTERNAL, lane_time_ms)
            digests = b"".join(one[:2] for one in sorted(external))
            found.append(Part(bucket, raw_ids(external), digests=digests))
        return tuple(found)

    def append(
        self,
        external: Iterable[bytes] = (),
        internal: dict[int, list[bytes]] | None = None,
        *,
        step_ms: int = 0,
        read: int | None = None,
    ) -> tuple[Seal, tuple[Part, ...]]:
        """Seal ids; `read` says up to which seq the sender has been read."""
        internal = internal or {}
        lane_time_ms = self.head.lane_time_ms + step_ms
        parts = self.parts(external, internal, lane_time_ms)
        for one in external:
            self.ever[one] = -1
        for number, ids in internal.items():
            self.ever.update(dict.fromkeys(ids, number))
        ref = replace(self.head.ref, seq=self.head.ref.seq + 1, attempt=Attempt(self.fresh()))
        for part in parts:
            for one in part:
                self.sealed.setdefault(bytes(one), ref.seq)
        learned = () if read is None else (ReadSeq(SENDER, SENDERS, TOPIC, read),)
        seal = self.seal(
            ref,
            lane_time_ms,
            segment_chunks(parts),
            rows=sum(part.count for part in parts),
            learned=learned,
        )
        head = advance(self.head, seal)
        assert self.catalog.append(NAME, self.head.ref, head, seal)
        self.heads.append(head)
        return seal, parts

    def acknowledge(self) -> None:
        row = self.catalog.load(NAME)
        assert row is not None
        if row.head.ref.seq > row.ack.seq:
            ack = Ack(row.head.ref.incarnation, row.head.ref.seq)
            assert self.catalog.acknowledge(NAME, row.ack, ack)

    def collect(self, keep: int | None = None) -> list[str]:
        """Acknowledge and collect; entries above seq `keep` stay."""
        self.acknowledge()
        return collect(self.catalog, NAME, Keep(entries_after=keep, window_ms=WINDOW_MS))

    def backup(self) -> Backup:
        return Backup(self.store.tables.copy(), list(self.heads), dict(self.sealed))

    def restore(self, backup: Backup) -> None:
        """Put a backup back: what was sealed after it is of an abandoned history."""
        self.store.tables = backup.tables.copy()
        self.heads, self.sealed = list(backup.heads), dict(backup.sealed)
        row = self.catalog.load(NAME)
        assert row is not None
        old = row.head
        incarnation = Incarnation(self.fresh())
        head = replace(
            old,
            ref=replace(old.ref, incarnation=incarnation),
            past=(*old.past, Kept(old.ref.incarnation, old.ref.seq)),
        )
        ack = replace(row.ack, incarnation=incarnation)
        fenced = LaneRow(head=head, ack=ack, collected=row.collected)
        assert self.catalog.reincarnate(NAME, old.ref, fenced)
        self.heads.append(head)

    def asked(self, ids: Iterable[bytes]) -> tuple[Ids, np.ndarray]:
        """Return ids with the buckets they are asked for in."""
        ids = list(ids)
        buckets = np.array([self.ever.get(one, -1) for one in ids], dtype=np.int64)
        return pack(ids), buckets
