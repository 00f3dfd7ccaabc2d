"""Backup and restore of a catalog, as one stream of checksummed frames.

What it is: `back_up` reads a catalog beside its writers, lane by lane; `restore` writes such a
stream into an empty catalog, under new incarnations.
What it must not know: files, topics, and what already left the pipeline after the backup; who
restores asks for that in the output topics.

Invariants:
    Heads are taken downstream first: what a receiver keeps, its senders keep.
    A lane is backed up as it was at its head: everything that head needs is in the stream, or the
    lane is read again.
    Nothing is written before the whole stream was checked, down to its last frame.
    Every restored lane has a new incarnation: whoever wrote to the catalog before is fenced.
    A restore is one transaction where a store has such. It is marked as begun BEFORE its first lane and
    as ended AFTER its last one; in between nobody opens the catalog but the same restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeAlias

import xxhash

from dedup.catalog.catalog import Catalog
from dedup.catalog.store import Blob, Store, slot_name
from dedup.errors import Corrupt, InvalidUsage, Unavailable
from dedup.formats.envelope import Kind, Reader, Writer, unwrap, wrap
from dedup.formats.fields import read_slot, write_slot
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
from dedup.formats.segment import whole_segment
from dedup.model import (
    Attempt,
    BlobRef,
    Head,
    HeadRef,
    Incarnation,
    Kept,
    LaneRow,
    Seal,
    SegmentList,
    Slot,
    TopicId,
)

VERSION = 1
#: A lane that is collected while it is read is read again, this often at most.
READS_MAX = 10
#: Settings of a catalog that was restored, with the digest of the backup.
BEGUN, ENDED = "restore-begun", "restore-ended"


Tell: TypeAlias = Callable[[int, int], None]  #: how much is done, and how much there is


class Frame(IntEnum):
    """What a frame holds. Numbers are for ever."""

    LANE = 1
    ENTRY = 2
    CHUNKS = 3
    LIST = 4
    END = 5


def back_up(catalog: Catalog, prefix: str = "", tell: Tell = lambda *_: None) -> Iterator[bytes]:
    """Yield the frames of every lane whose name begins with `prefix`, and the last one.

    Meanwhile `tell` is told how many lanes are done, and how many there are.

    Raises:
        Unavailable: lanes came and went, or were collected, faster than they could be read.
    """
    for _ in range(READS_MAX):
        lanes = downstream_first(catalog, prefix)
        heads = [(lane, take(catalog, lane)) for lane in lanes]
        if set(lanes) == set(catalog.lanes(prefix)):
            break
    else:
        raise _too_fast(prefix or "all lanes")
    yield from frames(catalog, heads, tell)


def downstream_first(catalog: Catalog, prefix: str = "") -> list[str]:
    """Return the lanes so that whoever reads a topic comes before whoever writes it.

    SUBTLE: in this order a receiver keeps only effects of what its senders, read later, keep too.
    The other way round it would keep effects of seals that the restore gives up, and those inputs
    would count twice. Lanes that form a circle come in the order of their names; whoever builds
    one stops it for the backup.
    """
    rows = {lane: row for lane in catalog.lanes(prefix) if (row := catalog.load(lane))}
    writers: dict[TopicId, list[str]] = {}
    for lane, row in rows.items():
        for topic in row.head.writes:
            writers.setdefault(topic, []).append(lane)
    upstream = TopologicalSorter({lane: set[str]() for lane in rows})
    for lane, row in rows.items():
        for _, topic in row.head.topics:
            for writer in writers.get(topic, ()):
                upstream.add(writer, lane)
    try:
        return list(upstream.static_order())
    except CycleError:
        return sorted(rows)


def take(catalog: Catalog, lane: str) -> Head:
    """Return the head at which a lane is backed up."""
    row = catalog.load(lane)
    assert row is not None, "a lane is never deleted"
    return row.head


def frames(
    catalog: Catalog, heads: Sequence[tuple[str, Head]], tell: Tell = lambda *_: None
) -> Iterator[bytes]:
    """Yield the frames of lanes as they were at these heads, and the last one."""
    count = 0
    for at, (lane, head) in enumerate(heads):
        tell(at, len(heads))
        for frame in _lane(catalog, lane, head):
            count += 1
            yield frame
    yield _frame(Frame.END, Writer().uint(count))


def unfinished(store: Store) -> str | None:
    """Return which backup is being restored into a catalog; None if none is, or it is whole."""
    begun = store.find_setting(BEGUN)
    return begun if begun is not None and store.find_setting(ENDED) is None else None


def restore(
    catalog: Catalog,
    frames: Iterable[bytes],
    fresh: Callable[[], bytes],
    tell: Tell = lambda *_: None,
) -> list[str]:
    """Write a backup into an empty catalog and return the lanes, all of new incarnations.

    Killed, it is finished by running it again with the same backup.

    Args:
        catalog: where to; it must hold no lane, but those of this very restore.
        frames: what `back_up` yielded. Kept in memory until it is checked.
        fresh: returns 16 bytes that nobody was given before.
        tell: is told how many frames are written, and how many there are.

    Raises:
        InvalidUsage: the catalog is not empty. Nothing was written.
        Corrupt: the stream is torn. Nothing was written.
    """
    digest = xxhash.xxh3_128()
    checked = _checked(_digested(frames, digest))
    refuse_lanes(catalog, digest.hexdigest())
    lanes = [lane for kind, lane, _ in checked if kind is Frame.LANE]
    with catalog.store.group():
        if lanes:
            _mark(catalog, BEGUN, digest.hexdigest())
        for at, (kind, lane, found) in enumerate(checked):
            tell(at, len(checked))
            if kind is Frame.LANE:
                if catalog.load(lane) is None:
                    catalog.recreate(lane, renewed(found, fresh))
            elif kind is Frame.ENTRY:
                entry, ref = found
                catalog.store.import_entries(lane, ref.incarnation, [(ref.seq, entry)])
            elif kind is Frame.CHUNKS:
                catalog.store.put(*found)
            elif kind is Frame.LIST:
                catalog.store.replace_list(lane, None, 1, encode_segment_list(found))
        # What wins later is no append of this store object: nothing else would write what it holds.
        catalog.store.flush()
        if lanes:
            _mark(catalog, ENDED, digest.hexdigest())
    return lanes


def refuse_lanes(catalog: Catalog, backup: str | None = None) -> None:
    """Refuse a catalog that a restore may not write to.

    Args:
        catalog: where to.
        backup: which one, if that is known: one that was begun here is finished.

    Raises:
        InvalidUsage: it holds lanes, or those of another backup. Nothing was written.
    """
    begun = unfinished(catalog.store)
    if begun is not None:
        if backup not in (None, begun):
            raise _refused(
                catalog,
                "a restore of another backup was begun here and is not finished; nothing was written: "
                "finish that one, or restore",
            )
    elif next(catalog.lanes(), None) is not None:
        raise _refused(catalog, "it holds lanes already; nothing was written: restore")


def _refused(catalog: Catalog, what: str) -> InvalidUsage:
    hint = f"{what} into an empty one and let the pipelines use that"
    return InvalidUsage("restore a catalog", catalog.store.url, hint)


def _mark(catalog: Catalog, name: str, backup: str) -> None:
    if catalog.store.setting(name, backup) != backup:
        raise _refused(
            catalog, "another backup is being restored here just now; nothing was written: restore"
        )


def _digested(frames: Iterable[bytes], digest: xxhash.xxh3_128) -> Iterator[bytes]:
    for frame in frames:
        digest.update(frame)
        yield frame


def _lane(catalog: Catalog, lane: str, head: Head) -> list[bytes]:
    for _ in range(READS_MAX):
        row = catalog.load(lane)
        assert row is not None, "a lane is never deleted"
        listed = catalog.segment_list(lane)
        # What was acknowledged, collected or listed since the head was taken is true of it too.
        found = _frames(catalog, lane, _as_of(row, head), _listed_upto(listed, head))
        if found is not None:
            return found
    raise _too_fast(lane)


def _as_of(row: LaneRow, head: Head) -> LaneRow:
    ack = replace(row.ack, incarnation=head.ref.incarnation, seq=min(row.ack.seq, head.ref.seq))
    # Outputs that need no emission any more are not in the backup, so they count as collected.
    return LaneRow(head=head, ack=ack, collected=ack.seq)


def _listed_upto(listed: SegmentList | None, head: Head) -> SegmentList | None:
    if listed is None:
        return None
    slots = tuple(slot for slot in listed.slots if slot.seq <= head.ref.seq)
    return SegmentList(version=1, upto=min(listed.upto, head.ref.seq), slots=slots)


def _frames(
    catalog: Catalog, lane: str, row: LaneRow, listed: SegmentList | None
) -> list[bytes] | None:
    """Return the frames of a lane as of `row`; None if a collector took something meanwhile."""
    seals = catalog.history(lane, row.head, (listed.upto if listed else -1) + 1)
    wanted = _wanted(lane, row, listed, seals)
    if wanted is None:
        return None
    written = Writer().text(lane).data(encode_head(row.head)).data(encode_ack(row.ack))
    found = [_frame(Frame.LANE, written.uint(row.collected))]
    for blob, slot, ref in wanted:
        chunks = catalog.store.get(blob, slot)
        if not (len(chunks) == ref.chunks if ref else whole_segment(chunks, slot_name(slot))):
            return None
        out = write_slot(Writer().text(blob.value), slot).uint(len(chunks))
        for chunk in chunks:
            out.data(chunk)
        found.append(_frame(Frame.CHUNKS, out))
    found += [_frame(Frame.ENTRY, Writer().text(lane).data(encode_seal(seal))) for seal in seals]
    if listed is not None:
        encoded = encode_segment_list(listed)
        found.append(_frame(Frame.LIST, Writer().text(lane).data(encoded)))
    return found


def _wanted(
    lane: str, row: LaneRow, listed: SegmentList | None, seals: list[Seal]
) -> list[tuple[Blob, Slot, BlobRef | None]] | None:
    """Return the chunks that this head needs, or None if entries are missing.

    What an entry refers to comes with what it says of it; a listed segment knows its own size.
    """
    first = (listed.upto if listed else -1) + 1
    if len(seals) != max(0, row.head.ref.seq + 1 - first):
        return None
    wanted: list[tuple[Blob, Slot, BlobRef | None]] = [
        (Blob.SEGMENT, slot, None) for slot in (listed.slots if listed else ())
    ]
    for seal in seals:
        slot = Slot(lane, seal.ref.incarnation, seal.ref.seq, seal.ref.attempt)
        owed = seal.ref.seq > row.settled
        for blob, ref, inline in (
            (Blob.SEGMENT, seal.segment, seal.inline_segment),
            (Blob.DROPPED, seal.dropped, seal.inline_dropped),
            (Blob.OUTPUTS, seal.outputs if owed else BlobRef(), seal.inline_outputs),
        ):
            if ref.chunks and not inline:
                wanted.append((blob, slot, ref))
    return wanted


def _too_fast(what: str) -> Unavailable:
    return Unavailable(
        "back up a catalog",
        what,
        "it changed faster than it could be read; no backup was made: stop collection and run again",
    )


def _checked(frames: Iterable[bytes]) -> list[tuple[Frame, str, Any]]:
    """Decode everything, down to the blobs inside: what cannot be restored is not begun."""
    checked: list[tuple[Frame, str, Any]] = []
    lanes, ended = set(), False
    for number, frame in enumerate(frames):
        place = f"frame {number} of the backup"
        _, body = unwrap(frame, Kind.BACKUP, version_max=VERSION, place=place)
        reader = Reader(body, place)
        try:
            kind = Frame(reader.uint())
            lane, found = _DECODE[kind](reader, place)
        except ValueError as error:
            raise _torn(place, str(error)) from error
        reader.end()
        if kind is Frame.LANE:
            lanes.add(lane)
        elif kind is not Frame.END and lane not in lanes:
            raise _torn(place, f"it belongs to {lane}, which has not come yet")
        ended = kind is Frame.END and found == number
        checked.append((kind, lane, found))
    if not ended:
        raise InvalidUsage(
            "restore a catalog",
            "the backup",
            "it ends too early; nothing was written: take another backup, or the one before it",
        )
    return checked


def _torn(place: str, what: str) -> Corrupt:
    hint = f"{what}; nothing was written: take another backup, or the one before it"
    return Corrupt("restore a catalog", place, hint)


def renewed(row: LaneRow, fresh: Callable[[], bytes]) -> LaneRow:
    """Return the row of a lane that goes on where it stands, as another history."""
    head, incarnation = row.head, Incarnation(fresh())
    return LaneRow(
        head=replace(
            head,
            ref=HeadRef(incarnation, head.ref.seq, Attempt(fresh())),
            past=(*head.past, Kept(head.ref.incarnation, head.ref.seq)),
        ),
        ack=replace(row.ack, incarnation=incarnation),
        collected=row.collected,
    )


def _read_lane(body: Reader, place: str) -> tuple[str, LaneRow]:
    lane = body.text()
    head, ack = decode_head(body.data(), place), decode_ack(body.data(), place)
    return lane, LaneRow(head=head, ack=ack, collected=body.uint())


def _read_entry(body: Reader, place: str) -> tuple[str, tuple[bytes, HeadRef]]:
    lane, blob = body.text(), body.data()
    return lane, (blob, decode_seal(blob, place).ref)


def _read_chunks(body: Reader, _place: str) -> tuple[str, tuple[Blob, Slot, list[bytes]]]:
    blob, slot = Blob(body.text()), read_slot(body)
    return slot.lane, (blob, slot, [body.data() for _ in range(body.uint())])


def _read_list(body: Reader, place: str) -> tuple[str, SegmentList]:
    lane = body.text()
    return lane, replace(decode_segment_list(body.data(), place), version=1)


def _read_end(body: Reader, _place: str) -> tuple[str, int]:
    return "", body.uint()


#: What reads which frame, and returns the lane it belongs to.
_DECODE: dict[Frame, Callable[[Reader, str], tuple[str, Any]]] = {
    Frame.LANE: _read_lane,
    Frame.ENTRY: _read_entry,
    Frame.CHUNKS: _read_chunks,
    Frame.LIST: _read_list,
    Frame.END: _read_end,
}


def _frame(kind: Frame, out: Writer) -> bytes:
    return wrap(Kind.BACKUP, VERSION, Writer().uint(kind).raw(out.body()).body())
