"""Records that left a lane, or were promised to, as columns.

What it is: `Sent`, and `promises`, which reads what seals have stored, whole chunks at a time.
What it must not know: what is right.

Invariants:
    A chunk is believed only if it is what its seal promises: number, size, digest and position.
    Two digests of 64 bits stand for the key, the value and the other headers of a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dedup.catalog.store import Blob
from dedup.errors import Corrupt
from dedup.model import Seal
from delivery.checker.chunks import (
    differs,
    minted_ids,
    opened_chunk,
    read_recipe,
    stored,
    whole_chunks,
)
from delivery.checker.columns.ground import Doubt, Ground
from delivery.checker.columns.same import ABSENT, Ints, Mask, Words
from delivery.checker.columns.table import digests, rest_digests
from delivery.checker.evidence import Kind
from delivery.checker.rows import Book, owner
from delivery.header import NAME

__all__ = ["Sent", "by_topic", "joined", "promises", "sealed_of", "sent_by"]

_IDS = np.empty((0, 2), dtype=np.uint64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sent:
    """Records in a lane's topics, or promised to be there, column by column.

    Attributes:
        edges: places in the lane's topics.
        promised: whether the catalog still has the row; else only what its attempt may have made.
    """

    edges: Ints
    partitions: Ints
    offsets: Ints
    ids: Words
    seqs: Ints
    minted: Ints
    kept: Ints
    parents: tuple[Ints, Ints]
    values: Words
    rests: Words

    @property
    def frozen(self) -> tuple[Ints | Words, ...]:
        """All that every copy of a record has in common."""
        return (
            *(self.edges, self.partitions, self.ids[:, 0], self.ids[:, 1], self.seqs),
            *(self.minted, self.kept, *self.parents, self.values, self.rests),
        )

    @property
    def name(self) -> tuple[Ints | Words, ...]:
        """What tells records apart: topic and id."""
        return (self.edges, self.ids[:, 0], self.ids[:, 1])

    def rows(self, chosen: Ints | Mask) -> Sent:
        """Return some of them."""
        if chosen.dtype == np.bool_ and chosen.all():
            return self
        return Sent(
            edges=self.edges[chosen],
            partitions=self.partitions[chosen],
            offsets=self.offsets[chosen],
            ids=self.ids[chosen],
            seqs=self.seqs[chosen],
            minted=self.minted[chosen],
            kept=self.kept[chosen],
            parents=(self.parents[0][chosen], self.parents[1][chosen]),
            values=self.values[chosen],
            rests=self.rests[chosen],
        )

    def __len__(self) -> int:
        return len(self.edges)


def promises(ground: Ground, book: Book) -> tuple[Sent, dict[int, Seal], dict[int, bytes]]:
    """Return what is stored, the seals whose rows are not, and of those made again the digests."""
    parts, gone, recipes = [], {}, {}
    for seq, seal in sorted(book.seals.items()):
        subject = f"outputs of seal {seq}"
        chunks = stored(ground.world.evidence.store, Blob.OUTPUTS, book.name, seal)
        if differs(chunks, seal.outputs):
            if seq > book.collected:
                raise Doubt(Kind.OUTPUTS_GONE, subject, f"{len(chunks)} chunks")
            gone[seq] = seal
            continue
        count = 0
        try:
            digest = read_recipe(chunks, subject)
            if digest is not None:
                gone[seq], recipes[seq] = seal, digest
                continue
            for blob in whole_chunks(chunks, subject):
                origin, ordinal, table = opened_chunk(blob, subject)
                parts.append(_part(book, seal, origin, ordinal, table))
                count += len(parts[-1])
        except (Corrupt, pa.ArrowException, OSError) as error:
            raise Doubt(Kind.UNREADABLE, subject, str(error)) from error
        if count != seal.outputs.rows:
            raise Doubt(Kind.COUNTS, subject, f"{seal.outputs.rows} promised, {count} stored")
    return joined(parts), gone, recipes


def _part(
    book: Book,
    seal: Seal,
    origin: tuple[str, bytes, int, bytes, int],
    ordinal: int,
    table: pa.RecordBatch,
) -> Sent:
    at, count = seal.ref, len(table)
    if origin != (book.name, at.incarnation, at.seq, at.attempt, seal.minted_at_ms):
        raise Doubt(Kind.ENTRY_FOREIGN, f"outputs of seal {at.seq}", "of another position")
    edges = _numbers(table, "edge")
    kept_ids = _fields(table.column("kept_id"))
    kept = np.zeros(count, dtype=np.bool_)
    if kept_ids.count(None) < count:
        kept = np.array([one is not None for one in kept_ids], dtype=np.bool_)
    ids = np.empty((count, 2), dtype=np.uint64)
    ids[~kept] = minted_ids(at.attempt, edges[~kept], np.arange(ordinal, ordinal + count)[~kept])
    raw = b"".join(filter(None, kept_ids))
    ids[kept] = np.frombuffer(raw, dtype=">u8").reshape(-1, 2)
    headers = table.column("headers")
    theirs: dict[int, list[tuple[str, bytes]]] = {}
    if len(headers.flatten()):
        theirs = {
            place: [(one["name"], one["value"]) for one in pairs if one["name"] != NAME]
            for place, pairs in enumerate(headers.to_pylist())
            if pairs
        }
    return Sent(
        edges=edges,
        partitions=_numbers(table, "partition"),
        offsets=np.full(count, ABSENT),
        ids=ids,
        seqs=np.full(count, at.seq),
        minted=np.full(count, seal.minted_at_ms),
        kept=kept.astype(np.int64),
        parents=(_numbers(table, "parent_partition"), _numbers(table, "parent_offset")),
        values=digests(_fields(table.column("value"))),
        rests=rest_digests(_fields(table.column("key")), theirs),
    )


def _numbers(table: pa.RecordBatch, name: str) -> Ints:
    """Return a column of numbers, by way of its buffer: Arrow would ask pandas, and import it."""
    column = table.column(name)
    if column.null_count:
        raise pa.ArrowInvalid(f"a row has no {name}")
    part = slice(column.offset, column.offset + len(column))
    kind = np.dtype(column.type.to_pandas_dtype())
    found: Ints = np.frombuffer(column.buffers()[1] or b"", dtype=kind)[part].astype(np.int64)
    return found


def _fields(column: pa.Array) -> Sequence[bytes | None]:
    """Return a column of bytes; cut out of its buffer that takes a third of the time."""
    count = len(column)
    if column.null_count == count:
        return [None] * count
    if column.null_count or pa.types.is_fixed_size_binary(column.type):
        found: list[bytes | None] = column.to_pylist()
        return found
    _, ends, data = column.buffers()
    places = np.frombuffer(ends, dtype=np.int32)[column.offset : column.offset + count + 1]
    raw = data.to_pybytes() if data is not None else b""
    return [raw[first:end] for first, end in pairwise(places.tolist())]


def joined(parts: list[Sent]) -> Sent:
    """Return records one behind the other."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    none, words = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
    return Sent(
        edges=np.concatenate([none, *(part.edges for part in parts)]),
        partitions=np.concatenate([none, *(part.partitions for part in parts)]),
        offsets=np.concatenate([none, *(part.offsets for part in parts)]),
        ids=np.concatenate([_IDS, *(part.ids for part in parts)]),
        seqs=np.concatenate([none, *(part.seqs for part in parts)]),
        minted=np.concatenate([none, *(part.minted for part in parts)]),
        kept=np.concatenate([none, *(part.kept for part in parts)]),
        parents=(
            np.concatenate([none, *(part.parents[0] for part in parts)]),
            np.concatenate([none, *(part.parents[1] for part in parts)]),
        ),
        values=np.concatenate([words, *(part.values for part in parts)]),
        rests=np.concatenate([words, *(part.rests for part in parts)]),
    )


def by_topic(book: Book, rows: Sent) -> Sent:
    """Return rows under the first edge to their topic."""
    places = [book.head.writes.index(topic) for topic in book.head.writes] or [0]
    return replace(rows, edges=np.array(places, dtype=np.int64)[rows.edges])


def sealed_of(book: Book, sent: Sent) -> Words:
    """Return two digests of all that is frozen of each record."""
    topics = [int.from_bytes(topic[:8], "big") for topic in book.head.writes] or [0]
    words = [np.array(topics, dtype=np.uint64)[sent.edges]]
    words += [column.view(np.uint64) for column in sent.frozen[1:]]
    found = np.empty((len(sent), 2), dtype=np.uint64)
    for half, factor in enumerate((0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)):
        mixed = np.full(len(sent), half, dtype=np.uint64)
        for word in words:
            mixed = (mixed ^ word) * np.uint64(factor)
            mixed ^= mixed >> np.uint64(29)
        found[:, half] = mixed
    return found


def sent_by(ground: Ground, book: Book) -> Sent:
    """Return the records in this lane's topics that name it, and a seal of its history."""
    parts, head = [], book.latest
    mine = [
        place
        for place in ground.senders(book.name).tolist()
        if (mark := ground.marks.every[place]).seq <= head.ref.seq
        and owner(head, mark.seq) == mark.incarnation
    ]
    is_mine = np.zeros(len(ground.marks.every) + 1, dtype=np.bool_)
    is_mine[mine] = True
    for topic in dict.fromkeys(book.head.writes):
        place = book.head.writes.index(topic)
        for column in ground.partitions(topic):
            rows = np.flatnonzero(is_mine[column.marks])
            marks = column.marks[rows]
            parts.append(
                Sent(
                    edges=np.full(len(rows), place),
                    partitions=np.full(len(rows), column.source.partition),
                    offsets=column.offsets[rows],
                    ids=column.ids[rows],
                    seqs=ground.seqs[marks],
                    minted=ground.minted[marks],
                    kept=ground.kept[marks],
                    parents=(column.parents[0][rows], column.parents[1][rows]),
                    values=column.values[rows],
                    rests=column.rests[rows],
                )
            )
    return joined(parts)
