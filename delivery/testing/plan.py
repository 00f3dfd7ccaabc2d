"""Plans of a linear run: what goes wrong, at which call, as one line.

What it is: `Event`, the line that names a plan, and which plans follow from one that was run.
What it must not know: how a plan is carried out, what is right.

Invariants:
    A call is named by what it calls and how often that was called before, not by its number among
    all calls: a plan still fits when user code makes another number of outputs.
    Every plan is enumerated once: an event is added only behind the last one of the plan before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dedup.errors import InvalidUsage
from delivery.testing.faulty import Fault

#: A second process starts and does all there is to do while this one sleeps before a call.
ZOMBIE = "zombie"
#: The process dies, and another takes over.
CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)

_TOKEN = re.compile(r"([a-z-]+)@([a-z_]+\.[a-z_]+:[1-9]\d*)")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens at one call.

    Attributes:
        what: a fault's value, or `ZOMBIE`.
        call: "store.append:2" is the second append to the store, by whichever process.
    """

    what: str
    call: str

    def __str__(self) -> str:
        return f"{self.what}@{self.call}"


Plan = tuple[Event, ...]


def line_of(plan: Plan) -> str:
    """Return a plan as one line."""
    return " ".join(map(str, plan))


def plan_of(line: str) -> Plan:
    """Return the plan that a line names.

    Raises:
        InvalidUsage: it names none.
    """
    known = {ZOMBIE, *(fault.value for fault in Fault)}
    events = []
    for token in line.split():
        found = _TOKEN.fullmatch(token)
        if found is None or found[1] not in known:
            raise InvalidUsage(
                "read a plan",
                repr(token),
                "a plan is the line that a failed run printed, such as "
                '"crash-after@store.append:1"; copy it whole, or say crash="everywhere" to try all',
            )
        events.append(Event(found[1], found[2]))
    return tuple(events)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may go wrong in one plan."""

    kinds: tuple[Fault, ...]
    faults: int
    zombies: int

    def longer(self, plan: Plan, calls: Sequence[str], last: int) -> Iterator[Plan]:
        """Yield the plans that have one event more.

        Args:
            plan: what was just run.
            calls: every call made in that run, in order.
            last: place among them of the last event; -1 if nothing went wrong.
        """
        zombies = sum(event.what == ZOMBIE for event in plan)
        faults = len(plan) - zombies
        # A process that slept before a call may still fail in that very call.
        slept = bool(plan) and plan[-1].what == ZOMBIE
        if faults < self.faults:
            for call in calls[last if slept else last + 1 :]:
                for fault in self.kinds:
                    yield (*plan, Event(fault.value, call))
        if zombies < self.zombies:
            for call in calls[last + 1 :]:
                yield (*plan, Event(ZOMBIE, call))
