"""Record batches as they lie in the log, message format 2.

What it is: `split` (the batches in a response to a fetch) and `RawBatch`; the layout of its header.
What it must not know: what records look like inside, partitions, sockets.

Invariants:
    A batch is yielded when it is complete and its CRC is that of its bytes; nothing of it is copied.
    What is older than format 2 is told apart from what is broken.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from delivery.batch import OFFSET_MAX
from delivery.kafka.wire.codecs import CODEC_MAX

__all__ = [
    "ATTRIBUTES_AT",
    "HEADER",
    "MAGIC",
    "PREFIX_BYTES",
    "BrokenBatch",
    "OldFormat",
    "RawBatch",
    "split",
]

#: Offset and length; what follows is as long as the length says.
PREFIX_BYTES: Final = 12
#: Where the format's number stands, in this format as in the two older ones.
_MAGIC_AT = 16
MAGIC: Final = 2
#: Offset, length, epoch of the leader, magic, CRC, attributes, last delta, first and last time,
#: producer, its epoch, sequence, count.
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
#: Everything from the attributes on is covered by the CRC.
ATTRIBUTES_AT: Final = 21
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_CODEC_BITS = 0x07
_APPEND_TIME_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20


class BrokenBatch(ValueError):
    """A batch that is not what it says, or says nothing that can be.

    Attributes:
        offset: where it begins, as far as it can be believed.
    """

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"the batch at offset {offset} is broken: {why}")
        self.offset = offset


class OldFormat(ValueError):
    """A batch in a format from before Kafka 0.11.

    Attributes:
        offset: where it begins.
    """

    def __init__(self, offset: int, magic: int) -> None:
        super().__init__(f"the batch at offset {offset} has the old format {magic}")
        self.offset = offset


@dataclass(frozen=True, slots=True, eq=False)
class RawBatch:
    """One batch as it lies in the log; its records are not read yet."""

    base_offset: int
    #: Of the last record there was; compaction may have taken it.
    last_offset: int
    first_ms: int
    max_ms: int
    #: The broker stamped all records, with `max_ms`.
    append_time: bool
    codec: int
    transactional: bool
    control: bool
    producer_id: int
    count: int
    crc: int
    #: What the CRC is of.
    covered: memoryview

    @property
    def records(self) -> memoryview:
        """The records, compressed if there is a codec."""
        return self.covered[HEADER.size - ATTRIBUTES_AT :]

    def intact(self) -> bool:
        """Tell whether the CRC is that of the bytes."""
        return bool(crc32c(self.covered) == self.crc)


def split(data: memoryview) -> Iterator[RawBatch]:
    """Yield the complete batches of the records that a broker sent of a partition.

    What is behind them is the beginning of one that the response had no room for.

    Raises:
        BrokenBatch: one is not what it says, or its CRC is another one.
        OldFormat: one is older than format 2.
    """
    at = 0
    while len(data) - at > _MAGIC_AT:
        offset, length = _OFFSET_AND_LENGTH.unpack_from(data, at)
        end = at + PREFIX_BYTES + length
        if length < 0:
            raise BrokenBatch(offset, f"its length is {length}")
        if end > len(data):
            return
        yield _raw(offset, data[at:end])
        at = end


def _raw(offset: int, data: memoryview) -> RawBatch:
    magic = data[_MAGIC_AT] if len(data) > _MAGIC_AT else MAGIC
    if magic < MAGIC:
        raise OldFormat(offset, magic)
    if magic > MAGIC:
        raise BrokenBatch(offset, f"no format {magic} is known")
    if len(data) < HEADER.size:
        raise BrokenBatch(offset, f"{len(data)} bytes hold no batch")
    _, _, _, _, crc, attributes, delta, first, last, producer, _, _, count = HEADER.unpack_from(
        data
    )
    batch = RawBatch(
        base_offset=offset,
        last_offset=offset + delta,
        first_ms=first,
        max_ms=last,
        append_time=bool(attributes & _APPEND_TIME_BIT),
        codec=attributes & _CODEC_BITS,
        transactional=bool(attributes & _TRANSACTIONAL_BIT),
        control=bool(attributes & _CONTROL_BIT),
        producer_id=producer,
        count=count,
        crc=crc,
        covered=data[ATTRIBUTES_AT:],
    )
    if not batch.intact():
        raise BrokenBatch(offset, "its CRC is that of other bytes")
    if not 0 <= offset <= OFFSET_MAX - delta or not 0 <= count <= delta + 1:
        raise BrokenBatch(offset, f"{count} records up to {delta} behind it")
    if batch.codec > CODEC_MAX:
        raise BrokenBatch(offset, f"codec {batch.codec} is none of Kafka's")
    return batch
