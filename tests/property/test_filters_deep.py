"""No false negative among a hundred million ids, and five million with the slower engine.

What it is: one filter file filled to its capacity through several writers, asked for every id by
two other processes at once, then torn, copied, deleted and made anew.
What it must not know: how the bits are laid out.

Ids are drawn block by block from a seeded generator, so that nothing but the filter is large.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dedup.arrays import Ids
from dedup.filters import create_filter, open_filter, saturated
from dedup.filters.header import SLOT_BYTES
from dedup.formats.segment import Bucket, Origin
from dedup.model import HeadRef
from tests.crash.proof import take_note

WHOSE = {"lane": "shop/price/0", "bucket": Bucket(Origin.EXTERNAL, 2_970_000, 144)}
KEY = b"0123456789abcdef"
READERS = 2
#: Blocks a filter is filled with; how large they are is the engine's.
BLOCKS = 100
#: After so many blocks another process writes on.
BLOCKS_PER_WRITER = 40
STRANGERS_SEED = 1 << 32


def block(size: int, seed: int) -> Ids:
    return np.random.default_rng(seed).integers(0, 2**64, (size, 2), dtype=np.uint64)


def tag(blocks: int) -> HeadRef:
    return HeadRef(b"incarnation-----", blocks, bytes([blocks % 256]) * 16)


def write(path: Path, engine: str, size: int, blocks: range) -> None:
    """Open the filter, check whose turn it is, add blocks and move the tag."""
    one = open_filter(path, engine=engine, writable=True, **WHOSE)
    assert (one.tag.seq if one.tag else 0) == blocks.start
    for number in blocks:
        one.add(block(size, number))
    one.set_tag(tag(blocks.stop))
    one.close()


def denied(path: Path, engine: str, size: int, blocks: range) -> int:
    """Count the ids of blocks that the filter denies; there may be none."""
    one = open_filter(path, engine=engine, **WHOSE)
    assert one.tag.seq >= blocks.stop
    missing = sum(int((~one.maybe(block(size, number))).sum()) for number in blocks)
    one.close()
    return missing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "key", "counts"),
    [
        ("blocked", None, (1_000_000, 10_000_000)),
        ("blocked", KEY, (1_000_000, 10_000_000)),
        ("pybloom-live", None, (50_000, 500_000)),
    ],
    ids=["blocked", "blocked with a key", "pybloom"],
)
def test_no_id_is_ever_denied(tmp_path, request, engine, key, counts):
    size, strangers = counts
    began = time.monotonic()
    path = tmp_path / "filter"
    create_filter(path, size * BLOCKS, engine=engine, key=key, **WHOSE).close()
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(READERS, mp_context=spawned, max_tasks_per_child=1) as pool:
        for start in range(0, BLOCKS, BLOCKS_PER_WRITER):
            turn = range(start, min(start + BLOCKS_PER_WRITER, BLOCKS))
            writing = pool.submit(write, path, engine, size, turn)
            if start:  # one reads what is there, beside the writer
                before = range(start - BLOCKS_PER_WRITER, start)
                assert pool.submit(denied, path, engine, size, before).result() == 0
            writing.result()
        halves = range(BLOCKS // 2), range(BLOCKS // 2, BLOCKS)
        assert list(pool.map(partial(denied, path, engine, size), halves)) == [0, 0]
    hits = check_rate(path, engine, strangers)
    check_damage(path, engine, size)
    take_note(
        kind="filter",
        engine=engine,
        keyed=key is not None,
        ids=size * BLOCKS,
        strangers=strangers,
        hits=hits,
        seconds=time.monotonic() - began,
        test=request.node.nodeid,
    )


def check_rate(path: Path, engine: str, strangers: int) -> int:
    """Return how many of so many ids that were never added are let through."""
    one = open_filter(path, engine=engine, **WHOSE)
    assert one.count == one.capacity
    hits = int(one.maybe(block(strangers, STRANGERS_SEED)).sum())
    assert hits / strangers <= 1.2 * one.target_rate
    assert one.rate() == pytest.approx(hits / strangers, rel=0.2)
    assert not saturated(one)
    one.close()
    return hits


def check_damage(path: Path, engine: str, size: int) -> None:
    """Tear, shorten, delete: the filter from before the last tag, or none; then one anew."""
    one = open_filter(path, engine=engine, writable=True, **WHOSE)
    one.set_tag(tag(BLOCKS + 1))
    one.close()
    with path.open("r+b") as file:
        for slot, left in ((0, {BLOCKS, BLOCKS + 1}), (1, set())):
            file.seek(slot * SLOT_BYTES + 40)
            file.write(b"torn")
            file.flush()
            found = open_filter(path, engine=engine, **WHOSE)
            assert (found is not None) == bool(left)
            if found is not None:
                assert found.tag.seq in left
                found.close()
    path.unlink()
    assert open_filter(path, engine=engine, **WHOSE) is None
    one = create_filter(path, size, engine=engine, **WHOSE)
    one.add(block(size, 0))
    one.set_tag(tag(1))
    one.close()
    assert denied(path, engine, size, range(1)) == 0
