"""Record batches to read and to break, and what two clients make of them.

What it is: rows as they are drawn, batches made by us, by kafka-python and by hand, and what each
of us makes of one.
What it must not know: how the columns are read or written.

Invariants:
    `theirs` and `built` share no code with ours.
"""

from __future__ import annotations

import random
import struct

import numpy as np
from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from delivery.kafka.wire import codecs, decoding, encoding
from delivery.kafka.wire.decoding import decode, split
from delivery.kafka.wire.encoding import encode, stamp
from delivery.kafka.wire.reading import Broken

patient = settings(deadline=None)

HEADER_BYTES = 61
MAGIC_AT = 16
NOW_MS = 1_700_000_000_123
CODECS = range(5)
#: From how many records on they are read as columns, and from how many rows on joined alike.
MANY = decoding._COLUMNS_RECORDS_MIN
ALIKE = encoding._ALIKE_ROWS_MIN
#: On both sides of every change of method.
COUNTS = sorted({1, 2, 5, 150} | {at + step for at in (ALIKE, MANY, 64) for step in (-1, 0, 1)})
#: Bytes of a batch that the CRC does not cover, and no length: its first offset, its leader's epoch.
FREE = {*range(8), *range(12, 16)}

blobs = st.binary(max_size=9) | st.integers(0, 400).map(bytes)
names = st.sampled_from(["id", "", "ключ", "x-" + "n" * 70])
some_headers = st.lists(st.tuples(names, blobs), max_size=3).map(tuple)


@st.composite
def columns(draw):
    """Rows that are all alike, or of a few kinds, or of many."""
    count = draw(st.sampled_from(COUNTS))
    rng = random.Random(draw(st.integers(0, 2**32)))
    keys = draw(
        st.just([None]) | st.lists(blobs, min_size=1) | st.lists(st.none() | blobs, min_size=1)
    )
    values = draw(st.lists(blobs, min_size=1) | st.lists(st.none() | blobs, min_size=1))
    if draw(st.booleans()):
        shape = draw(st.lists(names, max_size=3))
        width = draw(st.none() | st.integers(0, 100))
        headers = [
            tuple(
                (name, rng.randbytes(rng.randrange(100) if width is None else width))
                for name in shape
            )
            for _ in range(count)
        ]
    else:
        headers = rng.choices(draw(st.lists(some_headers, min_size=1, max_size=5)), k=count)
    return rng.choices(keys, k=count), rng.choices(values, k=count), headers


def encoded(keys, values, headers, codec=0):
    batch = encode(keys, values, headers, timestamp_ms=NOW_MS, codec=codec)
    assert type(batch) is bytearray
    stamp(batch, 77, 3, 9)
    return batch


def rows(found):
    """Return columns as another client returns records."""
    headers = [list(some or ()) for some in found.headers]
    assert [] not in found.headers
    assert () not in found.headers
    assert found.offsets.dtype == found.timestamps_ms.dtype == np.int64
    plain = (
        found.offsets.tolist(),
        found.timestamps_ms.tolist(),
        found.keys,
        found.values,
        headers,
    )
    return list(zip(*plain, strict=True))


def ours(data):
    return [row for batch in split(memoryview(data)) for row in rows(decode(batch))]


def theirs(data):
    return [
        (r.offset, r.timestamp, r.key, r.value, [(name, value or b"") for name, value in r.headers])
        for batch in MemoryRecords(bytes(data))
        for r in batch
    ]


def one(data):
    (batch,) = split(memoryview(data))
    return batch


def sealed(batch):
    """Return a batch whose length and CRC are those of its bytes, whatever these are."""
    batch = bytearray(batch)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def changed(batch, at, kind, value):
    batch = bytearray(batch)
    struct.pack_into(kind, batch, at, value)
    return sealed(batch)


def built(codec, records, *, base=0, magic=2, producer=-1):
    """Return a batch of another client's; a record is a step in offsets, and what it holds."""
    builder = MemoryRecordsBuilder(
        magic, codec, 1 << 30, 0, producer >= 0, producer, producer, producer
    )
    for step, *record in records:
        builder.skip(step)
        builder.append(*record)
    builder.close()
    data = builder.buffer()
    struct.pack_into(">q", data, 0, base)
    return bytes(data)


def both(batch):
    """Return what each of our ways of reading makes of a batch; None: it is broken."""
    data = codecs.decompress(batch.codec, batch.records)
    found = []
    for way in (decoding._one_by_one, decoding._as_columns):
        try:
            made = way(batch, data)
            found.append((rows(made), made.unreadable))
        except Broken:
            found.append(None)
    return found
