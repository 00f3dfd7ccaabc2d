"""Every rule of the protocol is needed, and the explorer sees it broken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delivery.testing.explore import outcome
from delivery.testing.world import LaneWorld
from tests.crash.conftest import TakeDown
from tests.crash.exploring import Explorers, found
from tests.crash.mutants import MUTANTS
from tests.crash.plans import stored
from tests.crash.sabotage import Mutant, function_at, planted
from tests.crash.worlds import WORLDS

#: As many rules as there are sabotages of them; fewer means that a rule lost its proof.
MUTANTS_MIN = 50


def _name(mutant: Mutant) -> str:
    return mutant.name


@pytest.mark.parametrize("mutant", MUTANTS, ids=_name)
def test_the_stored_plan_kills_the_mutant(mutant: Mutant) -> None:
    world, plan = stored()[mutant.name]
    assert world == mutant.world
    with planted(mutant):
        violation = outcome(LaneWorld.of(WORLDS[world].scenario), plan)
    assert violation, f"{mutant.name} survives its plan; run `python -m tests.crash.plans`"


def test_every_mutant_has_one_plan_and_no_plan_is_left_over() -> None:
    assert sorted(stored()) == sorted(mutant.name for mutant in MUTANTS)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= MUTANTS_MIN


def test_a_sabotage_is_taken_back() -> None:
    mutant = MUTANTS[0]
    function = function_at(mutant.edits[0].target)
    before = function.__code__
    with planted(mutant):
        assert function.__code__ is not before
    assert function.__code__ is before


@pytest.fixture(scope="module")
def finders(request: pytest.FixtureRequest) -> Iterator[Explorers[str | None]]:
    """Give what was found for the mutants that were asked for, all under way at once."""
    asked = [item for item in request.session.items if item.get_closest_marker("slow")]
    names = [item.callspec.params["mutant"].name for item in asked if item.module is request.module]
    with Explorers(found, names) as finders:
        yield finders


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=_name)
def test_the_explorer_finds_a_plan_anew(
    mutant: Mutant, finders: Explorers[str | None], take_down: TakeDown
) -> None:
    plan, seconds = finders.report(mutant.name)
    assert plan is not None, f"{mutant.name} survives all of {mutant.world}"
    take_down(kind="mutant", name=mutant.name, seconds=seconds)
