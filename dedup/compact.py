"""Compaction: the segments of many seals become few large ones, tier by tier.

What it is: `survey` chooses one merge of listed segments and returns its steps; `compact` goes on
until nothing is left to merge. Like a collection, a plan can be killed after any step, beside
writers, collectors and other compactors.
What it must not know: clocks, who reads the segments, what becomes of ids past their window.

Invariants:
    An id is stored in its merged segment BEFORE the list names that, and the inputs are deleted
    only AFTER the list names them no more: whoever reads list and segments in this order finds
    every id, and whoever finds a segment gone reads the list again.
    Only ids whose seal is on the lane's history are taken over, and each keeps the oldest of the
    seals it came from.
    What is written, and its name, are a function of the list and the lane's history, so a merge
    that was killed is finished by its repetition.
    In memory are at most RUNS_MAX segments of one piece each, or PLAIN_IDS_MAX ids.

Tiers. Segments of single seals are merged as soon as PLAIN_MIN are listed, into one for each bucket.
Wherever FAN merged ones of the same bucket and level lie they become one of the next level; and
wherever FAN ones lie within an aligned row of 4, 16, 64, ... closed buckets they become one that
spans the row, up to a quarter of the window. So a list names at most
    PLAIN_MIN segments of single seals, fewer than FAN merged ones for each of the few levels of a
    row, and a row for each quarter of the window and each size below it;
and since a merged segment is cut into pieces of PIECE_IDS, one more slot for each of those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dedup import steps as named
from dedup.arrays import from_raw, to_raw
from dedup.catalog.catalog import Catalog, segment_place
from dedup.catalog.store import Blob
from dedup.formats.merged import (
    LEVEL_MAX,
    SPAN_MAX,
    Merged,
    merge_digest,
    merged_at,
)
from dedup.formats.segment import (
    BUCKET_MS,
    Bucket,
    Origin,
    Part,
    dense,
    pack_indexes,
    segment_chunks,
    whole_segment,
)
from dedup.model import Head, ReadSeq, SegmentList, Slot, merged_reads
from dedup.runs.merge import Block, combined, merged
from dedup.steps import Step

#: So many segments of single seals are merged at once, at least; fewer are not worth a new list.
PLAIN_MIN = 64
#: And at most, so that a plan stays short.
PLAIN_MAX = 1024
#: No more segments of single seals are read for a merge once they hold so many ids.
PLAIN_IDS_MAX = 1 << 20
#: So many merged segments of a kind become one: what is merged grows by this factor.
FAN = 4
#: Merged segments that one merge reads side by side, a piece of each in memory.
RUNS_MAX = 16
#: Ids in one piece of a merged segment, about 5 MiB.
PIECE_IDS = 1 << 18
#: A tier spans at most this part of the window: by so much longer may an id be held.
WINDOW_PARTS = 4


@dataclass(slots=True)
class Tier:
    """A merged segment that the list names, with the slots of its pieces in order."""

    merged: Merged
    slots: list[Slot] = field(default_factory=list)


@dataclass(slots=True)
class Merge:
    """One merge: what goes in, and once it was made what came out."""

    lane: str
    head: Head
    listed: SegmentList
    plain: tuple[Slot, ...] = ()
    tiers: tuple[Tier, ...] = ()
    #: Where the merged tiers go; segments of single seals go to the buckets of their parts.
    bucket: Bucket | None = None
    level: int = 1
    #: The inputs that were read, and the slots that were written; known once they are stored.
    inputs: list[Slot] = field(default_factory=list)
    made: list[Slot] = field(default_factory=list)

    def store(self, catalog: Catalog) -> bool:
        """Read the inputs and store what they become; False if one of them has gone."""
        try:
            if self.bucket is None:
                self.inputs, self.made = self._store_plain(catalog)
            else:
                self.inputs, self.made = self._store_tiers(catalog, self.bucket)
        except _GoneError:
            return False
        return True

    def replace(self, catalog: Catalog) -> bool:
        """Let the list name what was stored in place of the inputs."""
        gone = set(self.inputs)
        rest = (slot for slot in self.listed.slots if slot not in gone)
        new = SegmentList(
            version=self.listed.version + 1,
            upto=self.listed.upto,
            slots=(*rest, *self.made),
        )
        return catalog.replace_segment_list(self.lane, self.listed, new)

    def delete(self, catalog: Catalog) -> bool:
        """Delete the inputs, which no list names any more."""
        catalog.store.delete(Blob.SEGMENT, self.inputs)
        return True

    def _store_plain(self, catalog: Catalog) -> tuple[list[Slot], list[Slot]]:
        parts: dict[Bucket, list[Part]] = defaultdict(list)
        blocks: dict[Bucket, list[Block]] = defaultdict(list)
        inputs, ids = [], 0
        for slot in self.plain:
            inputs.append(slot)
            for part in _whole(catalog, slot):
                if self.head.incarnation_of(slot.seq) == slot.incarnation:
                    parts[part.bucket].append(part)
                    blocks[part.bucket].append(_block(part, slot.seq))
                ids += part.count
            if ids >= PLAIN_IDS_MAX:
                break
        made: list[Slot] = []
        for bucket in sorted(parts):
            name, reads = self._name(bucket, inputs), _reads(parts[bucket])
            made += self._write(catalog, name, reads, iter([combined(blocks[bucket])]))
        return inputs, made

    def _store_tiers(self, catalog: Catalog, bucket: Bucket) -> tuple[list[Slot], list[Slot]]:
        inputs = [slot for tier in self.tiers for slot in tier.slots]
        # Every chunk of a merged segment says what all of it has seen.
        internal = self.tiers if bucket.origin is Origin.INTERNAL else ()
        reads = _reads([_whole(catalog, tier.slots[0])[0] for tier in internal])
        sources = [_blocks(catalog, tier.slots, self.head) for tier in self.tiers]
        made = self._write(catalog, self._name(bucket, inputs), reads, merged(sources))
        return inputs, made

    def _name(self, bucket: Bucket, inputs: Sequence[Slot]) -> Merged:
        digest = merge_digest(self.listed, self.head, inputs)
        return Merged(bucket, self.level, digest, min(slot.seq for slot in inputs))

    def _write(
        self, catalog: Catalog, name: Merged, reads: tuple[ReadSeq, ...], ids: Iterator[Block]
    ) -> list[Slot]:
        made = []
        for number, piece in enumerate(_pieces(ids)):
            slot = name.slot(self.lane, number)
            chunks = segment_chunks((_part(name.bucket, reads, piece, self.head),))
            catalog.store.put(Blob.SEGMENT, slot, chunks)
            made.append(slot)
        return made


class _GoneError(Exception):
    """An input was deleted: somebody else has replaced the list."""


def survey(
    catalog: Catalog, lane: str, window_ms: int, *, plain_min: int = PLAIN_MIN
) -> list[Step]:
    """Return the steps of the merge that is due next; none if there is none.

    Args:
        catalog: where the segments are.
        lane: whose segments.
        window_ms: how long external ids are held, along lane time; it bounds the tiers.
        plain_min: so many segments of single seals are worth a merge.
    """
    merge = _due(catalog, lane, window_ms, plain_min)
    if merge is None:
        return []
    what = f"the ids of {len(merge.plain)} seals" if merge.plain else f"{len(merge.tiers)} segments"
    return [
        Step(
            named.SEALS_MERGED if merge.plain else named.TIERS_MERGED, f"merge {what}", merge.store
        ),
        Step(
            named.MERGE_LISTED,
            "list what was merged in place of what it was made of",
            merge.replace,
        ),
        Step(named.MERGE_INPUTS_DELETED, "delete what was merged", merge.delete),
    ]


def compact(
    catalog: Catalog, lane: str, window_ms: int, *, plain_min: int = PLAIN_MIN
) -> list[str]:
    """Merge until nothing is due, or somebody else moved the list; return what was done."""
    done: list[str] = []
    while steps := survey(catalog, lane, window_ms, plain_min=plain_min):
        for step in steps:
            if not step.perform(catalog):
                return done
            done.append(step.what)
    return done


def span_max(window_ms: int) -> int:
    """Return how many buckets the largest tier spans."""
    span = 1
    while span * FAN <= min(window_ms // WINDOW_PARTS // BUCKET_MS, SPAN_MAX):
        span *= FAN
    return span


def _due(catalog: Catalog, lane: str, window_ms: int, plain_min: int) -> Merge | None:
    # The list FIRST: every seal that it covers is on the history of a head read after it.
    listed = catalog.segment_list(lane)
    row = catalog.load(lane)
    if listed is None or row is None or row.head.ref.seq < listed.upto:
        return None
    # An entry that is still there is read with its segment, by audits above all.
    entries = {
        seal.ref.seq
        for incarnation, first, last in row.head.runs(0, listed.upto)
        for seal in catalog.seals(lane, incarnation, first, last)
    }
    plain = [slot for slot in listed.slots if merged_at(slot) is None and slot.seq not in entries]
    if len(plain) >= plain_min:
        chosen = tuple(sorted(plain, key=lambda slot: slot.seq)[:PLAIN_MAX])
        return Merge(lane, row.head, listed, plain=chosen)
    tiers = _tiers(listed.slots)
    for bucket, level, found in (*_same_level(tiers), *_closed_rows(tiers, span_max(window_ms))):
        if len(found) >= FAN:
            chosen_tiers = tuple(found[:RUNS_MAX])
            return Merge(lane, row.head, listed, tiers=chosen_tiers, bucket=bucket, level=level)
    return None


def _tiers(slots: Sequence[Slot]) -> list[Tier]:
    """Return the merged segments of a list, by bucket."""
    tiers: dict[Merged, Tier] = {}
    places = [(*found, slot) for slot in slots if (found := merged_at(slot)) is not None]
    for name, _, slot in sorted(places, key=lambda place: (place[0], place[1])):
        tiers.setdefault(name, Tier(name)).slots.append(slot)
    return list(tiers.values())


def _same_level(tiers: Sequence[Tier]) -> Iterator[tuple[Bucket, int, list[Tier]]]:
    """Yield segments of the same bucket and level, and where they go."""
    found: dict[tuple[Bucket, int], list[Tier]] = defaultdict(list)
    for tier in tiers:
        found[tier.merged.bucket, tier.merged.level].append(tier)
    for (bucket, level), same in found.items():
        yield bucket, min(level + 1, LEVEL_MAX), same


def _closed_rows(tiers: Sequence[Tier], longest: int) -> Iterator[tuple[Bucket, int, list[Tier]]]:
    """Yield segments within an aligned row of buckets behind which a newer one was begun."""
    newest: dict[Origin, int] = defaultdict(int)
    for tier in tiers:
        bucket = tier.merged.bucket
        newest[bucket.origin] = max(newest[bucket.origin], bucket.number + bucket.span - 1)
    span = FAN
    while span <= longest:
        found: dict[Bucket, list[Tier]] = defaultdict(list)
        for tier in tiers:
            at = tier.merged.bucket
            row = Bucket(at.origin, at.number // span * span, span)
            if at.span < span and row.number + span <= newest[at.origin]:
                found[row].append(tier)
        for row, within in found.items():
            yield row, 1, within
        span *= FAN


def _whole(catalog: Catalog, slot: Slot) -> list[Part]:
    chunks = catalog.store.get(Blob.SEGMENT, slot)
    parts = whole_segment(chunks, segment_place(catalog, slot))
    if parts is None:
        raise _GoneError
    return parts


def _blocks(catalog: Catalog, slots: Sequence[Slot], head: Head) -> Iterator[Block]:
    """Yield the ids of a merged segment that count, a chunk at a time."""
    for slot in slots:
        for part in _whole(catalog, slot):
            kept = part.of_history(head)
            seqs = np.array([seq for _, seq in kept.origins], dtype=np.int64)
            yield _block(kept, seqs[kept.indexes()])


def _block(part: Part, seqs: int | npt.NDArray[np.int64]) -> Block:
    ids = from_raw(part.ids)
    digests = np.frombuffer(part.digests, dtype="<u2") if part.digests or not part.count else None
    origin = np.full(len(ids), seqs, dtype=np.int64) if isinstance(seqs, int) else seqs
    return Block(ids, origin, digests)


def _reads(parts: Sequence[Part]) -> tuple[ReadSeq, ...]:
    """Return what must be read before any of these may be forgotten."""
    return merged_reads((), (read for part in parts for read in part.seen))


def _pieces(blocks: Iterator[Block]) -> Iterator[Block]:
    """Cut blocks anew, into pieces of PIECE_IDS."""
    held: list[Block] = []
    count = 0
    for block in blocks:
        held.append(block)
        count += len(block)
        while count >= PIECE_IDS:
            whole = Block.joined(held)
            yield whole.take(slice(0, PIECE_IDS))
            held = [whole.take(slice(PIECE_IDS, None))]
            count -= PIECE_IDS
    if count:
        yield Block.joined(held)


def _part(bucket: Bucket, reads: tuple[ReadSeq, ...], block: Block, head: Head) -> Part:
    seqs, index = dense(block.origin)
    origins = tuple((head.incarnation_of(seq), seq) for seq in seqs.tolist())
    return Part(
        bucket,
        to_raw(block.ids),
        reads if bucket.origin is Origin.INTERNAL else (),
        b"" if block.digests is None else block.digests.astype("<u2").tobytes(),
        origins,
        pack_indexes(index, len(origins)),
    )
