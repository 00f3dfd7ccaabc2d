"""The newest ids in anonymous memory: found, put together, and few chunks however small they are."""

from __future__ import annotations

import numpy as np
import pytest

from dedup.arrays import Ids, pack, sorted_unique, to_raw
from dedup.formats.segment import Part, raw_ids
from dedup.local import overlay
from dedup.local.group import EXTERNAL, Group, Lens
from dedup.local.overlay import CHUNKS_MAX, LINE_BITS, LINES_FROM, Chunk, Chunks, Lines, merged
from dedup.local.stats import Counters
from dedup.model import Incarnation

#: With the compiled library and without it.
pytestmark = pytest.mark.usefixtures("both_ways")

ONE = Incarnation(b"1" * 16)
TWO = Incarnation(b"2" * 16)


def chunk(ids: list[bytes], seq: int, incarnation: Incarnation = ONE) -> Chunk:
    return Chunk.of(Part(EXTERNAL, raw_ids(ids)), (incarnation, seq))


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


@pytest.mark.parametrize("at_once", [1 << 14, 100, 7, 1])
@pytest.mark.parametrize("lines", [None, 3, 1])
def test_chunks_are_put_together_in_pieces_of_whatever_size(monkeypatch, at_once, lines):
    monkeypatch.setattr(overlay, "MERGED_AT_ONCE", at_once)
    every = random_ids(600, 5, lines)
    random = np.random.default_rng(6)
    chunks, first = [], {}
    for seq in (4, 2, 9, 7):
        ids = every[np.sort(random.permutation(len(every))[:300])]
        raw = to_raw(ids)
        digests = b"".join(seq.to_bytes(2, "little") for _ in ids)
        chunks.append(Chunk.of(Part(EXTERNAL, raw, digests=digests), (ONE, seq)))
        for row in ids.tolist():
            first[tuple(row)] = min(seq, first.get(tuple(row), seq))
    one = merged(chunks)
    assert one.ids.tolist() == [list(row) for row in sorted(first)]
    assert one.origin_of is not None
    assert one.digests is not None
    seals = [one.origins[at] for at in one.origin_of.tolist()]
    assert seals == [(ONE, first[row]) for row in sorted(first)]
    assert one.digests.tolist() == [seq for _, seq in seals]
    again = merged([one, chunk_of(every, 5)])
    assert again.digests is None, "some have none"
    assert len(again.ids) == len(every)


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


def random_ids(count: int, seed: int, lines: int | None = None) -> Ids:
    """Return ids; those that somebody chose agree in the bits that decide where they queue."""
    ids = np.random.default_rng(seed).integers(0, 1 << 64, (count, 2), dtype=np.uint64)
    if lines is not None:
        bits = np.uint64(64 - LINE_BITS)
        ids[:, 0] = (ids[:, 0] % np.uint64(lines) << bits) | (ids[:, 0] >> np.uint64(LINE_BITS))
    return sorted_unique(ids)


def chunk_of(ids: Ids, seq: int) -> Chunk:
    return Chunk.of(Part(EXTERNAL, to_raw(ids)), (ONE, seq))


@pytest.mark.parametrize("lines", [None, 1000, 1])
def test_all_chunks_are_asked_at_once(lines):
    """Who stands in no long line is known to be there or not; of all others it is said."""
    chunks = Chunks(lambda _bucket: 0)
    held = [random_ids(500, seed, lines) for seed in range(12)]
    strangers = random_ids(2_000, 99, lines)
    for seq, ids in enumerate(held):
        chunks.add(chunk_of(ids, seq))
        asked = np.concatenate([*held[: seq + 1], strangers])
        known, unsure = chunks.ask(asked)
        told = np.ones(len(asked), np.bool_)
        told[unsure] = False
        there = np.arange(len(asked)) < len(asked) - len(strangers)
        assert (known[told] == there[told]).all()
        assert not known[unsure].any()
        assert told.all() == (lines != 1 and len(chunks.all) >= LINES_FROM)


@pytest.mark.parametrize("when", ["asked", "added", "left"])
def test_a_chunk_that_found_no_room_to_queue_is_asked_all_the_same(monkeypatch, when):
    ids = [bytes([number]) * 16 for number in range(6)]
    parts = [chunk([one], seq) for seq, one in enumerate(ids)]
    chunks = Chunks(lambda _bucket: 0, parts[:4])
    if when != "asked":
        chunks.ask(pack(ids))

    def refuse(_lines: Lines, _ids: Ids) -> None:
        raise MemoryError

    def add_all() -> None:
        for one in parts[4:]:
            chunks.add(one)

    what = {
        "asked": lambda: chunks.ask(pack(ids)),
        "added": add_all,
        "left": lambda: chunks.leave(parts[:1]),
    }
    with monkeypatch.context() as patch:
        patch.setattr(Lines, "add", refuse)
        with pytest.raises(MemoryError):
            what[when]()
    known, unsure = chunks.ask(pack(ids))
    assert not len(unsure)
    there = [to_raw(one.ids) for one in chunks.all]
    assert known.tolist() == [one in there for one in ids]


def test_chunks_that_left_are_forgotten_by_all_who_are_asked():
    chunks = Chunks(lambda _bucket: 0)
    held = [chunk_of(random_ids(300, seed), seed) for seed in range(6)]
    for one in held:
        chunks.add(one)
    asked = np.concatenate([one.ids for one in held])
    assert chunks.ask(asked)[0].all()
    chunks.leave(held[:3])
    assert chunks.ask(asked)[0].tolist() == [False] * 900 + [True] * 900
    before = chunks.nbytes
    for one in held[:3]:
        chunks.add(one)
    assert chunks.ask(asked)[0].all()
    assert chunks.nbytes == before + sum(one.nbytes for one in held[:3])


@pytest.mark.parametrize("lines", [None, 1])
def test_a_group_finds_every_id_wherever_it_queues(lines):
    group = Group(EXTERNAL, 1, None)
    held = [random_ids(400, seed, lines) for seed in range(8)]
    for seq, ids in enumerate(held):
        group.chunks.add(chunk_of(ids, seq))
    asked = np.concatenate([random_ids(100, 99, lines), *held, random_ids(100, 98, lines)])
    known = group.ask(asked, Lens(), Counters())
    assert known.tolist() == [False] * 100 + [True] * 3_200 + [False] * 100


def test_room_for_queues_is_made_step_by_step_and_kept():
    lines = overlay.Lines()
    generator = np.random.default_rng(9)
    every = generator.integers(0, 2**64, (5, overlay.ROOM_STEP // 2, 2), dtype=np.uint64)
    for ids in every:
        lines.add(sorted_unique(ids))
    asked = every.reshape(-1, 2)
    assert lines.ask(asked)[0].all()
    bare = overlay.Lines().nbytes
    an_id = (lines.nbytes - bare) / len(asked)
    assert 20 <= an_id < 20 * 1.3, (
        "four bytes for its place and sixteen for itself, and little room"
    )
    lines.clear()
    before = lines.nbytes
    lines.add(sorted_unique(every[0]))
    assert lines.nbytes == before
