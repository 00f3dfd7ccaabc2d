"""The explorer: every plan a world allows, each state once.

What it is: a depth-first search over worlds that copy themselves, with pruning of states seen
before, and plans as one printable line that replays them.
What it must not know: what a world is made of.

Invariants:
    A plan is the list of choices from the initial world; the same plan leads to the same state.
    A state is explored once; two plans that lead to equal fingerprints have equal futures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from dedup.errors import DeliveryError


class Violation(AssertionError):
    """Something that must always hold does not."""


class MisfitError(Exception):
    """A stored plan names a choice that its world does not offer: the plan is out of date."""


class World(Protocol):
    """What can be explored."""

    def successors(self) -> Iterator[tuple[str, Callable[[], World]]]:
        """Yield every choice with the world it leads to, made when it is called."""

    def fingerprint(self) -> object:
        """Return a hashable picture of everything the future depends on."""

    def finish(self) -> None:
        """Check what must hold when nothing can happen any more. Raises Violation."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plan that ends in a violation."""

    plan: tuple[str, ...]
    violation: str

    @property
    def line(self) -> str:
        """The plan as one line; `replay` takes it."""
        return " ".join(self.plan)


@dataclass(slots=True)
class Report:
    """What an exploration saw."""

    states: int = 0
    ends: int = 0
    found: Found | None = None
    #: True if the search ended because `states_max` was reached, not because nothing was left.
    cut_short: bool = False


def explore(initial: World, *, states_max: int | None = None) -> Report:
    """Visit every state reachable from `initial`, or stop at the first violation."""
    report = Report()
    seen: set[object] = {initial.fingerprint()}
    stack: list[tuple[World, tuple[str, ...]]] = [(initial, ())]
    while stack:
        world, plan = stack.pop()
        report.states += 1
        if states_max is not None and report.states > states_max:
            report.cut_short = True
            return report
        choice = ""
        try:
            ended = True
            for choice, make in world.successors():
                ended = False
                following = make()
                mark = following.fingerprint()
                if mark not in seen:
                    seen.add(mark)
                    stack.append((following, (*plan, choice)))
            choice = ""
            if ended:
                report.ends += 1
                world.finish()
        except (AssertionError, DeliveryError) as violation:
            # Violations, the core's own assertions and rows that nobody can read any more: none of
            # them may ever be seen. What befalls a process stays inside the world.
            report.found = Found((*plan, choice) if choice else plan, str(violation))
            return report
    return report


def replay(initial: World, line: str) -> World:
    """Follow a plan line and return the world it leads to.

    Raises:
        AssertionError: what the plan runs into.
        MisfitError: the plan is not one of this world.
    """
    world = initial
    for number, wanted in enumerate(line.split()):
        offered = []
        for choice, make in world.successors():
            if choice == wanted:
                world = make()
                break
            offered.append(choice)
        else:
            raise MisfitError(
                f"the plan does not fit this world: at step {number} there is no {wanted}, "
                f"only {' '.join(offered) or 'the end'}"
            )
    return world


def outcome(initial: World, line: str) -> str:
    """Follow a plan, then take the first choice until nothing is left; return the violation.

    An empty answer says that everything held.
    """
    try:
        world = replay(initial, line)
        while True:
            for _, make in world.successors():
                world = make()
                break
            else:
                world.finish()
                return ""
    except (AssertionError, DeliveryError) as violation:
        return str(violation) or type(violation).__name__
