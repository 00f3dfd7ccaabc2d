"""What the tests of deterministic stages share: code that is, runners of it, one that dies.

What it is: `priced`, `remaking` and `sealed_only`.
What it must not know: any single test.
"""

from __future__ import annotations

from typing import Any

from delivery.protocol import messages as m
from delivery.records import Output, Record
from delivery.runner import LaneRunner
from delivery.stage import Function, Policy
from tests.unit.house import House

REMADE = Policy(deterministic=True)


def priced(record: Record) -> list[Output]:
    """The same of the same record, twice as much of a "b", nothing of a "z"."""
    if record.value == b"z":
        return []
    times = 2 if record.value == b"b" else 1
    headers = (("trace", b"t"),) if record.value == b"c" else ()
    return [Output(value=b"p" + record.value, key=record.value, headers=headers)] * times


def remaking(house: House, call=priced, *, code: str = "v1", **more: Any) -> LaneRunner:
    return house.runner(stage=Function(call, code), **{"policy": REMADE} | more)


def sealed_only(house: House, *, cut: int = 100, **more: Any) -> None:
    """Let a process die when it has sealed everything and sent nothing."""
    runner = remaking(house, **more)
    house.begin(runner)
    while True:
        todo = runner.state.todo
        while todo and isinstance(todo[0], m.Emit | m.Release):
            todo.popleft()
        if not todo and not runner.state.lane.hungry:
            break
        if not house.turn(runner, cut):
            break
    assert house.sent() == []
