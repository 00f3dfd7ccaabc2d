"""Which of its instructions a process may perform next, and when nobody can tell in which order.

What it is: the order among one process's instructions, as hosts keep it or not, and the reduction
that spares the explorer orders which lead to the same states.
What it must not know: how an instruction is performed.

Invariants:
    Emissions are performed in the order of their seals, and told in that order.
    What is put aside is what `LaneTask.hand_over` puts aside: everything may overtake it, as often
    as it likes.
    An instruction is taken alone only if every other choice would find the same behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delivery.protocol import messages as m
from delivery.testing.process import Process

if TYPE_CHECKING:
    from delivery.testing.world import LaneWorld

__all__ = ["Place", "alone", "performable", "put_aside", "take"]

#: Where an instruction stands: its place among those to do, or what was put aside.
Place = int | str

_ASIDE = {"emit": m.Emit, "ack": m.Acknowledge}
#: Instructions whose order among each other is the performer's: they may overtake one another.
_OVERTAKING = (m.Classify, m.Store, m.Append, m.Emit, m.Acknowledge)


def performable(process: Process, swaps: int) -> list[Place]:
    """Return which of a process's instructions may be performed next."""
    todo = list(process.state.todo)
    places: list[Place] = [0] if todo else []
    if swaps:
        places += [
            index
            for index in range(1, len(todo))
            if all(_may_overtake(todo[index], other) for other in todo[:index])
        ]
    for name, kind in _ASIDE.items():
        if any(isinstance(waiting, kind) for waiting in process.aside):
            places.append(name)
    return places


def take(process: Process, place: Place) -> m.Instruction:
    """Take an instruction that is performed now."""
    if isinstance(place, int):
        instruction = process.state.todo[place]
        del process.state.todo[place]
        return instruction
    first = next(waiting for waiting in process.aside if isinstance(waiting, _ASIDE[place]))
    process.aside = tuple(waiting for waiting in process.aside if waiting is not first)
    return first


def put_aside(process: Process) -> bool:
    """Put the next instruction aside, if hosts do so with it; False if not."""
    todo = process.state.todo
    if not (todo and isinstance(todo[0], m.Emit | m.Acknowledge)):
        return False
    process.aside = (*process.aside, todo[0])
    todo.popleft()
    return True


def alone(world: LaneWorld) -> str | None:
    """Return a process whose next instruction commutes with whatever anybody else may do.

    What an attempt stores meets only collectors. Verdicts that ask no sender, of a process that
    shares its host's index with no other, and emissions that no lane of this world reads, meet only
    collectors and a restore still to come; and, of a process that puts emissions aside, these.
    """
    if world.collections or world.compactions or world.collectors:
        return None
    read = {spec.reads for spec in world.scenario.lanes}
    for name, process in world.processes.items():
        nxt = process.state.todo[0] if process.state.todo else None
        private = isinstance(nxt, m.Store)
        if not (world.restores or world.scenario.aside):
            asks = bool(process.spec.senders) or _shares(world, process)
            private |= isinstance(nxt, m.Classify) and not asks
            private |= isinstance(nxt, m.Emit) and process.spec.writes not in read
        if private:
            return name
    return None


def _shares(world: LaneWorld, process: Process) -> bool:
    """Tell whether another process moves the same index."""
    host = world.host(process)
    return any(
        other is not process and world.host(other) == host for other in world.processes.values()
    )


def _may_overtake(later: m.Instruction, earlier: m.Instruction) -> bool:
    if isinstance(earlier, m.Emit | m.Acknowledge):
        # A host may wait for several of them at once, and go on meanwhile.
        return type(later) is not type(earlier)
    return isinstance(later, _OVERTAKING) and isinstance(earlier, _OVERTAKING)
