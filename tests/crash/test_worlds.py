"""Every plan of every small world: the real core, runner and memory store, whatever may go wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delivery.testing.explore import Report
from tests.crash.conftest import TakeDown
from tests.crash.exploring import Explorers, explored, largest_first
from tests.crash.worlds import WORLDS

#: What the small worlds may take on two cores. Another one that does not fit belongs to `make crash`.
SMALL_SECONDS_MAX = 90
SMALL = sorted(name for name, world in WORLDS.items() if not world.deep)


def _holds_everywhere(name: str, report: Report) -> None:
    assert report.found is None, f"{name}: {report.found.violation}\nplan: {report.found.line}"
    # Pinned, so that nobody shrinks the world unseen. Where the protocol changed, look at why the
    # number moved and write it down anew.
    assert report.states == WORLDS[name].states
    assert report.ends > 0


def _worlds(item: pytest.Item) -> list[str]:
    """Return the worlds that a test asks for."""
    assert isinstance(item, pytest.Function)
    return [item.callspec.params["name"]] if hasattr(item, "callspec") else SMALL


@pytest.fixture(scope="module")
def explorers(request: pytest.FixtureRequest) -> Iterator[Explorers[Report]]:
    """Give the reports of the worlds that were asked for, all of them under way at once."""
    asked = [item for item in request.session.items if item.module is request.module]
    names = {name for item in asked for name in _worlds(item)}
    with Explorers(explored, largest_first(names)) as explorers:
        yield explorers


@pytest.mark.parametrize("name", SMALL)
def test_no_plan_breaks_the_promise(name: str, explorers: Explorers[Report]) -> None:
    report, _ = explorers.report(name)
    _holds_everywhere(name, report)


def test_the_small_worlds_take_no_longer_than_they_may(explorers: Explorers[Report]) -> None:
    seconds = {name: explorers.report(name)[1] for name in SMALL}
    assert sum(seconds.values()) <= 2 * SMALL_SECONDS_MAX, seconds


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WORLDS))
def test_no_deep_plan_breaks_the_promise(
    name: str, explorers: Explorers[Report], take_down: TakeDown
) -> None:
    report, seconds = explorers.report(name)
    _holds_everywhere(name, report)
    take_down(kind="world", name=name, states=report.states, ends=report.ends, seconds=seconds)
