"""Every plan of every small world: the real core, runner and memory store, whatever may go wrong."""

from __future__ import annotations

import pytest

from delivery.testing.explore import Report, explore
from delivery.testing.world import LaneWorld
from tests.crash.conftest import TakeDown
from tests.crash.worlds import WORLDS

SMALL = sorted(name for name, world in WORLDS.items() if not world.deep)


def _holds_everywhere(name: str) -> Report:
    report = explore(LaneWorld.of(WORLDS[name].scenario))
    assert report.found is None, f"{name}: {report.found.violation}\nplan: {report.found.line}"
    # Pinned, so that nobody shrinks the world unseen. Where the protocol changed, look at why the
    # number moved and write it down anew.
    assert report.states == WORLDS[name].states
    assert report.ends > 0
    return report


@pytest.mark.parametrize("name", SMALL)
def test_no_plan_breaks_the_promise(name: str) -> None:
    _holds_everywhere(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WORLDS))
def test_no_deep_plan_breaks_the_promise(name: str, take_down: TakeDown) -> None:
    report = _holds_everywhere(name)
    take_down(kind="world", name=name, states=report.states, ends=report.ends)
