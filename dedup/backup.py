"""Backup and restore of a catalog, as one stream of checksummed frames.

What it is: `back_up` reads a catalog beside its writers, lane by lane; `restore` writes such a
stream into an empty catalog, under new incarnations.
What it must not know: files, topics, and what already left the pipeline after the backup; who
restores asks for that in the output topics.

Invariants:
    A lane is backed up as it was at one head: everything that head needs is in the stream, or the
    lane is read again.
    Nothing is written before the whole stream was checked, down to its last frame.
    Every restored lane has a new incarnation: whoever wrote to the catalog before is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from enum import IntEnum

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob
from dedup.errors import InvalidUsage, Unavailable
from dedup.formats.envelope import Kind, Reader, Writer, unwrap, wrap
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
from dedup.model import (
    IDENTITY_BYTES,
    Attempt,
    HeadRef,
    Incarnation,
    Kept,
    LaneRow,
    Seal,
    SegmentList,
    Slot,
)

VERSION = 1
#: A lane that is collected while it is read is read again, this often at most.
READS_MAX = 10


class Frame(IntEnum):
    """What a frame holds. Numbers are for ever."""

    LANE = 1
    ENTRY = 2
    CHUNKS = 3
    LIST = 4
    END = 5


def back_up(catalog: Catalog, prefix: str = "") -> Iterator[bytes]:
    """Yield the frames of every lane whose name begins with `prefix`, and the last one."""
    count = 0
    for lane in catalog.lanes(prefix):
        for frame in _lane(catalog, lane):
            count += 1
            yield frame
    yield _frame(Frame.END, Writer().uint(count))


def restore(catalog: Catalog, frames: Iterable[bytes], fresh: Callable[[], bytes]) -> list[str]:
    """Write a backup into an empty catalog and return the lanes, all of new incarnations.

    Args:
        catalog: where to; it must hold no lane.
        frames: what `back_up` yielded. Kept in memory until it is checked.
        fresh: returns 16 bytes that nobody was given before.

    Raises:
        InvalidUsage: the catalog is not empty. Nothing was written.
        Corrupt: the stream is torn. Nothing was written.
    """
    if next(catalog.lanes(), None) is not None:
        raise InvalidUsage(
            "restore a catalog",
            catalog.store.url,
            "it holds lanes already; nothing was written: restore into an empty one and let the "
            "pipelines use that",
        )
    checked = _checked(frames)
    lanes = []
    for kind, body in checked:
        if kind is Frame.LANE:
            lanes.append(_restore_lane(catalog, body, fresh))
        elif kind is Frame.ENTRY:
            _restore_entry(catalog, body)
        elif kind is Frame.CHUNKS:
            blob, slot = Blob(body.text()), _read_slot(body)
            catalog.store.put(blob, slot, [body.data() for _ in range(body.uint())])
        elif kind is Frame.LIST:
            lane = body.text()
            listed = replace(decode_segment_list(body.data(), "backup"), version=1)
            catalog.store.replace_list(lane, None, 1, encode_segment_list(listed))
    return lanes


def _lane(catalog: Catalog, lane: str) -> list[bytes]:
    for _ in range(READS_MAX):
        row = catalog.load(lane)
        frames = [] if row is None else _frames(catalog, lane, row)
        if frames is not None:
            return frames
    raise Unavailable(
        "back up a lane",
        lane,
        "it was collected faster than it could be read; no backup was made: run again",
    )


def _frames(catalog: Catalog, lane: str, row: LaneRow) -> list[bytes] | None:
    """Return the frames of a lane as of `row`; None if a collector took something meanwhile."""
    listed = catalog.segment_list(lane)
    seals = _history(catalog, lane, row, (listed.upto if listed else -1) + 1)
    wanted = _wanted(lane, row, listed, seals)
    if wanted is None:
        return None
    written = Writer().text(lane).data(encode_head(row.head)).data(encode_ack(row.ack))
    frames = [_frame(Frame.LANE, written.uint(row.collected))]
    for blob, slot in wanted:
        chunks = catalog.store.get(blob, slot)
        if not chunks:
            return None
        out = _write_slot(Writer().text(blob.value), slot).uint(len(chunks))
        for chunk in chunks:
            out.data(chunk)
        frames.append(_frame(Frame.CHUNKS, out))
    for seal in seals:
        frames.append(_frame(Frame.ENTRY, Writer().text(lane).data(encode_seal(seal))))
    if listed is not None:
        encoded = encode_segment_list(listed)
        frames.append(_frame(Frame.LIST, Writer().text(lane).data(encoded)))
    return frames


def _history(catalog: Catalog, lane: str, row: LaneRow, first: int) -> list[Seal]:
    seals, begin = [], first
    for kept in row.head.past:
        seals += catalog.seals(lane, kept.incarnation, begin, kept.seq)
        begin = max(begin, kept.seq + 1)
    seals += catalog.seals(lane, row.head.ref.incarnation, begin, row.head.ref.seq)
    return seals


def _wanted(
    lane: str, row: LaneRow, listed: SegmentList | None, seals: list[Seal]
) -> list[tuple[Blob, Slot]] | None:
    """Return the chunks that this head needs, or None if entries are missing."""
    first = (listed.upto if listed else -1) + 1
    if len(seals) != max(0, row.head.ref.seq + 1 - first):
        return None
    wanted = [(Blob.SEGMENT, slot) for slot in (listed.slots if listed else ())]
    for seal in seals:
        slot = Slot(lane, seal.ref.incarnation, seal.ref.seq, seal.ref.attempt)
        if seal.segment.chunks and not seal.inline_segment:
            wanted.append((Blob.SEGMENT, slot))
        if seal.outputs.chunks and not seal.inline_outputs and seal.ref.seq > row.settled:
            wanted.append((Blob.OUTPUTS, slot))
    return wanted


def _checked(frames: Iterable[bytes]) -> list[tuple[Frame, Reader]]:
    checked: list[tuple[Frame, Reader]] = []
    ended = False
    for number, frame in enumerate(frames):
        place = f"frame {number} of the backup"
        _, body = unwrap(frame, Kind.BACKUP, version_max=VERSION, place=place)
        reader = Reader(body, place)
        kind = Frame(reader.uint())
        ended = kind is Frame.END and reader.uint() == number
        checked.append((kind, reader))
    if not ended:
        raise InvalidUsage(
            "restore a catalog",
            "the backup",
            "it ends too early; nothing was written: take another backup, or the one before it",
        )
    return checked


def _restore_lane(catalog: Catalog, body: Reader, fresh: Callable[[], bytes]) -> str:
    lane = body.text()
    head = decode_head(body.data(), f"head of {lane} in the backup")
    ack = decode_ack(body.data(), f"acknowledgement of {lane} in the backup")
    incarnation = Incarnation(fresh())
    row = LaneRow(
        head=replace(
            head,
            ref=HeadRef(incarnation, head.ref.seq, Attempt(fresh())),
            past=(*head.past, Kept(head.ref.incarnation, head.ref.seq)),
        ),
        ack=replace(ack, incarnation=incarnation),
        collected=body.uint(),
    )
    catalog.recreate(lane, row)
    return lane


def _restore_entry(catalog: Catalog, body: Reader) -> None:
    lane = body.text()
    blob = body.data()
    seal = decode_seal(blob, f"an entry of {lane} in the backup")
    catalog.store.import_entries(lane, seal.ref.incarnation, [(seal.ref.seq, blob)])


def _frame(kind: Frame, out: Writer) -> bytes:
    return wrap(Kind.BACKUP, VERSION, Writer().uint(kind).raw(out.body()).body())


def _write_slot(out: Writer, slot: Slot) -> Writer:
    out.text(slot.lane).raw(slot.incarnation).uint(slot.seq).raw(slot.attempt)
    return out


def _read_slot(body: Reader) -> Slot:
    return Slot(
        body.text(),
        Incarnation(body.raw(IDENTITY_BYTES)),
        body.uint(),
        Attempt(body.raw(IDENTITY_BYTES)),
    )
