"""Which runs become one: an id is moved a logarithm of times, and runs are a logarithm of the ids."""

from __future__ import annotations

from math import ceil, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dedup.arrays import sorted_unique
from dedup.filters import Filters
from dedup.formats.segment import Bucket, Origin
from dedup.local.group import Group, Held
from dedup.local.limits import LIMITS
from dedup.local.shared import Recipe, SharedFilter
from dedup.local.upkeep import Grown, due, growing
from dedup.model import Incarnation
from dedup.runs import write_run

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


def test_a_filter_has_the_runs_that_came_while_it_was_made(tmp_path: Path) -> None:
    """What is left to whoever adopts it came in the last moment."""
    group = Group(BUCKET, 1, None)
    every = [
        np.random.default_rng(seed).integers(0, 1 << 64, (100, 2), dtype=np.uint64)
        for seed in range(3)
    ]

    def come() -> None:
        ids = sorted_unique(every[len(group.runs)])
        path = tmp_path / str(len(group.runs))
        origins, of = [(Incarnation(bytes(16)), 1)], np.zeros(len(ids), dtype=np.uint32)
        run = write_run(path, "lane", BUCKET, ids, origins=origins, origin_of=of)
        group.runs.append(Held(run, path, 1))

    def stop() -> bool:
        if len(group.runs) < len(every):
            come()
        return False

    def made() -> SharedFilter:
        recipe = Recipe(lane="lane", filters=Filters())
        return SharedFilter.create(recipe, tmp_path / "filter", BUCKET, 1_000)

    come()
    grown = growing(group, made)(stop)
    assert isinstance(grown, Grown)
    assert list(grown.inputs) == group.runs
    assert len(group.runs) == len(every)
    assert grown.output.maybe(np.concatenate(every)).all()
    grown.output.close()
