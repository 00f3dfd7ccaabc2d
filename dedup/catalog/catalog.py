"""The catalog: what has been decided, typed and checked, over any store.

What it is: the one place that encodes, decodes and cross-checks the rows of a store, and refuses
what may not be stored. Everybody above it works with `dedup.model` values.
What it must not know: which store it is on, threads, clocks.

Invariants:
    A row whose bytes contradict its own columns is `Corrupt`, never repaired in passing.
    What breaks a limit is refused BEFORE anything is written.
    `resolve` reads the head first and the entry after it; the other order could take a seal that
    landed in between for lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import xxhash

from dedup.catalog.store import CHUNK_BYTES_MAX, Blob, RawAck, RawLane, Store, slot_name
from dedup.errors import Corrupt, InvalidUsage
from dedup.formats.lane import (
    decode_ack,
    decode_head,
    decode_seal,
    decode_segment_list,
    encode_ack,
    encode_head,
    encode_seal,
    encode_segment_list,
)
from dedup.formats.merged import MERGED
from dedup.model import (
    LANE_NAME_BYTES_MAX,
    Ack,
    BlobRef,
    Head,
    HeadRef,
    Incarnation,
    LaneRow,
    Seal,
    SegmentList,
    Slot,
)

#: Chunks up to this size in all ride inside the seal and save a round trip.
INLINE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a writer with an unknown outcome reads: the head, and after it the entry."""

    row: LaneRow | None
    seal: Seal | None


class Catalog:
    """Lanes, outputs, segments and acknowledgements, over one store."""

    def __init__(self, store: Store, *, inline_bytes_max: int = INLINE_BYTES_MAX) -> None:
        self.store = store
        self._inline_bytes_max = inline_bytes_max

    # Lanes ------------------------------------------------------------------------------------

    def load(self, lane: str) -> LaneRow | None:
        """Return the lane's row, linearizably; None for a lane that never was."""
        raw = self.store.read(lane)
        return None if raw is None else self._row(lane, raw)

    def create(self, lane: str, head: Head, seal: Seal) -> bool:
        """Append seq 0, the lane's starting frontier; False if the lane exists already."""
        _check_name(lane)
        assert head.ref == seal.ref, "a head is moved to its seal"
        assert seal.ref.seq == 0, "a lane begins at seq 0"
        ack = _raw_ack(Ack(head.ref.incarnation, 0))
        row = RawLane(head.ref, encode_head(head), ack, 0)
        return self.store.create(lane, row, encode_seal(seal))

    def recreate(self, lane: str, row: LaneRow) -> None:
        """Write the row of a restored lane into an empty catalog.

        Raises:
            InvalidUsage: the lane exists: the catalog is not empty, or is being restored twice.
        """
        raw = RawLane(row.head.ref, encode_head(row.head), _raw_ack(row.ack), row.collected)
        if not self.store.create(lane, raw, None):
            raise InvalidUsage(
                "restore a lane",
                f"{lane} in {self.store.url}",
                "it exists already and was left as it is: restore into an empty catalog",
            )

    def append(self, lane: str, expected: HeadRef, head: Head, seal: Seal) -> bool:
        """Move the lane from `expected` to `head`; False if somebody else moved it.

        Raises:
            Indeterminate: it may have happened; `resolve` and then append the SAME seal again.
            Unavailable: it did not happen.
        """
        assert head.ref == seal.ref, "a head is moved to its seal"
        assert seal.ref.incarnation == expected.incarnation, "an append stays in its incarnation"
        assert seal.ref.seq == expected.seq + 1, "seqs are gapless"
        return self.store.append(lane, expected, seal.ref, encode_head(head), encode_seal(seal))

    def reincarnate(
        self, lane: str, expected: HeadRef, row: LaneRow, since: LaneRow | None = None
    ) -> bool:
        """Fence everybody: put `row`, of a new incarnation, in place of the head `expected`.

        With `since`, acknowledgement and `collected` must still be those of that row.
        """
        assert row.head.ref.incarnation != expected.incarnation, "a new incarnation is new"
        assert row.ack.incarnation == row.head.ref.incarnation, "the acknowledgement goes along"
        raw = RawLane(row.head.ref, encode_head(row.head), _raw_ack(row.ack), row.collected)
        settled = None if since is None else (since.ack.seq, since.collected)
        return self.store.reincarnate(lane, expected, raw, settled)

    def resolve(self, lane: str, incarnation: Incarnation, seq: int) -> Resolution:
        """Read what became of an append: the head FIRST, the entry AFTER it."""
        row = self.load(lane)
        return Resolution(row, self.seal(lane, incarnation, seq))

    def seal(self, lane: str, incarnation: Incarnation, seq: int) -> Seal | None:
        """Return one entry; None if it was collected or never was."""
        found = self.seals(lane, incarnation, seq, seq)
        return found[0] if found else None

    def seals(self, lane: str, incarnation: Incarnation, first: int, last: int) -> list[Seal]:
        """Return the entries of one incarnation in [first, last] that are still there."""
        seals = []
        for seq, blob in self.store.entries(lane, incarnation, first, last):
            place = f"{self.store.url} entry {seq} of {lane}"
            seal = decode_seal(blob, place)
            if (seal.ref.incarnation, seal.ref.seq) != (incarnation, seq):
                raise _contradiction(place, "the entry names another position than its key")
            seals.append(seal)
        return seals

    def history(self, lane: str, head: Head, first: int = 0) -> list[Seal]:
        """Return the entries of the history that `head` ends, from `first`, that are still there."""
        return [
            seal
            for incarnation, begin, end in head.runs(first, head.ref.seq)
            for seal in self.seals(lane, incarnation, begin, end)
        ]

    def acknowledge(self, lane: str, expected: Ack, ack: Ack) -> bool:
        """Move the acknowledgement from `expected` to `ack`; False if somebody moved it."""
        assert ack.incarnation == expected.incarnation, "within one incarnation"
        assert ack.seq > expected.seq, "only to a higher seq"
        assert ack.delivered.covers(expected.delivered), "offsets by elementwise maximum"
        return self.store.acknowledge(lane, _raw_ack(expected), _raw_ack(ack))

    def raise_collected(self, lane: str, row: LaneRow, collected: int) -> bool:
        """Raise `collected`, BEFORE anything up to it is deleted."""
        assert row.collected < collected <= row.ack.seq, "only what is acknowledged, only upwards"
        incarnation = row.head.ref.incarnation
        return self.store.raise_collected(lane, incarnation, row.collected, collected)

    def delete_seals(self, lane: str, row: LaneRow, incarnation: Incarnation, last: int) -> bool:
        """Delete the entries of one incarnation up to `last`, unless the lane was fenced.

        The caller has raised `collected` to `last` or beyond BEFORE.
        """
        head = row.head.ref.incarnation
        return self.store.delete_entries(lane, incarnation, 0, last, head=head)

    def group(self) -> AbstractContextManager[None]:
        """Return a context in which appends and acknowledgements may share one commit; see `Store`."""
        return self.store.group()

    def lanes(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of the lanes that begin with `prefix`."""
        return (lane for lane in self.store.lanes() if lane.startswith(prefix))

    # Chunks -----------------------------------------------------------------------------------

    def put(self, kind: Blob, slot: Slot, chunks: Sequence[bytes], rows: int) -> BlobRef:
        """Store an attempt's chunks, unless they are small enough to ride in its seal.

        Whoever seals puts `self.inline(chunks)` into the seal; what is too large for it is stored here.
        """
        for chunk in chunks:
            if len(chunk) > CHUNK_BYTES_MAX:
                raise InvalidUsage(
                    f"store {kind.value}",
                    slot_name(slot),
                    f"a chunk of {len(chunk)} bytes is over the limit of {CHUNK_BYTES_MAX}; "
                    "nothing was stored: cut it smaller",
                )
        ref = blob_ref(chunks, rows)
        if chunks and not self.inline(chunks):
            self.store.put(kind, slot, chunks)
        return ref

    def inline(self, chunks: Sequence[bytes]) -> bytes:
        """Return what may ride inside the seal: a single small chunk, or nothing."""
        return inline(chunks, self._inline_bytes_max)

    def get(self, kind: Blob, lane: str, seal: Seal) -> list[bytes] | None:
        """Return the chunks a seal refers to; None if they are gone.

        Raises:
            Corrupt: chunks are there, but not those that were sealed.
        """
        ref, within = _referred(kind, seal)
        if ref.chunks == 0:
            return []
        slot = Slot(lane, seal.ref.incarnation, seal.ref.seq, seal.ref.attempt)
        chunks = [within] if within else self.store.get(kind, slot)
        if not chunks:
            return None
        if blob_ref(chunks, ref.rows) != ref:
            place = f"{self.store.url} {kind.value} of {slot_name(slot)}"
            raise _contradiction(place, "the chunks are not those that were sealed")
        return chunks

    def note_loser(self, slot: Slot, digest: bytes) -> None:
        """Remember what a losing attempt had made of its inputs, for the nondeterminism report."""
        self.store.note_loser(slot, digest)

    # Segment list -----------------------------------------------------------------------------

    def segment_list(self, lane: str) -> SegmentList | None:
        """Return the lane's segment list, linearizably."""
        found = self.store.read_list(lane)
        if found is None:
            return None
        version, blob = found
        place = f"{self.store.url} segment list of {lane}"
        listed = decode_segment_list(blob, place)
        if listed.version != version:
            raise _contradiction(place, "the list names another version than its row")
        return listed

    def replace_segment_list(self, lane: str, old: SegmentList | None, new: SegmentList) -> bool:
        """Replace the segment list if it is still `old`."""
        expected = old.version if old else None
        assert new.version == (expected or 0) + 1, "versions are gapless"
        return self.store.replace_list(lane, expected, new.version, encode_segment_list(new))

    # Inside -----------------------------------------------------------------------------------

    def _row(self, lane: str, raw: RawLane) -> LaneRow:
        place = f"{self.store.url} head of {lane}"
        head, ack = decode_head(raw.head, place), decode_ack(raw.ack.blob, place)
        if head.ref != raw.ref:
            raise _contradiction(place, "the head's bytes and columns name different seals")
        if (ack.incarnation, ack.seq) != (raw.ack.incarnation, raw.ack.seq):
            raise _contradiction(place, "the acknowledgement's bytes and columns differ")
        if ack.incarnation != head.ref.incarnation or ack.seq > head.ref.seq:
            raise _contradiction(place, "the acknowledgement is not of this history")
        if not 0 <= raw.collected <= ack.seq:
            raise _contradiction(place, "more is collected than was ever acknowledged")
        return LaneRow(head=head, ack=ack, collected=raw.collected)


def inline(chunks: Sequence[bytes], bytes_max: int = INLINE_BYTES_MAX) -> bytes:
    """Return what may ride inside the seal: a single small chunk, or nothing."""
    return chunks[0] if len(chunks) == 1 and len(chunks[0]) <= bytes_max else b""


def blob_ref(chunks: Sequence[bytes], rows: int) -> BlobRef:
    """Return what a seal says about these chunks."""
    if not chunks:
        return BlobRef(rows=rows)
    digest = xxhash.xxh3_128()
    for chunk in chunks:
        digest.update(xxhash.xxh3_128_digest(chunk))
    return BlobRef(
        chunks=len(chunks), rows=rows, size=sum(map(len, chunks)), digest=digest.digest()
    )


def segment_place(catalog: Catalog, slot: Slot) -> str:
    """Return the words by which messages name a stored segment."""
    return f"{catalog.store.url} segment of {slot_name(slot)}"


def dead_slots(stored: Iterable[Slot], row: LaneRow, winners: dict[int, Seal]) -> list[Slot]:
    """Return the slots that no seal refers to and no append can make count any more.

    A slot at a position above the head may be of an append in flight, so it is alive. One at a
    position that `winners` does not know is alive too, unless outputs up to there are collected.
    """
    return [slot for slot in stored if _dead(slot, row, winners.get(slot.seq))]


def _dead(slot: Slot, row: LaneRow, winner: Seal | None) -> bool:
    kept = row.head.last_kept(slot.incarnation)
    if kept is None:
        # SUBTLE: an incarnation we have not heard of is newer than our read of the lane, and may
        # count one day. Not so at seq 0: it was to make this lane, and the lane was made without.
        return slot.seq == 0 and slot.incarnation != MERGED
    if slot.incarnation != row.head.ref.incarnation and slot.seq > kept:
        return True  # an abandoned history
    if slot.seq > row.head.ref.seq:
        return False  # its append may be in flight
    return winner is not None and slot.attempt != winner.ref.attempt


def _referred(kind: Blob, seal: Seal) -> tuple[BlobRef, bytes]:
    if kind is Blob.OUTPUTS:
        return seal.outputs, seal.inline_outputs
    if kind is Blob.SEGMENT:
        return seal.segment, seal.inline_segment
    return seal.dropped, seal.inline_dropped


def _raw_ack(ack: Ack) -> RawAck:
    return RawAck(ack.incarnation, ack.seq, encode_ack(ack))


def _check_name(lane: str) -> None:
    # A lone surrogate has no UTF-8: it came from a file name or from JSON, and is no name.
    size = len(lane.encode(errors="replace"))
    writable = lane.encode(errors="ignore").decode() == lane and "\0" not in lane
    if not 0 < size <= LANE_NAME_BYTES_MAX or not writable:
        raise InvalidUsage(
            "create a lane",
            repr(lane),
            f"a lane's name has 1 to {LANE_NAME_BYTES_MAX} bytes of UTF-8 and no NUL; nothing was "
            "written: give the pipeline or stage another name",
        )


def _contradiction(place: str, what: str) -> Corrupt:
    return Corrupt(
        "read the catalog",
        place,
        f"{what}; nothing was written: keep a copy and restore this catalog from a backup",
    )
