"""Which runs become one: an id is moved a logarithm of times, and runs are a logarithm of the ids."""

from __future__ import annotations

from math import ceil, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dedup.formats.segment import Bucket, Origin
from dedup.local.group import Group, Held
from dedup.local.limits import LIMITS
from dedup.local.upkeep import due

BUCKET = Bucket(Origin.EXTERNAL, 0)


def held(count: int) -> Held:
    run: Any = SimpleNamespace(count=count, bucket=BUCKET)
    return Held(run, Path("run"), 0)


def kept(begin: list[int], flushes: int, size: int) -> tuple[float, int]:
    """Keep runs while more come; return how often a new id was moved, and the most runs there were."""
    group = cast("Group", SimpleNamespace(runs=[held(count) for count in begin], unit=lambda _: 0))
    moved = most = 0
    for _ in range(flushes):
        group.runs.append(held(size))
        while inputs := due(group, LIMITS):
            count = sum(one.run.count for one in inputs)
            moved += count
            used = {id(one) for one in inputs}
            group.runs = [*(one for one in group.runs if id(one) not in used), held(count)]
        most = max(most, len(group.runs))
    return moved / (flushes * size), most


@pytest.mark.parametrize("size", [1 << 14, 1 << 17])
def test_an_id_is_moved_a_logarithm_of_times(size: int) -> None:
    flushes = 1_000
    times, most = kept([], flushes, size)
    levels = ceil(log(flushes, LIMITS.fanout)) + 1
    assert times <= levels
    assert most <= LIMITS.fanout * levels


def test_a_large_run_stays_where_it_is_while_small_ones_come() -> None:
    flushes, size = 40, 1 << 17
    times, _ = kept([100_000_000], flushes, size)
    assert times <= ceil(log(flushes, LIMITS.fanout)), "none of it was moved"
