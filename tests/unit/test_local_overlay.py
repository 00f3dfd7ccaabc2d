"""The newest ids in anonymous memory: found, put together, and few chunks however small they are."""

from __future__ import annotations

from dedup.arrays import pack
from dedup.formats.segment import Bucket, Origin, Part, raw_ids
from dedup.local.overlay import CHUNKS_MAX, Chunk, Chunks, merged
from dedup.model import Incarnation

ONE = Incarnation(b"1" * 16)
TWO = Incarnation(b"2" * 16)


def chunk(ids: list[bytes], seq: int, incarnation: Incarnation = ONE) -> Chunk:
    return Chunk.of(Part(Bucket(Origin.EXTERNAL, 0), raw_ids(ids)), (incarnation, seq))


def test_ids_that_agree_in_their_first_half_are_told_apart():
    ids = [b"same-----" + bytes([number]) * 7 for number in range(0, 200, 2)]
    one = chunk(ids, 1)
    asked = [b"same-----" + bytes([number]) * 7 for number in range(200)]
    assert (one.find(pack(asked)) >= 0).tolist() == [number % 2 == 0 for number in range(200)]


def test_of_the_same_id_twice_the_oldest_seal_wins():
    ids = [bytes([number]) * 16 for number in range(4)]
    one = merged([chunk(ids[:3], 5), chunk(ids[1:], 2, TWO), chunk(ids[:1], 9)])
    rows = one.find(pack(ids))
    seals = [one.origins[at] for at in one.origin(rows).tolist()]
    assert seals == [(ONE, 5), (TWO, 2), (TWO, 2), (TWO, 2)]
    assert len(one.ids) == 4


def test_chunks_stay_few_however_small_they_are():
    chunks = Chunks(lambda _bucket: 0)
    ids = [number.to_bytes(16, "big") for number in range(1000)]
    for seq, one in enumerate(ids):
        chunks.add(chunk([one], seq))
        assert len(chunks.all) <= CHUNKS_MAX
    for seq, one in enumerate(ids):
        found = [(c, c.find(pack([one]))) for c in chunks.all]
        [(where, row)] = [(c, rows) for c, rows in found if rows[0] >= 0]
        assert where.origins[where.origin(row)[0]] == (ONE, seq)
