"""The generated parts of docs/protocol.md: diagrams, tables, worlds and mutants, from the code itself.

`python -m tests.crash.page` writes them anew; read the difference before committing it.

Diagrams are drawn from the transition tables: which event may come is in the tables, where it leads
is read from the handlers they name. Of a handler's branches those count that can be taken in the
phase it is called in.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from delivery.protocol import lane as core
from delivery.protocol import messages as m
from delivery.protocol.state import Phase, Step
from tests.crash import worlds
from tests.crash.mutants import MUTANTS
from tests.crash.worlds import WORLDS, Pinned
from tests.generated import filled

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
COMMAND = "python -m tests.crash.page"

_EVENTS: tuple[type, ...] = m.Event.__args__
_FUNCTIONS = {
    node.name: node
    for node in ast.parse(inspect.getsource(core)).body
    if isinstance(node, ast.FunctionDef)
}
#: Conditions that a phase decides: a lane has a head from the first time it is loaded.
_DECIDED = {
    "lane.head is None": lambda phase: phase in (Phase.NEW, Phase.LOADING, Phase.STARTING),
    "lane.head is not None": lambda phase: phase in (Phase.OPEN, Phase.RELOADING),
    "lane.phase is not Phase.OPEN": lambda phase: phase is not Phase.OPEN,
}


class _Walk:
    """What a handler may do when it is called in a phase."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.phases: set[Phase] = set()
        self.ends: set[m.End] = set()
        self._seen: set[str] = set()

    def function(self, function: Callable[..., Any]) -> None:
        """Follow a handler of the tables; a lambda by the names it uses."""
        assert isinstance(function, FunctionType)
        if function.__name__ in _FUNCTIONS:
            self._body(_FUNCTIONS[function.__name__].body, set())
            return
        names = function.__code__.co_names
        self.ends |= {end for end in m.End if end.name in names}
        for name in names:
            self._call(name)

    def _call(self, name: str) -> None:
        if name == "_close":
            self.phases.add(Phase.CLOSED)
        elif name in _FUNCTIONS and name not in self._seen:
            self._seen.add(name)
            self._body(_FUNCTIONS[name].body, set())

    def _decide(self, test: ast.expr, false: set[str]) -> tuple[bool | None, str]:
        """Return what a condition is in this phase, and if it is open, on what alone it hangs."""
        conditions = test.values if isinstance(test, ast.BoolOp) else [test]
        if isinstance(test, ast.BoolOp) and not isinstance(test.op, ast.And):
            return None, ""
        undecided = []
        for text in map(ast.unparse, conditions):
            if text in false or (text in _DECIDED and not _DECIDED[text](self.phase)):
                return False, ""
            if text not in _DECIDED:
                undecided.append(text)
        if not undecided:
            return True, ""
        return None, undecided[0] if len(undecided) == 1 else ""

    def _body(self, statements: list[ast.stmt], false: set[str]) -> bool:
        """Follow statements, knowing what is false; True if nothing behind them is reached."""
        for statement in statements:
            if isinstance(statement, ast.If):
                decided, condition = self._decide(statement.test, false)
                if decided is None:
                    ended = self._body(statement.body, set(false))
                    if self._body(statement.orelse, false | {condition}) and ended:
                        return True
                    if ended:
                        false |= {condition}
                elif self._body(statement.body if decided else statement.orelse, false):
                    return True
                continue
            self._expressions(statement)
            if isinstance(statement, ast.Return):
                return True
        return False

    def _expressions(self, statement: ast.stmt) -> None:
        for node in ast.walk(statement):
            if isinstance(node, ast.keyword) and node.arg == "phase":
                assert isinstance(node.value, ast.Attribute)
                self.phase = Phase[node.value.attr]
                self.phases.add(self.phase)
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "m.End":
                self.ends.add(m.End[node.attr])
            elif isinstance(node, ast.Name):
                self._call(node.id)


def _leads(phase: Phase, event: type) -> _Walk:
    """Return where an event may lead from a phase."""
    handler = core._BY_PHASE[phase, event]
    walk = _Walk(phase)
    if handler is not core._bundle:
        walk.function(handler)
    elif phase is Phase.OPEN:  # in any other phase nothing is pending
        for (_, kind), step in core._BY_STEP.items():
            if kind is event:
                walk.function(step)
    return walk


def phase_diagram() -> str:
    """Draw the phases: edges by their events, endings by how they end."""
    edges: dict[tuple[Phase, Phase], list[str]] = {}
    ends: dict[Phase, set[m.End]] = {}
    for phase in Phase:
        for event in _EVENTS:
            if phase is Phase.CLOSED or (phase, event) not in core._BY_PHASE:
                continue
            walk = _leads(phase, event)
            ends.setdefault(phase, set()).update(walk.ends)
            for target in walk.phases - {phase, Phase.CLOSED}:
                edges.setdefault((phase, target), []).append(event.__name__)
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.NEW.name}"]
    order = list(Phase)
    for (phase, target), events in sorted(
        edges.items(), key=lambda edge: [order.index(one) for one in edge[0]]
    ):
        lines.append(f"    {phase.name} --> {target.name}: {', '.join(events)}")
    for phase, reached in ends.items():
        how = ", ".join(end.value for end in m.End if end in reached)
        lines.append(f"    {phase.name} --> {Phase.CLOSED.name}: {how}")
    lines.append(f"    {Phase.CLOSED.name} --> [*]")
    return _fenced("mermaid", lines)


def _handled(phase: Phase, event: type) -> str:
    handler = core._BY_PHASE.get((phase, event))
    if handler is None:
        return "illegal"
    if phase is Phase.CLOSED:
        return "ignored"
    return f"`{handler.__name__}`" if handler.__name__ in _FUNCTIONS else "taken"


def phase_table() -> str:
    """List every event against every phase."""
    rows = [[event.__name__, *(_handled(phase, event) for phase in Phase)] for event in _EVENTS]
    return _table(["event", *(phase.name for phase in Phase)], rows)


def _steps(handler: Callable[..., Any]) -> Iterator[str]:
    """Yield where a step's handler may leave its bundle."""
    for node in ast.walk(_FUNCTIONS[handler.__name__]):
        if isinstance(node, ast.keyword) and node.arg == "step":
            assert isinstance(node.value, ast.Attribute)
            yield node.value.attr
        elif isinstance(node, ast.Name) and node.id in ("_won", "_lost"):
            yield {"_won": "sealed", "_lost": "given_up"}[node.id]


def step_diagram() -> str:
    """Draw the steps of a bundle: by events, and by the two rules that move one unasked."""
    lines = [
        "stateDiagram-v2",
        f"    [*] --> {Step.CLASSIFYING.name}: {core._classify_next.__name__}",
    ]
    for (step, event), handler in core._BY_STEP.items():
        targets = dict.fromkeys(sorted(_steps(handler)))
        lines += [f"    {step.name} --> {target}: {event.__name__}" for target in targets]
    rule = core._append_oldest.__name__
    lines.append(f"    {Step.STORED.name} --> {Step.APPENDING.name}: {rule}")
    lines += ["    sealed --> [*]", "    given_up --> [*]"]
    return _fenced("mermaid", lines)


def step_table() -> str:
    """List every event about a bundle against every step."""
    events = list(dict.fromkeys(event for _, event in core._BY_STEP))
    rows = []
    for event in events:
        handlers = [core._BY_STEP.get((step, event)) for step in Step]
        rows.append(
            [event.__name__, *(f"`{found.__name__}`" if found else "illegal" for found in handlers)]
        )
    return _table(["event", *(step.name for step in Step)], rows)


def _messages(kinds: tuple[type, ...], head: str) -> str:
    rows = [[kind.__name__, (inspect.getdoc(kind) or "").splitlines()[0]] for kind in kinds]
    return _table([head, "meaning"], rows)


def instruction_table() -> str:
    """List what the core asks for, in the words of its classes."""
    return _messages(m.Instruction.__args__, "instruction")


def event_table() -> str:
    """List what the core is told, in the words of its classes."""
    return _messages(_EVENTS, "event")


def _told(pinned: Pinned) -> str:
    """Return the comment above a world's scenario; the deep ones share one and have none."""
    name = next(name for name, value in vars(worlds).items() if value is pinned.scenario)
    found = re.search(rf"((?:^#: .*\n)+)^{name} = ", inspect.getsource(worlds), re.MULTILINE)
    if found is None or name.startswith("DEEP_"):
        return ""
    return " ".join(line[3:] for line in found[1].splitlines())


def _budget(pinned: Pinned) -> str:
    scenario = pinned.scenario
    counts = {
        "lane": len(scenario.lanes),
        "fault": scenario.faults,
        "zombie": len(scenario.zombies),
        "overtaking": scenario.swaps,
        "collector": len(scenario.collectors),
        "compactor": len(scenario.compactors),
        "restore": scenario.restores,
    }
    told = [f"{n} {what}{'s' * (n > 1)}" for what, n in counts.items() if n]
    told += ["emissions put aside"] * scenario.aside + ["chunks in seals"] * scenario.inline
    return ", ".join(told)


def world_table() -> str:
    """List the worlds: what is in them, what may happen, and how many states that makes."""
    rows = [
        [
            f"`{name}`",
            _told(pinned),
            _budget(pinned),
            "`make crash`" if pinned.deep else f"{pinned.states:,}",
        ]
        for name, pinned in WORLDS.items()
    ]
    return _table(["world", "what is in it", "what may happen", "states"], rows)


def mutant_table() -> str:
    """List the mutants by the place of the rule they break."""
    places: dict[str, list[list[str]]] = {}
    for mutant in MUTANTS:
        module, _, function = mutant.edits[0].target.partition(":")
        file = f"`{module.replace('.', '/')}.py`"
        places.setdefault(file, []).append([mutant.name, f"`{function}`", f"`{mutant.world}`"])
    rows = [[file, *row] for file in sorted(places) for row in places[file]]
    return _table(["the rule stands in", "broken so", "in", "seen in world"], rows)


PARTS = {
    "instructions": instruction_table,
    "events": event_table,
    "phases": phase_diagram,
    "events by phase": phase_table,
    "steps": step_diagram,
    "events by step": step_table,
    "worlds": world_table,
    "mutants": mutant_table,
}


def rendered(page: str) -> str:
    """Return the page with every generated part as the code has it now."""
    return filled(page, PARTS)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _fenced(language: str, lines: list[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```", ""])


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
