"""Stored outputs: odd rows come back as they were, large ones in pieces, torn ones never."""

from __future__ import annotations

import random

import pytest

from dedup.catalog.store import CHUNK_BYTES_MAX
from dedup.errors import Corrupt
from dedup.formats.envelope import ENVELOPE_BYTES, Kind, Writer, wrap
from dedup.model import Attempt, HeadRef, Incarnation, RecordId
from delivery.batch import Row, Rows
from delivery.header import NAME, decode_header
from delivery.outputs import CHUNK_BYTES, Origin, decode_outputs, emissions, encode_outputs
from delivery.records import RECORD_BYTES_MAX, Output

ORIGIN = Origin(
    lane="shop/prïce/0",
    ref=HeadRef(Incarnation(b"i" * 16), 7, Attempt(b"a" * 16)),
    minted_at_ms=1_700_000_000_000,
)
SEEDED = random.Random(3)


def row(output: Output, partition: int = 0, **more: RecordId) -> Row:
    return Row(output=output, partition=partition, parent=(3, 1 << 40), **more)


ODD = {
    "nothing": Output(value=None),
    "empty": Output(value=b"", key=b""),
    "a key alone": Output(value=None, key=b"\x00\xff"),
    "no headers but empty ones": Output(value=b"x", headers=(("", b""),)),
    "headers twice": Output(value=b"x", headers=(("a", b"1"), ("a", b"2"), ("é", b"\x00"))),
    "the last edge": Output(value=b"x", edge=65535),
    "all bytes": Output(value=bytes(range(256)) * 4),
}


@pytest.mark.parametrize("output", ODD.values(), ids=ODD.keys())
def test_an_odd_row_comes_back_as_it_was(output):
    rows = Rows.of([row(output, 2**31 - 1)])
    assert list(decode_outputs(encode_outputs(ORIGIN, rows), "test")) == list(
        emissions(ORIGIN, rows)
    )


def test_all_rows_come_back_in_order_with_ids_of_their_own():
    rows = Rows.of(row(output, number) for number, output in enumerate(ODD.values()))
    found = list(decode_outputs(encode_outputs(ORIGIN, rows), "test"))
    assert found == list(emissions(ORIGIN, rows))
    assert len({emission.id for emission in found}) == len(rows)
    for emission in found:
        header = decode_header(dict(emission.headers)[NAME])
        assert (header.id, header.parent) == (emission.id, (3, 1 << 40))
        assert (header.mark.sender, header.mark.seq) == (ORIGIN.lane, ORIGIN.ref.seq)


def test_a_header_of_ours_that_user_code_passed_on_is_replaced():
    (emission,) = emissions(ORIGIN, Rows.of([row(Output(value=b"x", headers=((NAME, b"old"),)))]))
    assert [name for name, _ in emission.headers] == [NAME]
    assert decode_header(emission.headers[0][1]).id == emission.id


def test_a_kept_id_stays_and_is_marked():
    kept = RecordId(b"k" * 16)
    chunks = encode_outputs(
        ORIGIN, Rows.of([row(Output(value=b"x"), kept_id=kept), row(Output(value=b"y"))])
    )
    first, second = decode_outputs(chunks, "test")
    assert first.id == kept
    marks = [decode_header(dict(emission.headers)[NAME]).mark for emission in (first, second)]
    assert [mark.kept for mark in marks] == [True, False]


def test_no_rows_are_no_chunks():
    assert encode_outputs(ORIGIN, Rows()) == []
    assert list(decode_outputs([], "test")) == []


def large() -> Row:
    return row(Output(value=SEEDED.randbytes(RECORD_BYTES_MAX)))


def small(size: int = 1000) -> Row:
    return row(Output(value=SEEDED.randbytes(size)))


def test_the_largest_record_is_cut_into_pieces_that_every_store_takes_and_put_together():
    rows = Rows.of([small(), large(), small(), large()])
    chunks = encode_outputs(ORIGIN, rows)
    assert max(map(len, chunks)) <= CHUNK_BYTES_MAX
    assert [len(chunk) == CHUNK_BYTES_MAX for chunk in chunks].count(True) == 2
    same = list(decode_outputs(chunks, "test")) == list(emissions(ORIGIN, rows))
    assert same, "what was put together is what was cut"


def test_ordinals_count_on_from_chunk_to_chunk():
    rows = Rows.of(small(CHUNK_BYTES // 2 + 1) for _ in range(4))
    chunks = encode_outputs(ORIGIN, rows)
    assert len(chunks) == 4
    ids = [emission.id for emission in decode_outputs(chunks, "test")]
    assert ids == [emission.id for emission in emissions(ORIGIN, rows)]


def test_rows_that_fit_share_a_chunk():
    assert len(encode_outputs(ORIGIN, Rows.of(small(CHUNK_BYTES // 4) for _ in range(4)))) == 1
    assert len(encode_outputs(ORIGIN, Rows.of(small(CHUNK_BYTES // 4) for _ in range(5)))) == 2


def torn(chunks: list[bytes]) -> dict[str, list[bytes]]:
    """Ways in which the pieces of small, large, small can be damaged."""
    head, piece, rest, tail = chunks
    flipped = bytearray(rest)
    flipped[len(rest) // 2] ^= 1
    return {
        "the second piece is missing": [head, piece, tail],
        "the first piece is missing": [head, rest, tail],
        "the pieces are swapped": [head, rest, piece, tail],
        "a piece is there twice": [head, piece, piece, rest, tail],
        "the last piece is cut": [head, piece, rest[:-1]],
        "a piece is cut in the middle": [head, piece, rest[:-1], tail],
        "the last chunk is cut in its envelope": [head, piece, rest, tail[: ENVELOPE_BYTES - 1]],
        "the last chunk is cut": [head, piece, rest, tail[:-1]],
        "a bit is flipped": [head, piece, bytes(flipped), tail],
        "something is behind it": [head, piece, rest, tail + b"x"],
        "an empty piece": [b""],
    }


@pytest.mark.parametrize("how", list(torn([b"x" * 99] * 4)))
def test_torn_pieces_are_corrupt_and_named(how):
    chunks = encode_outputs(ORIGIN, Rows.of([small(), large(), small()]))
    damaged = torn(chunks)[how]
    with pytest.raises(Corrupt, match="outputs of lane 7"):
        list(decode_outputs(damaged, "outputs of lane 7"))


def test_rows_that_do_not_decode_are_corrupt():
    """A writer of ours stored them, and the checksum agrees: only the rows are nonsense."""
    out = Writer().text(ORIGIN.lane).raw(ORIGIN.ref.incarnation).uint(ORIGIN.ref.seq)
    out.raw(ORIGIN.ref.attempt).uint(ORIGIN.minted_at_ms).uint(0).uint(99).raw(b"no rows")
    with pytest.raises(Corrupt, match="do not decode"):
        list(decode_outputs([wrap(Kind.OUTPUTS, 1, out.body())], "test"))
