"""Killed while they keep a lane's ids on their host, in running pipelines: once for each record."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from dedup.local.steps import STEPS
from tests.acceptance.kit import Trial
from tests.acceptance.pricing import Pipeline
from tests.acceptance.test_killed_spark import (
    CATALOGS,
    CLUSTER,
    ENGINES,
    LOCAL,
    PLACES,
    VICTIMS,
    Kill,
    killed,
)

RECORDS = 900
#: A lane forgets in front of a bundle what the one before has covered.
PIECES = 3
#: A process makes its directory once, and the next one makes it before anybody asks for a kill there.
HOW = {"pieces": PIECES, "together": 2}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_worker_killed_at_every_step_of_its_indexes(
    sqlite_pipeline: Pipeline, tmp_path: Path
) -> None:
    trial = Trial.of(replace(sqlite_pipeline, tiny=now_ms()), tmp_path, seed=43, count=RECORDS)
    killed(trial, "resident", LOCAL, tuple((step, "worker") for step in STEPS), tmp_path, **HOW)


#: Every step in every place, with another victim in each, so that any two of all four meet.
PAIRWISE: dict[tuple[str, str], tuple[Kill, ...]] = {
    place: tuple((step, VICTIMS[(row + number) % len(VICTIMS)]) for row, step in enumerate(STEPS))
    for number, place in enumerate(PLACES)
}


def test_any_two_of_step_victim_catalog_and_engine_meet() -> None:
    rows = [(s, v, c, e) for (e, c), kills in PAIRWISE.items() for s, v in kills]
    every = (STEPS, VICTIMS, CATALOGS, ENGINES)
    for one in range(4):
        for other in range(one):
            met = {(row[one], row[other]) for row in rows}
            assert met == {(a, b) for a in every[one] for b in every[other]}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids="-".join)
def test_whoever_is_killed_at_a_step_of_an_index(
    place: tuple[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    engine, catalog = place
    pipeline: Pipeline = request.getfixturevalue(f"{catalog}_pipeline")
    trial = Trial.of(replace(pipeline, tiny=now_ms()), tmp_path, seed=47, count=RECORDS)
    killed(trial, engine, CLUSTER, PAIRWISE[place], tmp_path, **HOW)
