"""The bodies of a lane's rows: head, seal, acknowledgement, segment list.

What it is: one encode and one decode per type, written field by field in a fixed order.
What it must not know: where the bytes are kept.

Invariants:
    decode(encode(x)) == x, and encode is a function of the value alone.
    A seal without inline chunks and with the read seqs of a few senders stays below 1 KiB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeVar

from dedup.errors import Corrupt
from dedup.formats.envelope import Kind, Reader, Writer, unwrap, wrap
from dedup.formats.fields import read_reads, read_slot, write_reads, write_slot
from dedup.model import (
    IDENTITY_BYTES,
    Ack,
    Attempt,
    BlobRef,
    Counts,
    Frontier,
    Head,
    HeadRef,
    Incarnation,
    Kept,
    Seal,
    SegmentList,
    Source,
    TopicId,
)

VERSION = 1
#: Of a head: version 1 said neither the window nor how records are named.
HEAD_VERSION = 2
#: Of a seal: version 1 did not count unnamed records, version 2 said neither of these.
SEAL_VERSION = 3
_SEAL_COUNTS_UNNAMED = 2
#: Rows are read far more often than they change; a decoded row is immutable, so it may be shared.
DECODED_MAX = 256
_T = TypeVar("_T")


def encode_head(head: Head) -> bytes:
    """Return the stored form of a head."""
    out = Writer()
    _write_ref(out, head.ref)
    _write_frontier(out, head.frontier)
    out.uint(head.lane_time_ms).uint(head.minted_at_ms)
    write_reads(out, head.read_seqs)
    out.uint(len(head.topics))
    for name, topic in head.topics:
        out.text(name).raw(topic)
    out.uint(len(head.writes))
    for topic in head.writes:
        out.raw(topic)
    out.uint(len(head.past))
    for kept in head.past:
        out.raw(kept.incarnation).uint(kept.seq)
    out.data(head.state).uint(head.window_ms).text(head.named)
    return wrap(Kind.HEAD, HEAD_VERSION, out.body())


@lru_cache(DECODED_MAX)
def decode_head(blob: bytes, place: str) -> Head:
    """Return the head that `encode_head` wrote."""
    version, body = unwrap(blob, Kind.HEAD, version_max=HEAD_VERSION, place=place)
    return _value(body, place, partial(_read_head, version))


def _read_head(version: int, body: Reader) -> Head:
    return Head(
        ref=_read_ref(body),
        frontier=_read_frontier(body),
        lane_time_ms=body.uint(),
        minted_at_ms=body.uint(),
        read_seqs=read_reads(body),
        topics=tuple((body.text(), TopicId(body.raw(IDENTITY_BYTES))) for _ in range(body.uint())),
        writes=tuple(TopicId(body.raw(IDENTITY_BYTES)) for _ in range(body.uint())),
        past=tuple(
            Kept(Incarnation(body.raw(IDENTITY_BYTES)), body.uint()) for _ in range(body.uint())
        ),
        state=body.data(),
        window_ms=body.uint() if version >= HEAD_VERSION else 0,
        named=body.text() if version >= HEAD_VERSION else "",
    )


def encode_seal(seal: Seal) -> bytes:
    """Return the stored form of a seal."""
    out = Writer()
    _write_ref(out, seal.ref)
    _write_frontier(out, seal.start)
    _write_frontier(out, seal.end)
    out.uint(seal.minted_at_ms).uint(seal.lane_time_ms).text(seal.code)
    counts = seal.counts
    out.uint(counts.read).uint(counts.fresh).uint(counts.duplicate)
    out.uint(counts.remnant).uint(counts.abandoned).uint(counts.dead_letter)
    out.uint(counts.conflict).uint(counts.unnamed)
    write_reads(out, seal.learned)
    for blob in (seal.outputs, seal.segment, seal.dropped):
        out.uint(blob.chunks).uint(blob.rows).uint(blob.size).raw(blob.digest)
    out.data(seal.inline_outputs).data(seal.inline_segment).data(seal.inline_dropped)
    out.uint(seal.window_ms).text(seal.named)
    return wrap(Kind.SEAL, SEAL_VERSION, out.body())


@lru_cache(DECODED_MAX)
def decode_seal(blob: bytes, place: str) -> Seal:
    """Return the seal that `encode_seal` wrote."""
    version, body = unwrap(blob, Kind.SEAL, version_max=SEAL_VERSION, place=place)
    return _value(body, place, partial(_read_seal, version))


def _read_seal(version: int, body: Reader) -> Seal:
    return Seal(
        ref=_read_ref(body),
        start=_read_frontier(body),
        end=_read_frontier(body),
        minted_at_ms=body.uint(),
        lane_time_ms=body.uint(),
        code=body.text(),
        counts=Counts(
            read=body.uint(),
            fresh=body.uint(),
            duplicate=body.uint(),
            remnant=body.uint(),
            abandoned=body.uint(),
            dead_letter=body.uint(),
            conflict=body.uint(),
            unnamed=body.uint() if version >= _SEAL_COUNTS_UNNAMED else 0,
        ),
        learned=read_reads(body),
        outputs=_read_blob_ref(body),
        segment=_read_blob_ref(body),
        dropped=_read_blob_ref(body),
        inline_outputs=body.data(),
        inline_segment=body.data(),
        inline_dropped=body.data(),
        window_ms=body.uint() if version >= SEAL_VERSION else 0,
        named=body.text() if version >= SEAL_VERSION else "",
    )


def encode_ack(ack: Ack) -> bytes:
    """Return the stored form of an acknowledgement."""
    out = Writer().raw(ack.incarnation).uint(ack.seq)
    _write_frontier(out, ack.delivered)
    return wrap(Kind.ACK, VERSION, out.body())


@lru_cache(DECODED_MAX)
def decode_ack(blob: bytes, place: str) -> Ack:
    """Return the acknowledgement that `encode_ack` wrote."""
    return _decode(blob, Kind.ACK, place, _read_ack)


def _read_ack(body: Reader) -> Ack:
    return Ack(Incarnation(body.raw(IDENTITY_BYTES)), body.uint(), _read_frontier(body))


def encode_segment_list(listed: SegmentList) -> bytes:
    """Return the stored form of a segment list; `upto` is written one higher, to stay unsigned."""
    out = Writer().uint(listed.version).uint(listed.upto + 1).uint(len(listed.slots))
    for slot in listed.slots:
        write_slot(out, slot)
    return wrap(Kind.SEGMENT_LIST, VERSION, out.body())


def decode_segment_list(blob: bytes, place: str) -> SegmentList:
    """Return the segment list that `encode_segment_list` wrote."""
    return _decode(blob, Kind.SEGMENT_LIST, place, _read_segment_list)


def _read_segment_list(body: Reader) -> SegmentList:
    return SegmentList(
        version=body.uint(),
        upto=body.uint() - 1,
        slots=tuple(read_slot(body) for _ in range(body.uint())),
    )


def _decode(blob: bytes, kind: Kind, place: str, read: Callable[[Reader], _T]) -> _T:
    _, body = unwrap(blob, kind, version_max=VERSION, place=place)
    return _value(body, place, read)


def _value(body: bytes, place: str, read: Callable[[Reader], _T]) -> _T:
    reader = Reader(body, place)
    try:
        value = read(reader)
    except AssertionError as error:
        # The checksum agreed, so a writer of ours stored a value that breaks its own invariant.
        raise Corrupt(
            "read a stored blob", place, f"it contradicts itself ({error}); stop and keep a copy"
        ) from error
    reader.end()
    return value


def _write_ref(out: Writer, ref: HeadRef) -> None:
    out.raw(ref.incarnation).uint(ref.seq).raw(ref.attempt)


def _read_ref(body: Reader) -> HeadRef:
    incarnation = Incarnation(body.raw(IDENTITY_BYTES))
    return HeadRef(incarnation, body.uint(), Attempt(body.raw(IDENTITY_BYTES)))


def _write_frontier(out: Writer, frontier: Frontier) -> None:
    out.uint(len(frontier.positions))
    for source, offset in frontier:
        out.raw(source.topic).uint(source.partition).uint(offset)


def _read_frontier(body: Reader) -> Frontier:
    return Frontier(
        tuple(
            (Source(TopicId(body.raw(IDENTITY_BYTES)), body.uint()), body.uint())
            for _ in range(body.uint())
        )
    )


def _read_blob_ref(body: Reader) -> BlobRef:
    return BlobRef(
        chunks=body.uint(), rows=body.uint(), size=body.uint(), digest=body.raw(IDENTITY_BYTES)
    )
